"""What one function does to a record is nobody else's business: sibling branches, exchanges, side outputs, broadcasts,
state, windows and joins, at every parallelism, chained and not, on each actor system.

Every program has a vandal, which changes all it is handed in place, beside honest readers; these must see what they
would see without it.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections import Counter

import numpy as np
import pytest
from campaigns import campaign

from headrace import (
    AggregateFunction,
    AsyncDataStream,
    AsyncFunction,
    CountTrigger,
    JobFailedError,
    KeyedProcessFunction,
    ListStateDescriptor,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    ProgramError,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    col,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.columns.records import Batch
from headrace.engine.functions.isolation import ATOMS, copied, given_batch, owned
from headrace.testing import PipelineTestHarness, run_simulated

pytestmark = pytest.mark.timeout(20)

NUM = 60
TAG = OutputTag("side")


@dataclasses.dataclass
class Reading:
    n: int
    kept: list


def as_dict(n):
    return {"n": n, "kept": [n]}


def as_list(n):
    return [n, [n]]


def as_object(n):
    return Reading(n, [n])


def as_tuple(n):
    return (n, [n])


def vandal(record):
    """Changes all of a record that can be changed."""
    if isinstance(record, dict):
        record["n"] = -1
        record.setdefault("kept", []).append("x")
        record["more"] = 1
    elif isinstance(record, list):
        record[1].append("x")
        record[0] = -1
    elif isinstance(record, tuple):
        for part in record:
            if isinstance(part, (list, dict)):
                vandal(part) if isinstance(part, dict) else part.append("x")
    else:
        record.n = -1
        record.kept.append("x")
    return record


def number_of(record):
    if isinstance(record, dict):
        return record["n"]
    return record[0] if isinstance(record, (list, tuple)) else record.n


def shown(record):
    """A record as text, when it is met."""
    return repr(record)


class Vandals(ProcessFunction):
    def process_element(self, value, ctx):
        vandal(value)
        return ()


class BothWays(ProcessFunction):
    """Gives each record to both outputs."""

    def process_element(self, value, ctx):
        ctx.output(TAG, value)
        yield value


class Total(KeyedProcessFunction):
    """Gives the very object that is in state, again and again."""

    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total"))
        self.seen = ctx.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, value, ctx):
        total = self.total.value() or {"n": 0, "all": []}
        total["n"] += 1
        total["all"].append(number_of(value))
        self.total.update(total)
        self.seen.add(value)
        yield total
        yield {"n": len(total["all"]), "all": total["all"]}
        ctx.output(TAG, total)


class Listing(ProcessWindowFunction):
    """Shows the window's records, and changes them."""

    def process(self, key, context, elements):
        yield sorted(map(shown, elements))
        for element in elements:
            vandal(element)


class Asking(AsyncFunction):
    async def async_invoke(self, value):
        text = shown(value)
        vandal(value)
        return [text]


def keyed(stream):
    return stream.key_by(lambda record: number_of(record) % 2)


def summed(a, b):
    """A reduction that changes what it has so far."""
    if isinstance(a, dict):
        a["n"] += b["n"]
        return a
    return b


def siblings(s):
    s.map(vandal)
    honest = s.map(shown)
    s.map(vandal).map(vandal)
    return honest


def exchange_beside_chain(s):
    s.map(vandal)
    return s.rebalance().map(shown)


def chain_beside_exchange(s):
    s.rebalance().map(vandal)
    return s.map(shown)


def behind_filters(s):
    kept = s.filter(lambda record: number_of(record) % 3 > 0)
    s.filter(lambda record: number_of(record) >= 0).map(vandal)
    kept.process(Vandals())
    return kept.map(shown)


def union_with_itself(s):
    s.process(Vandals())
    return s.union(s).map(shown)


def side_outputs(s):
    both = s.process(BothWays())
    both.map(vandal)
    return both.get_side_output(TAG).map(shown).union(both.map(shown))


def broadcast(s):
    everywhere = s.broadcast()
    everywhere.process(Vandals()).set_parallelism(3)
    return everywhere.map(shown).set_parallelism(3)


