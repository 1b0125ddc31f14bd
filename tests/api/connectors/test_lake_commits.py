"""Sinks of table formats under rivals, changes of the table, and by key.

Families: race (rival committers in every order), mutation (a look outside the retries is caught), refusals (tables that
were dropped or changed), differential (changes by key against a dictionary).
"""

from __future__ import annotations

import itertools
import json
import random

import pyarrow as pa
import pytest
from lake_tables import FORMATS, DeltaTables, IcebergTables

from headrace.connectors.lake.committing import LakeCommitter
from headrace.connectors.lake.contract import CommitConflictError
from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import CommitterContext, SinkHistory
from headrace.engine.connectors.sink_protocols import GlobalCommittable
from headrace.engine.errors import (
    ConfigurationError,
    PossibleLossError,
    SinkError,
    SinkFencedError,
    TypeMismatchError,
)
from headrace.testing.sinks.harness import SinkTestHarness

NUMBERS = pa.schema([("n", pa.int64())])
ORIGIN = "0" * 12


@pytest.fixture(params=FORMATS)
def tables(request, tmp_path):
    return request.param(tmp_path)


def context(attempt="1.0", *, restored=False):
    history = SinkHistory(ORIGIN, ORIGIN, {ORIGIN: 9} if restored else {}, restored)
    return CommitterContext("job", "sink", "sink", 0, 1, attempt, lambda: 0, lambda *_: None, history)


def prepared(tables, numbers, checkpoint_id=1):
    """A committable with real files, out of a writer."""
    harness = SinkTestHarness(tables.sink(), job=f"writes {checkpoint_id}")
    harness.start()
    harness.write([{"n": n} for n in numbers])
    [writer, _] = harness.operators
    return GlobalCommittable(ORIGIN, "1.0", checkpoint_id, tuple(writer._prepare(checkpoint_id)))


class Interrupted:
    """Access to a table that lets something happen between a look and what is made of it, once."""

    def __init__(self, access, happens):
        self._access, self._happens = access, happens

    def __getattr__(self, name):
        return getattr(self._access, name)

    def look(self):
        view = self._access.look()
        happens, self._happens = self._happens, lambda: None
        happens()
        return view


def interrupted(committer, happens):
    committer._access = Interrupted(committer._access, happens)
    return committer


class LooksOnce(LakeCommitter):
    """Asks once whether a checkpoint is committed, and then tries until it is: the mistake of other sinks."""

    def _until_committed(self, what, attempt):
        view = self._access.look()
        while True:
            try:
                self._ledger = attempt(view)
                return
            except CommitConflictError:
                has, view = view.has, self._access.look()
                view.has = has


def two_committers(tables, kind=LakeCommitter):
    made = []
    for _ in range(2):
        committer = kind(tables.access(), ())
        committer.open(context())
        made.append(committer)
    return made


def test_two_committers_of_one_checkpoint_commit_it_once(tables):
    tables.make(NUMBERS)
    whole = prepared(tables, [1, 2])
    first, second = two_committers(tables)
    interrupted(first, lambda: second.commit(whole)).commit(whole)
    first.commit(whole)
    assert sorted(tables.rows().column("n").to_pylist()) == [1, 2]
    assert tables.num_commits() == 1


def test_a_look_outside_the_retries_is_caught(tables):
    tables.make(NUMBERS)
    whole = prepared(tables, [1, 2])
    first, second = two_committers(tables, LooksOnce)
    interrupted(first, lambda: second.commit(whole)).commit(whole)
    # A file of one name is in a Delta table once, however often it is added; it has the commit twice all the same.
    doubled = [1, 1, 2, 2] if tables.counts_files_twice else [1, 2]
    assert sorted(tables.rows().column("n").to_pylist()) == doubled
    assert tables.num_commits() == 2


def test_others_may_write_at_the_same_time(tables):
    tables.make(NUMBERS)
    whole = prepared(tables, [1, 2])
    first, _ = two_committers(tables)
    interrupted(first, lambda: tables.append(pa.table({"n": [3]}))).commit(whole)
    assert sorted(tables.rows().column("n").to_pylist()) == [1, 2, 3]


