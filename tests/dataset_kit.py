"""Random DataSet programs, and the comparison of two ways to run one.

A program is a list of steps over data sets of one and the same type, so any step can follow any other. Every step gives
one multiset of records, however its input is partitioned: floats are multiples of a quarter, so that sums do not depend
on order, and where an operator may choose (first, ties) the step leaves no choice. Data has nulls, NaN, skew and fewer
records than partitions.

Used with the local executor (optimised against as written) and by the tests of the Spark executor (Spark against
local). `first_difference` names the first operator after which two environments disagree.
"""

import math
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import strategies as st

from headrace import GroupReduceFunction, JoinHint, LongCounter, MapFunction, avg, col, count, if_else, lit
from headrace import functions as f
from headrace.engine.partitions.wire_records import frozen

FIELDS = ("k", "s", "v", "x")
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("v", pa.int64()), ("x", pa.float64())])
MOST_RECORDS = 40


def row(k, s, v, x):
    return {"k": k, "s": s, "v": v, "x": x}


# ------------------------------------------------------------------------------------------------------------- programs


@dataclass(frozen=True)
class Step:
    """One step: ``operator`` of `OPERATORS`, applied to data sets made before; 0 and 1 are the sources."""

    operator: str
    first: int
    second: int


@dataclass(frozen=True)
class Program:
    """Sources and steps.

    Attributes:
        sources: Two lists of records.
        typed: Whether each source has a type.
        steps: In order; step i makes data set i + 2.
        parallelism: Of the environment.
    """

    sources: tuple[tuple[dict, ...], tuple[dict, ...]]
    typed: tuple[bool, bool]
    steps: tuple[Step, ...]
    parallelism: int = 4


_KEYS = st.one_of(st.just(1), st.just(1), st.integers(0, 5), st.none())
_FLOATS = st.one_of(st.integers(-8, 8).map(lambda n: n / 4), st.none(), st.just(math.nan), st.just(-0.0))
_ROWS = st.builds(
    row, _KEYS, st.sampled_from(["a", "b", "é", "", None]), st.one_of(st.integers(-9, 9), st.none()), _FLOATS
)


@st.composite
def programs(draw, operators=None, most_steps=6):
    """Random programs.

    Args:
        draw: Hypothesis'.
        operators: Names of the operators to choose from; None for all.
        most_steps: How many steps at most.
    """
    names = sorted(OPERATORS if operators is None else operators)
    sources = (tuple(draw(st.lists(_ROWS, max_size=25))), tuple(draw(st.lists(_ROWS, max_size=8))))
    steps = []
    for number in range(draw(st.integers(1, most_steps))):
        # Mostly what was made last, so that programs are deep.
        last = number + 1
        first = draw(st.one_of(st.just(last), st.integers(0, last)))
        steps.append(Step(draw(st.sampled_from(names)), first, draw(st.integers(0, last))))
    typed = draw(st.tuples(st.booleans(), st.booleans()))
    return Program(sources, typed, tuple(steps), draw(st.integers(1, 5)))


def build(environment, program):
    """The data sets of a program, sources first."""
    made = []
    for rows, is_typed in zip(program.sources, program.typed, strict=True):
        data = environment.from_collection(list(rows), type_info=SCHEMA)
        made.append(data if is_typed else data.with_schema(None))
    for step in program.steps:
        made.append(OPERATORS[step.operator](made[step.first], made[step.second]))
    return made


# ------------------------------------------------------------------------------------------------------------ operators


def _bounded(data):
    """At most so many records, the same ones however the data is partitioned."""
    return data.sort("k", "s", "v", "x").first(MOST_RECORDS)


def _values(rows):
    return [r["v"] for r in rows if r["v"] is not None]


def _add_one(r):
    return {**r, "v": None if r["v"] is None else (r["v"] + 1) % 100}


def _twice_or_not(r):
    return [r, {**r, "s": "twice"}] if r["k"] in (1, None) else ([] if r["k"] == 3 else [r])


def _keep(r):
    return r["v"] is None or r["v"] % 3 != 0


def _is_large(r):
    return (r["v"] or 0) > 5


def _of_partition(rows):
    for r in rows:
        yield {**r, "s": None if r["s"] is None else r["s"][:1] + "p"}


