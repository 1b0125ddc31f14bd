"""The verbs of data sets, each beside plain Python that computes the same from lists of records.

The second form shares no code with the product: no Arrow, no kernels, no plan. It is what the guide says of nulls, NaN,
zones and ties, written once more. Where a verb may choose, or promises no order, the pair leaves no choice.

Used with the local executor (`tests/dataset/test_verbs.py`, random tables) and with Spark (few tables).
"""

import functools
import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import pyarrow as pa
from hypothesis import strategies as st

from headrace import Types, avg, col, count, if_else
from headrace import functions as f

BERLIN = ZoneInfo("Europe/Berlin")
LEFT = pa.schema(
    [
        ("i", pa.int64()),
        ("k", pa.int32()),
        ("s", pa.string()),
        ("x", pa.float64()),
        ("d", pa.decimal128(15, 2)),
        ("t", pa.timestamp("us", "Europe/Berlin")),
        ("b", pa.bool_()),
    ]
)
RIGHT = pa.schema([("j", pa.int64()), ("k2", pa.int32()), ("x2", pa.float64()), ("d2", pa.decimal128(15, 2)),
                   ("t2", pa.timestamp("us", "Europe/Berlin"))])  # fmt: skip

_MIDNIGHT = datetime(2024, 10, 26, 22, tzinfo=timezone.utc)
"""Hours from here on cross the end of summer time in Berlin: one local hour comes twice."""


def _time(hours):
    return None if hours is None else (_MIDNIGHT + timedelta(hours=hours)).astimezone(BERLIN)


def _decimal(cents):
    return None if cents is None else Decimal(cents).scaleb(-2)


_CENTS = [0, 1, -1, 995, -12_345, 999_999_999_999_999, -999_999_999_999_999]


def _or_none(strategy):
    return st.one_of(strategy, strategy, strategy, st.none())


_keys = _or_none(st.sampled_from([1, 1, 1, 2, -3, 2**31 - 1]))
_floats = _or_none(st.sampled_from([0.0, -0.0, 0.25, -1.5, 2.0, math.nan, math.inf, -math.inf]))
_cents = _or_none(st.sampled_from(_CENTS))
_hours = _or_none(st.integers(0, 5))
_left = st.tuples(_keys, _or_none(st.sampled_from(["", "a", "b", "é", "Z"])), _floats, _cents, _hours,
                  _or_none(st.booleans()))  # fmt: skip
_right = st.tuples(_keys, _floats, _cents, _hours)


def lefts(drawn):
    return [
        {"i": i, "k": k, "s": s, "x": x, "d": _decimal(cents), "t": _time(hours), "b": b}
        for i, (k, s, x, cents, hours, b) in enumerate(drawn)
    ]


def rights(drawn):
    return [
        {"j": j, "k2": k, "x2": x, "d2": _decimal(cents), "t2": _time(hours)}
        for j, (k, x, cents, hours) in enumerate(drawn)
    ]


tables = st.tuples(st.lists(_left, max_size=14).map(lefts), st.lists(_right, max_size=7).map(rights))


def random_tables(seed, num_left, num_right):
    """One pair of tables, for executors that are too slow for many."""
    draw = random.Random(seed)

    def some(values):
        return draw.choice([*values, None])

    floats, cents = [0.0, -0.0, 0.25, -1.5, 2.0, math.nan, math.inf, -math.inf], _CENTS
    left = [
        (
            some([1, 1, 1, 2, -3]),
            some(["", "a", "b", "é"]),
            some(floats),
            some(cents),
            some(range(6)),
            some([True, False]),
        )
        for _ in range(num_left)
    ]
    right = [(some([1, 2, -3, 2**31 - 1]), some(floats), some(cents), some(range(6))) for _ in range(num_right)]
    return lefts(left), rights(right)


def as_sets(env, left, right):
    return (
        env.from_arrow(pa.Table.from_pylist(left, LEFT)),
        env.from_arrow(pa.Table.from_pylist(right, RIGHT)),
    )


