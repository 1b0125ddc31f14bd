"""Keys of the program's own classes, in savepoints of one version of a program and in the next.

The programs are texts whose classes are known to no module: as in a notebook, and on the slots of a cluster, they go by
value. What comes out of two versions together is compared with a direct count.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import CheckpointMismatchError, JobFailedError, RocksDBStateBackend, StreamExecutionEnvironment

COUNT = 600

PROGRAM = """
import dataclasses, enum
from typing import NamedTuple
from headrace import *
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink

{classes}

class Count(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))
        self.by_kind = context.get_map_state(MapStateDescriptor("by kind"))
        self.last = context.get_state(ValueStateDescriptor("last"))

    def process_element(self, n, context):
        key = context.get_current_key()
        assert self.last.value() in (None, key), (self.last.value(), key)
        self.last.update(key)
        self.count.update(self.count.value() + 1)
        kind = kind_of(n)
        self.by_kind.put(kind, (self.by_kind.get(kind) or 0) + 1)
        context.timer_service().register_event_time_timer(10_000)
        yield ["record", number_of(key), self.count.value(), sorted(v for _, v in self.by_kind.items())]

    def on_timer(self, time, context):
        yield ["timer", number_of(context.get_current_key()), self.count.value()]


def program(env, out, count, rate):
    source = GeneratorSource(lambda n: n, count=count, records_per_second=rate, number_of_splits=1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n: n)
    keyed = env.from_source(source, strategy, "numbers").uid("numbers").key_by(key_of)
    keyed.process(Count()).uid("count").sink_to(FileSink.json_lines(out)).uid("out")
    windows = keyed.window(TumblingEventTimeWindows.of("10 s"))
    windows.aggregate(n=count_rows()).uid("windows").map(lambda r: ["window", r["n"]]).sink_to(
        FileSink.json_lines(out + "-windows")
    ).uid("window files")

count_rows = __import__("headrace").count
"""

DATACLASS = """
@dataclasses.dataclass(frozen=True)
class User:
    number: int
    def name(self):
        return "{version}"

key_of = lambda n: User(n % 7)
number_of = lambda key: key.number
kind_of = lambda n: User(n % 2)
"""

ENUM = """
class Day(enum.Enum):
    {member}
    MO = 1
    TU = 2
    WE = 3
    TH = 4
    FR = 5
    SA = 6
    SU = 7

key_of = lambda n: (Day(n % 7 + 1), "x")
number_of = lambda key: key[0].value - 1
kind_of = lambda n: Day(n % 2 + 1)
"""

OBJECT = """
class User:
    def __init__(self, number):
        self.number = number
    def __eq__(self, other):
        return type(other) is User and other.number == self.number
    def __hash__(self):
        return hash(self.number)
    def name(self):
        return "{version}"

key_of = lambda n: User(n % 7)
number_of = lambda key: key.number
kind_of = lambda n: User(n % 2)
"""

SLOTS = DATACLASS.replace("frozen=True", "frozen=True, slots=True")
NUMBERS = ENUM.replace("enum.Enum", "enum.IntEnum")

INHERITED = """
@dataclasses.dataclass(frozen=True)
class Base:
    number: int

class User(Base):
    pass

key_of = lambda n: User(n % 7)
number_of = lambda key: key.number
kind_of = lambda n: User(n % 2)
"""

NESTED = """
class Shop:
    @dataclasses.dataclass(frozen=True)
    class User:
        number: int

{instead}
key_of = lambda n: Shop.User(n % 7)
number_of = lambda key: key.number
kind_of = lambda n: Shop.User(n % 2)
"""

TWINS = """
def user_of(place):
    @dataclasses.dataclass(frozen=True)
    class User:
        number: int
        def name(self):
            return place
    return User

Here, There = user_of("here"), user_of("there")

