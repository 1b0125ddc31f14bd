"""Declared types through checkpoints: stored by field, changed by the rules, refused by name.

Examples for each rule, on the types alone and through every backend; a property over random types for "what was stored
comes back".
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from decimal import Decimal
from typing import Any, NamedTuple, Optional, TypedDict

import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.arguments.data_types import Types
from headrace.state.backends.heap.backend import HeapOperatorStateBackend
from headrace.state.checkpoints.snapshot import RestoredPart
from headrace.state.errors import CheckpointMismatchError, ProgramError, TypeMismatchError
from headrace.state.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.keyed.evolution import evolve
from headrace.state.keyed.kinds import StateDescriptor
from headrace.state.values.type_sources import schema_text, type_of_hint


@dataclasses.dataclass
class Place:
    """Nested below."""

    city: str
    zip: int


@dataclasses.dataclass
class Person:
    """As the checkpoint has it."""

    name: str
    age: int
    home: Place | None = None
    tags: list[str] = dataclasses.field(default_factory=list)


class Point(NamedTuple):
    """A record that is a tuple."""

    x: int
    y: float = 0.5


@dataclasses.dataclass(frozen=True)
class Circle:
    """Holds another record, has a derived field."""

    centre: Point
    radius: float
    area: float = dataclasses.field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "area", 3 * self.radius**2)


@dataclasses.dataclass
class Node:
    """Holds itself."""

    value: int
    next: Optional[Node] = None  # noqa: UP045


class Flat(NamedTuple):
    """A point under another name."""

    x: int
    y: float


class Options(TypedDict):
    """A dict with declared fields."""

    a: int
    b: str


KINDS = ["value", "list", "map", "reducing", "aggregating"]


class Last:
    """An aggregate that is its last value."""

    def create_accumulator(self):
        return None

    def add(self, value, accumulator):
        return value

    def get_result(self, accumulator):
        return accumulator


def descriptor_of(kind, value_type, **options):
    return {
        "value": lambda: ValueStateDescriptor("s", value_type, **options),
        "list": lambda: ListStateDescriptor("s", value_type, **options),
        "map": lambda: MapStateDescriptor("s", str, value_type, **options),
        "reducing": lambda: ReducingStateDescriptor("s", lambda a, b: b, value_type, **options),
        "aggregating": lambda: AggregatingStateDescriptor("s", Last(), value_type, **options),
    }[kind]()


def store(backend, descriptor, value, *, windowed=False):
    state = backend.handle(descriptor, windowed=windowed)
    if descriptor.kind == "value":
        state.update(value)
    elif descriptor.kind == "map":
        state.put("k", value)
    else:
        state.add(value)


def load(backend, descriptor, *, windowed=False):
    state = backend.handle(descriptor, windowed=windowed)
    if descriptor.kind == "value":
        return state.value()
    if descriptor.kind == "map":
        return state.get("k")
    return state.get()[0] if descriptor.kind == "list" else state.get()


def carried(kit, old, new, value, kind="value", **options):
    """A value that was stored with one type, read with another."""
    backend = kit.make()
    backend.current_key = 1
    store(backend, descriptor_of(kind, old), value)
    again = kit.again(backend)
    again.current_key = 1
    return load(again, descriptor_of(kind, new, **options))


def changed(name, *fields):
    """A newer version of a class."""
    return dataclasses.make_dataclass(name, fields)


# ------------------------------------------------------------------------------------------------------------- stored
@pytest.mark.parametrize("ttl", [None, "1 h"])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(4)
def test_instances_come_back_as_they_were(kit, kind, windowed, ttl):
    person = Person("Ann", 30, Place("Ulm", 89073), ["a", "b"])
    descriptor = descriptor_of(kind, Person, ttl=ttl)
    backend = kit.make()
    for _ in range(2):
        backend.current_key, backend.current_namespace = 1, (0, 1) if windowed else None
        store(backend, descriptor, person, windowed=windowed)
        backend = kit.again(kit.again(backend))  # once more without being declared
        backend.current_key, backend.current_namespace = 1, (0, 1) if windowed else None
        found = load(backend, descriptor, windowed=windowed)
        assert found == person
        assert type(found) is Person
        assert type(found.home) is Place


def test_a_file_of_instances_is_read_with_pyarrow_alone(kit):
    if kit.name != "heap":
        pytest.skip("only the heap backend's files are Arrow files")
    backend = kit.make()
    for key in range(3):
        backend.current_key = key
        store(backend, descriptor_of("value", Person), Person("Ann", key, Place("Ulm", 1), ["a"]))
        store(backend, ListStateDescriptor("timed", Point, ttl="1 h"), Point(key, 1.5))
    by_state = {part.state: pa.ipc.open_file(part.write()).read_all() for part in backend.snapshot()}
    assert sorted(by_state["s"].column("value").to_pylist(), key=lambda row: row["age"]) == [
        {"name": "Ann", "age": key, "home": {"city": "Ulm", "zip": 1}, "tags": ["a"]} for key in range(3)
    ]
    assert by_state["timed"].column("value").to_pylist()[0][0]["f1"] == kit.now_ms


def test_changes_after_a_snapshot_are_not_in_it(kit):
    backend = kit.make()
    backend.current_key = 1
    person = Person("Ann", 30, Place("Ulm", 1), ["a"])
    store(backend, descriptor_of("value", Person), person)
    parts = backend.snapshot()
    person.age = 31
    person.home.city = "Bonn"
    person.tags.append("b")
    again = kit.restored(kit.written(parts))
    again.current_key = 1
    assert load(again, descriptor_of("value", Person)) == Person("Ann", 30, Place("Ulm", 1), ["a"])


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Point, Point(1)),
        (Circle, Circle(Point(1, 2.0), 2.0)),
        (Node, Node(1, Node(2, None))),
        (Options, {"a": 1, "b": "x"}),
        (list[Point], [Point(1), Point(2, 3.0)]),
        (dict[str, Place], {"a": Place("Ulm", 1)}),
        (tuple[Point, int], (Point(1), 2)),
        (Place | None, None),
        (Place | None, Place("Ulm", 1)),
        (dict[str, list[Place | None]], {"a": [None, Place("Ulm", 1)]}),
        (Types.ROW([Types.INT(), Types.STRING()]), (1, "a")),
        (Types.ROW_NAMED(["a"], [Types.INT()]), {"a": 1}),
        (Types.PICKLED_BYTE_ARRAY(), {1, 2}),
        (pa.schema([("a", pa.int32()), ("b", pa.list_(pa.string()))]), {"a": 1, "b": ["x"]}),
        (Decimal, Decimal("1.5")),
        (datetime.datetime, datetime.datetime(2024, 1, 1)),  # noqa: DTZ001
        (set[int], {1, 2}),
        (Any, object),
        (int | str, "x"),
    ],
)
def test_every_declared_type_carries_its_values(kit, declared, value):
    found = carried(kit, declared, declared, value)
    assert found == value
    assert type(found) is type(value)
    assert json.loads(json.dumps(type_of_hint(declared).schema)) == type_of_hint(declared).schema


def test_an_instance_of_another_class_is_not_stored_as_the_declared_one(kit):
    backend = kit.make()
    backend.current_key = 1
    with pytest.raises(TypeMismatchError, match=r"declared as .*Person holds a value of type .*Place") as caught:
        store(backend, descriptor_of("value", Person), Place("Ulm", 1))
        kit.written(backend.snapshot())
    assert caught.value.context["state"] == "s"


def test_state_that_was_not_declared_may_be_declared_later(kit):
    """Its values are pickled instances until then."""
    assert carried(kit, None, Person, Person("Ann", 30)) == Person("Ann", 30)
    assert carried(kit, int, None, 5) == 5


def test_records_of_a_class_are_not_handed_out_without_it(kit):
    with pytest.raises(CheckpointMismatchError, match="declares no type"):
        carried(kit, Person, None, Person("Ann", 30))


ATOMS = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(max_size=3),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=3),
}


@st.composite
def typed_values(draw, depth=3):
    """A type and a value of it."""
    form = draw(st.sampled_from(["atom", "list", "dict", "tuple", "class", "named", "optional"] if depth else ["atom"]))
    if form == "atom":
        kind = draw(st.sampled_from(list(ATOMS)))
        return kind, draw(ATOMS[kind])
    if form == "list":
        kind, value = draw(typed_values(depth - 1))
        return list[kind], [value] * draw(st.integers(0, 2))
    if form == "dict":
        kind, value = draw(typed_values(depth - 1))
        return dict[str, kind], dict.fromkeys(draw(st.lists(st.text(max_size=2), max_size=2)), value)
    if form == "optional":
        kind, value = draw(typed_values(depth - 1))
        return Optional[kind], draw(st.sampled_from([None, value]))  # noqa: UP045
    parts = draw(st.lists(typed_values(depth - 1), min_size=1, max_size=3))
    if form == "tuple":
        return tuple[tuple(kind for kind, _ in parts)], tuple(value for _, value in parts)
    names = [f"f{i}" for i in range(len(parts))]
    if form == "named":
        kind = NamedTuple("Drawn", [(name, part) for name, (part, _) in zip(names, parts, strict=True)])
    else:
        kind = dataclasses.make_dataclass("Drawn", [(name, part) for name, (part, _) in zip(names, parts, strict=True)])
    return kind, kind(*(value for _, value in parts))


@given(typed_values())
@settings(max_examples=examples(100))
def test_what_is_lowered_is_plain_and_lifts_to_the_same(typed):
    declared, value = typed
    type_ = type_of_hint(declared)
    stored = value if type_.lower is None else type_.lower(value)

    def check_plain(part):
        assert type(part) in (int, str, float, bool, bytes, list, dict, tuple, type(None))
        for inner in part.values() if type(part) is dict else part if type(part) in (list, tuple) else ():
            check_plain(inner)

    check_plain(stored)
    lifted = stored if type_.lift is None else type_.lift(stored)
    assert lifted == value
    assert repr(lifted) == repr(value)
    assert evolve(type_.schema, type_) is None


# -------------------------------------------------------------------------------------------------------------- rules
@pytest.mark.parametrize("ttl", [None, "1 h"])
@pytest.mark.parametrize("kind", KINDS)
def test_fields_come_go_and_widen(kit, kind, ttl):
    newer = changed(
        "Person",
        ("age", int | None),  # may be None now, has moved
        ("nick", str | None),
        ("email", str, dataclasses.field(default="none")),
        ("scores", list[int], dataclasses.field(default_factory=list)),
        ("home", Place | None, dataclasses.field(default=None)),
    )
    found = carried(kit, Person, newer, Person("Ann", 30, Place("Ulm", 1), ["a"]), kind, ttl=ttl)
    assert found == newer(30, None, "none", [], Place("Ulm", 1))
    assert type(found.home) is Place
    found.scores.append(1)
    assert carried(kit, Person, newer, Person("Bob", 1), kind).scores == []


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        (pa.int32(), int, 5, 5),
        (pa.int8(), pa.int16(), 5, 5),
        (pa.uint8(), pa.int16(), 5, 5),
        (pa.float32(), float, 1.5, 1.5),
        (pa.int32(), float, 5, 5.0),
        (int, int | None, 5, 5),
        (list[Place], list[Place | None], [Place("Ulm", 1)], [Place("Ulm", 1)]),
        (Types.INT(), Types.LONG(), 5, 5),
        (Types.ROW([Types.INT(), Types.FLOAT()]), tuple[float, float], (5, 1.5), (5.0, 1.5)),
        (Types.ROW_NAMED(["a"], [Types.INT()]), Types.ROW_NAMED(["a", "b"], [Types.LONG()] * 2), {"a": 1}, None),
        (Options, pa.schema([("a", pa.float64())]), None, None),
        (tuple[Point, int], tuple[Point | None, int], (Point(1), 2), (Point(1), 2)),
    ],
)
def test_values_widen(kit, old, new, value, expected):
    if new == pa.schema([("a", pa.float64())]):
        with pytest.raises(CheckpointMismatchError, match="'a' cannot change from int64 to float64"):
            carried(kit, old, new, {"a": 1, "b": "x"})
        return
    found = carried(kit, old, new, value)
    assert found == ({"a": 1, "b": None} if expected is None else expected)
    assert type(found) is type(expected) or expected is None


def test_a_record_may_change_its_class(kit):
    """What is compared are fields, so a class may be renamed, moved, or become a NamedTuple."""
    assert carried(kit, Point, Flat, Point(1, 2.0)) == Flat(1, 2.0)
    as_class = changed("Point", ("y", float), ("x", int))
    assert carried(kit, Point, as_class, Point(1, 2.0)) == as_class(2.0, 1)
    assert carried(kit, Point, TypedDict("P", {"x": int}), Point(1, 2.0)) == {"x": 1}


def test_fields_are_renamed_by_an_explicit_mapping(kit):
    newer = changed("Place", ("town", str), ("zip", int))
    found = carried(kit, Place, newer, Place("Ulm", 1), renamed_fields={"town": "city"})
    assert found == newer("Ulm", 1)
    # The program keeps the mapping: a later checkpoint has the new name.
    assert carried(kit, newer, newer, newer("Ulm", 1), renamed_fields={"town": "city"}) == newer("Ulm", 1)
    inner = changed("Home", ("place", newer))
    with pytest.raises(CheckpointMismatchError, match="there is no such field"):
        carried(kit, inner, inner, inner(newer("Ulm", 1)), renamed_fields={"town": "city"})


@pytest.mark.parametrize(
    ("old", "new", "field", "types"),
    [
        (int, str, "", ("int64", "string")),
        (int, pa.int32(), "", ("int64", "int32")),
        (int, float, "", ("int64", "float64")),
        (float, int, "", ("float64", "int64")),
        (int | None, int, "", ("int64 or None", "int64")),
        (bool, int, "", ("bool", "int64")),
        (str, bytes, "", ("string", "binary")),
        (list[int], list[str], "[]", ("int64", "string")),
        (dict[str, int], dict[int, int], "key", ("string", "int64")),
        (dict[str, int], dict[str, str], "value", ("int64", "string")),
        (tuple[int, int], tuple[int, str], "f1", ("int64", "string")),
        (tuple[int, int], tuple[int, int, int], "", ("tuple(int64, int64)", "tuple(int64, int64, int64)")),
        (Place, changed("P", ("city", str), ("zip", str)), "zip", ("int64", "string")),
        (Place, changed("P", ("city", str), ("zip", int), ("new", int)), "new", ("nothing", "int64")),
        (Person, changed("P", ("home", changed("H", ("city", int)) | None)), "home.city", ("string", "int64")),
        (Place, Point, "x", ("nothing", "int64")),
        (Place, int, "", None),
        (set[int], set[str], "", ("set[int]", "set[str]")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), "", ("timestamp", "timestamp[UTC]")),
    ],
)
def test_what_does_not_fit_is_refused_by_name(kit, old, new, field, types):
    value = {
        Place: Place("Ulm", 1),
        Person: Person("Ann", 1, Place("Ulm", 1)),
    }.get(old, 1)
    with pytest.raises(CheckpointMismatchError, match="the checkpoint has state 's' of another type") as caught:
        carried(kit, old, new, value)
    context = caught.value.context
    assert (context["operator"], context["state"], context["field"]) == ("counter", "s", field)
    if types is not None:
        assert (context["old_type"], context["new_type"]) == types
    for text in (field, *(types or ())):
        assert text in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_state_refuses(kit, kind):
    with pytest.raises(CheckpointMismatchError, match="'zip' cannot change from int64 to string"):
        carried(kit, Place, changed("P", ("city", str), ("zip", str)), Place("Ulm", 1), kind)


def test_what_is_refused_stays_as_it_was(kit):
    backend = kit.make()
    backend.current_key = 1
    store(backend, descriptor_of("value", Place), Place("Ulm", 1))
    again = kit.again(backend)
    again.current_key = 1
    with pytest.raises(CheckpointMismatchError):
        load(again, descriptor_of("value", changed("P", ("zip", str))))
    assert load(again, descriptor_of("value", Place)) == Place("Ulm", 1)


def test_the_keys_of_a_map_never_change_their_type(kit):
    backend = kit.make()
    backend.current_key = 1
    backend.handle(MapStateDescriptor("m", pa.int32(), int)).put(1, 2)
    with pytest.raises(CheckpointMismatchError, match="the type of keys never changes") as caught:
        kit.again(backend).handle(MapStateDescriptor("m", int, int))
    assert (caught.value.context["old_type"], caught.value.context["new_type"]) == ("int32", "int64")


def test_a_table_of_the_engine_evolves_too(kit):
    backend = kit.make()
    backend.table(StateDescriptor("t", Place), windowed=True).namespace((0, 1))["k"] = Place("Ulm", 1)
    newer = changed("Place", ("city", str))
    table = kit.again(backend).table(StateDescriptor("t", newer), windowed=True)
    assert dict(table.namespace((0, 1))) == {"k": newer("Ulm")}


# ----------------------------------------------------------------------------------------------------- operator state
def restored_operator_state(backends, subtask=0, parallelism=1):
    parts = [
        RestoredPart(part.state, part.kind, part.metadata, part.write(), index)
        for index, backend in enumerate(backends)
        for part in backend.snapshot()
    ]
    fresh = HeapOperatorStateBackend("counter")
    fresh.restore(parts, subtask, parallelism)
    return fresh


def test_operator_state_evolves_too():
    newer = changed("Place", ("city", str), ("country", str, dataclasses.field(default="de")))
    backend = HeapOperatorStateBackend("counter")
    backend.list_state("l", Place).add_all([Place("Ulm", 1), Place("Bonn", 2)])
    backend.union_list_state("u", Place).update([Place("Ulm", 1)])
    backend.broadcast_state(MapStateDescriptor("b", str, Place)).put("x", Place("Ulm", 1))
    again = restored_operator_state([restored_operator_state([backend])])
    with pytest.raises(CheckpointMismatchError, match="'city' cannot change") as caught:
        again.list_state("l", changed("P", ("city", int)))
    assert (caught.value.context["operator"], caught.value.context["state"]) == ("counter", "l")
    assert again.list_state("l", newer).get() == [newer("Ulm"), newer("Bonn")]
    assert again.union_list_state("u", newer).get() == [newer("Ulm")]
    broadcast = again.broadcast_state(MapStateDescriptor("b", str, newer))
    assert dict(broadcast.items()) == {"x": newer("Ulm")}
    with pytest.raises(CheckpointMismatchError, match="type of keys"):
        restored_operator_state([backend]).broadcast_state(MapStateDescriptor("b", int, Place))


@given(
    st.dictionaries(st.text(max_size=2), st.integers() | st.lists(st.integers(), max_size=2)),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_every_subtask_has_a_copy_of_broadcast_state(entries, before, after):
    descriptor = MapStateDescriptor("rules")
    backends = [HeapOperatorStateBackend("op") for _ in range(before)]
    for backend in backends:
        backend.broadcast_state(descriptor).put_all(entries)
    for subtask in range(after):
        state = restored_operator_state(backends, subtask, after).broadcast_state(descriptor)
        assert dict(state.items()) == entries
        assert list(state.keys()) == list(entries)


def test_subtask_i_reads_copy_i_modulo_their_number():
    """Also where a copy is empty."""
    descriptor = MapStateDescriptor("rules")
    backends = [HeapOperatorStateBackend("op") for _ in range(3)]
    for index, backend in enumerate(backends):
        if index != 1:
            backend.broadcast_state(descriptor).put("copy", index)
        else:
            backend.broadcast_state(descriptor)
    found = [
        restored_operator_state(backends, subtask, 5).broadcast_state(descriptor).get("copy") for subtask in range(5)
    ]
    assert found == [0, None, 2, 0, None]


def test_broadcast_state_is_a_map():
    backend = HeapOperatorStateBackend("op")
    state = backend.broadcast_state(MapStateDescriptor("rules"))
    assert state.is_empty()
    state.put_all({"a": 1, "b": 2})
    for key in state.keys():  # noqa: SIM118 - it is no dict
        state.remove(key)
    state.put("c", [1])
    assert (state.contains("c"), state.get("a"), list(state.values())) == (True, None, [[1]])
    parts = backend.snapshot()
    state.get("c").append(2)
    state.clear()
    assert pa.ipc.open_file(parts[0].write()).read_all().to_pylist() == [{"key": "c", "value": [1]}]
    for other in (backend.list_state, backend.union_list_state):
        with pytest.raises(ProgramError, match="declared twice"):
            other("rules")
    with pytest.raises(ProgramError, match="MapStateDescriptor"):
        backend.broadcast_state(ListStateDescriptor("other"))
    with pytest.raises(CheckpointMismatchError, match="broadcast state"):
        restored_operator_state([backend]).list_state("rules")


def test_a_schema_is_written_out_for_people():
    schema = type_of_hint(Person).schema
    assert schema_text(schema) == (
        f"{__name__}.Person(name: string, age: int64, "
        f"home: {__name__}.Place(city: string, zip: int64) or None, tags: list of string)"
    )


def test_a_schema_that_says_less_than_ours_do_is_written_out_too():
    assert schema_text({"record": [["name", "string"]]}) == "dict(name: string)"
    assert schema_text({"of": "tuple"}) == "{'of': 'tuple'}"