def broadcast_changed_by_each(s):
    return s.broadcast().map(lambda record: shown(vandal(record))).set_parallelism(3)


def state(s):
    totals = keyed(s).process(Total())
    totals.map(vandal)
    return totals.map(shown).union(totals.get_side_output(TAG).map(shown))


def running_reduction(s):
    reduced = keyed(s).reduce(summed)
    reduced.map(vandal)
    return reduced.map(shown)


def reduction_before_a_vandal(s):
    return keyed(s).reduce(summed).map(lambda record: (shown(record), vandal(record))[0])


def sliding_windows(s):
    windows = keyed(s).window(SlidingEventTimeWindows.of(20, 10))
    return windows.process(Listing()).map(shown)


def reduced_windows(s):
    windows = keyed(s).window(SlidingEventTimeWindows.of(20, 10))
    return windows.reduce(lambda a, b: a).map(lambda record: (shown(record), vandal(record))[0])


def interval_join(s):
    pairs = keyed(s).interval_join(keyed(s)).between(-2, 2)
    return pairs.process(lambda a, b, _ctx: [(a, b)]).map(lambda pair: (shown(pair), vandal(pair[0]))[0])


def joining_vandals(s):
    pairs = keyed(s).interval_join(keyed(s)).between(-2, 2)
    return pairs.process(lambda a, b, _ctx: [(shown(a), shown(b), vandal(a), vandal(b))[:2]])


def window_join(s):
    both = s.join(s).where(number_of).equal_to(number_of).window(TumblingEventTimeWindows.of(10))
    return both.apply(lambda a, b: (a, b)).map(lambda pair: (shown(pair), vandal(pair[0]))[0])


def asynchronous(s):
    s.process(Vandals())
    return AsyncDataStream.ordered_wait(s, Asking(), "5 s", 10)


PROGRAMS = {
    each.__name__: each
    for each in (
        siblings,
        exchange_beside_chain,
        chain_beside_exchange,
        behind_filters,
        union_with_itself,
        side_outputs,
        broadcast,
        broadcast_changed_by_each,
        state,
        running_reduction,
        reduction_before_a_vandal,
        sliding_windows,
        reduced_windows,
        interval_join,
        joining_vandals,
        window_join,
        asynchronous,
    )
}


def program(env, build, make):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda r, _t: number_of(r))
    source = GeneratorSource(make, count=NUM, number_of_splits=1)  # in order, so that results do not depend on chance
    stream = env.from_source(source, strategy, "numbers", Types.PICKLED_BYTE_ARRAY())
    return build(stream)


def run(build, make, system="local", parallelism=1, chained=True, reuse=False):
    with StreamExecutionEnvironment.get_execution_environment(system, parallelism=parallelism) as env:
        if not chained:
            env.disable_operator_chaining()
        if reuse:
            env.enable_object_reuse()
        with program(env, build, make).execute_and_collect() as found:
            return Counter(map(repr, found))


def expected(build, make):
    """The same program where nobody shares anything: each record is its own text, and vandals meet texts of it."""
    return EXPECTED[build.__name__](make)


def every(times=1, wanted=lambda _n: True, text=None):
    def of(make):
        return Counter({repr((text or (lambda n: shown(make(n))))(n)): times for n in range(NUM) if wanted(n)})

    return of


def totals(make):
    found = Counter()
    for key in (0, 1):
        seen = []
        for n in range(key, NUM, 2):
            seen.append(n)
            found[repr(shown({"n": len(seen), "all": seen}))] += 3
    return found


def reductions(make):
    found = Counter()
    for key in (0, 1):
        so_far = None
        for n in range(key, NUM, 2):
            so_far = make(n) if so_far is None else summed(so_far, make(n))
            found[repr(shown(so_far))] += 1
    return found


def windows(make, result):
    found = Counter()
    for start in range(-10, NUM, 10):
        for key in (0, 1):
            members = [n for n in range(NUM) if start <= n < start + 20 and n % 2 == key]
            if members:
                found[repr(result([make(n) for n in members]))] += 1
    return found