key_of = lambda n: (Here(n % 7), There(1))
number_of = lambda key: key[0].number
kind_of = lambda n: There(n % 2)
"""

VERSIONS = {
    "dataclass": (DATACLASS.format(version=1), DATACLASS.format(version=2)),
    "enum": (ENUM.format(member=""), ENUM.format(member="HOLIDAY = 8")),
    "dataclass with slots": (SLOTS.format(version=1), SLOTS.format(version=2)),
    "object": (OBJECT.format(version=1), OBJECT.format(version=2)),
    "nested": (NESTED.format(instead=""), NESTED.format(instead="")),
    # As earlier versions called it on the slots of a cluster.
    "nested, by its last name": (NESTED.format(instead="Shop.User.__qualname__ = 'User'"), NESTED.format(instead="")),
    "that was nested": (NESTED.format(instead=""), DATACLASS.format(version=2)),
}

OTHER = {
    "another field": (DATACLASS.format(version=1), DATACLASS.replace("number: int", "number: int; place: str = ''")),
    "another inherited field": (INHERITED, INHERITED.replace("number: int", "number: int; place: str = ''")),
    "another attribute": (OBJECT.format(version=1), OBJECT.replace("= number\n", "= number; self.place = ''\n")),
    "gone": (DATACLASS.format(version=1), DATACLASS.replace("User", "Customer")),
    "another field, with slots": (
        SLOTS.format(version=1),
        SLOTS.replace("number: int", "number: int; place: str = ''"),
    ),
    "no numbers any more": (NUMBERS.format(member=""), ENUM.format(member="")),
    "one of two of its name": (TWINS, TWINS),
    "renumbered": (ENUM.format(member=""), ENUM.format(member="HOLIDAY = 0").replace("MO = 1\n", "MO = 9; DI = 1\n")),
}


def version(classes, instead="", **names):
    names |= {"__name__": "__main__"}
    exec(compile(PROGRAM.format(classes=classes) + instead, "<program>", "exec"), names)
    return names["program"]


@pytest.fixture(params=["heap", "rocksdb"])
def env(request, tmp_path):
    made = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2, metrics_interval_ms=20)
    if request.param == "rocksdb":
        made.set_state_backend(RocksDBStateBackend(16 << 20, str(tmp_path / "local")))
    made.enable_checkpointing(30, directory=tmp_path / "ckpt")
    made.set_default_savepoint_directory(tmp_path / "savepoints")
    yield made
    made.close()


def stopped(env, program, out):
    """A savepoint after some of the records."""
    program(env, out, COUNT, 400)
    client = env.execute_async("version 1")
    for view in client.views():
        if any(vertex.records_in >= 100 for vertex in view.vertices):
            break
    return client.stop_with_savepoint()


def rows_in(folder):
    return [json.loads(line) for file in Path(folder).glob("part-*") for line in file.read_text().splitlines()]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", VERSIONS)
def test_a_changed_program_finds_the_state_of_its_keys(env, tmp_path, kind):
    first, second = map(version, VERSIONS[kind])
    out = str(tmp_path / "out")
    savepoint = stopped(env, first, out)
    before = len(rows_in(out))
    assert 0 < before < COUNT
    env.set_parallelism(3)
    second(env, out, COUNT, None)
    assert env.check_restore(savepoint).is_restorable
    env.execute("version 2", from_savepoint=savepoint)
    sizes = [len(range(number, COUNT, 7)) for number in range(7)]
    counts = [("record", number, n + 1) for number in range(7) for n in range(sizes[number])]
    rows = rows_in(out)
    assert sorted(tuple(row[:3]) for row in rows if row[0] == "record") == counts
    assert all(sum(row[3]) == row[2] and len(row[3]) <= 2 for row in rows if row[0] == "record")
    # One timer of each key, however often it was registered; and one window.
    assert sorted(row[1:] for row in rows if row[0] == "timer") == [[n, sizes[n]] for n in range(7)]
    assert sorted(row[1] for row in rows_in(out + "-windows")) == sorted(sizes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", OTHER)
def test_keys_of_a_class_that_is_another_one_now_are_refused(env, tmp_path, kind):
    first, second = map(version, OTHER[kind])
    savepoint = stopped(env, first, str(tmp_path / "out"))
    second(env, str(tmp_path / "out"), COUNT, None)
    report = env.check_restore(savepoint, open_functions=False)
    assert not report.is_restorable
    assert any("keys of the checkpoint are of class __main__." in problem for problem in report.problems)
    with pytest.raises((JobFailedError, CheckpointMismatchError)) as caught:
        env.execute("version 2", from_savepoint=savepoint)
    text = str(caught.value)
    for part in ("keys of the checkpoint are of class __main__.", "operator", "state", "allow_non_restored_state"):
        assert part in text


FAILS_ONCE = """
import os

