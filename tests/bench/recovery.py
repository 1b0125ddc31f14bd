"""Recovery with state: ``python tests/bench/recovery.py --state-mb 1000 --kills 5``.

A keyed function on Ray holds about so much state in RocksDB (a value of 1 kB per key, which does not compress). Once
all of it is there and in a checkpoint, slots are killed with signal 9, one after the other, each after new
checkpoints. Measured is the time from each signal to the first file that the new attempt has committed: detection,
restart, copying and verifying the state, replay, and the next checkpoint. Beside it: how long plain copying of the same
bytes takes, with their SHA-256, which no recovery from files can do without.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "actors"))

import kill_soak
from kill_soak import Reader, Victim, living_hosts, recoveries

from headrace import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink

VALUE_BYTES = 1_000
RATE = 40_000
SECONDS_PER_KILL = 12


class Remember(KeyedProcessFunction):
    """Keeps the newest value of each key; tells of every hundredth one once all keys are there."""

    def __init__(self, num_keys: int) -> None:
        self._num_keys = num_keys

    def open(self, runtime_context: Any) -> None:
        self._value = runtime_context.get_state(ValueStateDescriptor("value", bytes))

    def process_element(self, value: int, ctx: Any) -> Iterator[dict[str, int]]:
        self._value.update(random.Random(value).randbytes(VALUE_BYTES))
        if value >= self._num_keys and value % 100 == 0:
            yield {"index": value}


def plain_copy_s(directory: Path) -> tuple[float, float]:
    """Copy and hash all files of a directory in which a job deletes old ones; gives megabytes and seconds."""
    started, size = time.monotonic(), 0
    with tempfile.TemporaryFile() as target:
        for folder, _, names in os.walk(directory):  # passes over a folder that is deleted while it goes
            for name in names:
                try:
                    data = Path(folder, name).read_bytes()
                except FileNotFoundError:
                    continue
                hashlib.sha256(data).digest()
                target.write(data)
                size += len(data)
    return size / 1e6, time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-mb", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--backend", choices=("heap", "rocksdb"), default="rocksdb")
    options = parser.parse_args()
    cloudpickle.register_pickle_by_value(kill_soak)
    num_keys = options.state_mb * 1_000_000 // VALUE_BYTES
    num_records = num_keys + RATE * SECONDS_PER_KILL * options.kills
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        env = StreamExecutionEnvironment.get_execution_environment(actor_system="ray", parallelism=2)
        env.set_state_backend(options.backend)
        env.enable_checkpointing(500, directory=str(directory / "checkpoints"))
        source = GeneratorSource(lambda index: index, count=num_records, records_per_second=RATE)
        keyed = env.from_source(source, None, "numbers").key_by(lambda index: index % num_keys)
        keyed.process(Remember(num_keys)).sink_to(FileSink.json_lines(str(directory / "out")))
        reader, killed = Reader(directory / "out"), []
        reader.start()
        client = env.execute_async("recovery")
        next_kill, size_mb, copy_s = None, 0.0, 0.0
        for view in client.views():
            if not reader.appeared:  # still loading
                continue
            next_kill = view.checkpoints_completed + 2 if next_kill is None else next_kill
            if view.checkpoints_completed >= next_kill and view.state == "RUNNING" and len(killed) < options.kills:
                if not killed:
                    size_mb, copy_s = plain_copy_s(directory / "checkpoints")
                slots = sorted((host, pid) for host, pid in living_hosts().items() if "-slot-" in host)
                os.kill(slots[len(killed) % len(slots)][1], signal.SIGKILL)
                killed.append(Victim("slot", time.monotonic()))
                next_kill = view.checkpoints_completed + 4
        client.result(timeout=120)
        reader.done.set()
        reader.join()
        env.close()
    print(f"state in the last checkpoints: {size_mb:.0f} MB; copied and hashed by one plain process: {copy_s:.2f} s")
    print(f"kills: {len(killed)}, restarts: {view.num_restarts}")
    for name, value in recoveries(killed, reader).items():
        print(f"{name}: {value:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