def pairs(make, result):
    near = [(a, b) for a in range(NUM) for b in range(NUM) if a % 2 == b % 2 and abs(a - b) <= 2]
    return Counter(repr(result(make(a), make(b))) for a, b in near)


EXPECTED = {
    "siblings": every(),
    "exchange_beside_chain": every(),
    "chain_beside_exchange": every(),
    "behind_filters": every(wanted=lambda n: n % 3 > 0),
    "union_with_itself": every(2),
    "side_outputs": every(2),
    "broadcast": every(3),
    "broadcast_changed_by_each": lambda make: every(3, text=lambda n: shown(vandal(make(n))))(make),
    "state": totals,
    "running_reduction": reductions,
    "reduction_before_a_vandal": reductions,
    "sliding_windows": lambda make: windows(make, lambda rows: shown(sorted(map(shown, rows)))),
    "reduced_windows": lambda make: windows(make, lambda rows: shown(rows[0])),
    "interval_join": lambda make: pairs(make, lambda a, b: shown((a, b))),
    "joining_vandals": lambda make: pairs(make, lambda a, b: (shown(a), shown(b))),
    "window_join": lambda make: every(text=lambda n: shown((make(n), make(n))))(make),
    "asynchronous": every(),
}

WAYS = [
    (system, parallelism, chained) for system in ("local", "sim") for parallelism in (1, 3) for chained in (True, False)
]

IN_EVERY_RUN = [("local", 1, True), ("local", 3, False), ("sim", 1, False), ("sim", 3, True)]


def name_of(way):
    return f"{way[0]}-{way[1]}-{'chained' if way[2] else 'apart'}"


@pytest.mark.parametrize("way", [way if way in IN_EVERY_RUN else campaign(way) for way in WAYS], ids=name_of)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(4)
def test_nobody_sees_what_a_vandal_does(name, way):
    for make in (as_dict, as_list, as_object, as_tuple) if way == WAYS[0] else (as_dict,):
        assert run(PROGRAMS[name], make, *way) == expected(PROGRAMS[name], make), make.__name__


def test_columns_beside_rows_are_as_they_were():
    def build(s):
        typed = s.map(lambda record: {"n": record["n"]}, Types.ROW_NAMED(["n"], [Types.LONG()]))
        typed.map(vandal)
        return typed.select(twice=col("n") * 2).union(typed.map(lambda row: {"twice": 2 * row["n"]}))

    assert run(build, as_dict) == Counter({repr({"twice": 2 * n}): 2 for n in range(NUM)})


MET = {}
"""Identity -> what a sibling has done to the object, which is kept so that no other gets its identity."""


def mark_met(record):
    MET[id(record)] = ("met", record)


def was_met(record):
    return id(record) in MET


def test_object_reuse_copies_nothing():
    def build(s):
        s.map(mark_met)
        return s.map(was_met)

    for reuse in (True, False):
        MET.clear()
        assert run(build, as_dict, reuse=reuse) == Counter({repr(reuse): NUM})


# ---------------------------------------------------------------------------------------------------- watching
def changing(record):
    record["n"] = record["n"] + 1
    return record["n"] > 0


class Same(ProcessFunction):
    def open(self, ctx):
        self.acc = {"n": 0}

    def process_element(self, value, ctx):
        self.acc["n"] += 1
        yield self.acc


def one_and_the_same():
    acc = {"n": 0}

    def map_it(value):
        acc["n"] += 1
        return acc

    return map_it


def counting_up(value):
    record = {"n": 0}
    for n in range(3):
        record["n"] = n
        yield record


UNFAIR = {
    "filter": (lambda s: s.filter(changing), "function changing changed its record"),
    "key": (lambda s: s.key_by(changing).map(shown), "the key selector or partitioner of"),
    "partitioner": (
        lambda s: s.partition_custom(lambda key, n: 0, changing).map(shown),
        "the key selector or partitioner of",
    ),
    "timestamps": (
        lambda s: s.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda r, _t: changing(r) and 1)
        ),
        "changed its record",
    ),
    "map that gives one object": (
        lambda s: s.map(one_and_the_same()),
        "changed a record after it had given it away|changed in between",
    ),
    "flat_map that gives one object": (
        lambda s: s.flat_map(counting_up),
        "function counting_up (changed a record after it had given it away|gave one record twice)",
    ),
    "process that gives one object": (
        lambda s: s.process(Same()),
        "function Same (changed a record after|gave one record twice)",
    ),
}


