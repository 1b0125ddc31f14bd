"""What heavy records and skewed keys hold in memory: whether that follows the length of the stream, or is flat.

* ``heavy``: records of 10 MB from a source, behind a shuffle, through a process function into Parquet files, with
  checkpoints; beside it the same bytes as records of 10 kB.
* ``process``, ``aggregate``, ``columns``: windows with 100,000 records of one key each, for a process window function,
  an aggregate function on rows and built-in aggregates on columns; beside it the same records with 1,000 keys. On the
  heap and in RocksDB.

Each run is a process of its own, and another one looks at its memory: how much the largest process of those that run
operators has grown since the first record was made, and how many records were made and had not come to the function.
Each is run with a short and with a long stream; flat is what does not follow its length. The most that was held is a
matter of what happens to meet (two windows, a checkpoint, the copies of one that fires), which is more in a longer
stream; the least that was held in its second, third and last quarter does not hide what is never given back.

The two subtasks of the source of windows are aligned: one that runs ahead of the other fills windows that cannot fire.
Databases have 128 MB a slot: else they would take what they may, a part of the machine's memory.

    python tests/bench/memory_of_steps.py [CASE ...] [--system local] [--records 30] [--windows 3] [--times 4]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from measure import DiscardSink, describe_machine

from headrace import (
    AggregateFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
    RocksDBStateBackend,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
    last,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink

cloudpickle.register_pickle_by_value(sys.modules[__name__])

HEAVY_BYTES, LIGHT_BYTES = 10_000_000, 10_000
WINDOW_ROWS = 100_000
KEYS_BESIDE = 1_000
MANAGED_BYTES = 128 << 20
LOOK_S = 0.02
MADE, PROCESSED = 1, 2
"""What the byte of a record is set to in the file of marks."""

Marks = npt.NDArray[np.uint8]


class Marked:
    """The file of marks: a byte for each record, which each process maps when it needs it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._marks: Marks | None = None

    def __getstate__(self) -> Any:
        return {**self.__dict__, "_marks": None}

    @property
    def marks(self) -> Marks:
        if self._marks is None:
            self._marks = np.memmap(self._path, np.uint8, "r+")
        return self._marks


