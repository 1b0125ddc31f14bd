"""Every operator against plain Python, with and without types, in three partitions, optimised and not.

Oracle: each expected value is written by hand or computed from the input by a few lines of Python.
"""

import decimal
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest

from headrace import (
    ExecutionEnvironment,
    FlatJoinFunction,
    FlatMapFunction,
    GroupReduceFunction,
    JoinHint,
    MapFunction,
    ProgramError,
    TypeMismatchError,
    Types,
    UserFunctionError,
    avg,
    col,
    count,
    count_distinct,
    lit,
)
from headrace import functions as f
from headrace.dataset import CrossFunction, MapPartitionFunction, Partitioner
from headrace.engine.partitions.wire_records import frozen

NAN = math.nan
PEOPLE = [
    {"name": "ann", "age": 30, "city": "b", "score": 1.5},
    {"name": "bob", "age": None, "city": "a", "score": NAN},
    {"name": "cat", "age": 25, "city": "a", "score": None},
    {"name": "dan", "age": 30, "city": None, "score": 0.0},
    {"name": "eve", "age": 41, "city": None, "score": -0.0},
    {"name": "fay", "age": 7, "city": "b", "score": NAN},
]


@pytest.fixture(params=["typed", "objects"])
def people(request, env):
    data = env.from_collection(PEOPLE)
    return data if request.param == "typed" else data.as_type(Types.PICKLED_BYTE_ARRAY())


def same(actual, expected):
    return Counter(map(frozen, actual)) == Counter(map(frozen, expected))


def names(data):
    return sorted(r["name"] for r in data.collect())


# ----------------------------------------------------------------------------------------------------- record by record


def test_map_flat_map_filter(people):
    assert sorted(people.map(lambda r: r["name"][0]).collect()) == list("abcdef")
    letters = people.flat_map(lambda r: list(r["name"])).collect()
    assert same(letters, [letter for r in PEOPLE for letter in r["name"]])
    assert names(people.filter(lambda r: r["age"] == 30)) == ["ann", "dan"]
    assert names(people.filter(col("age") > 26)) == ["ann", "dan", "eve"]


def test_a_flat_map_may_give_nothing(env):
    class Odd(FlatMapFunction):
        def flat_map(self, value):
            if value % 2:
                yield value

    assert sorted(env.generate_sequence(1, 9).flat_map(Odd()).collect()) == [1, 3, 5, 7, 9]
    assert env.from_elements(1, 2).flat_map(lambda x: None).collect() == []


def test_map_partition_is_called_for_each_partition_also_for_empty_ones(env):
    data = env.from_collection([1, 2]).map_partition(lambda rows: [sum(1 for _ in rows)])
    assert data.collect() == [1, 1, 0]


def test_map_partition_functions_have_a_life_per_subtask(env):
    class Numbered(MapPartitionFunction):
        seen = 0

        def open(self, runtime_context):
            self.place = runtime_context.get_task_name_with_subtasks()
            self.seen += 1

        def map_partition(self, values):
            yield self.place, self.seen, sorted(values)

    data = env.from_collection([1, 2, 3]).map_partition(Numbered()).name("parts")
    assert data.collect() == [(f"parts ({i}/3)", 1, [i]) for i in (1, 2, 3)]


def test_map_batches_keeps_columns(env):
    data = env.from_collection(PEOPLE).map_batches(
        lambda batch: {"n": pa.array([batch.num_rows])}, output_type=pa.schema([("n", pa.int64())])
    )
    assert sum(r["n"] for r in data.collect()) == 6
    assert data.to_arrow().schema.names == ["n"]


def test_project_select_and_with_columns(people):
    assert same(people.project("city", "name").collect(), [{"city": r["city"], "name": r["name"]} for r in PEOPLE])
    selected = people.select("name", older=col("age") + 1).collect()
    assert same(selected, [{"name": r["name"], "older": None if r["age"] is None else r["age"] + 1} for r in PEOPLE])
    assert same(people.with_columns(city=lit("x")).collect(), [{**r, "city": "x"} for r in PEOPLE])