@pytest.mark.parametrize("name", UNFAIR)
def test_who_changes_what_others_read_is_told_from_the_rest(name):
    build, text = UNFAIR[name]
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        build(env.from_source(GeneratorSource(as_dict, count=NUM), None, "s")).print()
        with pytest.raises(JobFailedError, match=text):
            env.execute(name)


def test_harnesses_tell_it_too():
    with PipelineTestHarness(lambda s: s.filter(changing)) as harness, pytest.raises(ProgramError, match="changing"):
        harness.process_element({"n": 1})


def test_with_object_reuse_a_vandal_is_told_from_the_rest():
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.enable_object_reuse()
        stream = env.from_source(GeneratorSource(as_dict, count=NUM), None, "s")
        stream.map(vandal)
        stream.print()
        with pytest.raises(JobFailedError, match="function vandal changed its record, which others read"):
            env.execute("vandal")


# ---------------------------------------------------------------------------------------------------- copying
def test_a_copy_shares_nothing_that_can_be_changed():
    value = {"a": [1, {"b": (2, [3])}], "o": Reading(1, [2]), "t": (1, "x"), "s": {1, 2}}
    other = copied(value)
    assert other == value
    vandal(other["o"])
    other["a"][1]["b"][1].append(4)
    other["s"].add(3)
    assert value == {"a": [1, {"b": (2, [3])}], "o": Reading(1, [2]), "t": (1, "x"), "s": {1, 2}}
    assert other["t"] is value["t"]
    assert all(copied(atom) is atom for atom in (1, "a", None, 2.5, b"x", (1, "a")))
    assert dict not in ATOMS


def test_a_copy_of_what_holds_itself_does_so_too():
    value = {"n": 1, "parts": [1]}
    value["self"] = value
    other = copied(value)
    assert other is not value
    assert other["self"] is other
    assert other["parts"] is not value["parts"]


def test_numpys_records_are_copied():
    value = np.zeros(1, [("n", "i8")])[0]
    other = copied(value)
    other["n"] = 5
    assert value["n"] == 0


# ---------------------------------------------------------------------------------------------------- between processes
def test_one_record_in_many_places_is_many_in_another_process():
    record = as_dict(1)
    batch = pickle.loads(pickle.dumps(Batch.of_rows([record, record]).tangled()))
    vandals = owned(batch if batch.is_shared else pytest.fail("nobody would copy it"))
    vandal(vandals.rows[0])
    assert vandals.rows[1] == as_dict(1)
    honest = pickle.loads(pickle.dumps(Batch.of_rows([as_dict(1)]).shared()))
    assert not honest.is_shared, "copied for nothing"


def test_readers_of_what_came_from_another_process_have_arrays_of_their_own():
    sent = Batch.of_rows([{"n": np.arange(20_000)}])
    batch = pickle.loads(pickle.dumps(sent)).shared()
    first, second = owned(batch), owned(batch)
    first.rows[0]["n"][0] = -1
    assert second.rows[0]["n"][0] == 0
    assert batch.rows[0]["n"][0] == 0


def test_a_running_reduction_sends_each_record_by_itself():
    """The highest so far is one object in state, which stands in many results."""

    def program(env):
        stream = env.from_source(
            GeneratorSource(lambda n: {"n": -n, "kept": []}, count=NUM, number_of_splits=1), None, "s"
        )
        return (
            stream.key_by(lambda record: 1)
            .max_by("n")
            .rebalance()
            .map(lambda record: (shown(record), vandal(record))[0])
        )

    assert set(run_simulated(program, parallelism=2, kills=0).values) == {shown({"n": 0, "kept": []})}