def _of_batch(batch):
    return pa.RecordBatch.from_arrays([batch.column(name) for name in FIELDS], schema=SCHEMA)


def _larger(a, b):
    return a if _rank(a) >= _rank(b) else b


def _rank(r):
    return tuple(_one_rank(r[name]) for name in FIELDS)


def _one_rank(value):
    if value is None:
        return (0,)
    return (2,) if value != value else (1, value + 0.0 if isinstance(value, float) else value)


def _summed(rows):
    rows = list(rows)
    yield row(rows[0]["k"], None, sum(_values(rows)) % 1000, float(len(rows)))


def _in_order(rows):
    rows = list(rows)
    yield row(rows[0]["k"], "".join(str(r["v"]) for r in rows)[:12], len(rows), None)


class _SumWithCombiner(GroupReduceFunction):
    def reduce(self, values):
        rows = list(values)
        yield row(rows[0]["k"], "sum", sum(_values(rows)), None)

    def combine(self, values):
        return self.reduce(values)


def _both(left, right):
    left = left or row(None, None, None, None)
    right = right or row(None, None, None, None)
    return row(left["k"], right["s"], right["v"], left["x"])


def _left(left, _right):
    return left


def _both_groups(left, right):
    some = (left or right)[0]
    yield row(some["k"], None, len(left), float(len(right)))


class _AddSize(MapFunction):
    def open(self, runtime_context):
        self.size = len(runtime_context.get_broadcast_variable("others"))

    def map(self, value):
        return {**value, "v": self.size}


class _CountAndAdd(MapFunction):
    def open(self, runtime_context):
        self.runtime_context = runtime_context
        self.counter = runtime_context.get_iteration_aggregator("seen")

    def map(self, value):
        self.counter.add(1)
        before = self.runtime_context.get_previous_iteration_aggregate("seen") or 0
        number = self.runtime_context.get_superstep_number()
        return {**value, "v": (number * 10 + before) % 100}


def _least_per_key(data):
    """Records of one key each: what a solution set must be."""
    return data.group_by("k").reduce(_larger).filter(lambda r: r["k"] is not None)


def _grow(left, right):
    """A solution set takes over from a workset what is larger."""

    def step(solution, workset):
        changes = workset.join(solution).where("k").equal_to("k").with_(_improved)
        changed = changes.filter(_is_change)
        return changed, changed.map(_add_one)

    start = _least_per_key(left).with_schema(SCHEMA)
    return start.iterate_delta(_least_per_key(right).with_schema(SCHEMA), 3, "k", step=step)


def _improved(new, old):
    return {**old, "v": new["v"], "s": "new"} if (new["v"] or 0) > (old["v"] or 0) else {**old, "s": "unchanged"}


def _is_change(r):
    return r["s"] == "new"


def _presorted(data, ascending):
    """Groups in order, of partitions that are sorted by the key and in this order or in another one."""
    sorted_partitions = (
        data.partition_by_hash("k").sort_partition("k").sort_partition("v", ascending).sort_partition("s")
    )
    return sorted_partitions.group_by("k").sort_group("v").sort_group("s").reduce_group(_in_order)


def _join(how, hint=JoinHint.OPTIMIZER_CHOOSES):
    return lambda a, b: _bounded(a.join(b, how=how, hint=hint).where("k").equal_to("k").with_(_both))


def _join_columns(how):
    def apply(a, b):
        pairs = a.with_schema(SCHEMA).join(b.with_schema(SCHEMA), how=how).where("k", "s").equal_to("k", "s")
        return _bounded(pairs.project_first("k", "s").project_second("v", "x"))

    return apply


def _select(a, _b):
    return a.with_schema(SCHEMA).select("k", "s", v=if_else(col("v").is_null(), lit(7), col("v") % 5), x=col("x") * 2.0)


def _shared(a, _b):
    """A filter that two read, one of them through a filter: it may move to the input, the other one may not."""
    some = a.with_schema(SCHEMA).rebalance().filter(col("v") > -3)
    return _bounded(some.union(some.filter(col("k") > 1)))