def test_projecting_positions_gives_tuples(env):
    for data in (env.from_collection([(1, "a", 2.0)]), env.from_collection([(1, "a", 2.0)]).map(lambda r: r)):
        assert data.project(2, 0).collect() == [(2.0, 1)]


# --------------------------------------------------------------------------------------------------------------- groups


def test_null_is_a_key_and_so_is_nan(people):
    counts = people.group_by("city").count().collect()
    assert same(counts, [{"city": "a", "count": 2}, {"city": "b", "count": 2}, {"city": None, "count": 2}])
    by_score = people.group_by("score").aggregate(n=count()).collect()
    assert same(
        by_score, [{"score": 1.5, "n": 1}, {"score": NAN, "n": 2}, {"score": None, "n": 1}, {"score": 0.0, "n": 2}]
    )


def test_aggregates_are_sqls(people):
    result = people.group_by("city").aggregate(
        n=count("age"), total=f.sum("age"), low=f.min("age"), mean=avg("age"), kinds=count_distinct("name")
    )
    expected = [
        {"city": "b", "n": 2, "total": 37, "low": 7, "mean": 18.5, "kinds": 2},
        {"city": "a", "n": 1, "total": 25, "low": 25, "mean": 25.0, "kinds": 2},
        {"city": None, "n": 2, "total": 71, "low": 30, "mean": 35.5, "kinds": 2},
    ]
    assert same(result.collect(), expected)


def test_aggregating_by_a_function_calls_the_key_key(people):
    result = people.group_by(lambda r: len(r["name"])).aggregate(n=count())
    assert result.collect() == [{"key": 3, "n": 6}]


def test_short_forms_keep_positions_of_tuples(env):
    rows = [("a", 1, 5.0), ("b", 2, 1.0), ("a", 3, 0.5)]
    for data in (env.from_collection(rows), env.from_collection(rows).map(lambda r: r)):
        assert sorted(data.group_by(0).sum(1).collect()) == [("a", 4), ("b", 2)]
        assert sorted(data.group_by(1).max(0).collect()) == [("a", 1), ("a", 3), ("b", 2)]
        assert data.min(2).collect() == [(0.5,)]


def test_aggregating_nothing_gives_one_record_and_reducing_nothing_none(env):
    empty = env.from_collection([], type_info=Types.ROW_NAMED(["v"], [Types.LONG()]))
    for data in (empty, empty.as_type(Types.PICKLED_BYTE_ARRAY())):
        assert data.aggregate(n=count(), s=f.sum("v")).collect() == [{"n": 0, "s": None}]
        assert data.group_by("v").aggregate(n=count()).collect() == []
        assert data.reduce(lambda a, b: a).collect() == []
        assert data.reduce_group(lambda rows: [1]).collect() == []
        assert data.min_by("v").collect() == []
        assert data.first(3).collect() == []
        assert data.distinct().collect() == []
        assert data.count() == 0


MOST = 2**63 - 1


@pytest.mark.parametrize("is_typed", [True, False])
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([MOST, MOST, MOST, 5, -MOST, -MOST, -MOST], pa.int64()),
        ([-MOST - 1, -MOST - 1, MOST, 1], pa.int64()),
        ([-MOST - 1, None], pa.int64()),
        ([Decimal("9" * 38), Decimal("9" * 38), Decimal(f"-{'9' * 38}")], pa.decimal128(38, 0)),
    ],
)
def test_a_sum_need_not_fit_on_the_way(env, values, kind, is_typed):
    """Whatever the order in which partitions are put together: the result alone has to fit."""
    schema = pa.schema([("k", pa.int64()), ("v", kind)])
    data = env.from_collection([{"k": 1, "v": v} for v in values], type_info=schema)
    data = data if is_typed else data.with_schema(None)
    with decimal.localcontext(prec=60):
        total = sum(v for v in values if v is not None)
    assert data.aggregate(s=f.sum("v")).collect() == [{"s": total}]
    assert data.group_by("k").sum("v").collect() == [{"k": 1, "v": total}]
    most = MOST if kind == pa.int64() else Decimal("9" * 38)
    too_much = env.from_collection([{"k": 1, "v": most}] * 3, type_info=schema)
    with pytest.raises(UserFunctionError, match=r"(?s)does not fit.*sum\(col\('v'\)\)"):
        (too_much if is_typed else too_much.with_schema(None)).sum("v").collect()