def test_a_commit_under_way_while_the_table_is_taken_over_adds_nothing(tables):
    tables.make(NUMBERS)
    whole = prepared(tables, [1, 2])
    first, second = LakeCommitter(tables.access(), ()), LakeCommitter(tables.access(), ())
    first.open(context())
    with pytest.raises(SinkFencedError, match="has taken the table over"):
        interrupted(first, lambda: second.open(context("1.1", restored=True))).commit(whole)
    assert tables.rows().num_rows == 0
    with pytest.raises(SinkFencedError, match="newer attempt"):
        first.open(context(restored=True))
    second.commit(whole)
    assert sorted(tables.rows().column("n").to_pylist()) == [1, 2]


def test_a_table_that_was_dropped_or_replaced_is_named(tables):
    tables.make(NUMBERS)
    whole = prepared(tables, [1, 2])
    first, _ = two_committers(tables)
    tables.drop()
    with pytest.raises(SinkError, match="there is no"):
        first.commit(whole)
    tables.make(NUMBERS)
    with pytest.raises(PossibleLossError, match="dropped or replaced"):
        first.commit(whole)


def test_files_that_are_gone_are_a_loss(tables):
    tables.make(NUMBERS)
    whole = prepared(tables, [1, 2])
    first, _ = two_committers(tables)
    view = tables.access().look()
    view.delete_output(whole.committables[0]["name"], "")
    with pytest.raises(PossibleLossError, match="gone"):
        first.commit(whole)


def without_properties(tables):
    """As ALTER TABLE ... UNSET TBLPROPERTIES does, which the library does not have."""
    log = tables.directory / "numbers" / "_delta_log"
    actions = [json.loads(line) for file in sorted(log.glob("*.json")) for line in file.read_text().splitlines()]
    last = [action["metaData"] for action in actions if "metaData" in action][-1]
    changed = json.dumps({"metaData": {**last, "configuration": {}}})
    (log / f"{tables.version() + 1:020}.json").write_text(changed)


def test_a_delta_table_that_forgets_is_refused(tmp_path):
    """At the start; and when it is told to while the job runs: what is prepared waits, and is committed once."""
    tables, expiry = DeltaTables(tmp_path), "delta.setTransactionRetentionDuration"
    tables.make(NUMBERS)
    whole = prepared(tables, [1, 2])
    first, _ = two_committers(tables)
    tables.table().alter.set_table_properties({expiry: "interval 30 days"})
    with pytest.raises(SinkError, match="forgets what a sink has committed"):
        first.commit(whole)
    with pytest.raises(SinkError, match="forgets what a sink has committed") as caught:
        LakeCommitter(tables.access(), ()).open(context("1.1"))
    assert caught.value.context["table"] == tables.access().uri
    assert tables.rows().num_rows == 0
    without_properties(tables)
    first.commit(whole)
    first.commit(whole)
    assert sorted(tables.rows().column("n").to_pylist()) == [1, 2]


def test_columns_may_come_under_a_running_sink(tables):
    tables.make(NUMBERS)
    whole = prepared(tables, [1, 2])
    first, _ = two_committers(tables)
    tables.add_column("later")
    first.commit(whole)
    assert tables.rows().to_pydict() == {"n": [1, 2], "later": [None, None]}


PARTITIONED = pa.schema([("n", pa.int64()), ("day", pa.date32()), ("name", pa.string())])


def test_a_partitioned_table_is_written_by_partition(tables):
    import datetime as dt

    tables.make(PARTITIONED, ["day", "name"])
    days = [dt.date(2024, 2, 29), None]
    rows = [{"n": n, "day": days[n % 2], "name": name} for n, name in enumerate(["a b", "ä/=%", "c", None, "a b"])]
    harness = SinkTestHarness(tables.sink(), 2)
    harness.start()
    for n, row in enumerate(rows):
        harness.write([row], n % 2)
    harness.checkpoint(1)
    harness.finish()
    assert sorted(tables.rows().to_pylist(), key=lambda row: row["n"]) == rows
    assert sorted(row["n"] for row in tables.partition("name", "a b")) == [0, 4]


