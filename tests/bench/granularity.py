"""How long anything waits for records that cost 5 ms each.

``python tests/bench/granularity.py [CASE ...]``. All cases have a function that takes 5 ms for each record of a
source that is far faster: chained to the source, behind a shuffle, for rows and for columns, and behind another,
fast function, with aligned checkpoints by default, with a shorter target of debloating, and unaligned. They print how
long the first record took to the next task, all checkpoints, and the cancellation. What heavy records hold in memory
shows ``memory_of_steps.py``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import DiscardSink, describe_machine

from headrace import MapFunction, StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource

COST_S = 0.005
ACTOR_SYSTEM = "ray"
Build = Callable[[StreamExecutionEnvironment], Any]


def stamped(number: int) -> dict[str, Any]:
    return {"v": number, "p": "x" * 1_000, "made": time.time()}


def slowly(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(COST_S)
    return row


def chained(env: StreamExecutionEnvironment) -> Any:
    return env.from_source(GeneratorSource(stamped), None, "numbers").map(slowly)


def shuffled(env: StreamExecutionEnvironment) -> Any:
    numbers = env.from_source(GeneratorSource(stamped), None, "numbers")
    return numbers.key_by(lambda row: row["v"] % 100).map(slowly)


def behind_a_fast_one(env: StreamExecutionEnvironment) -> Any:
    numbers = env.from_source(GeneratorSource(stamped), None, "numbers")
    return numbers.rebalance().map(lambda row: row).rebalance().map(slowly)


def slowly_by_columns(batch: Any) -> Any:
    time.sleep(COST_S * batch.num_rows)
    return batch


def shuffled_columns(env: StreamExecutionEnvironment) -> Any:
    numbers = env.from_source(GeneratorSource(stamped), None, "numbers")
    return numbers.rebalance().map_batches(slowly_by_columns)


class NoteFirst(MapFunction):
    """Writes down how long the first record was on its way."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def open(self, runtime_context: Any) -> None:
        self._path: Path | None = Path(self._directory) / f"first-{runtime_context.get_index_of_this_subtask()}"

    def map(self, row: dict[str, Any]) -> dict[str, Any]:
        if self._path is not None:
            self._path.write_text(repr(time.time() - row["made"]))
            self._path = None
        return row


def environment() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment(ACTOR_SYSTEM)


def show_waiting(
    name: str, build: Build, for_s: float, *, is_unaligned: bool = False, target: str | None = None
) -> None:
    with tempfile.TemporaryDirectory() as directory, environment() as env:
        env.set_parallelism(2)
        env.enable_checkpointing(500, directory=directory)
        if is_unaligned:
            env.get_checkpoint_config().enable_unaligned_checkpoints()
        if target is not None:
            env.set_buffer_debloating(target=target)
        build(env).map(NoteFirst(directory)).start_new_chain().sink_to(DiscardSink())
        client = env.execute_async("granularity")
        started = time.monotonic()
        checkpoints: dict[int, float] = {}
        for view in client.views():
            if view.last_checkpoint_ms is not None:
                checkpoints[view.checkpoints_completed] = view.last_checkpoint_ms
            if not any(vertex.records_in for vertex in view.vertices):
                started = time.monotonic()
            if time.monotonic() - started > for_s:
                break
        asked = time.monotonic()
        client.cancel()
        canceled_ms = 1_000 * (time.monotonic() - asked)
        firsts = [1_000 * float(path.read_text()) for path in Path(directory).glob("first-*")]
    took = ", ".join(f"{ms:.0f}" for _, ms in sorted(checkpoints.items())) or "none"
    print(f"{name}: first results after {sorted(round(ms) for ms in firsts)} ms; checkpoints {took} ms; ", end="")
    print(f"canceled in {canceled_ms:.0f} ms", flush=True)


CASES: dict[str, Callable[[float], None]] = {
    "chained": lambda s: show_waiting("chained to the source", chained, s),
    "aligned": lambda s: show_waiting("behind a shuffle, aligned", shuffled, s),
    "behind": lambda s: show_waiting("behind a fast function and two exchanges, aligned", behind_a_fast_one, s),
    "columns": lambda s: show_waiting("columns behind a shuffle, aligned", shuffled_columns, s),
    "short": lambda s: show_waiting("behind a shuffle, aligned, target 50 ms", shuffled, s, target="50 ms"),
    "unaligned": lambda s: show_waiting("behind a shuffle, unaligned", shuffled, s, is_unaligned=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all if none is named")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each case runs")
    parser.add_argument("--local", action="store_true", help="all in this process instead of on Ray")
    options = parser.parse_args()
    if options.local:
        global ACTOR_SYSTEM
        ACTOR_SYSTEM = "local"
    print(describe_machine())
    for case in options.cases or CASES:
        CASES[case](options.seconds)


if __name__ == "__main__":
    main()