def test_reduce_and_reduce_group(people):
    assert people.map(lambda r: r["age"] or 0).reduce(lambda a, b: a + b).collect() == [133]
    longest = people.group_by("city").reduce(lambda a, b: max(a, b, key=lambda r: r["name"]))
    assert names(longest) == ["cat", "eve", "fay"]
    joined = (
        people.group_by("city")
        .sort_group("name", ascending=False)
        .reduce_group(lambda rows: ["".join(r["name"][0] for r in rows)])
    )
    assert sorted(joined.collect()) == ["cb", "ed", "fa"]


def test_a_group_reduce_with_combine_is_combined_before_the_shuffle():
    class Total(GroupReduceFunction):
        def open(self, runtime_context):
            self.combined = runtime_context.get_long_counter("combined")

        def reduce(self, values):
            rows = list(values)
            yield rows[0][0], sum(v for _k, v in rows)

        def combine(self, values):
            self.combined.add(1)
            return self.reduce(values)

    for optimize in (True, False):
        env = ExecutionEnvironment.get_execution_environment("local", 3, optimize=optimize)
        data = env.from_collection([("a", i) for i in range(9)]).group_by(0).reduce_group(Total())
        assert data.collect() == [("a", 36)]
        combined = env.get_last_job_execution_result().get_accumulator_result("combined")
        assert combined == (3 if optimize else 0)


def test_combine_group_sees_the_groups_of_a_partition(env):
    data = (
        env.from_collection([("a", i) for i in range(9)]).group_by(0).combine_group(lambda rows: [sum(1 for _ in rows)])
    )
    assert data.collect() == [3, 3, 3]


def test_min_by_and_max_by_pass_over_nulls(people):
    assert names(people.group_by("city").min_by("age")) == ["cat", "dan", "fay"]
    assert names(people.max_by("age")) == ["eve"]
    assert names(people.max_by("score", "name")) == ["ann"]
    assert names(people.filter(lambda r: r["name"] == "bob").min_by("age")) == ["bob"]


def test_first_and_distinct(people):
    assert len(people.first(4).collect()) == 4
    assert names(people.group_by("city").sort_group("name").first(1)) == ["ann", "bob", "dan"]
    assert [r["name"] for r in people.sort("age").first(2).collect()] == ["bob", "fay"]
    assert len(people.distinct("city").collect()) == 3
    assert len(people.union(people).distinct().collect()) == 6


def test_distinct_compares_content(env):
    data = env.from_collection([{"a": [1, {"b": NAN}]}, {"a": [1, {"b": NAN}]}, {"a": [2]}])
    assert len(data.distinct().collect()) == 2


# ------------------------------------------------------------------------------------------------------------- order


def test_sort_is_global_with_nulls_first_and_nan_last(people):
    ages = [r["age"] for r in people.sort("age", "name").collect()]
    assert ages == [None, 7, 25, 30, 30, 41]
    down = [r["name"] for r in people.sort("score", "name", ascending=[False, True]).collect()]
    assert down == ["bob", "fay", "ann", "dan", "eve", "cat"]
    by_function = people.sort(lambda r: r["name"][1]).collect()
    assert [r["name"][1] for r in by_function] == sorted(r["name"][1] for r in PEOPLE)


def test_sort_partition_sorts_each_partition_by_all_fields_named(env):
    rows = [(i * 7 % 5, i) for i in range(20)]
    partitions = (
        env.from_collection(rows)
        .sort_partition(0, ascending=False)
        .sort_partition(1)
        .map_partition(lambda values: [list(values)])
    )
    for partition in partitions.collect():
        assert partition == sorted(partition, key=lambda r: (-r[0], r[1]))


