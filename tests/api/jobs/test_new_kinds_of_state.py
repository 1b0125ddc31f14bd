"""Kinds of state that only a test has, in jobs: asked for, saved, opened as data, edited, restored and rescaled.

Families: oracle (what plain Python holds of the same records), end to end on both backends.
"""

from __future__ import annotations

from collections import Counter as Counts

import pyarrow as pa
import pytest
from new_kinds import BagDescriptor, CounterDescriptor
from snapshot_programs import environment

from headrace import KeyedProcessFunction, Snapshot
from headrace.cli.main import main
from headrace.connectors.scripted import Pause, ScriptedSource

RECORDS = [(f"key-{n % 7}", "abc"[n * n % 3]) for n in range(70)]
KEYS = sorted({key for key, _ in RECORDS})
DAY_MS = 86_400_000


class Holding(KeyedProcessFunction):
    """Counts records, and elements; a record without an element is a question for both."""

    def open(self, context):
        count = CounterDescriptor("count", int, queryable="count")
        bag = BagDescriptor("bag", int, most=5, element_type=str, ttl=DAY_MS, queryable="bag")
        self.count, self.bag = context.get_partitioned_state(count), context.get_partitioned_state(bag)

    def process_element(self, value, context):
        key, element = value
        if element is None:
            yield key, self.count.value(), sorted(self.bag.items())
            return
        self.count.increment()
        self.bag.add(element)


def answers(env, script):
    source = ScriptedSource([*script, Pause()], is_bounded=False)
    stream = env.from_source(source, source_name="records").uid("records").key_by(lambda value: value[0])
    stream.as_queryable_state("seen", CounterDescriptor("seen", int)).uid("seen")
    return stream.process(Holding()).uid("holding").execute_and_collect("holding")


def held_of(records):
    """What plain Python holds: per key, how many records and how often each element."""
    return {
        key: (len(own), sorted(Counts(own).items())) for key in KEYS if (own := [e for k, e in records if k == key])
    }


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_new_kinds_go_all_the_way(tmp_path, backend, capsys, monkeypatch):
    expected = held_of(RECORDS)
    with environment(tmp_path, backend, 2) as env:
        rows = answers(env, [*RECORDS, *((key, None) for key in KEYS)])
        found = sorted(next(rows) for _ in KEYS)
        assert found == [(key, *expected[key]) for key in KEYS]
        client = rows._client
        for consistency in ("live", "checkpoint"):
            done = client.view().checkpoints_completed
            for view in client.views():
                if view.checkpoints_completed >= done + 2:
                    break
            asked = [*KEYS, "nobody"]
            count, bag, seen = (
                client.query_state(operator, state, asked, consistency=consistency, timeout=30)["value"].to_pylist()
                for operator, state in (("holding", "count"), ("holding", "bag"), ("seen", "seen"))
            )
            assert count == [*(expected[key][0] for key in KEYS), None]
            assert [sorted(entries or ()) for entries in bag] == [*(expected[key][1] for key in KEYS), []]
            assert seen == [*(expected[key][0] + 1 for key in KEYS), None], "the questions count, too"
        path = rows.stop()
    with Snapshot.open(path) as snapshot:
        kinds = {state.name: (state.kind, state.num_entries) for state in snapshot.states("holding", look=True)}
        kinds = {name: kinds[name] for name in ("count", "bag")}
        assert kinds == {"count": ("counter", 7), "bag": ("bag", sum(len(bag) for _, bag in expected.values()))}
        bags = snapshot.read("holding", "bag")
        assert bags.column_names == [
            "key", "map_key", "value", "updated_at", "expires_at", "key_group", "subtask",
        ]  # fmt: skip
        rows_of_bags = zip(*(bags[name].to_pylist() for name in ("key", "map_key", "value")), strict=True)
        assert sorted(rows_of_bags) == sorted((key, *entry) for key, (_, bag) in expected.items() for entry in bag)
        counts = snapshot.read("holding", "count").select(["key", "value"])
        assert sorted(counts.to_pylist(), key=lambda row: row["key"]) == [
            {"key": key, "value": expected[key][0]} for key in KEYS
        ]
        # Ten more of everybody, and everybody but the first has another element.
        more = counts.set_column(1, "value", pa.array([count + 10 for count in counts["value"].to_pylist()]))
        added = pa.table({"key": [*bags["key"].to_pylist(), *KEYS[1:]],
                          "map_key": [*bags["map_key"].to_pylist(), *("z" for _ in KEYS[1:])],
                          "value": [*bags["value"].to_pylist(), *(5 for _ in KEYS[1:])]})  # fmt: skip
        edited = (
            snapshot.edit()
            .with_keyed_state("holding", CounterDescriptor("count", int), more)
            .with_keyed_state("holding", "bag", added)
            .write(tmp_path / "edited")
        )
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["state", "ls", str(edited), "--count"]) == 0
    shown = capsys.readouterr().out
    assert "counter" in shown
    assert "string -> int64" in shown
    monkeypatch.setenv("HEADRACE_RESTORE_FROM", str(edited))
    monkeypatch.setenv("HEADRACE_ALLOW_NON_RESTORED_STATE", "1")
    with environment(tmp_path, backend, 3) as env:
        source = ScriptedSource([("key-0", "a"), *((key, None) for key in KEYS), Pause()], is_bounded=False)
        stream = env.from_source(source, source_name="more").uid("more").key_by(lambda value: value[0])
        rows = stream.process(Holding()).uid("holding").execute_and_collect("again")
        found = sorted(next(rows) for _ in KEYS)
        rows.close()
    for key, count, bag in found:
        was = expected[key]
        extra = Counts(dict(was[1])) + Counts({"a": 1} if key == KEYS[0] else {"z": 5})
        assert (count, bag) == (was[0] + 10 + (key == KEYS[0]), sorted(extra.items()))