def test_columns_and_rows_are_written_alike(tmp_path):
    """Columns that have the table's types already must get its ids all the same."""
    tables = IcebergTables(tmp_path)
    schema = pa.schema([("n", pa.int64()), ("s", pa.struct([("a", pa.int64())])), ("l", pa.list_(pa.string()))])
    tables.make(schema)
    row = {"n": 1, "s": {"a": 2}, "l": ["x"]}
    harness = SinkTestHarness(tables.sink())
    harness.start()
    harness.write([row])
    harness.checkpoint(1)
    harness.write(Batch.of_columns(pa.RecordBatch.from_pylist([row], schema=schema)))
    harness.checkpoint(2)
    harness.finish()
    assert tables.rows().to_pylist() == [row, row]


KEYED = pa.schema([("k", pa.int64()), ("part", pa.string()), ("v", pa.int64())])


@pytest.mark.parametrize("keys", [("k",), ("k", "part")])
def test_changes_by_key_come_to_what_a_dictionary_says(tables, keys):
    tables.make(KEYED)
    rng, expected = random.Random(7), {}
    harness = SinkTestHarness(tables.sink(key=keys), 2)
    harness.start()
    for checkpoint_id in range(1, 5):
        for _ in range(12):
            row = {"k": rng.randrange(5), "part": rng.choice("ab"), "v": rng.randrange(1_000)}
            is_gone = rng.random() < 0.3
            key = tuple(row[name] for name in keys)
            harness.write([{**row, "$deleted": is_gone}], row["k"] % 2)
            if is_gone:
                expected.pop(key, None)
            else:
                expected[key] = row
        harness.checkpoint(checkpoint_id, notifies=checkpoint_id != 3)
        if checkpoint_id == 3:
            harness.start(1)  # what was prepared is committed when it is restored
            harness.start(2)
        assert sorted(map(tuple, (row.values() for row in tables.rows().to_pylist()))) == sorted(
            map(tuple, (row.values() for row in expected.values()))
        )
    harness.finish()


def test_a_change_that_does_not_say_that_it_takes_a_row_away_puts_it_there(tables):
    tables.make(KEYED)
    harness = SinkTestHarness(tables.sink(key="k"))
    harness.start()
    harness.write([{"k": k, "part": "a", "v": k, "$deleted": is_gone} for k, is_gone in ((1, None), (2, False))])
    harness.checkpoint(1)
    harness.write([{"k": 1, "part": "b", "v": 3, "$deleted": None}, {"k": 2, "part": "a", "v": 2, "$deleted": True}])
    harness.checkpoint(2)
    harness.finish()
    assert tables.rows().to_pylist() == [{"k": 1, "part": "b", "v": 3}]


@pytest.mark.parametrize(("kind", "value", "named"), [("int64", None, "null"), ("float64", float("nan"), "NaN")])
def test_a_row_without_a_key_is_named(tables, kind, value, named):
    tables.make(pa.schema([("k", kind), ("part", pa.string())]))
    harness = SinkTestHarness(tables.sink(key=("part", "k")), 2)
    harness.start()
    rows = [{"k": 1, "part": "a", "$deleted": False}, {"k": value, "part": "a", "$deleted": False}]
    with pytest.raises(TypeMismatchError, match=f"column 'k' is a part of the key, and {named}") as raised:
        harness.write(rows, 1)
    context = raised.value.context
    assert (context["row"], context["subtask"]) == (1, "2/2")
    assert {"operator", "table"} <= set(context)


def test_a_key_that_the_table_does_not_have_is_named(tables):
    tables.make(KEYED)
    harness = SinkTestHarness(tables.sink(key="par"))
    harness.start()
    with pytest.raises(ConfigurationError, match=r"no column 'par'\nhint: did you mean 'part'"):
        harness.write([{"k": 1, "part": "a", "v": 1, "$deleted": False}])