def test_partitioning_brings_keys_together(env):
    rows = [(i % 7, i) for i in range(50)]
    data = env.from_collection(rows)
    for moved in (data.partition_by_hash(0), data.partition_by_range(0), data.partition_custom(lambda k, n: k % n, 0)):
        partitions = [set(p) for p in moved.map_partition(lambda values: [[k for k, _v in values]]).collect()]
        assert sum(map(len, partitions)) == 7
    ranges = data.partition_by_range(0).map_partition(lambda values: [[k for k, _v in values]]).collect()
    filled = [p for p in ranges if p]
    assert all(max(a) < min(b) for a, b in pairwise(filled))


def test_partitioners_and_rebalance(env):
    class ToLast(Partitioner):
        def partition(self, key, num_partitions):
            return num_partitions - 1

    def sizes(data):
        return data.map_partition(lambda rows: [sum(1 for _ in rows)]).collect()

    data = env.from_collection(list(range(9))).partition_custom(ToLast(), lambda x: x)
    assert sizes(data) == [0, 0, 9]
    assert sizes(data.rebalance()) == [3, 3, 3]
    assert sizes(data.rebalance().set_parallelism(2)) == [5, 4]
    assert sizes(env.generate_sequence(1, 10).map(lambda x: x).set_parallelism(5)) == [2, 2, 2, 2, 2]


def test_a_partitioner_that_names_no_partition_is_told(env):
    with pytest.raises(ProgramError, match="from 0 to 2; got 3"):
        env.from_elements(1).partition_custom(lambda key, n: n, lambda x: x).collect()


# ---------------------------------------------------------------------------------------------------------- two inputs

LEFT = [{"k": 1, "a": "x"}, {"k": 1, "a": "y"}, {"k": None, "a": "z"}, {"k": 3, "a": "w"}]
RIGHT = [{"k": 1, "b": 1.0}, {"k": None, "b": 2.0}, {"k": 4, "b": 3.0}]


def pairs_of(how):
    found = [(p, q) for p in LEFT for q in RIGHT if p["k"] is not None and p["k"] == q["k"]]
    if how in ("left", "full"):
        found += [(p, None) for p in LEFT if p["k"] is None or all(p["k"] != q["k"] for q in RIGHT)]
    if how in ("right", "full"):
        found += [(None, q) for q in RIGHT if q["k"] is None or all(p["k"] != q["k"] for p in LEFT)]
    return found


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
@pytest.mark.parametrize("is_typed", [True, False])
def test_joins_match_no_null_and_keep_what_they_say(env, how, is_typed):
    left, right = env.from_collection(LEFT), env.from_collection(RIGHT)
    if not is_typed:
        left = left.as_type(Types.PICKLED_BYTE_ARRAY())
    joined = left.join(right, how=how).where("k").equal_to("k")
    assert same(joined.collect(), pairs_of(how))
    made = joined.with_(lambda p, q: (p and p["a"], q and q["b"]))
    assert same(made.collect(), [(p and p["a"], q and q["b"]) for p, q in pairs_of(how)])
    projected = left.join(right, how=how).where("k").equal_to("k").project_first("a").project_second("b")
    assert same(projected.collect(), [{"a": p and p["a"], "b": q and q["b"]} for p, q in pairs_of(how)])


@pytest.mark.parametrize("hint", list(JoinHint))
def test_hints_change_no_result(env, hint):
    left, right = env.from_collection(LEFT), env.from_collection(RIGHT)
    joined = left.join(right, hint=hint).where("k").equal_to(lambda r: r["k"])
    assert same(joined.collect(), pairs_of("inner"))


def test_merge_takes_a_shared_key_once(env):
    left, right = env.from_collection(LEFT), env.from_collection(RIGHT)
    assert same(
        left.join(right).on("k").merge().collect(), [{"k": 1, "a": "x", "b": 1.0}, {"k": 1, "a": "y", "b": 1.0}]
    )
    right_outer = left.right_outer_join(right).on("k").merge().collect()
    assert {"k": 4, "a": None, "b": 3.0} in right_outer
    both = left.join(left).on("k").merge(suffix="_2")
    assert set(both.collect()[0]) == {"k", "a", "a_2"}
    with pytest.raises(ProgramError, match="both inputs have a field 'a'"):
        left.join(left).on("k").merge()


