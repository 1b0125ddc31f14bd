"""Counts through how many files and calls things travel: a record, a barrier, a request for slots.

``python tests/bench/trips.py`` runs a program of two tasks on the local actor system, with a profiler between two
moments that user functions see: a record from the function that gives it, over a shuffle, to the function that gets it;
a barrier from the snapshot of one task to that of the next; slots from the submission to the first function that is
opened. It counts calls of functions of ours, returns into functions that had been called before, and the files of both.
Calls that wait in other threads are not in it.
"""

from __future__ import annotations

import sys
import tempfile
from types import FrameType
from typing import Any

from headrace import CheckpointedFunction, MapFunction, StreamExecutionEnvironment


class Trip:
    """What happens between two moments."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.num_calls = self.num_returns = 0
        self.is_over = False

    def begin(self) -> None:
        if not self.is_over:
            sys.setprofile(self._see)

    def end(self) -> None:
        sys.setprofile(None)
        self.is_over = True

    def _see(self, frame: FrameType, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if event in ("call", "return") and "headrace" in path.split("/") and frame.f_code.co_name != "<module>":
            self.files.add(path)
            self.num_calls += event == "call"
            self.num_returns += event == "return"

    def __str__(self) -> str:
        return f"{len(self.files)} files, {self.num_calls} calls, {self.num_returns} returns"


RECORD, BARRIER, SLOTS = Trip(), Trip(), Trip()


class First(MapFunction, CheckpointedFunction):
    def open(self, context: Any) -> None:
        SLOTS.end()

    def map(self, value: int) -> int:
        if value == 1:
            RECORD.begin()
        return value

    def initialize_state(self, context: Any) -> None:
        pass

    def snapshot_state(self, context: Any) -> None:
        BARRIER.begin()


class Second(First):
    def open(self, context: Any) -> None:
        pass

    def map(self, value: int) -> int:
        if value == 1:
            RECORD.end()
        return value

    def snapshot_state(self, context: Any) -> None:
        BARRIER.end()


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment("local")
    env.set_parallelism(1)
    env.set_buffer_timeout(0)
    env.from_collection([1]).map(First()).rebalance().map(Second()).print()
    with tempfile.TemporaryDirectory() as directory:
        env.enable_checkpointing(60_000, directory=directory)  # the one at the end is all that is taken
        SLOTS.begin()
        env.execute("trips")
    print(f"a record: {RECORD}\na barrier: {BARRIER}\nslots: {SLOTS}")


if __name__ == "__main__":
    main()