def _branches(a, _b):
    """Two filters on the result of one."""
    some = a.with_schema(SCHEMA).select("k", "s", "v", "x").filter(col("v") > -3)
    return _bounded(some.filter(col("k") > 1).union(some.filter(col("k") <= 1)))


def _aggregate(a, _b):
    made = a.with_schema(SCHEMA).group_by("k").aggregate(s=f.max("s"), v=f.sum("v"), x=avg("x"))
    return made


def _aggregate_rows(a, _b):
    made = a.with_schema(None).group_by(_key_of).aggregate(s=f.min("s"), v=count(), x=f.max("x"))
    return made.map(lambda r: row(r["key"], r["s"], r["v"], r["x"]))


def _key_of(r):
    return r["k"]


def _parts(a, _b):
    counted = a.combine_group(_count_part).reduce(lambda p, q: (p[0], p[1] + q[1]))
    return counted.map(lambda p: row(p[0], "parts", p[1], None))


def _count_part(rows):
    return [("all", sum(1 for _ in rows))]


def _typed(data):
    return data.with_schema(SCHEMA)


def _renamed(a, _b):
    moved = _typed(a).rename(v="w", s="t")
    return moved.with_columns(v=col("w") % 7, s=col("t").upper()).drop("w", "t")


def _number_and_neighbours(a, _b):
    numbered = _typed(a).over(
        "k",
        ["s", "v", "x"],
        ascending=[True, False, True],
        n=f.row_number(),
        before=f.lag("v", 1, -1),
        after=f.lead("s"),
    )
    return _bounded(numbered.select("k", "x", s=col("after"), v=col("before") + col("n")))


def _ranks(a, _b):
    ranked = _typed(a).over(["k"], ["s"], r=f.rank(), d=f.dense_rank(), least=f.min("x"))
    return _bounded(ranked.select("k", "s", v=col("r") * 10 + col("d"), x=col("least")))


def _running(a, _b):
    summed = _typed(a).over("s", "v", total=f.sum("v"), most=f.max("x"))
    moving = summed.over(None, ["k", "s", "v", "x"], rows_between=(-2, 1), around=f.sum("v"))
    return _bounded(moving.select("k", "s", v=(col("total") + col("around")) % 100, x=col("most")))


def _whole_group(a, _b):
    return _bounded(_typed(a).over("k", n=count(), mean=avg("x")).select("k", "s", v=col("n"), x=col("mean")))


def _statistics(a, _b):
    """Rounded where several ways to add up differ in the last digit."""
    made = (
        _typed(a)
        .group_by("k")
        .aggregate(
            deviation=f.stddev("x"), spread=f.variance_pop("v"), middle=f.median("v"), tenth=f.percentile("x", 0.1)
        )
    )
    value = (col("deviation").fill_null(-1.0) * 1e6).round() + (col("spread").fill_null(-1.0) * 1e3).round()
    return made.select("k", s=lit("stats"), v=lit(1), x=value + col("middle").fill_null(0.0) + col("tenth"))


def _collected(a, _b):
    made = a.with_schema(SCHEMA).group_by("k").aggregate(values=f.collect_list("v"), texts=f.collect_set("s"))
    return made.map(lambda r: row(r["k"], "".join(sorted(r["texts"])), sum(r["values"]) % 100, float(len(r["values"]))))


def _exploded(outer):
    def apply(a, _b):
        lists = _typed(a).group_by("k", "s").aggregate(v=f.collect_list("v"), x=f.max("x"))
        return _bounded(lists.explode("v", outer=outer))

    return apply


def _computed_of_aggregates(a, _b):
    value = f.sum("v").as_expression().cast(float) / (count() + 1)
    return _typed(a).group_by("k", "s").aggregate(v=count("x") * 2 - 1, x=(value * 4).round())


def _semi(is_anti, *, is_typed=True):
    def apply(a, b):
        left, right = (_typed(a), _typed(b)) if is_typed else (a.with_schema(None), b.with_schema(None))
        builder = left.anti_join(right) if is_anti else left.semi_join(right)
        return builder.on("k") if is_typed else builder.on(_key_of)

    return apply