def test_keys_of_several_fields_match_only_without_nulls(env):
    rows = [(1, "a"), (1, None), (2, "a")]
    data = env.from_collection(rows)
    for left in (data, data.map(lambda r: r)):
        assert left.join(data).where(0, 1).equal_to(0, 1).count() == 2
        assert left.join(data).where(lambda r: r).equal_to(0, 1).count() == 2


def test_nan_matches_nan_and_minus_zero_matches_zero(env):
    data = env.from_collection([NAN, 0.0])
    for left in (data, data.map(lambda x: x)):
        other = env.from_collection([NAN, -0.0])
        assert left.join(other).where(lambda x: x).equal_to("value").count() == 2


def test_a_flat_join_function_gives_any_number(env):
    class Both(FlatJoinFunction):
        def join(self, first, second):
            return [] if first["a"] == "x" else [first["a"], second["b"]]

    joined = env.from_collection(LEFT).join(env.from_collection(RIGHT)).on("k").with_(Both())
    assert joined.collect() == ["y", 1.0]


def test_co_group_sees_both_groups_null_too(env):
    left, right = env.from_collection(LEFT), env.from_collection(RIGHT)
    sizes = left.co_group(right).where("k").equal_to("k").with_(lambda p, q: [((p or q)[0]["k"], len(p), len(q))])
    assert same(sizes.collect(), [(1, 2, 1), (None, 1, 1), (3, 1, 0), (4, 0, 1)])
    ordered = (
        left.co_group(right)
        .where("k")
        .equal_to("k")
        .sort_first_group("a", ascending=False)
        .with_(lambda p, q: ["".join(r["a"] for r in p)])
    )
    assert sorted(ordered.collect()) == ["", "w", "yx", "z"]


def test_cross_gives_all_pairs(env):
    class Times(CrossFunction):
        def cross(self, first, second):
            return first * second

    a, b = env.generate_sequence(1, 3), env.from_collection([10, 20])
    assert same(a.cross(b).collect(), [(x, y) for x in (1, 2, 3) for y in (10, 20)])
    assert same(a.cross(b).with_(Times()).collect(), [10, 20, 20, 40, 30, 60])
    assert same(a.cross_with_huge(b).with_(lambda x, y: x + y).collect(), [x + y for x in (1, 2, 3) for y in (10, 20)])


def test_a_join_of_a_frequent_key_is_made_in_pieces(env):
    data = env.from_collection([(1, i) for i in range(300)])
    assert data.join(data).where(0).equal_to(0).with_(lambda p, q: 1).count() == 90_000


def test_union_keeps_duplicates(env):
    a, b = env.from_collection([1, 2, 2]), env.from_collection([2, 3])
    assert sorted(a.union(b, a).collect()) == [1, 1, 2, 2, 2, 2, 2, 3]
    mixed = a.union(b.map(lambda x: x * 1.5))
    assert same(mixed.collect(), [1, 2, 2, 3.0, 4.5])


# ----------------------------------------------------------------------------------------------- surroundings, types


def test_broadcast_sets_reach_every_subtask(env):
    class Factor(MapFunction):
        def open(self, runtime_context):
            (self.factor,) = runtime_context.get_broadcast_variable("factor")

        def map(self, value):
            return value * self.factor

    data = env.generate_sequence(1, 5).map(Factor()).with_broadcast_set(env.from_elements(3), "factor")
    assert sorted(data.collect()) == [3, 6, 9, 12, 15]


def test_a_missing_broadcast_set_is_told_with_the_way_to_it(env):
    class Asks(MapFunction):
        def open(self, runtime_context):
            runtime_context.get_broadcast_variable("factor")

        def map(self, value):
            return value

    with pytest.raises(ProgramError, match=r"with_broadcast_set\(data_set, 'factor'\)"):
        env.from_elements(1).map(Asks()).collect()


