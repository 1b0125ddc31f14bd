"""Iterations against plain Python: the rows of the feature list, the classic algorithms, ends and aggregators.

Oracle: each algorithm once more, as a loop over dicts. Memory: what is alive after a superstep does not grow.
"""

import gc
import random
from collections import defaultdict

import pyarrow as pa
import pytest

from headrace import (
    ConvergenceCriterion,
    DoubleCounter,
    ExecutionEnvironment,
    LongCounter,
    MapFunction,
    ProgramError,
    TypeMismatchError,
    Types,
    col,
    lit,
)
from headrace import functions as f
from headrace.engine.functions.accumulators import Accumulator


def test_one_to_five_plus_one_ten_times(env):
    """The example of bulk iterations in Flink's documentation: ten times plus one."""
    data = env.from_collection([1, 2, 3, 4, 5]).iterate(10, lambda ds: ds.map(lambda x: x + 1))
    assert sorted(data.collect()) == [11, 12, 13, 14, 15]
    once = env.from_collection([1, 2, 3, 4, 5]).iterate(1, lambda ds: ds.map(lambda x: x + 1))
    assert sorted(once.collect()) == [2, 3, 4, 5, 6]
    never = env.from_collection([1, 2, 3, 4, 5]).iterate(0, lambda ds: ds.map(lambda x: x + 1))
    assert sorted(never.collect()) == [1, 2, 3, 4, 5]


def test_an_iteration_may_be_closed_as_in_flink(env):
    loop = env.from_collection([1, 2, 3]).iterate(4)
    body = loop.map(lambda x: x * 2, output_type=Types.LONG())
    assert sorted(loop.close_with(body).collect()) == [16, 32, 48]