def _theta(how):
    def apply(a, b):
        condition = (col("v") > col("v2")) & (col("k") != col("k2"))
        joined = _bounded(_typed(a)).join_where(
            _bounded(_typed(b)).rename(k="k2", s="s2", v="v2", x="x2"), condition, how=how
        )
        return joined if how in ("semi", "anti") else _bounded(joined.select("k", v=col("v2"), s=col("s2"), x=col("x")))

    return apply


OPERATORS = {
    "rename and drop": _renamed,
    "row_number, lag and lead": _number_and_neighbours,
    "ranks": _ranks,
    "running aggregates": _running,
    "aggregates of the whole group": _whole_group,
    "statistics": _statistics,
    "collect_list and collect_set": _collected,
    "explode": _exploded(outer=False),
    "explode with empty lists": _exploded(outer=True),
    "expressions over aggregates": _computed_of_aggregates,
    "semi join": _semi(is_anti=False),
    "anti join": _semi(is_anti=True),
    "anti join of objects": _semi(is_anti=True, is_typed=False),
    "join where": _theta("inner"),
    "left join where": _theta("left"),
    "anti join where": _theta("anti"),
    "semi join where": _theta("semi"),
    "minus": lambda a, b: _typed(a).minus(_typed(b)),
    "minus of objects": lambda a, b: a.with_schema(None).minus(b),
    "minus_all": lambda a, b: _typed(a).minus_all(_typed(b)),
    "intersect": lambda a, b: _typed(a).intersect(_typed(a).union(_typed(b)).sample(0.8, 7)),
    "intersect_all": lambda a, b: _typed(a).intersect_all(_typed(b).union(_typed(a)).filter(col("v") != 2)),
    "sample": lambda a, b: _typed(a).sample(0.9, 3),
    "sample of objects": lambda a, b: a.with_schema(None).sample(0.9, 3),
    "cache": lambda a, b: _bounded(_typed(a).cache().union(_typed(a).cache().filter(col("v") > 0))),
    "map": lambda a, b: a.map(_add_one),
    "map typed": lambda a, b: a.map(_add_one, output_type=SCHEMA),
    "flat_map": lambda a, b: _bounded(a.flat_map(_twice_or_not)),
    "filter by function": lambda a, b: a.filter(_keep),
    "filter by expression": lambda a, b: a.with_schema(SCHEMA).filter((col("v") > -3) | col("x").is_null()),
    "filter of a shared filter": _shared,
    "two filters of a filter": _branches,
    "map_partition": lambda a, b: a.map_partition(_of_partition),
    "map_batches": lambda a, b: a.with_schema(SCHEMA).map_batches(_of_batch, output_type=SCHEMA),
    "project": lambda a, b: a.project("x", "v", "k", "s"),
    "select": _select,
    "with_columns": lambda a, b: a.with_schema(SCHEMA).with_columns(s=col("s").upper()),
    "few columns": lambda a, b: a.with_schema(SCHEMA).select("k", "v", s=lit("few"), x=lit(None, pa.float64())),
    "as objects": lambda a, b: a.with_schema(None),
    "as columns": lambda a, b: a.with_schema(SCHEMA),
    "reduce": lambda a, b: a.reduce(_larger),
    "group reduce": lambda a, b: a.group_by("k").reduce(_larger),
    "group reduce by function": lambda a, b: a.group_by(_key_of).reduce(_larger),
    "reduce_group": lambda a, b: a.group_by("k").reduce_group(_summed),
    "reduce_group typed": lambda a, b: a.group_by("k").reduce_group(_summed, output_type=SCHEMA),
    "reduce_group in order": lambda a, b: (
        a.group_by("k").sort_group("v", ascending=False).sort_group("s").reduce_group(_in_order)
    ),
    "groups of sorted partitions": lambda a, b: _presorted(a, ascending=True),
    "groups of partitions sorted the other way": lambda a, b: _presorted(a, ascending=False),
    "reduce_group with combiner": lambda a, b: a.group_by("k").reduce_group(_SumWithCombiner()),
    "combine_group": _parts,
    "aggregate": _aggregate,
    "aggregate rows": _aggregate_rows,
    "aggregate all": lambda a, b: a.with_schema(SCHEMA).aggregate(
        k=count(), s=f.min("s"), v=f.max("v"), x=f.sum("x")
    ),
    "min_by": lambda a, b: a.group_by("k").min_by("v", "s", "x", "k"),
    "max_by": lambda a, b: a.group_by("s").max_by("x", "v", "k", "s"),
    "first in order": lambda a, b: a.group_by("k").sort_group("s").sort_group("v").sort_group("x").first(2),
    "first of sorted": lambda a, b: a.sort("x", "v", "s", "k", ascending=[False, True, False, True]).first(7),
    "distinct": lambda a, b: a.distinct(),
    "distinct by key": lambda a, b: a.project("k", "s").distinct("k", "s").map(lambda r: row(r["k"], r["s"], 0, None)),
    "inner join": _join("inner"),
    "left join": _join("left"),
    "right join": _join("right"),
    "full join": _join("full"),
    "broadcast join": _join("inner", JoinHint.BROADCAST_HASH_SECOND),
    "sort merge join": _join("full", JoinHint.REPARTITION_SORT_MERGE),
    "inner join of columns": _join_columns("inner"),
    "left join of columns": _join_columns("left"),
    "full join of columns": _join_columns("full"),
    "co_group": lambda a, b: a.co_group(b).where("k").equal_to("k").with_(_both_groups),
    "cross": lambda a, b: _bounded(
        a.distinct("k").project("k").cross(b.project("v")).with_(lambda p, q: row(p["k"], None, q["v"], None))
    ),
    "union": lambda a, b: _bounded(a.with_schema(None).union(b.with_schema(None))),
    "union typed": lambda a, b: _bounded(a.with_schema(SCHEMA).union(b.with_schema(SCHEMA))),
    "rebalance": lambda a, b: a.rebalance(),
    "partition_by_hash": lambda a, b: a.partition_by_hash("k"),
    "partition_by_range": lambda a, b: a.partition_by_range("v", "k"),
    "partition_custom": lambda a, b: a.partition_custom(lambda key, n: (key or 0) % n, "k"),
    "sort_partition": lambda a, b: a.sort_partition("v"),
    "sort": lambda a, b: a.sort("s", "v"),
    "broadcast set": lambda a, b: a.map(_AddSize()).with_broadcast_set(b, "others"),
    "iterate": lambda a, b: a.iterate(2, lambda d: d.map(_add_one).filter(_keep)),
    "iterate until empty": lambda a, b: a.iterate(4, lambda d: (d.map(_add_one), d.filter(_is_large))),
    "iterate with aggregator": lambda a, b: a.iterate(
        3, lambda d: d.map(_CountAndAdd()), aggregators={"seen": LongCounter()}
    ),
    "iterate with join": lambda a, b: a.iterate(
        2, lambda d: _bounded(d.join(b.project("k", "s").distinct()).where("k").equal_to("k").with_(_left))
    ),
    "iterate_delta": _grow,
}  # fmt: skip
"""Operators by name: each takes two data sets of the common type and gives another."""


# ----------------------------------------------------------------------------------------------------------- comparison


def multiset(rows):
    """Records as they are compared: NaN equal to NaN, -0.0 to 0.0, order of no meaning."""
    return Counter(frozen(r) for r in rows)


def outcome(data):
    """What a data set comes to: its records, or the kind of its failure."""
    try:
        return multiset(data.collect())
    except Exception as error:
        return type(error)


def first_difference(program, one, other):
    """The first step after which two environments disagree, with both results; None if there is none.

    Args:
        program: A program.
        one: Makes an environment, from a parallelism.
        other: Makes the other.
    """
    for number in range(len(program.steps) + 2):
        results = [outcome(build(make(program.parallelism), program)[number]) for make in (one, other)]
        if results[0] != results[1]:
            step = "a source" if number < 2 else program.steps[number - 2]
            return step, results[0], results[1]
    return None


def assert_equal(program, one, other):
    """Fail with the first operator that differs, if two environments disagree on the last data set of a program."""
    results = [outcome(build(make(program.parallelism), program)[-1]) for make in (one, other)]
    if results[0] != results[1]:
        step, left, right = first_difference(program, one, other) or ("the whole", *results)
        message = f"results differ after {step}:\n{left}\n{right}"
        raise AssertionError(message)