MOMENTS = pa.schema([("n", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us")), ("name", pa.string())])


@pytest.mark.parametrize("made", ["day(day)", "month(at)", "hour(at)", "bucket[4](n)", "bucket[3](name)",
                                  "truncate[2](name)", "truncate[10](n)"])  # fmt: skip
def test_partitions_of_iceberg_are_those_that_its_own_library_makes(tmp_path, made):
    pytest.importorskip("pyiceberg_core")
    from pyiceberg.transforms import parse_transform

    transform, _, column = made.removesuffix(")").partition("(")
    moments = pa.array(range(-172_800, 8 * 133_200 - 172_800, 133_200)).cast(pa.timestamp("s")).cast(pa.timestamp("us"))
    names = ["abc", "abd", "ß€x", "", None, "abc", "abd", "b"]
    rows = [
        {"n": 7 * n - 20, "day": at.date(), "at": at if n != 3 else None, "name": name}
        for n, (at, name) in enumerate(zip(moments.to_pylist(), names, strict=True))
    ]

    def table(name):
        (tmp_path / name).mkdir()
        tables = IcebergTables(tmp_path / name)
        tables.catalog().create_namespace("db")
        making = tables.catalog().create_table_transaction("db.numbers", MOMENTS)
        with making, making.update_spec() as spec:
            spec.add_field(column, parse_transform(transform), "part")
        return tables

    def partitions(tables):
        files = [task.file for task in tables.table().scan().plan_files()]
        return sorted((str(file.partition), file.record_count) for file in files)

    ours, theirs = table("ours"), table("theirs")
    theirs.append(pa.Table.from_pylist(rows, schema=MOMENTS))
    harness = SinkTestHarness(ours.sink())
    harness.start()
    harness.write(rows)
    harness.checkpoint(1)
    harness.finish()
    assert partitions(ours) == partitions(theirs)
    assert sorted(ours.rows().to_pylist(), key=lambda row: row["n"]) == rows


def test_arguments_that_mean_nothing_are_refused(tables):
    for options in ({"max_part_bytes": 0}, {"partition_by": "n"}, {"schema": NUMBERS, "key": "m"}):
        with pytest.raises(ConfigurationError):
            tables.sink(**options)


def test_a_missing_column_is_named(tables):
    tables.make(pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    harness = SinkTestHarness(tables.sink())
    harness.start()
    with pytest.raises(Exception, match="n"):
        harness.write([{"m": 1}])


def rules(directory, rule):
    """A Delta table that demands something of its rows."""
    import json

    tables = DeltaTables(directory)
    if rule == "constraint":
        tables.make(NUMBERS)
        tables.table().alter.add_constraint({"positive": "n > 0"})
    else:
        invariant = json.dumps({"expression": {"expression": "n > 0"}})
        tables.make(pa.schema([pa.field("n", pa.int64(), metadata={"delta.invariants": invariant})]))
    return tables


@pytest.mark.parametrize("rule", ["constraint", "invariant"])
def test_rules_of_a_delta_table_are_kept_or_refused(tmp_path, rule):
    tables = rules(tmp_path, rule)
    harness = SinkTestHarness(tables.sink())
    harness.start()
    with pytest.raises(SinkError, match="a rule for its rows"):
        harness.write([{"n": -5}])
    harness = SinkTestHarness(tables.sink(key="n"))
    harness.start()
    harness.write([{"n": -5, "$deleted": False}])
    with pytest.raises(SinkError, match="failed validation check"):
        harness.checkpoint(1)
    assert tables.rows().num_rows == 0


def test_a_delta_table_that_only_grows_takes_no_changes(tmp_path):
    tables = DeltaTables(tmp_path)
    tables.make(NUMBERS)
    tables.table().alter.set_table_properties({"delta.appendOnly": "true"})
    harness = SinkTestHarness(tables.sink(key="n"))
    harness.start()
    harness.write([{"n": 1, "$deleted": False}])
    with pytest.raises(SinkError, match=r"delta\.appendOnly"):
        harness.checkpoint(1)


def test_names_of_files_are_never_given_twice(tables):
    tables.make(NUMBERS)
    names = [
        one["name"] for whole in (prepared(tables, [1], 1), prepared(tables, [1], 2)) for one in whole.committables
    ]
    assert all(one != other for one, other in itertools.combinations(names, 2))