def test_a_termination_criterion_ends_it_when_it_is_empty(env):
    def step(numbers):
        halved = numbers.map(lambda x: x // 2)
        return halved, halved.filter(lambda x: x > 10)

    data = env.from_collection([100, 7]).iterate(50, step)
    assert sorted(data.collect()) == [0, 6]
    (statistics,) = env.get_last_job_execution_result().statistics["iterations"].values()
    assert statistics["supersteps"] == 4


class Change(MapFunction):
    """Halves the distance to 8 and adds up what has changed."""

    def open(self, runtime_context):
        self.context = runtime_context
        self.changed = runtime_context.get_iteration_aggregator("changed")
        self.seen = runtime_context.get_previous_iteration_aggregate("changed")

    def map(self, value):
        assert (self.seen is None) == (self.context.get_superstep_number() == 1)
        nearer = (value + 8.0) / 2
        self.changed.add(abs(nearer - value))
        return nearer


def test_an_aggregator_says_when_it_has_converged(env):
    calls = []

    def is_small(superstep, changed):
        calls.append((superstep, changed))
        return changed < 1.0

    data = env.from_collection([0.0, 16.0, 8.0]).iterate(
        100, lambda ds: ds.map(Change()), aggregators={"changed": DoubleCounter()}, convergence=("changed", is_small)
    )
    assert sorted(data.collect()) == [7.75, 8.0, 8.25]
    assert calls == [(1, 8.0), (2, 4.0), (3, 2.0), (4, 1.0), (5, 0.5)]


def test_a_criterion_may_be_an_object_and_an_aggregator_a_users_own(env):
    class Largest(Accumulator):
        value = -1

        def add(self, value):
            self.value = max(self.value, value)

        def get_local_value(self):
            return self.value

        def reset_local(self):
            self.value = -1

        def merge(self, other):
            self.add(other.value)

    class Reaches(ConvergenceCriterion):
        def is_converged(self, superstep, value):
            return value >= 40

    class Notes(MapFunction):
        def open(self, runtime_context):
            self.largest = runtime_context.get_iteration_aggregator("largest")

        def map(self, value):
            self.largest.add(value)
            return value * 2

    loop = env.from_collection([1, 5]).as_type(Types.PICKLED_BYTE_ARRAY()).iterate(100)
    loop.register_aggregation_convergence_criterion("largest", Largest(), Reaches())
    assert sorted(loop.close_with(loop.map(Notes())).collect()) == [16, 80]


def test_iterations_may_be_nested(env):
    def outer(numbers):
        return numbers.iterate(3, lambda inner: inner.map(lambda x: x + 1)).map(lambda x: x * 2)

    assert sorted(env.from_collection([0, 1]).iterate(2, outer).collect()) == [18, 22]


def test_a_step_of_another_type_than_its_input_runs_on_objects(env):
    data = env.from_collection([1, 2]).iterate(2, lambda ds: ds.map(lambda x: x / 2))
    assert sorted(data.collect()) == [0.25, 0.5]
    typed = env.from_collection([{"a": 1}]).iterate(3, lambda ds: ds.select(a=col("a") + 1))
    assert typed.schema == pa.schema([("a", pa.int64())])
    assert typed.collect() == [{"a": 4}]


def test_what_cannot_be_an_iteration_is_refused(env):
    data = env.from_collection([{"a": 1}])
    with pytest.raises(ProgramError, match="the result of a step must be a data set"):
        data.iterate(2, lambda ds: 5)
    with pytest.raises(ProgramError, match="there are \\['b'\\]"):
        data.iterate(2, lambda ds: ds, aggregators={"b": LongCounter()}, convergence=("a", lambda s, v: True))
    loop = data.iterate(2)
    with pytest.raises(TypeMismatchError, match="must be of the type it began with"):
        loop.close_with(loop.select(a=lit("x")))


# ----------------------------------------------------------------------------------------------------------- delta


def test_best_selling_product_per_category(env):
    """New sales come in; the solution set has the best product of each category so far."""
    best = env.from_collection([("books", "atlas", 50), ("toys", "kite", 30), ("food", "figs", 10)])
    sales = env.from_collection(
        [("books", "novel", 40), ("toys", "ball", 35), ("toys", "robot", 33), ("food", "nuts", 9)]
    )

    def step(solution, workset):
        candidates = workset.group_by(0).max_by(2)
        better = candidates.join(solution).where(0).equal_to(0).with_(lambda new, old: new if new[2] > old[2] else None)
        delta = better.filter(lambda sale: sale is not None)
        return delta, workset.filter(lambda _sale: False)

    result = best.iterate_delta(sales, 10, 0, step=step)
    assert sorted(result.collect()) == [("books", "atlas", 50), ("food", "figs", 10), ("toys", "ball", 35)]


def random_graph(num_vertices, num_edges, seed):
    rng = random.Random(seed)
    return [(rng.randrange(num_vertices), rng.randrange(num_vertices)) for _ in range(num_edges)]


def components_of(num_vertices, edges):
    parent = list(range(num_vertices))

    def root(v):
        while parent[v] != v:
            v = parent[v]
        return v

    for a, b in edges:
        a, b = root(a), root(b)
        parent[max(a, b)] = min(a, b)
    return {(v, root(v)) for v in range(num_vertices)}


def connected_components(env, num_vertices, edges, supersteps=1_000):
    both_ways = env.from_collection(edges + [(b, a) for a, b in edges])
    vertices = env.from_collection([(v, v) for v in range(num_vertices)])

    def step(components, changed):
        candidates = changed.join(both_ways).where(0).equal_to(0).project_second(1).project_first(1)
        least = candidates.group_by(0).min(1)
        delta = least.join(components).where(0).equal_to(0).with_(Smaller(), output_type=PAIR)
        return delta, delta

    return vertices.iterate_delta(vertices, supersteps, 0, step=step)


PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


class Smaller(f.FlatJoinFunction):
    def join(self, first, second):
        return [first] if first[1] < second[1] else []


@pytest.mark.parametrize("seed", range(4))
def test_connected_components_by_propagating_the_minimum(env, seed):
    edges = random_graph(120, 90, seed)
    found = connected_components(env, 120, edges).collect()
    assert set(found) == components_of(120, edges)
    assert len(found) == 120


def test_the_work_of_a_superstep_follows_the_workset(env):
    chain = [(i, i + 1) for i in range(30)]
    assert set(connected_components(env, 60, chain).collect()) == components_of(60, chain)
    (statistics,) = env.get_last_job_execution_result().statistics["iterations"].values()
    sizes = statistics["workset_sizes"]
    assert sizes[0] == 60
    assert sizes[1:] == sorted(sizes[1:], reverse=True)
    assert sizes[-1] == 1


def test_the_solution_set_is_looked_up_not_gone_through(monkeypatch):
    """A superstep asks the index for the keys of the workset; nobody makes batches of the whole set but the end."""
    from headrace.engine.partitions import solution, supersteps

    asked, gone_through = [], []

    class Counted(solution.SolutionSet):
        __slots__ = ()

        def lookup(self, keys):
            asked.append(len(keys))
            return super().lookup(keys)

        def batches(self):
            gone_through.append(len(self))
            return super().batches()

    monkeypatch.setattr(supersteps, "SolutionSet", Counted)
    env = ExecutionEnvironment.get_execution_environment("local", 2)
    assert connected_components(env, 200, [(0, 1), (1, 2)]).count() == 200
    assert len(gone_through) == 2
    assert sum(asked) < 20


def test_a_solution_set_is_co_grouped_and_read_whole(env):
    start = env.from_collection([("a", 1), ("b", 2)])
    work = env.from_collection([("a", 10), ("a", 20), ("c", 5)])

    def step(solution, workset):
        sums = (
            workset.co_group(solution)
            .where(0)
            .equal_to(0)
            .with_(lambda new, old: [(new[0][0], sum(v for _k, v in new) + sum(v for _k, v in old))])
        )
        total = solution.map(lambda r: r[1]).reduce(lambda a, b: a + b)
        return sums, sums.cross(total).with_(lambda r, t: (r[0], t)).filter(lambda r: r[1] < 30)

    result = start.iterate_delta(work, 5, 0, step=step)
    assert dict(result.collect()) == {"a": 34, "b": 2, "c": 8}


def test_an_empty_workset_leaves_the_solution_set_as_it_is(env):
    start = env.from_collection([("a", 1)])
    nothing = start.filter(lambda r: False)
    assert start.iterate_delta(nothing, 5, 0, step=lambda s, w: (w, w)).collect() == [("a", 1)]


def test_delta_iterations_have_a_builder_and_converge(env):
    start = env.from_collection([("a", 0)])

    class Adds(MapFunction):
        def open(self, runtime_context):
            self.rounds = runtime_context.get_iteration_aggregator("rounds")
            self.number = runtime_context.get_superstep_number()

        def map(self, value):
            self.rounds.add(self.number)
            return value[0], value[1] + 1

    loop = start.iterate_delta(start, 50, 0)
    loop.register_aggregation_convergence_criterion("rounds", LongCounter(), lambda superstep, value: value == 7)
    work = loop.get_workset().map(Adds(), output_type=Types.TUPLE([Types.STRING(), Types.LONG()]))
    assert loop.close_with(work, work).collect() == [("a", 7)]


# -------------------------------------------------------------------------------------------------------- algorithms


def test_page_rank(env):
    links = {0: [1, 2], 1: [2], 2: [0], 3: [2]}
    rounds, damping = 15, 0.85
    expected = dict.fromkeys(links, 0.25)
    for _ in range(rounds):
        received = defaultdict(float)
        for page, targets in links.items():
            for target in targets:
                received[target] += expected[page] / len(targets)
        expected = {page: (1 - damping) / 4 + damping * received[page] for page in links}

    adjacency = env.from_collection(list(links.items()))

    def step(ranks):
        shares = ranks.join(adjacency).where(0).equal_to(0).with_(Share())
        kept = ranks.map(lambda r: (r[0], 0.0))
        return (
            shares.union(kept)
            .group_by(0)
            .reduce(lambda a, b: (a[0], a[1] + b[1]))
            .map(lambda r: (r[0], (1 - damping) / 4 + damping * r[1]))
        )

    ranks = env.from_collection([(page, 0.25) for page in links]).iterate(rounds, step)
    assert {page: pytest.approx(rank) for page, rank in ranks.collect()} == expected


class Share(f.FlatJoinFunction):
    def join(self, first, second):
        return [(target, first[1] / len(second[1])) for target in second[1]]


def test_k_means(env):
    rng = random.Random(5)
    points = [(rng.gauss(cx, 0.5), rng.gauss(cy, 0.5)) for cx, cy in [(0, 0), (6, 6), (0, 7)] for _ in range(30)]
    start = [(0, 1.0, 1.0), (1, 5.0, 5.0), (2, 1.0, 6.0)]

    centers = {i: (x, y) for i, x, y in start}
    for _ in range(8):
        members = defaultdict(list)
        for p in points:
            members[min(centers, key=lambda i: (centers[i][0] - p[0]) ** 2 + (centers[i][1] - p[1]) ** 2)].append(p)
        centers = {i: tuple(sum(axis) / len(m) for axis in zip(*m, strict=True)) for i, m in members.items()}

    class Nearest(MapFunction):
        def open(self, runtime_context):
            self.centers = runtime_context.get_broadcast_variable("centers")

        def map(self, p):
            nearest = min(self.centers, key=lambda c: (c[1] - p[0]) ** 2 + (c[2] - p[1]) ** 2)
            return nearest[0], p[0], p[1], 1

    data = env.from_collection(points)

    def step(current):
        assigned = data.map(Nearest()).with_broadcast_set(current, "centers")
        sums = assigned.group_by(0).reduce(lambda a, b: (a[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]))
        return sums.map(lambda s: (s[0], s[1] / s[3], s[2] / s[3]))

    found = {i: (x, y) for i, x, y in env.from_collection(start).iterate(8, step).collect()}
    assert set(found) == set(centers)
    for i, center in centers.items():
        assert found[i] == pytest.approx(center)


def test_transitive_closure(env):
    edges = random_graph(25, 30, 3)
    expected = set(edges)
    while True:
        further = expected | {(a, d) for a, b in expected for c, d in edges if b == c}
        if further == expected:
            break
        expected = further

    graph = env.from_collection(edges)

    def step(paths):
        longer = paths.join(graph).where(1).equal_to(0).project_first(0).project_second(1)
        further = paths.union(longer).distinct()
        new = further.co_group(paths).where(0, 1).equal_to(0, 1).with_(lambda a, b: [] if b else [1])
        return further, new

    assert set(graph.iterate(100, step).collect()) == expected


# ------------------------------------------------------------------------------------------------------------ memory


@pytest.mark.slow
@pytest.mark.campaign
def test_memory_is_flat_over_hundreds_of_supersteps():
    """Arrow memory and Python objects that are alive are counted in every superstep: the last ones have no more."""
    env = ExecutionEnvironment.get_execution_environment("local", 2)
    counted = []

    def measure(superstep, _value):
        if superstep in (50, 400):
            gc.collect()
            counted.append((pa.total_allocated_bytes(), len(gc.get_objects())))
        return False

    class Adds(MapFunction):
        def open(self, runtime_context):
            self.seen = runtime_context.get_iteration_aggregator("seen")

        def map(self, value):
            self.seen.add(1)
            return value + 1

    data = env.from_collection(list(range(2_000))).as_type(Types.PICKLED_BYTE_ARRAY())
    loop = data.iterate(
        400, lambda ds: ds.map(Adds()).rebalance(), aggregators={"seen": LongCounter()}, convergence=("seen", measure)
    )
    assert sum(loop.collect()) == sum(range(2_000)) + 400 * 2_000
    (early_bytes, early_objects), (late_bytes, late_objects) = counted
    assert late_bytes <= early_bytes * 1.2
    # A list of figures per superstep is kept; it holds plain numbers, which are no tracked objects.
    assert late_objects <= early_objects + 500


def test_statistics_tell_iterations_of_one_name_apart(env):
    def counted(times):
        return env.from_elements(1).iterate(times, lambda d: d.map(lambda x: x + 1))

    nested = env.from_elements(1).iterate(2, lambda d: d.iterate(3, lambda e: e.map(lambda x: x + 1)))
    assert sorted(counted(2).union(counted(5)).union(nested).collect()) == [3, 6, 7]
    told = env.get_last_job_execution_result().statistics["iterations"]
    assert set(told) == {"iterate", "iterate (2)", "iterate (3)", "iterate (4)"}
    assert sorted(one["supersteps"] for one in told.values()) == [2, 2, 3, 5]


# ---------------------------------------------------------------------------------------------- what is refused or said


@pytest.mark.parametrize("is_typed", [True, False])
def test_two_different_records_of_one_key_are_refused(env, is_typed):
    def made(rows):
        data = env.from_collection(rows, type_info=PAIR)
        return data if is_typed else data.with_schema(None)

    twice = made([(1, 5), (2, 6), (1, 5)])
    assert sorted(twice.iterate_delta(made([]), 3, 0, step=lambda s, w: (w, w)).collect()) == [(1, 5), (2, 6)]
    with pytest.raises(ProgramError, match=r"initial solution set .* two different records with the key 1: \(1, 5\)"):
        made([(1, 5), (2, 6), (1, 6)]).iterate_delta(made([]), 3, 0, step=lambda s, w: (w, w)).collect()

    def step(_solution, work):
        output_type = PAIR if is_typed else None
        return work.flat_map(lambda r: [r, (r[0], r[1] + 1)], output_type=output_type), work

    with pytest.raises(ProgramError, match=r"(?s)the delta of .* key 1.*superstep 1"):
        made([(1, 5)]).iterate_delta(made([(1, 1)]), 3, 0, step=step).collect()


def test_nan_is_the_same_nan_in_two_records_of_one_key(env):
    kind = Types.TUPLE([Types.LONG(), Types.DOUBLE()])
    data = env.from_collection([(1, float("nan")), (1, float("nan"))], type_info=kind)
    assert data.iterate_delta(env.from_collection([], type_info=kind), 1, 0, step=lambda s, w: (w, w)).count() == 1


def test_an_iteration_that_its_limit_has_cut_short_says_so(env, caplog):
    def told(data):
        caplog.clear()
        data.collect()
        (statistics,) = env.get_last_job_execution_result().statistics["iterations"].values()
        return statistics.get("is_converged"), "ended by its limit" in caplog.text

    edges = [(i, i + 1) for i in range(5)]
    assert told(connected_components(env, 6, edges, 3)) == (False, True)
    assert told(connected_components(env, 6, edges, 50)) == (True, False)
    halved = lambda n: env.from_elements(100).iterate(n, lambda d: (d.map(lambda x: x // 2), d.filter(lambda x: x > 9)))
    assert told(halved(2)) == (False, True)
    assert told(halved(9)) == (True, False)
    assert told(env.from_elements(1).iterate(3, lambda d: d.map(lambda x: x + 1))) == (None, False)


def test_a_long_sequence_is_refused_and_its_ends_may_be_the_greatest_integers(env):
    most = 2**63 - 1
    assert sorted(env.generate_sequence(most - 2, most).collect()) == [most - 2, most - 1, most]
    assert sorted(env.generate_sequence(-most - 1, -most).collect()) == [-most - 1, -most]
    with pytest.raises(ProgramError, match="too long for the local executor"):
        env.generate_sequence(0, most - 1).count()
    with pytest.raises(ProgramError, match=r"fewer than 2\*\*63"):
        env.generate_sequence(-1, most)
