"""What a failure costs a batch, and what results kept on disk would cost every batch instead.

``python tests/bench/batch_replay.py`` runs one program, in this process: a source, an exchange by key, a sum. Then
again with a failure when half of the input, or all of it, has been sorted: the region starts over, which is the whole
job. Beside that: the time to pickle, write and read once all that crosses the exchange, as blocking exchanges would
even where nothing fails; a consumer that fails would then start over alone.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import DiscardSink, describe_machine

from headrace import KeyedProcessFunction, RuntimeExecutionMode, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.columns.records import Batch
from headrace.state.files.spilling import SpillFile

NUM_KEYS = 10_007
BATCH_ROWS = 8_192


def make_row(index: int) -> dict[str, int]:
    return {"key": index * 7_919 % NUM_KEYS, "value": index}


class Failing(KeyedProcessFunction):  # type: ignore[type-arg]
    """Counts; the first time that so many records have come it fails."""

    def __init__(self, after: int | None, mark: Path) -> None:
        self.after, self.mark = after, mark

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))
        self.num_seen = 0

    def process_element(self, value: dict[str, int], context: Any) -> Any:
        self.num_seen += 1
        if self.num_seen == self.after and not self.mark.exists():
            self.mark.write_text("")
            message = "a passing failure"
            raise OSError(message)
        self.count.update(self.count.value() + value["value"])
        yield value["key"], self.count.value()


def seconds_of(num_rows: int, after: int | None) -> float:
    with (
        tempfile.TemporaryDirectory() as folder,
        StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env,
    ):
        env.set_runtime_mode(RuntimeExecutionMode.BATCH)
        stream = env.from_source(GeneratorSource(make_row, count=num_rows, number_of_splits=1), None, "rows")
        counted = stream.key_by(lambda row: row["key"]).process(Failing(after, Path(folder) / "failed"))
        counted.sink_to(DiscardSink())
        started = time.perf_counter()
        env.execute("replay")
        return time.perf_counter() - started


def seconds_on_disk(num_rows: int) -> float:
    """To pickle, write, read and unpickle all records once."""
    file = SpillFile()
    batches = [
        Batch.of_rows([make_row(index) for index in range(first, min(first + BATCH_ROWS, num_rows))])
        for first in range(0, num_rows, BATCH_ROWS)
    ]
    started = time.perf_counter()
    places = [file.write(pickle.dumps(batch, protocol=5)) for batch in batches]
    for place in places:
        assert pickle.loads(file.read(place)).rows
    taken = time.perf_counter() - started
    file.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3, help="of which the fastest counts")
    options = parser.parse_args()
    num_rows, repeats = options.rows, range(options.repeats)
    print(describe_machine())
    seconds_of(1_000, None)  # imports
    plain = min(seconds_of(num_rows, None) for _ in repeats)
    print(f"{num_rows:,} rows without a failure: {plain:.2f} s", flush=True)
    for name, after in (("half", num_rows // 2), ("all", num_rows)):
        failed = min(seconds_of(num_rows, after) for _ in repeats)
        print(f"a failure when {name} of the input has been worked off: {failed:.2f} s, {failed / plain:.2f} of that")
    on_disk = min(seconds_on_disk(num_rows) for _ in repeats)
    print(f"all that is exchanged, written and read once: {on_disk:.2f} s, {on_disk / plain:.2f} of a run, each time")


if __name__ == "__main__":
    main()
