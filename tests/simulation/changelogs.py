"""Programs over changes, for the simulator: what is written are changes, and they come to what plain loops give.

Each split is a changelog of its own, so that a row is taken back by the split that has brought it; which splits are
read first, and how changes are cut into batches, is up to the faults.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
from aggregate_kit import aggregate_of
from changelog_kit import AsChanges, FromChanges
from changelog_oracles import aggregated, first_rows, joined, joined_in_a_chain, over
from simulation.programs import NumberedSource, Program, Record, freeze

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.files import FileSink
from headrace.engine.changelog.group_aggregate import GroupAggregate
from headrace.engine.changelog.join import ChangelogJoin
from headrace.engine.changelog.local_aggregate import LocalGroupAggregate
from headrace.engine.changelog.over_changes import ChangingOver
from headrace.engine.changelog.rank import Rank
from headrace.engine.columns.expressions import col, lit
from headrace.engine.columns.records import RowKind
from headrace.engine.connectors.table_lookup import TableLookup
from headrace.engine.frames.frame_calls import Frame, lead, row_number
from headrace.engine.functions.aggregates import built_in as f
from headrace.engine.lookups.async_table_join import AsyncLookupJoinOfTables, missing_keys_again
from headrace.engine.lookups.batch_questions import LookupTerms
from headrace.engine.multi_joins.join_step import JoinChain, JoinStep, result_tag
from headrace.engine.multi_joins.multi_join import MultiJoin
from headrace.engine.operators.column_operators import SelectColumns
from headrace.engine.operators.mini_batch import MiniBatch

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64()), ("text", pa.string())])
Row = tuple[Any, ...]


def draw_changes(rng: random.Random, *, takes_back: bool = True) -> tuple[list[list[Record]], list[Row]]:
    """Splits of changes, and the rows that remain of all."""
    splits, remaining = [], []
    num_keys = rng.choice((1, 3, 20))
    for _ in range(rng.randint(1, 3)):
        live: list[Row] = []
        changes: list[Record] = []
        for _ in range(rng.choice((0, 10, 60))):
            if live and takes_back and rng.random() < 0.45:
                gone = live.pop(rng.randrange(len(live)))
                changes.append(_record(RowKind.DELETE, gone))
            key = rng.choice((None, *(f"k{number}" for number in range(num_keys))))
            live.append((key, rng.randint(0, 9), rng.choice(("a", "b", "", None))))
            changes.append(_record(RowKind.INSERT, live[-1]))
        splits.append(changes)
        remaining += live
    return splits, remaining


def _record(kind: RowKind, row: Row) -> Record:
    return {"change": int(kind), **dict(zip(SCHEMA.names, row, strict=True))}


def _source(env: StreamExecutionEnvironment, rng_state: tuple[int, bool], splits: list[list[Record]]) -> Any:
    hiccup, columnar = rng_state
    made = NumberedSource(splits, hiccup, 0, columnar)
    stream = env.from_source(made, WatermarkStrategy.no_watermarks(), "changes")
    return stream.transform("changes", AsChanges(SCHEMA))


def _write(stream: Any, path: str, parallelism: int) -> None:
    stream.transform("kinds", FromChanges()).set_parallelism(parallelism).sink_to(FileSink.json_lines(path))


def come_to(got: Counter[Any]) -> Counter[Any]:
    """The multiset that changes come to; what is taken back too often counts below zero."""
    net: Counter[Any] = Counter()
    for row, number in got.items():
        values = dict(row)
        kind = values.pop("change")
        net[tuple(sorted(values.items()))] += number if kind in (RowKind.INSERT, RowKind.UPDATE_AFTER) else -number
    return Counter({row: number for row, number in net.items() if number})


def _program(name: str, build: Any, names: list[str], rows: list[Row]) -> Program:
    expected = Counter(freeze(dict(zip(names, row, strict=True))) for row in rows)
    return Program(name, build, expected, notes={"come_to": come_to})


def grouped(rng: random.Random, _splits: list[list[Record]], _given: Any) -> Program:
    splits, remaining = draw_changes(rng)
    source, parallelism = (rng.choice((0, 2, 3)), rng.random() < 0.5), rng.randint(1, 3)
    aggregates = {"n": f.count(), "s": f.sum("value"), "m": f.max("value"), "d": f.count_distinct("text")}
    of_python = rng.choice([(), ("user_without_merge", "user_of_distinct", "sum_distinct")])
    aggregates |= {name: aggregate_of(name, col("value"), pa.int64()) for name in of_python}

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        operator = GroupAggregate(["key"], aggregates, input_schema=SCHEMA, takes_back=True)
        stream = _source(env, source, splits).key_by("key").transform("group", operator)
        _write(stream.set_parallelism(parallelism), path, parallelism)

    wanted = [("count", None), ("sum", 1), ("max", 1), ("count_distinct", 2), *((name, 1) for name in of_python)]
    rows = aggregated(remaining, 1, wanted)
    return _program(f"grouped/{parallelism}", build, ["key", *aggregates], rows)


def ranked_groups(rng: random.Random, _splits: list[list[Record]], _given: Any) -> Program:
    """The groups with the largest sums, of all: what one operator updates, the next one takes back."""
    splits, remaining = draw_changes(rng)
    source, parallelism = (rng.choice((0, 2, 3)), rng.random() < 0.5), rng.randint(1, 3)
    aggregates = {"n": f.count(), "s": f.sum("value")}

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        group = GroupAggregate(["key"], aggregates, input_schema=SCHEMA, takes_back=True)
        orders = [("s", False, None), ("key", True, None)]
        rank = Rank([], orders, input_schema=group.output_schema(), limit=3, number="place", takes_back=True)
        stream = _source(env, source, splits).key_by("key").transform("group", group).set_parallelism(parallelism)
        _write(stream.global_().transform("rank", rank).force_non_parallel(), path, 1)

    groups = aggregated(remaining, 1, [("count", None), ("sum", 1)])
    rows = first_rows(groups, 0, [(2, False, None), (0, True, None)], limit=3, numbered=True)
    return _program(f"ranked_groups/{parallelism}", build, ["key", *aggregates, "place"], rows)


def last_rows(rng: random.Random, _splits: list[list[Record]], _given: Any) -> Program:
    """The largest values of each key, of insertions alone; texts make the order one of all rows."""
    splits, remaining = draw_changes(rng, takes_back=False)
    source, parallelism, limit = (rng.choice((0, 2, 3)), rng.random() < 0.5), rng.randint(1, 3), rng.randint(1, 3)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        orders = [("value", False, None), ("text", True, None)]
        rank = Rank(["key"], orders, input_schema=SCHEMA, limit=limit, takes_back=False)
        stream = _source(env, source, splits).key_by("key").transform("rank", rank)
        _write(stream.set_parallelism(parallelism), path, parallelism)

    rows = first_rows(remaining, 1, [(1, False, None), (2, True, None)], limit=limit)
    return _program(f"last_rows/{parallelism}/{limit}", build, SCHEMA.names, rows)


def joined_changes(rng: random.Random, _splits: list[list[Record]], _given: Any) -> Program:
    how, parallelism = rng.choice(("inner", "left", "right", "full", "semi", "anti")), rng.randint(1, 3)
    (left, left_rows), (right, right_rows) = draw_changes(rng), draw_changes(rng)
    sources = [(rng.choice((0, 2, 3)), rng.random() < 0.5) for _ in range(2)]
    projection = [(side, name, f"{'lr'[side]}_{name}") for side in (0, 1) for name in SCHEMA.names]

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        join = ChangelogJoin(["key"], ["key"], how, left_schema=SCHEMA, right_schema=SCHEMA, projection=projection)
        first, second = (_source(env, *one) for one in zip(sources, (left, right), strict=True))
        stream = first.key_by("key").transform("join", join, others=[second.key_by("key")])
        _write(stream.set_parallelism(parallelism), path, parallelism)

    rows = joined(left_rows, right_rows, how, 1, (3, 3), lambda one, other: True)
    return _program(f"joined_changes/{how}/{parallelism}", build, join_names(projection, how), rows)


def joined_in_chains(rng: random.Random, _splits: list[list[Record]], _given: Any) -> Program:
    """Three inputs as one join; maybe the third one is joined by the second, whose row may be missing."""
    parallelism, inputs = rng.randint(1, 3), [draw_changes(rng) for _ in range(3)]
    sources = [(rng.choice((0, 2, 3)), rng.random() < 0.5) for _ in inputs]
    steps = [
        (_inner_or_left(rng), 0, rng.choice((None, 0))), (_inner_or_left(rng), rng.randint(0, 1), None),
    ]  # fmt: skip
    projection = [(at, name, f"{at}_{name}") for at in range(3) for name in SCHEMA.names]
    how = "-".join(kind for kind, _, _ in steps)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        columns = ((0, "value", "one"), (1, "value", "other"))
        condition = None if steps[0][2] is None else col("one") < col("other")
        first = JoinStep(steps[0][0], (), condition, () if condition is None else columns)
        second = JoinStep(steps[1][0], (1,) if steps[1][1] else ())
        join = MultiJoin([["key"]] * 3, [JoinChain.of_all([first, second], projection)], schemas=[SCHEMA] * 3)
        keyed = [_source(env, one, splits).key_by("key") for one, (splits, _) in zip(sources, inputs, strict=True)]
        stream = keyed[0].transform("join", join, others=keyed[1:])
        _write(stream.set_parallelism(parallelism), path, parallelism)

    rows = joined_in_a_chain([rows for _, rows in inputs], steps, 1, [3, 3, 3])
    return _program(f"joined_in_chains/{how}/{parallelism}", build, [name for _, _, name in projection], rows)


def _inner_or_left(rng: random.Random) -> str:
    return "left" if rng.random() < 0.6 else "inner"


def joined_in_common(rng: random.Random, _splits: list[list[Record]], _given: Any) -> Program:
    """Two joins that read one input by its key, as one operator: what both give is written, and which gave it."""
    parallelism, inputs = rng.randint(1, 3), [draw_changes(rng) for _ in range(3)]
    sources = [(rng.choice((0, 2, 3)), rng.random() < 0.5) for _ in inputs]
    chains = [((0, 1), rng.choice(("inner", "left", "semi", "anti"))) for _ in range(1)]
    chains.append((rng.choice(((1, 2), (2, 1))), rng.choice(("inner", "left", "semi", "anti"))))
    waits = rng.choice((None, None, (50, 40)))
    names = [[f"{at}_{name}" for at in range(2) for name in SCHEMA.names][: 3 if how in ("semi", "anti") else 6]
             for _, how in chains]  # fmt: skip

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        projections = [tuple((int(name[0]), name[2:], name) for name in given) for given in names]
        made = [
            JoinChain(numbers, (JoinStep(how),), projection)
            for (numbers, how), projection in zip(chains, projections, strict=True)
        ]
        join: Any = MultiJoin([["key"]] * 3, made, schemas=[SCHEMA] * 3)
        join = join if waits is None else MiniBatch(join, *waits)
        keyed = [_source(env, one, splits).key_by("key") for one, (splits, _) in zip(sources, inputs, strict=True)]
        first = keyed[0].transform("joins", join, others=keyed[1:]).set_parallelism(parallelism)
        made_of = []
        for number, result in enumerate((first, first.get_side_output(result_tag(1)))):
            said = SelectColumns({"of": lit(number), **{name: col(name) for name in names[number]}})
            rows = result.transform("said", said).set_parallelism(parallelism).transform("kinds", FromChanges())
            made_of.append(rows.set_parallelism(parallelism))
        made_of[0].union(made_of[1]).sink_to(FileSink.json_lines(path))

    expected: Counter[Any] = Counter()
    for number, (numbers, how) in enumerate(chains):
        rows = joined_in_a_chain([inputs[at][1] for at in numbers], [(how, 0, None)], 1, [3, 3])
        expected.update(freeze({"of": number, **dict(zip(names[number], row, strict=True))}) for row in rows)
    name = f"joined_in_common/{'/'.join(how for _, how in chains)}/{parallelism}"
    return Program(name, build, expected, notes={"come_to": come_to})


class ThreeKeys(TableLookup):
    """A table with two rows for one key, one for another, and none for the others."""

    def lookup(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        rows = [row for row in NAMES if row[0] in set(keys.column(0).to_pylist())]
        return pa.record_batch(
            [pa.array(one, pa.string()) for one in zip(*rows, ("?", "?"), strict=True)], NAMES_SCHEMA
        )


NAMES = (("k0", "zero"), ("k1", "one"), ("k1", "uno"))
NAMES_SCHEMA = pa.schema([("name_of", pa.string()), ("name", pa.string())])


def looked_up(rng: random.Random, _splits: list[list[Record]], _given: Any) -> Program:
    """Rows that only come, joined with a table that is asked for several batches at once."""
    splits, rows = draw_changes(rng, takes_back=False)
    source, parallelism = (rng.choice((0, 2, 3)), rng.random() < 0.5), rng.randint(1, 3)
    is_left, ordered, capacity = rng.random() < 0.5, rng.random() < 0.5, rng.randint(1, 3)
    projection = [*((0, name, name) for name in SCHEMA.names), (1, "name", "name")]
    retry = missing_keys_again(2, 20) if rng.random() < 0.3 else None

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        terms = LookupTerms(
            (["key"], ["name_of"]), ["name_of"], schemas=(SCHEMA, NAMES_SCHEMA), is_left=is_left, projection=projection
        )
        operator = AsyncLookupJoinOfTables(
            ThreeKeys(), terms, ordered=ordered, capacity=capacity, timeout_ms=0, retry=retry
        )
        stream = _source(env, source, splits).rebalance().transform("lookup", operator)
        _write(stream.set_parallelism(parallelism), path, parallelism)

    found = [(*row, name) for row in rows for key, name in NAMES if key == row[0]]
    if is_left:
        found += [(*row, None) for row in rows if row[0] not in ("k0", "k1")]
    return _program(f"looked_up/{parallelism}", build, [*SCHEMA.names, "name"], found)


def framed(rng: random.Random, _splits: list[list[Record]], _given: Any) -> Program:
    """What the rows of a key come to in an order that tells all but equal ones apart."""
    splits, remaining = draw_changes(rng)
    source, parallelism = (rng.choice((0, 2, 3)), rng.random() < 0.5), rng.randint(1, 3)
    orders = [("value", False, None), ("text", True, None)]

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        columns = {"s": f.sum("value"), "l": lead("value", 2), "n": row_number()}
        operator = ChangingOver(["key"], orders, columns, input_schema=SCHEMA, frame=Frame(-1, 1))
        stream = _source(env, source, splits).key_by("key").transform("over", operator)
        _write(stream.set_parallelism(parallelism), path, parallelism)

    specs = [("sum", 1), ("lead", 1, 2), ("row_number", None)]
    rows = over(remaining, 1, [(1, False, None), (2, True, None)], specs, ("rows", -1, 1))
    return _program(f"framed/{parallelism}", build, [*SCHEMA.names, "s", "l", "n"], rows)


def in_phases(rng: random.Random, _splits: list[list[Record]], _given: Any) -> Program:
    """Groups in two phases, whose rows wait in front of the second, and of the Top-N behind it."""
    splits, remaining = draw_changes(rng)
    source, parallelism = (rng.choice((0, 2, 3)), rng.random() < 0.5), rng.randint(1, 3)
    latency_ms, size, folds = rng.choice((1, 50, 100_000)), rng.choice((3, 40, 1_000)), rng.random() < 0.8
    aggregates = {"n": f.count(), "s": f.sum("value"), "m": f.max("value"), "d": f.count_distinct("text")}
    aggregates["u"] = aggregate_of("user_of_distinct", col("value"), pa.int64())

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        options: Any = {"input_schema": SCHEMA, "takes_back": True}
        stream = _source(env, source, splits)
        if folds:
            local = LocalGroupAggregate(["key"], aggregates, **options, adapts=rng.random() < 0.3)
            stream = stream.transform("local", local, None, "local", keep_parallelism=True)
        group = GroupAggregate(["key"], aggregates, **options)
        stream = stream.key_by("key").transform("group", MiniBatch(group, latency_ms, size))
        orders = [("s", False, None), ("key", True, None)]
        rank = Rank(["n"], orders, input_schema=group.output_schema(), limit=2, takes_back=True)
        ranked = stream.set_parallelism(parallelism).key_by("n").transform("rank", MiniBatch(rank, latency_ms, size))
        _write(ranked.set_parallelism(parallelism), path, parallelism)

    wanted = [("count", None), ("sum", 1), ("max", 1), ("count_distinct", 2), ("user_of_distinct", 1)]
    groups = [(row[1], row[0], *row[2:]) for row in aggregated(remaining, 1, wanted)]
    rows = first_rows(groups, 1, [(2, False, None), (1, True, None)], limit=2)
    return _program(f"in_phases/{parallelism}", build, ["n", "key", *list(aggregates)[1:]], rows)


def split_or_long_lived(rng: random.Random, _splits: list[list[Record]], _given: Any) -> Program:
    """Different values counted by buckets and summed, or groups with a time to live that is longer than the run."""
    splits, remaining = draw_changes(rng)
    source, parallelism = (rng.choice((0, 2, 3)), rng.random() < 0.5), rng.randint(1, 3)
    aggregates, is_split = {"n": f.count(), "d": f.count_distinct("value")}, rng.random() < 0.5
    inner_parallelism = rng.randint(1, 3)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        stream = _source(env, source, splits)
        if not is_split:
            group = GroupAggregate(["key"], aggregates, input_schema=SCHEMA, takes_back=True, ttl_ms=10**9)
        else:
            bucket = SelectColumns({"bucket": col("value") % 3}, keep=True, input_schema=SCHEMA)
            bucketed = stream.transform("bucket", bucket, None, "bucket", keep_parallelism=True)
            keys, schema = ["key", "bucket"], bucket.output_schema(SCHEMA)
            inner = GroupAggregate(keys, aggregates, input_schema=schema, takes_back=True)
            stream = bucketed.key_by(*keys).transform("inner", inner)
            stream = stream.set_parallelism(inner_parallelism)
            sums = {name: f.sum(name) for name in aggregates}
            group = GroupAggregate(["key"], sums, input_schema=inner.output_schema(), takes_back=True)
        grouped = stream.key_by("key").transform("group", group).set_parallelism(parallelism)
        _write(grouped, path, parallelism)

    rows = aggregated(remaining, 1, [("count", None), ("count_distinct", 1)])
    return _program(f"split_or_long_lived/{is_split}/{parallelism}", build, ["key", *aggregates], rows)


def join_names(projection: list[tuple[int, str, str]], how: str) -> list[str]:
    return [name for side, _, name in projection if side == 0 or how not in ("semi", "anti")]


CHANGELOGS = (grouped, ranked_groups, last_rows, joined_changes)
IN_PHASES = (in_phases,)
FRAMED = (framed,)
CHAINS = (joined_in_chains,)
IN_COMMON = (joined_in_common,)
LOOKED_UP = (looked_up,)
SPLIT = (split_or_long_lived,)
"""Apart, so that the seeds of the others stay what they are."""
