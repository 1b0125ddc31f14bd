"""Programs whose exchanges keep order under unaligned checkpoints, beside others on which barriers overtake.

They are cut off and laid out anew by `simulation.unaligned`. Each says something that holds only if no record of such
an exchange is ever in flight in a checkpoint: a broadcast record reaches every key once, what is forwarded keeps its
order per key, and a partitioner that deals by itself loses and doubles nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from simulation.programs import Program, Record, freeze
from simulation.two_streams import RULES
from simulation.unaligned import LAYOUT, CheckOrder, CountAndTell, HoldingProcess, held, keyed

from headrace import KeyedBroadcastProcessFunction, ListStateDescriptor, StreamExecutionEnvironment
from headrace.connectors.files import FileSink
from headrace.engine.columns.records import Batch
from headrace.engine.operators.broadcast import KeyedBroadcastProcessOperator

__all__ = ["ORDERED", "dealt_by_hand", "forwarded", "rules_for_every_key"]

APPLIED = ListStateDescriptor("applied")


class HoldingBroadcastProcess(KeyedBroadcastProcessOperator):
    """Takes its time, as `HoldingProcess` does: records of both inputs wait."""

    offloads = True
    is_blocked = HoldingProcess.is_blocked

    def __init__(self, key_selector: Any, descriptors: Any, function: Any, hold_ms: int) -> None:
        super().__init__(key_selector, descriptors, function)
        self._hold_ms = hold_ms
        self._until_ms: int | None = None

    def process_batch(self, batch: Batch, input_index: int) -> None:
        super().process_batch(batch, input_index)
        if self._hold_ms:
            self._until_ms = self.context.now_ms() + self._hold_ms

    def next_processing_time(self) -> int | None:
        times = (self._until_ms, super().next_processing_time())
        return min((time for time in times if time is not None), default=None)

    def on_processing_time(self, now_ms: int) -> None:
        if self._until_ms is not None and self._until_ms <= now_ms:
            self._until_ms = None
        super().on_processing_time(now_ms)


class EveryRuleOnEveryKey(KeyedBroadcastProcessFunction):
    """A key has the rules that were known when it came, and those that came since; at the end it tells which."""

    def __init__(self, end_ms: int) -> None:
        self._end_ms = end_ms

    def open(self, runtime_context: Any) -> None:
        self.applied = runtime_context.get_list_state(APPLIED)

    def process_element(self, value: Record, ctx: Any) -> Any:
        if not list(self.applied.get()):
            known = ctx.get_broadcast_state(RULES)
            self.applied.update(["here", *(rule for rule, times in known.items() for _ in range(times))])
            ctx.timer_service().register_event_time_timer(self._end_ms)
        yield {"key": value["key"], "split": value["split"], "seq": value["seq"]}

    def process_broadcast_element(self, value: Record, ctx: Any) -> None:
        rules, rule = ctx.get_broadcast_state(RULES), (value["split"], value["seq"])
        rules.put(rule, (rules.get(rule) or 0) + 1)
        ctx.apply_to_keyed_state(APPLIED, lambda _key, applied: applied.add(rule))

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        rules = list(self.applied.get())[1:]
        yield {"key": ctx.get_current_key(), "rules": len(rules), "different": len(set(rules))}


def rules_for_every_key(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """A broadcast record that reaches keyed state, beside keyed records that barriers overtake."""
    first_ms, second_ms = rng.choice((0, 5, 15)), rng.choice((5, 15, 40))
    rows = [row for rows in splits for row in rows]
    end_ms = max((row["ts"] for row in rows), default=0)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        rules = source(env).filter(lambda row: row["seq"] % 4 == 0).set_parallelism(LAYOUT[2]).broadcast(RULES)
        stream = source(env).key_by(lambda row: row["key"])
        operator = HoldingBroadcastProcess(stream.key_selector, (RULES,), EveryRuleOnEveryKey(end_ms), first_ms)
        told = stream.transform("rules", operator, others=(rules.stream,)).set_parallelism(LAYOUT[1])
        held(told, second_ms, LAYOUT[1]).sink_to(FileSink.json_lines(path)).set_parallelism(LAYOUT[3])

    num_rules = sum(row["seq"] % 4 == 0 for row in rows)
    expected = Counter(freeze({name: row[name] for name in ("key", "split", "seq")}) for row in rows)
    for key in {row["key"] for row in rows}:
        expected[freeze({"key": key, "rules": num_rules, "different": num_rules})] += 1
    return Program(f"rules_for_every_key/{first_ms}/{second_ms}", build, expected)


def forwarded(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """What is forwarded between two operators by key keeps its order per key, however it is laid out anew."""
    hold_ms = rng.choice((15, 40, 80))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        counted = keyed(source(env), CountAndTell(), 0, LAYOUT[1])
        forward = held(counted.forward(), hold_ms, LAYOUT[1]).start_new_chain()
        checked = keyed(forward, CheckOrder(), 0, LAYOUT[2])
        checked.sink_to(FileSink.json_lines(path)).set_parallelism(LAYOUT[3])

    totals = Counter(row["key"] for rows in splits for row in rows)
    expected = Counter(
        freeze({"key": key, "n": n, "seen": n}) for key, total in totals.items() for n in range(1, total + 1)
    )
    return Program(f"forwarded/{hold_ms}", build, expected)


class DealInTurn:
    """A partitioner that goes by what it has dealt, not by the record: asked again, it answers otherwise."""

    def __init__(self) -> None:
        self._dealt = 0

    def __call__(self, _key: Any, num_channels: int) -> int:
        self._dealt += 1
        return self._dealt % num_channels


def dealt_by_hand(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """A custom partitioner and a rescale, one behind the other."""
    hold_ms = rng.choice((5, 15, 40))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        stream = source(env).partition_custom(DealInTurn(), lambda row: row["key"])
        stream = held(stream, hold_ms, LAYOUT[1]).rescale()
        stream = held(stream, hold_ms // 2, LAYOUT[2])
        stream.sink_to(FileSink.json_lines(path)).set_parallelism(LAYOUT[3])

    expected = Counter(freeze(row) for rows in splits for row in rows)
    return Program(f"dealt_by_hand/{hold_ms}", build, expected)


ORDERED = (rules_for_every_key, rules_for_every_key, forwarded, dealt_by_hand)