class Make(Marked):
    """Makes a record of so many bytes, in 997 keys."""

    def __init__(self, path: str, num_bytes: int) -> None:
        super().__init__(path)
        self._num_bytes = num_bytes

    def __call__(self, number: int) -> dict[str, Any]:
        self.marks[number] = MADE
        return {"v": number, "p": os.urandom(64) * (self._num_bytes // 64)}


class Pass(KeyedProcessFunction, Marked):
    """Passes records on."""

    def process_element(self, value: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.marks[value["v"]] = PROCESSED
        yield value


def heavy(env: StreamExecutionEnvironment, path: str, num_records: int, directory: str, *, is_usual: bool) -> None:
    """Records of 10 MB, or as many bytes in usual ones."""
    num_bytes = LIGHT_BYTES if is_usual else HEAVY_BYTES
    records = env.from_source(GeneratorSource(Make(path, num_bytes), num_records), None, "records")
    passed = records.key_by(lambda row: row["v"] % 997).process(Pass(path))
    passed.sink_to(FileSink.parquet(f"{directory}/out", schema=pa.schema([("v", pa.int64()), ("p", pa.binary())])))


class MakeRow(Marked):
    """Makes a record of 200 bytes and more, of one key or many, at its number's time."""

    def __init__(self, path: str, num_keys: int) -> None:
        super().__init__(path)
        self._num_keys = num_keys

    def __call__(self, number: int) -> dict[str, Any]:
        self.marks[number] = MADE
        return {"k": number % self._num_keys, "t": number, "p": f"{number:0200d}"}


class MakeRows(MakeRow):
    """The same as columns."""

    def __call__(self, start: int, length: int | None = None) -> Any:
        assert length is not None
        self.marks[start : start + length] = MADE
        numbers = np.arange(start, start + length)
        texts = [f"{number:0200d}" for number in numbers]
        return pa.record_batch({"k": numbers % self._num_keys, "t": numbers, "p": texts})


class CountElements(ProcessWindowFunction, Marked):
    """How many records a window has."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> list[Any]:
        num_rows = 0
        for row in elements:
            self.marks[row["t"]] = PROCESSED
            num_rows += 1
        return [(key, num_rows)]


class CountEach(AggregateFunction, Marked):
    """The same, record by record."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        self.marks[value["t"]] = PROCESSED
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


def windows_of(kind: str) -> Callable[..., None]:
    """Windows of one key, or of many."""

    def build(env: StreamExecutionEnvironment, path: str, num_records: int, _folder: str, *, is_usual: bool) -> None:
        num_keys = KEYS_BESIDE if is_usual else 1
        is_columnar = kind == "columns"
        make = GeneratorSource.batches(MakeRows(path, num_keys), num_records, batch_size=10_000)
        if not is_columnar:
            make = GeneratorSource(MakeRow(path, num_keys), num_records)
        times = WatermarkStrategy.for_bounded_out_of_orderness("5 s").with_timestamp_assigner("t")
        times = times.with_watermark_alignment("rows", "50 s", "100 ms")
        windows = env.from_source(make, times, "rows").key_by("k").window(TumblingEventTimeWindows.of(WINDOW_ROWS))
        if kind == "process":
            windows.process(CountElements(path)).sink_to(DiscardSink())
        elif kind == "aggregate":
            windows.aggregate(CountEach(path)).sink_to(DiscardSink())
        else:
            windows.aggregate(n=count(), latest=last("t")).sink_to(DiscardSink())

    return build


CASES: dict[str, Callable[..., None]] = {
    "heavy": heavy,
    **{kind: windows_of(kind) for kind in ("process", "aggregate", "columns")},
}


def measure(case: str, system: str, backend: str, is_usual: bool, path: str, num_records: int) -> None:
    """Run a case; in a process of its own."""
    with (
        tempfile.TemporaryDirectory() as directory,
        StreamExecutionEnvironment.get_execution_environment(system) as env,
    ):
        env.set_parallelism(2)
        env.set_state_backend(RocksDBStateBackend(MANAGED_BYTES) if backend == "rocksdb" else backend)
        env.enable_checkpointing(500, directory=f"{directory}/checkpoints")
        CASES[case](env, path, num_records, directory, is_usual=is_usual)
        client = env.execute_async("memory")
        client.result(timeout=600)
        print(client.view().checkpoints_completed)


def memory_of(pid: int) -> int:
    """Anonymous memory of the largest process of this tree that runs operators, in bytes."""
    sizes = [0]
    for process in (pid, *descendants(pid)):
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue  # it has ended
        told = dict(line.split(":", 1) for line in lines)
        if process == pid or "RayHost" in told["Name"]:
            sizes.append(int(told.get("RssAnon", "0").split()[0]) << 10)
    return max(sizes)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in path.read_text().split()]
        except OSError:
            continue
        found += [*children, *(other for child in children for other in descendants(child))]
    return found


def show(case: str, system: str, backend: str, is_usual: bool, num_records: int) -> None:
    """Run a case in a process of its own, and look at it."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(num_records)
        marks: Marks = np.memmap(file.name, np.uint8, "r")
        options = ["--measure", case, system, backend, str(int(is_usual)), file.name, str(num_records)]
        run = subprocess.Popen([sys.executable, __file__, *options], stdout=subprocess.PIPE, text=True)
        before = peak = in_flight = 0
        least = [1 << 60] * 4
        started = time.perf_counter()
        while run.poll() is None:
            now = memory_of(run.pid)
            is_made = marks == MADE
            if not marks.any():
                before, started = now, time.perf_counter()
            peak, in_flight = max(peak, now), max(in_flight, int(np.count_nonzero(is_made)))
            num_made = int(np.count_nonzero(marks))
            if num_made < num_records:
                quarter = 4 * num_made // num_records
                least[quarter] = min(least[quarter], now)
            time.sleep(LOOK_S)
        seconds = time.perf_counter() - started
        said = run.stdout.read().split() if run.stdout else []
        if run.returncode or not said:
            sys.exit(f"{case} on {system} has failed")
        del marks
    held = "-" if case in ("process", "columns") else f"{in_flight:,}"
    floors = "-".join(str(max(now - before, 0) >> 20) for now in least[1:])
    what = ("10 kB" if is_usual else "10 MB") if case == "heavy" else ("1,000 keys" if is_usual else "one key")
    print(
        f"{case:9} {system:6} {backend:8} {what:11} {num_records:10,d} {(peak - before) >> 20:10d} {held:>10} "
        f"{floors:>14} {said[-1]:>12} {seconds:8.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all if none is named")
    parser.add_argument("--system", default="local", help="local or ray")
    parser.add_argument("--backends", default="heap,rocksdb")
    parser.add_argument("--records", type=int, default=30, help="of 10 MB, in the short stream")
    parser.add_argument("--windows", type=int, default=3, help="of 100,000 records, in the short stream")
    parser.add_argument("--times", type=int, default=4, help="how much longer the long stream is")
    parser.add_argument("--alone", action="store_true", help="without the usual records beside")
    parser.add_argument("--measure", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        case, system, backend, is_usual, path, num_records = options.measure
        measure(case, system, backend, is_usual == "1", path, int(num_records))
        return
    print(describe_machine())
    print(
        "case      system backend  records of      number  growth MB  in flight  least MB      checkpoints  seconds",
        flush=True,
    )
    for case in options.cases or CASES:
        for backend in ("heap",) if case == "heavy" else options.backends.split(","):
            for is_usual in (False,) if options.alone else (True, False):
                for times in (1, options.times):
                    num_records = options.windows * WINDOW_ROWS * times
                    if case == "heavy":
                        num_records = options.records * times * (HEAVY_BYTES // LIGHT_BYTES if is_usual else 1)
                    show(case, options.system, backend, is_usual, num_records)


if __name__ == "__main__":
    main()