def test_accumulators_come_with_the_result(env):
    class Counts(MapFunction):
        def open(self, runtime_context):
            self.counter = runtime_context.get_int_counter("odd")

        def map(self, value):
            self.counter.add(value % 2)
            return value

    assert env.generate_sequence(1, 9).map(Counts()).count() == 9
    result = env.get_last_job_execution_result()
    assert result.get_accumulator_result("odd") == 5
    assert result.get_all_accumulator_results() == {"odd": 5}


def test_cached_files_are_found_by_name(env, tmp_path):
    (tmp_path / "words.txt").write_text("one two")

    class Reads(MapFunction):
        def open(self, runtime_context):
            with open(runtime_context.get_distributed_cache().get_file("words")) as file:
                self.words = file.read().split()

        def map(self, value):
            return self.words[value]

    env.register_cached_file(tmp_path / "words.txt", "words")
    assert sorted(env.from_elements(0, 1).map(Reads()).collect()) == ["one", "two"]


@dataclass
class Point:
    x: int
    y: float


def test_records_may_be_any_objects(env):
    data = env.from_collection([Point(1, 2.0), Point(3, 4.0)])
    assert data.get_type() is None
    assert same([p.x for p in data.map(lambda p: Point(p.x + 1, p.y)).collect()], [2, 4])
    typed = data.as_type(Point)
    assert same(typed.collect(), [{"x": 1, "y": 2.0}, {"x": 3, "y": 4.0}])


def test_hints_give_types_where_records_come_back_as_they_were(env):
    def length(text: str) -> int:
        return len(text)

    def pair(text: str) -> tuple[str, int]:
        return text, len(text)

    def point(text: str) -> Point:
        return Point(len(text), 0.0)

    words = env.from_elements("a", "bb")
    assert repr(words.map(length).get_type()) == "int64"
    assert words.map(pair).group_by("f0").sum("f1").collect()
    assert words.map(point).get_type() is None
    assert isinstance(words.map(point).collect()[0], Point)


def test_a_record_that_does_not_fit_its_type_names_the_operator(env):
    data = env.from_elements("1", "x").map(lambda x: x, output_type=Types.LONG()).name("numbers")
    with pytest.raises(TypeMismatchError, match=r"operator 'numbers'"):
        data.collect()


def test_a_failing_function_is_told_with_operator_subtask_record_and_its_own_traceback(env):
    def inverse(x):
        return 1 / x

    data = env.from_collection([4, 2, 0]).map(inverse).name("inverse")
    with pytest.raises(UserFunctionError) as caught:
        data.collect()
    text = str(caught.value)
    assert "ZeroDivisionError" in text
    assert "operator 'inverse'" in text
    assert "subtask 3/3" in text
    assert "record 0" in text
    assert "return 1 / x" in text
    assert "headrace/engine" not in text


@pytest.mark.parametrize(
    "build",
    [
        lambda d: d.flat_map(lambda r: [1 / 0]),
        lambda d: d.filter(lambda r: 1 / 0),
        lambda d: d.map_partition(lambda rows: (1 / 0 for _ in rows)),
        lambda d: d.group_by("k").reduce_group(lambda rows: [1 / 0]),
        lambda d: d.group_by("k").reduce(lambda a, b: 1 / 0),
        lambda d: d.group_by(lambda r: 1 / 0).count(),
        lambda d: d.join(d).on("k").with_(lambda p, q: 1 / 0),
        lambda d: d.co_group(d).where("k").equal_to("k").with_(lambda p, q: [1 / 0]),
        lambda d: d.cross(d).with_(lambda p, q: 1 / 0),
        lambda d: d.partition_custom(lambda k, n: 1 / 0, "k"),
        lambda d: d.sort(lambda r: 1 / 0),
        lambda d: d.map_batches(lambda batch: 1 / 0),
    ],
)
def test_every_kind_of_function_that_fails_is_told_with_its_operator(env, build):
    data = env.from_collection([{"k": 1}, {"k": 1}, {"k": 2}, {"k": 2}])
    with pytest.raises(UserFunctionError, match=r"ZeroDivisionError") as caught:
        build(data).collect()
    assert caught.value.context["operator"]