def kind_of(n, kind_of=kind_of):
    if n == 300 and not os.path.exists(failed):
        open(failed, "w").close()
        raise RuntimeError("once")
    return kind_of(n)
"""


def test_two_classes_of_one_name_are_told_apart_after_a_failure(env, tmp_path):
    failed, out = str(tmp_path / "failed"), str(tmp_path / "out")
    version(TWINS + FAILS_ONCE, failed=failed)(env, out, COUNT, 400)
    env.execute("fails once")
    assert Path(failed).exists()
    counts = [["record", number, n + 1] for number in range(7) for n in range(len(range(number, COUNT, 7)))]
    assert sorted(row[:3] for row in rows_in(out) if row[0] == "record") == counts


TURNS = TWINS.replace("(Here(n % 7), There(1))", "(Here if n % 2 else There)(n % 7)").replace(
    "key[0].number", "key.number"
)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_equal_looking_keys_of_two_classes_of_one_name_are_two_keys_or_refused(tmp_path, backend):
    out = str(tmp_path / "out")
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        if backend == "rocksdb":
            env.set_state_backend(RocksDBStateBackend(16 << 20, str(tmp_path / "local")))
        version(TURNS)(env, out, COUNT, None)
        if backend == "rocksdb":
            with pytest.raises(JobFailedError, match=r"two classes __main__\.user_of\.<locals>\.User"):
                env.execute("in turns")
            return
        env.execute("in turns")
    expected = [[n, sum(i % 7 == n and i % 2 == odd for i in range(COUNT))] for n in range(7) for odd in range(2)]
    assert sorted(row[1:] for row in rows_in(out) if row[0] == "timer") == sorted(expected)


BROADCAST = """
class Rules(BroadcastProcessFunction):
    descriptor = MapStateDescriptor("rules")

    def process_element(self, n, context):
        yield [n, context.get_broadcast_state(self.descriptor).get(key_of(1))]

    def process_broadcast_element(self, n, context):
        context.get_broadcast_state(self.descriptor).put(key_of(n), n)

def program(env, out, count, rate):
    numbers = GeneratorSource(lambda n: n, count=count, records_per_second=rate, number_of_splits=1)
    rules = GeneratorSource(lambda n: n, count=7, number_of_splits=1)
    none = WatermarkStrategy.no_watermarks()
    rules = env.from_source(rules, none, "rules").uid("rules").broadcast(Rules.descriptor)
    stream = env.from_source(numbers, none, "numbers").uid("numbers").connect(rules).process(Rules()).uid("match")
    stream.sink_to(FileSink.json_lines(out)).uid("out")
"""


@pytest.mark.parametrize("env", ["heap"], indirect=True)
@pytest.mark.parametrize("kind", ["dataclass", "another field"])
def test_keys_of_broadcast_state_are_found_or_refused(env, tmp_path, kind):
    first, second = ({**VERSIONS, **OTHER})[kind]
    savepoint = stopped(env, version(first, BROADCAST), str(tmp_path / "out"))
    before = len(rows_in(tmp_path / "out"))
    version(second, BROADCAST)(env, str(tmp_path / "out"), COUNT, None)
    if kind == "another field":
        with pytest.raises((JobFailedError, CheckpointMismatchError), match=r"class __main__\.User .*state 'rules'"):
            env.execute("version 2", from_savepoint=savepoint)
        return
    env.execute("version 2", from_savepoint=savepoint)
    rows = sorted(rows_in(tmp_path / "out"))
    assert [n for n, _ in rows] == list(range(COUNT))
    assert all(rule == 1 for _, rule in rows[before:])