# -------------------------------------------------------------------------------------------------------------- values


def instant(value):
    """A time in UTC: two of one zone are compared by Python by what the clock shows there, which may come twice."""
    return value.astimezone(timezone.utc) if isinstance(value, datetime) else value


def plain(value):
    """A value that equals another one iff they are the same to a data set; floats rounded, as sums have any order."""
    if isinstance(value, dict):
        return tuple((name, plain(part)) for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else ("float", float(f"{value:.9g}") + 0.0)
    if isinstance(value, Decimal):
        return ("decimal", value)
    return instant(value)


def multiset(rows):
    return Counter(map(plain, rows))


def place(value):
    """Sorts nulls first and NaN last."""
    if value is None:
        return (0, 0)
    return (2, 0) if isinstance(value, float) and math.isnan(value) else (1, instant(value))


def places(row, names):
    return tuple(place(row[name]) for name in names)


def groups_of(rows, names):
    found = {}
    for row in rows:
        found.setdefault(tuple(plain(row[name]) for name in names), []).append(row)
    return list(found.values())


def present(rows, name):
    return [row[name] for row in rows if row[name] is not None]


def total(values):
    return functools.reduce(lambda a, b: a + b, values) if values else None


def least(values, choose=min):
    numbers = [v for v in values if not (isinstance(v, float) and math.isnan(v))]
    return choose(numbers, key=instant) if numbers else (values[0] if values else None)


def mean(values):
    return float(sum(map(Fraction, values)) / len(values)) if values else None


def matches(a, b, left_names, right_names):
    """Whether keys are equal; null equals nothing, NaN itself."""
    pairs = [(a[one], b[other]) for one, other in zip(left_names, right_names, strict=True)]
    return all(x is not None and y is not None and plain(x) == plain(y) for x, y in pairs)


def joined(left, right, left_names, right_names, how):
    pairs = [(a, b) for a in left for b in right if matches(a, b, left_names, right_names)]
    if how in ("left", "full"):
        pairs += [(a, None) for a in left if not any(matches(a, b, left_names, right_names) for b in right)]
    if how in ("right", "full"):
        pairs += [(None, b) for b in right if not any(matches(a, b, left_names, right_names) for a in left)]
    return [(a and a["i"], b and b["j"]) for a, b in pairs]


def numbers(left, right):
    return (left and left["i"], right and right["j"])


# --------------------------------------------------------------------------------------------------------------- verbs


@dataclass(frozen=True)
class Verb:
    """A verb in two forms: of data sets, and of lists. In both it takes two inputs."""

    run: Callable
    oracle: Callable
    in_order: bool = False


def _join(left_names, right_names, how):
    return Verb(
        lambda a, b: a.join(b, how=how).where(*left_names).equal_to(*right_names).with_(numbers),
        lambda a, b: joined(a, b, left_names, right_names, how),
    )


def _semi(name, other, *, is_anti):
    def run(a, b):
        return (a.anti_join(b) if is_anti else a.semi_join(b)).where(name).equal_to(other)

    return Verb(run, lambda a, b: [x for x in a if any(matches(x, y, [name], [other]) for y in b) != is_anti])


def _less(a, b):
    """``d < d2 or t == t2`` in three-valued logic."""
    first = None if a["d"] is None or b["d2"] is None else a["d"] < b["d2"]
    second = None if a["t"] is None or b["t2"] is None else instant(a["t"]) == instant(b["t2"])
    return bool(first or second)


def _where(how):
    def oracle(left, right):
        pairs = [(a, b) for a in left for b in right if _less(a, b)]
        if how in ("semi", "anti"):
            return [a for a in left if any(_less(a, b) for b in right) == (how == "semi")]
        nothing = dict.fromkeys(RIGHT.names)
        alone = [(a, nothing) for a in left if not any(_less(a, b) for b in right)] if how == "left" else []
        return [{**a, **b} for a, b in pairs + alone]

    condition = (col("d") < col("d2")) | (col("t") == col("t2"))
    return Verb(lambda a, b: a.join_where(b, condition, how=how), oracle)


def _aggregates(rows):
    values, times = present(rows, "d"), present(rows, "t")
    ints = present(rows, "k")
    return {
        "n": len(rows), "nx": len(present(rows, "x")), "ds": total(values), "first": least(times),
        "last": least(times, max), "low": least(present(rows, "x")), "high": least(present(rows, "x"), max),
        "mean": mean(values), "text": least(present(rows, "s"), max), "ks": total(ints),
        "sd": statistics.stdev(ints) if len(ints) > 1 else None,
        "m": float(statistics.median(ints)) if ints else None,
    }  # fmt: skip


def _specs():
    return {
        "n": count(), "nx": count("x"), "ds": f.sum("d"), "first": f.min("t"), "last": f.max("t"), "low": f.min("x"),
        "high": f.max("x"), "mean": avg("d"), "text": f.max("s"), "ks": f.sum("k"), "sd": f.stddev("k"),
        "m": f.median("k"),
    }  # fmt: skip


def _grouped(names):
    return Verb(
        lambda a, _b: a.group_by(*names).aggregate(**_specs()),
        lambda a, _b: [{**{n: g[0][n] for n in names}, **_aggregates(g)} for g in groups_of(a, names)],
    )


def _extreme(name, *, is_min):
    def rank(row):
        value = row[name]
        return (value is None) == is_min, place(value), row["i"]

    def oracle(a, _b):
        return [(min if is_min else max)(group, key=rank) for group in groups_of(a, ["k"])]

    def run(a, _b):
        grouped = a.group_by("k")
        return grouped.min_by(name, "i") if is_min else grouped.max_by(name, "i")

    return Verb(run, oracle)


def _over(order, *, ascending=True):
    def oracle(a, _b):
        out = []
        for group in groups_of(a, ["k"]):
            rows = sorted(group, key=lambda r: places(r, order), reverse=not ascending)
            ranks = [places(r, order) for r in rows]
            for here, row in enumerate(rows):
                before = sum(other != ranks[here] for other in ranks[:here])
                upto = [r for r, rank in zip(rows, ranks, strict=True) if ranks.index(rank) <= ranks.index(ranks[here])]
                out.append({
                    **row, "r": before + 1, "dr": len(set(ranks[: here + 1])), "sum": total(present(upto, "d")),
                    "n": len(upto), "pr": before / max(len(rows) - 1, 1), "cd": len(upto) / len(rows),
                })  # fmt: skip
        return out

    def run(a, _b):
        return a.over(
            "k", order, ascending=ascending, r=f.rank(), dr=f.dense_rank(), sum=f.sum("d"), n=count(),
            pr=f.percent_rank(), cd=f.cume_dist(),
        )  # fmt: skip

    return Verb(run, oracle)


def _rows_over(a, _b):
    out = []
    for group in groups_of(a, ["k"]):
        rows = sorted(group, key=lambda r: places(r, ["t", "i"]))
        for here, row in enumerate(rows):
            frame = rows[max(here - 2, 0) : here + 2]
            out.append({
                **row, "no": here + 1, "sum": total(present(frame, "d")), "low": least(present(frame, "x")),
            })  # fmt: skip
    return out


def _neighbours_over(a, _b):
    rows = sorted(a, key=lambda r: places(r, ["d", "i"]))
    return [
        {
            **row,
            "no": here + 1,
            "before": rows[here - 1]["t"] if here else None,
            "behind": rows[here + 2]["i"] if here + 2 < len(rows) else -1,
        }
        for here, row in enumerate(rows)
    ]


def _computed(a, _b):
    def of(row):
        d, x, k = row["d"], row["x"], row["k"]
        tenth = None if d is None else (d * Decimal("0.1")).quantize(Decimal("0.001"), ROUND_HALF_UP)
        kind = "null" if x is None else "nan" if math.isnan(x) else "number"
        return {"i": row["i"], "tenth": tenth, "kind": kind, "double": None if k is None else k * 2}

    return [of(row) for row in a]


def _sets(method, oracle):
    def run(a, b):
        other = b.drop("j").rename(k2="k", x2="x", d2="d", t2="t")
        return getattr(a.select("k", "x", "d", "t"), method)(other)

    def plain_run(a, b):
        one = [{n: r[n] for n in ("k", "x", "d", "t")} for r in a]
        other = [{n: r[f"{n}2"] for n in ("k", "x", "d", "t")} for r in b]
        return oracle(one, other)

    return Verb(run, plain_run)


def _bags(one, other, number):
    """So many of each record of the first list as ``number`` says, from how often both lists have it."""
    counts = Counter(map(plain, one)), Counter(map(plain, other))
    by_value = {plain(r): r for r in one}
    return [by_value[v] for v, n in counts[0].items() for _ in range(number(n, counts[1][v]))]


def _components(edges, most=9):
    def run(a, b):
        vertices = a.select(v=col("i"), label=col("i"))
        links = a.filter(col("k").is_not_null()).join(a.select(i2=col("i"), k2=col("k"))).where("k").equal_to("k2")
        links = links.project_first("i").project_second("i2")

        def step(solution, workset):
            reached = workset.join(links).where("v").equal_to("i").project_second("i2").project_first("label")
            best = reached.select("label", v=col("i2")).group_by("v").min("label")
            both = best.join(solution).where("v").equal_to("v")
            changed = both.with_(lambda new, old: (new["v"], new["label"], old["label"]))
            changed = changed.filter(lambda r: r[1] < r[2]).map(
                lambda r: {"v": r[0], "label": r[1]},
                output_type=Types.ROW_NAMED(["v", "label"], [Types.LONG(), Types.LONG()]),
            )
            return changed, changed

        return vertices.iterate_delta(vertices, most, "v", step=step)

    return Verb(run, edges)


def _least_of_key(a, _b):
    firsts = {}
    for row in a:
        if row["k"] is not None:
            firsts.setdefault(row["k"], row["i"])
    return [{"v": r["i"], "label": r["i"] if r["k"] is None else firsts[r["k"]]} for r in a]


def _doubled(n):
    return n * 2 if n < 1000 else n


_ORDER = ["s", "x", "d", "t", "k", "b", "i"]

VERBS = {
    "map": Verb(lambda a, _b: a.map(lambda r: (r["i"], r["d"])), lambda a, _b: [(r["i"], r["d"]) for r in a]),
    "flat_map": Verb(
        lambda a, _b: a.flat_map(lambda r: [r["t"]] * (r["i"] % 3)),
        lambda a, _b: [r["t"] for r in a for _ in range(r["i"] % 3)],
    ),
    "filter by function": Verb(
        lambda a, _b: a.filter(lambda r: r["s"] == "a"), lambda a, _b: [r for r in a if r["s"] == "a"]
    ),
    "filter by decimals": Verb(
        lambda a, _b: a.filter(col("d") > 0), lambda a, _b: [r for r in a if r["d"] is not None and r["d"] > 0]
    ),
    "filter by times": Verb(
        lambda a, _b: a.filter(col("t") >= _time(3)),
        lambda a, _b: [r for r in a if r["t"] is not None and instant(r["t"]) >= instant(_time(3))],
    ),
    "filter by null or not": Verb(
        lambda a, _b: a.filter(col("x").is_null() | ~col("b")),
        lambda a, _b: [r for r in a if r["x"] is None or r["b"] is False],
    ),
    "select": Verb(
        lambda a, _b: a.select(
            "i",
            tenth=col("d") * Decimal("0.1"),
            kind=if_else(col("x").is_null(), "null", if_else(col("x") != col("x"), "nan", "number")),
            double=col("k").cast(int) * 2,
        ),
        _computed,
    ),
    "with_columns, rename, drop, project": Verb(
        lambda a, _b: a.with_columns(u=col("i") + 1).rename(d="money").drop("b", "x").project("u", "money", "t"),
        lambda a, _b: [{"u": r["i"] + 1, "money": r["d"], "t": r["t"]} for r in a],
    ),
    "distinct": Verb(
        lambda a, _b: a.drop("i").distinct(),
        lambda a, _b: [
            g[0] for g in groups_of([{n: r[n] for n in r if n != "i"} for r in a], ["k", "s", "x", "d", "t", "b"])
        ],
    ),
    "distinct keys": Verb(
        lambda a, _b: a.distinct("x").select("x"), lambda a, _b: [{"x": g[0]["x"]} for g in groups_of(a, ["x"])]
    ),
    "groups by key": _grouped(["k"]),
    "groups by a decimal and a time": _grouped(["d", "t"]),
    "groups by a double": _grouped(["x"]),
    "aggregate of all": Verb(lambda a, _b: a.aggregate(**_specs()), lambda a, _b: [_aggregates(a)]),
    "computed of aggregates": Verb(
        lambda a, _b: a.group_by("b").aggregate(share=count("d") / count(), twice=f.sum("d") + f.sum("d")),
        lambda a, _b: [
            {"b": g[0]["b"], "share": len(present(g, "d")) / len(g), "twice": total(present(g, "d") * 2)}
            for g in groups_of(a, ["b"])
        ],
    ),
    "lists and sets": Verb(
        lambda a, _b: (
            a.group_by("k")
            .aggregate(l=f.collect_list("d"), s=f.collect_set("t"))
            .map(lambda r: (r["k"], sorted(r["l"]), sorted(map(instant, r["s"]))))
        ),
        lambda a, _b: [
            (g[0]["k"], sorted(present(g, "d")), sorted(set(map(instant, present(g, "t")))))
            for g in groups_of(a, ["k"])
        ],
    ),
    "min_by": _extreme("d", is_min=True),
    "max_by": _extreme("t", is_min=False),
    "reduce": Verb(
        lambda a, _b: a.map(lambda r: (r["k"], r["i"])).group_by(0).reduce(lambda p, q: (p[0], p[1] + q[1])),
        lambda a, _b: [(g[0]["k"], sum(r["i"] for r in g)) for g in groups_of(a, ["k"])],
    ),
    "sorted groups": Verb(
        lambda a, _b: (
            a.group_by("k")
            .sort_group("x", ascending=False)
            .sort_group("i")
            .reduce_group(lambda rows: [[r["i"] for r in rows]])
        ),
        lambda a, _b: [
            [r["i"] for r in sorted(g, key=lambda r: (_Reversed(place(r["x"])), r["i"]))] for g in groups_of(a, ["k"])
        ],
    ),
    "first of groups": Verb(
        lambda a, _b: a.group_by("s").sort_group("d").sort_group("i").first(2),
        lambda a, _b: [r for g in groups_of(a, ["s"]) for r in sorted(g, key=lambda r: places(r, ["d", "i"]))[:2]],
    ),
    "sort": Verb(
        lambda a, _b: a.sort(*_ORDER), lambda a, _b: sorted(a, key=lambda r: places(r, _ORDER)), in_order=True
    ),
    "first of sorted": Verb(
        lambda a, _b: a.sort("t", "i", ascending=[False, True]).first(3),
        lambda a, _b: sorted(sorted(a, key=lambda r: r["i"]), key=lambda r: _Reversed(place(r["t"])))[:3],
    ),
    "partitions": Verb(
        lambda a, _b: (
            a.partition_by_hash("d")
            .partition_by_range("t")
            .rebalance()
            .partition_custom(lambda key, n: 0 if key is None else key % n, "i")
        ),
        lambda a, _b: a,
    ),
    "inner join": _join(["k"], ["k2"], "inner"),
    "left join by decimals": _join(["d"], ["d2"], "left"),
    "right join by times": _join(["t"], ["t2"], "right"),
    "full join by doubles": _join(["x"], ["x2"], "full"),
    "full join by two fields": _join(["k", "t"], ["k2", "t2"], "full"),
    "merged join": Verb(
        lambda a, b: a.join(b, how="left").where("d").equal_to("d2").merge(),
        lambda a, b: [
            {**x, **(y or dict.fromkeys(RIGHT.names))}
            for x in a
            for y in ([y for y in b if matches(x, y, ["d"], ["d2"])] or [None])
        ],
    ),
    "semi join": _semi("t", "t2", is_anti=False),
    "anti join": _semi("d", "d2", is_anti=True),
    "join where": _where("inner"),
    "left join where": _where("left"),
    "semi join where": _where("semi"),
    "anti join where": _where("anti"),
    "cross": Verb(lambda a, b: a.cross(b).with_(numbers), lambda a, b: [(x["i"], y["j"]) for x in a for y in b]),
    "co_group": Verb(
        lambda a, b: a.co_group(b).where("d").equal_to("d2").with_(lambda p, q: [(len(p), len(q))]),
        lambda a, b: [
            (sum("i" in r for r in g), sum("j" in r for r in g))
            for g in groups_of([*a, *({**r, "d": r["d2"]} for r in b)], ["d"])
        ],
    ),
    "union": _sets("union", lambda one, other: one + other),
    "minus": _sets("minus", lambda one, other: _bags(one, other, lambda n, m: int(m == 0))),
    "minus_all": _sets("minus_all", lambda one, other: _bags(one, other, lambda n, m: max(n - m, 0))),
    "intersect": _sets("intersect", lambda one, other: _bags(one, other, lambda n, m: int(m > 0))),
    "intersect_all": _sets("intersect_all", lambda one, other: _bags(one, other, min)),
    "over ranks of decimals": _over(["d"]),
    "over ranks of doubles, descending": _over(["x"], ascending=False),
    "over ranks of times": _over(["t"]),
    "over rows": Verb(
        lambda a, _b: a.over("k", ["t", "i"], rows_between=(-2, 1), no=f.row_number(), sum=f.sum("d"), low=f.min("x")),
        _rows_over,
    ),
    "over neighbours": Verb(
        lambda a, _b: a.over(None, ["d", "i"], no=f.row_number(), before=f.lag("t"), behind=f.lead("i", 2, -1)),
        _neighbours_over,
    ),
    "explode": Verb(
        lambda a, _b: a.group_by("k").aggregate(l=f.collect_list("d")).explode("l", outer=True),
        lambda a, _b: [{"k": g[0]["k"], "l": v} for g in groups_of(a, ["k"]) for v in (present(g, "d") or [None])],
    ),
    "cache": Verb(
        lambda a, _b: (lambda c: c.union(c))(a.select("d", "t").cache()),
        lambda a, _b: [{"d": r["d"], "t": r["t"]} for r in a] * 2,
    ),
    "iterate": Verb(
        lambda a, _b: a.map(lambda r: r["i"], output_type=Types.LONG()).iterate(
            5, lambda d: d.map(_doubled, output_type=Types.LONG())
        ),
        lambda a, _b: [functools.reduce(lambda n, _: _doubled(n), range(5), r["i"]) for r in a],
    ),
    "iterate_delta": _components(_least_of_key),
}


@functools.total_ordering
class _Reversed:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    def __lt__(self, other):
        return other.value < self.value


def check(verb, env, left, right):
    """Compare both forms of a verb."""
    found = verb.run(*as_sets(env, left, right)).collect()
    expected = verb.oracle(left, right)
    if verb.in_order:
        assert [plain(r) for r in found] == [plain(r) for r in expected]
    else:
        assert multiset(found) == multiset(expected), list(itertools.islice(zip(found, expected, strict=False), 3))