def test_functions_are_closed_also_after_a_failure(env, tmp_path):
    class Fails(MapFunction):
        def map(self, value):
            return 1 / 0

        def close(self):
            (tmp_path / "closed").touch()

    with pytest.raises(UserFunctionError):
        env.from_elements(1).map(Fails()).collect()
    assert (tmp_path / "closed").exists()


def test_a_function_that_fails_as_it_is_opened_is_closed_as_on_streams(env, tmp_path):
    class Fails(MapFunction):
        failure = OSError("no model file")

        def open(self, runtime_context):
            raise self.failure

        def map(self, value):
            return value

        def close(self):
            (tmp_path / "closed").touch()

    with pytest.raises(UserFunctionError, match="no model file") as caught:
        env.from_elements(1).map(Fails()).collect()
    assert caught.value.context["function"].endswith("Fails.open")
    assert (tmp_path / "closed").exists()


def test_grouping_is_equal_to_a_dict_of_lists(env):
    rows = [(i * 31 % 17, i) for i in range(500)]
    expected = defaultdict(list)
    for key, value in rows:
        expected[key].append(value)
    groups = (
        env.from_collection(rows)
        .group_by(0)
        .sort_group(1)
        .reduce_group(lambda values: [(lambda found: (found[0][0], [v for _k, v in found]))(list(values))])
    )
    assert dict(groups.collect()) == expected


def test_keys_and_order_of_nanoseconds_are_compared_in_full(env):
    # Python's times have microseconds: all of these are one datetime.
    times = pa.array([200, 100, None, 200], pa.timestamp("ns"))
    data = env.from_arrow(pa.table({"t": times, "v": [1, 2, 3, 4]}))
    assert data.group_by("t").count().count() == 3
    assert data.distinct("t").count() == 3
    assert data.project("t").distinct().count() == 3
    assert data.group_by("t").first(1).count() == 3
    assert [row["v"] for row in data.sort("t").project("v").collect()] in ([3, 2, 1, 4], [3, 2, 4, 1])
    with pytest.raises(TypeMismatchError, match="nanoseconds"):
        data.max_by("t").collect()
    coarse = env.from_arrow(pa.table({"t": pa.array([1, 2], pa.timestamp("us")), "v": [1, 2]}))
    fine = env.from_arrow(pa.table({"t": pa.array([2000, 2001], pa.timestamp("ns")), "w": [3, 4]}))
    joined = coarse.join(fine).where("t").equal_to("t").project_first("v").project_second("w")
    assert [tuple(row.values()) for row in joined.collect()] == [(2, 3)]
    assert fine.filter(col("w") == 3).max_by("t").project("w").collect() == [{"w": 3}]


def test_keys_of_different_zones_are_refused_and_can_be_cast(env):
    zones = ("UTC", "Europe/Berlin")
    data = [env.from_arrow(pa.table({"t": pa.array([5], pa.timestamp("us", zone)), zone: [1]})) for zone in zones]
    with pytest.raises(TypeMismatchError, match="times of different zones"):
        data[0].join(data[1]).where("t").equal_to("t").collect()
    cast = data[1].with_columns(t=col("t").cast(pa.timestamp("us", "UTC")))
    assert data[0].join(cast).where("t").equal_to("t").count() == 1


def test_nan_of_a_data_frame_is_null(env):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1.0, NAN], "y": pandas.Series(["a", NAN], dtype=object)})
    assert env.from_pandas(frame).collect() == [{"x": 1.0, "y": "a"}, {"x": None, "y": None}]


@pytest.mark.parametrize(("found", "declared"), [(None, "UTC"), ("UTC", None)])
def test_columns_of_a_function_keep_their_zones(env, found, declared):
    table = pa.table({"t": pa.array([5], pa.timestamp("us", found))})
    declared_type = pa.schema([("t", pa.timestamp("us", declared))])
    data = env.from_elements(1).map_batches(lambda _batch: table.to_batches()[0], declared_type)
    with pytest.raises(TypeMismatchError, match="field 't'"):
        data.collect()