# ------------------------------------------------------------------------------------------- results of their moment
class KeptInState(ProcessWindowFunction):
    """Gives the very object that is in state, window after window."""

    def process(self, key, context, elements):
        state = context.global_state().get_state(ValueStateDescriptor("total"))
        total = state.value() or {"n": 0, "all": []}
        total["n"] += 1
        total["all"].append(total["n"])
        state.update(total)
        context.output(TAG, total)
        yield total


class Gathered(AggregateFunction):
    """Its result is its accumulator."""

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(number_of(value))
        return accumulator

    def get_result(self, accumulator):
        return accumulator


@pytest.mark.parametrize("side", [False, True])
def test_a_window_gives_its_state_as_it_is_at_the_moment(side):
    def build(s):
        results = s.key_by(lambda record: 0).window(TumblingEventTimeWindows.of(10)).process(KeptInState())
        return (results.get_side_output(TAG) if side else results).map(shown)

    wanted = [shown({"n": n, "all": list(range(1, n + 1))}) for n in range(1, NUM // 10 + 1)]
    assert run(build, as_dict) == Counter(map(repr, wanted))


def test_a_window_that_fires_again_leaves_what_it_gave():
    def build(s):
        windows = s.key_by(lambda record: 0).window(TumblingEventTimeWindows.of(10)).trigger(CountTrigger.of(1))
        return windows.aggregate(Gathered()).map(shown)

    wanted = [shown(list(range(n - n % 10, n + 1))) for n in range(NUM)]
    assert run(build, as_dict) == Counter(map(repr, wanted))


# ----------------------------------------------------------------------------------------- one object in many records
def test_a_record_that_is_given_twice_is_two_records():
    def build(s):
        return s.flat_map(lambda record: [record, record]).map(vandal).map(shown)

    wanted = Counter(repr(shown(vandal(as_list(n)))) for n in range(NUM) for _ in range(2))
    assert run(build, as_list) == wanted
    assert run(lambda s: build(s.rebalance()), as_list) == wanted


def test_a_record_that_is_given_twice_is_two_records_in_another_process():
    """The batch is pickled as a whole, and its pieces are changed one after the other where it is unpickled."""

    def program(env):
        stream = env.from_source(GeneratorSource(as_list, count=NUM, number_of_splits=1), None, "s")
        twice = stream.flat_map(lambda record: [record, record])
        return twice.rebalance().map(vandal).map(shown)

    wanted = Counter(shown(vandal(as_list(n))) for n in range(NUM) for _ in range(2))
    assert Counter(run_simulated(program, parallelism=2, kills=0).values) == wanted


def test_neighbours_are_compared_by_identity():
    record = as_dict(1)
    assert given_batch([record, record, as_dict(2)], None).is_shared
    assert not given_batch([as_dict(1), as_dict(1)], None).is_shared
    assert not given_batch([7, 7], None).is_shared
    assert not given_batch([record], None).is_shared


def test_a_constant_that_the_next_function_changes_is_noticed():
    """It is given for one record after another, each time by itself."""
    constant = {"n": 0, "kept": []}
    harness = PipelineTestHarness(lambda s: s.map(lambda _: constant).map(vandal))
    with harness, pytest.raises(ProgramError, match="gave one record twice, and it was changed in between"):
        for n in range(3):
            harness.process_element(n)


class Named:
    """Hashed by its identity, and changed all the same."""

    def __init__(self, name):
        self.name = name


@pytest.mark.parametrize("make", [lambda: {Named("a"): 1}, lambda: {(Named("a"), 1): [1]}, lambda: [{Named("a"): {}}]])
def test_a_key_of_a_dict_that_can_be_changed_is_ones_own(make):
    def key_of(record):
        key = next(iter(record[0] if type(record) is list else record))
        return key[0] if type(key) is tuple else key

    def rename(record):
        key_of(record).name = "b"

    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=1)
    records = env.from_collection([1, 2]).map(lambda _: make())
    records.map(rename)
    assert list(records.map(lambda record: key_of(record).name).execute_and_collect()) == ["a", "a"]
