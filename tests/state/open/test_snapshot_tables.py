"""Random states of both backends, read as tables and written from them.

Families: property (what is read is what was put; both backends read alike; ``read(write(x)) == x``), closed pickles.
"""

from __future__ import annotations

import datetime
import enum
import functools
import pickle
import re
import uuid
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import pyarrow as pa
import pytest
from backend_kit import MAX_PARALLELISM, OPERATOR, BackendKit
from campaigns import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.actors.clients.state_queries import query_state
from headrace.cli import main
from headrace.engine.errors import StateQueryError
from headrace.jobs.snapshots import Snapshot
from headrace.state.checkpoints.manifest import Manifest, OperatorState
from headrace.state.checkpoints.snapshot import FileKind, OperatorSnapshot, SnapshotPart
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.errors import CheckpointMismatchError, ConfigurationError, TypeMismatchError
from headrace.state.identifiers import ExecutionAttemptId, OperatorId, VertexId
from headrace.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from headrace.state.keyed.ttl import StateTtlConfig
from headrace.state.keys.hashing import hash_keys
from headrace.state.keys.key_groups import key_groups_of
from headrace.state.open.column_types import Observed, array_of, field_of, schema_of_field, values_of
from headrace.state.open.names import STOPPING
from headrace.state.open.values import Opaque, open_pickle

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
INTS = st.integers(-(2**63), 2**63 - 1)
KEYS = st.one_of(
    st.lists(INTS, unique=True),
    st.lists(TEXTS, unique=True),
    st.lists(st.tuples(TEXTS, st.integers(0, 9)), unique=True),
    st.lists(st.uuids(), unique=True),
    st.lists(st.datetimes(), unique=True),
)
ATOMS = st.one_of(
    INTS,
    st.floats(allow_nan=False),
    TEXTS,
    st.binary(max_size=5),
    st.booleans(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.dates(),
    st.datetimes(),
    st.timedeltas(),
    st.times(),
    st.uuids(),
)
VALUES = st.recursive(
    st.one_of(ATOMS, st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(TEXTS, inner, max_size=3),
    ),
    max_leaves=6,
)
WINDOWS = [None, (0, 10), (10, 20), (-(2**63), 2**63 - 1)]


def folder_of(kit, backends, folder):
    """Store snapshots of backends, one per subtask, as a checkpoint; gives the folder."""
    storage = CheckpointStorage.at(str(folder))
    snapshots = []
    for subtask, backend in enumerate(backends):
        attempt = ExecutionAttemptId(1, 0, VertexId(OPERATOR), subtask)
        files = tuple(storage.data_files.write_part(1, attempt, OPERATOR, part) for part in backend.snapshot())
        snapshots.append(OperatorSnapshot(OPERATOR, subtask, files))
    operator = OperatorState(OPERATOR, "name", len(backends), MAX_PARALLELISM, tuple(s for s in snapshots if s.files))
    storage.publish(Manifest("job", "job", 1, 1, 0, (operator,) if operator.subtasks else ()), 1)
    return str(folder)


def spread(kit, put, parallelism=2):
    """Backends of all subtasks of an operator, each with what `put` gives it to hold."""
    backends = [kit.make(subtask, parallelism) for subtask in range(parallelism)]
    for backend in backends:
        put(backend)
    return backends


def owns(backend, key):
    return backend.key_groups.contains(int(key_groups_of(hash_keys([key]), MAX_PARALLELISM)[0]))


def fill(descriptor, held, *, windowed=False):
    """Puts (namespace, key) -> value into a backend, as far as it owns the keys."""

    def put(backend):
        table = backend.table(descriptor, windowed=windowed)
        for (namespace, key), value in held.items():
            if owns(backend, key):
                table.namespace(namespace)[key] = value

    return put


def shown(value):
    """A value as text; whole numbers among floats have become floats."""
    return re.sub(r"\.0\b", "", repr(value))


def python_rows(table):
    """The rows of a table as (namespace, key, inner, value) in Python values."""
    columns = {}
    for name in ("key", "map_key", "value"):
        if name in table.column_names:
            field = table.schema.field(name)
            columns[name] = values_of(table.column(name), schema_of_field(field), name)
    inner = columns.get("map_key") or (table["index"].to_pylist() if "index" in table.column_names else None)
    windows = [None] * table.num_rows
    if "window_start" in table.column_names:
        bounds = zip(table["window_start"].to_pylist(), table["window_end"].to_pylist(), strict=True)
        windows = [None if start is None else (start, end) for start, end in bounds]
    inner = inner or [None] * table.num_rows
    return [
        (namespace, key, place, shown(value))
        for namespace, key, place, value in zip(windows, columns["key"], inner, columns["value"], strict=True)
    ]


@pytest.fixture
def kits(tmp_path):
    made = {name: BackendKit(name, tmp_path / name) for name in ("heap", "rocksdb")}
    yield made
    for kit in made.values():
        kit.close()


@settings(max_examples=examples(12))
@given(st.data())
def test_values_are_read_and_written_as_they_are(kits, tmp_path_factory, data):
    keys = data.draw(KEYS)
    is_windowed = data.draw(st.booleans())
    namespaces = WINDOWS if is_windowed else [None]
    held = {(data.draw(st.sampled_from(namespaces)), key): data.draw(VALUES) for key in keys}
    descriptor = ValueStateDescriptor("state")
    check(kits, tmp_path_factory, descriptor, held, {place: [(None, value)] for place, value in held.items()})


@settings(max_examples=examples(8))
@given(st.dictionaries(TEXTS, st.lists(ATOMS, min_size=1, max_size=4), max_size=4))
def test_lists_are_read_and_written_in_order(kits, tmp_path_factory, lists):
    held = {(None, key): value for key, value in lists.items()}
    rows = {place: list(enumerate(value)) for place, value in held.items()}
    check(kits, tmp_path_factory, ListStateDescriptor("state"), held, rows)


@settings(max_examples=examples(8))
@given(st.dictionaries(TEXTS, st.dictionaries(st.integers(), ATOMS, min_size=1, max_size=4), max_size=4))
def test_maps_are_read_and_written_by_entry(kits, tmp_path_factory, maps):
    held = {(None, key): value for key, value in maps.items()}
    rows = {place: list(value.items()) for place, value in held.items()}
    if any(not -(2**63) <= key < 2**63 for value in maps.values() for key in value):
        return  # Arrow has no such integers: a map's keys would be pickled
    check(kits, tmp_path_factory, MapStateDescriptor("state"), held, rows)


def check(kits, factory, descriptor, held, rows):
    is_windowed = any(namespace is not None for namespace, _ in held)
    expected = sorted(
        (
            repr((namespace, key, inner, shown(value)))
            for (namespace, key), some in rows.items()
            for inner, value in some
        )
    )
    tables = {}
    for name, kit in kits.items():
        kit.reset()
        folder = folder_of(kit, spread(kit, fill(descriptor, held, windowed=is_windowed)), factory.mktemp(name))
        with Snapshot.open(folder) as snapshot:
            if not held:
                assert snapshot.states() == [] or snapshot.read(OPERATOR, "state").num_rows == 0
                return
            table = tables[name] = snapshot.read(OPERATOR, "state", flatten=False)
            assert sorted(map(repr, python_rows(table))) == expected
            some = [key for _, key in held][:2]
            found = snapshot.read(OPERATOR, "state", flatten=False, keys=some)
            wanted = [row for row in python_rows(table) if row[1] in some]
            assert python_rows(found) == wanted
            flat = snapshot.read(OPERATOR, "state")
        if is_windowed or any(key is None for _, key in held):
            continue
        for backend, source in ((name, table), (name, flat)):
            writer = Snapshot.builder(max_parallelism=MAX_PARALLELISM, parallelism=3, backend=backend)
            written = writer.with_keyed_state(OPERATOR, descriptor, source).write(str(factory.mktemp("written")))
            with Snapshot.open(written) as again:
                read = again.read(OPERATOR, "state", flatten=source is flat).drop_columns(["subtask"])
                assert read.schema.equals(source.drop_columns(["subtask"]).schema, check_metadata=True)
                assert read.equals(source.drop_columns(["subtask"]))
    assert tables["heap"].schema.equals(tables["rocksdb"].schema, check_metadata=True)
    assert tables["heap"].equals(tables["rocksdb"])


@settings(max_examples=examples(100))
@given(st.lists(VALUES, max_size=6))
def test_every_column_gives_its_values_back(values):
    observed = Observed()
    for value in values:
        observed.add(value)
    schema = observed.schema()
    array, field = array_of(values, schema), field_of("value", schema)
    assert array.type.equals(field.type)
    assert schema_of_field(field) == schema
    back = values_of(array, schema)
    assert back == values
    assert shown(back) == shown(values)


class Own:
    def __reduce__(self):
        return eval, ("1 + 1",)


def test_pickles_are_opened_only_if_they_are_plain():
    plain = [
        uuid.uuid4(),
        Decimal("1.50"),
        datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
        {1, 2},
        frozenset("ab"),
        (1, "a", [None, b"x", 2.5]),
        datetime.timedelta(days=3),
        bytearray(b"x"),
    ]
    for value in plain:
        assert open_pickle(pickle.dumps(value, 4)) == value
    for value in (Own(), [Own()], OperatorId, print, BackendKit):
        data = pickle.dumps(value, 4)
        assert open_pickle(data) == Opaque(data)
    data = pickle.dumps(Own(), 4)
    assert pickle.loads(pickle.dumps(Opaque(data), 4)) == 2, "built by others it is the value itself"
    assert open_pickle(pickle.dumps([Opaque(data)], 4)) == [Opaque(data)]
    assert open_pickle(b"nothing") == Opaque(b"nothing")


# --------------------------------------------------------------------------------- what is in the files besides states
class Color(enum.Enum):
    RED = 1
    BLUE = 2


def test_records_in_flight_are_no_state_and_cannot_be_edited(kits, tmp_path):
    """An unaligned checkpoint is read like any other; its records belong to the operators and keys as they were."""

    class InFlight:
        def snapshot(self):
            facts = {"exchange": "a->b", "side": "input", "target": OPERATOR, "consumers": [0]}
            return [SnapshotPart("input a->b", FileKind.CHANNEL, facts, lambda: b"records")]

    kit = kits["heap"]
    folder = folder_of(kit, [*spread(kit, fill(ValueStateDescriptor("v"), {(None, 1): 5}), 1), InFlight()], tmp_path)
    with Snapshot.open(folder) as snapshot:
        assert [state.name for state in snapshot.states()] == ["v"]
        assert snapshot.read(OPERATOR, "v")["value"].to_pylist() == [5]
        assert snapshot.committables().num_rows == 0
        assert snapshot.verify() == []
        with pytest.raises(CheckpointMismatchError, match="records in flight"):
            snapshot.edit()


@pytest.mark.parametrize("name", ["heap", "rocksdb"])
def test_keys_that_are_closed_pickles_are_not_looked_for(kits, tmp_path, name):
    kit = kits[name]
    held = {(None, Color.RED): 5, (None, Color.BLUE): 6}
    folder = folder_of(kit, spread(kit, fill(ValueStateDescriptor("v", int), held)), tmp_path)
    with Snapshot.open(folder) as snapshot:
        assert snapshot.read(OPERATOR, "v").num_rows == 2
        with pytest.raises(CheckpointMismatchError, match="only unpickling tells apart") as refused:
            snapshot.read(OPERATOR, "v", keys=[Color.RED])
        assert "allow_pickle=True" in refused.value.hint
        found = snapshot.read(OPERATOR, "v", keys=[Color.RED], allow_pickle=True)
        assert found["value"].to_pylist() == [5]


@pytest.mark.parametrize("name", ["heap", "rocksdb"])
def test_a_checkpoint_asked_for_closed_keys_says_so(kits, tmp_path, name):
    kit = kits[name]
    descriptor = ValueStateDescriptor("v", int, queryable="v")

    def put(backend):
        state = backend.handle(descriptor)
        for color in Color:
            if owns(backend, color):
                backend.current_key = color
                state.update(color.value)

    folder_of(kit, spread(kit, put), tmp_path)
    path = CheckpointStorage.at(str(tmp_path)).manifest_uri(1)
    cluster = SimpleNamespace(ask_job=lambda *_: SimpleNamespace(last_checkpoint_path=path), wait=lambda _: None)
    ask = functools.partial(query_state, cluster, "job", OPERATOR, "v", [Color.RED], consistency="checkpoint")
    with pytest.raises(StateQueryError, match="only unpickling") as refused:
        ask()
    assert "allow_pickle=True" in refused.value.hint
    assert ask(allow_pickle=True)["value"].to_pylist() == [1]


def test_a_row_is_read_once_if_another_key_begins_alike(kits, tmp_path):
    kit = kits["rocksdb"]
    first = "user"
    second = next(text for text in (f"user\0{count}" for count in range(10_000)) if group_of(text) == group_of(first))
    held = {(None, first): [1, 2], (None, second): [3]}
    folder = folder_of(kit, spread(kit, fill(ListStateDescriptor("l"), held), 1), tmp_path)
    with Snapshot.open(folder) as snapshot:
        found = snapshot.read(OPERATOR, "l", keys=[first, second], flatten=False)
    assert sorted(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True)) == [
        (first, 1),
        (first, 2),
        (second, 3),
    ]


def group_of(key):
    return int(key_groups_of(hash_keys([key]), MAX_PARALLELISM)[0])


@pytest.mark.parametrize("name", ["heap", "rocksdb"])
def test_notes_go_with_what_they_were_about(kits, name):
    kit = kits[name]
    backend = kit.make()
    ttl = StateTtlConfig.new_builder(50).build()
    for descriptor in (ValueStateDescriptor("q", int, queryable="q"), ValueStateDescriptor("t", int, ttl=ttl)):
        state = backend.handle(descriptor)
        backend.current_key = 1
        state.update(7)
    restored = kit.again(backend)
    assert restored.tables()["q"].form["queryable"] == "q"  # nobody has said otherwise yet
    restored.handle(ValueStateDescriptor("q", int))
    restored.handle(ValueStateDescriptor("t", int))
    for backend in (restored, kit.again(restored)):
        assert "queryable" not in backend.tables()["q"].form
        assert "ttl_ms" not in backend.tables()["t"].form
        assert backend.tables()["t"].form["ttl"] is False


NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.integers(-(2**70), 2**70),
    st.sampled_from([-2.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.5, 1e300, -1e300, float("inf"), float("-inf")]),
    st.fractions(-3, 3, max_denominator=3),
    st.decimals(-3, 3, places=1),
)


@settings(max_examples=examples(15))
@given(st.lists(NUMBERS, unique=True, max_size=8), NUMBERS | st.none(), NUMBERS | st.none())
@example([-2.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0], -1.5, 2.0)
@example([0.5, 1.0, 1.5], 1, 2)
def test_numbers_are_found_by_range_whatever_their_types(kits, tmp_path_factory, keys, low, high):
    for name, kit in kits.items():
        kit.reset()
        held = {(None, key): index for index, key in enumerate(keys)}
        folder = folder_of(kit, spread(kit, fill(ValueStateDescriptor("v", int), held)), tmp_path_factory.mktemp(name))
        if not held:
            continue
        with Snapshot.open(folder) as snapshot:
            found = snapshot.read(OPERATOR, "v", key_range=(low, high), allow_pickle=True)["value"].to_pylist()
        assert sorted(found) == [
            index
            for index, key in enumerate(keys)
            if (low is None or exact(low) <= exact(key)) and (high is None or exact(key) < exact(high))
        ]


@settings(max_examples=examples(10))
@given(
    st.lists(st.tuples(NUMBERS, st.sampled_from(["", "a", "b\0"])), unique=True, max_size=8),
    st.tuples(NUMBERS, st.sampled_from(["", "b"])) | st.none(),
    st.tuples(NUMBERS) | st.none(),
)
@example([(1.0, "a"), (1.5, "a"), (2.0, "a")], (1, ""), (2,))
def test_tuples_with_numbers_are_found_by_range(kits, tmp_path_factory, keys, low, high):
    def place(key):
        return None if key is None else (exact(key[0]), *key[1:])

    for name, kit in kits.items():
        kit.reset()
        held = {(None, key): index for index, key in enumerate([*keys, "text", 1.0, b"bytes"])}
        folder = folder_of(kit, spread(kit, fill(ValueStateDescriptor("v", int), held)), tmp_path_factory.mktemp(name))
        with Snapshot.open(folder) as snapshot:
            found = snapshot.read(OPERATOR, "v", key_range=(low, high), allow_pickle=True)["value"].to_pylist()
        if low is None and high is None:
            assert len(found) == len(held)
            continue
        assert sorted(found) == [
            index
            for index, key in enumerate(keys)
            if (low is None or place(low) <= place(key)) and (high is None or place(key) < place(high))
        ]


@pytest.mark.parametrize("name", ["heap", "rocksdb"])
def test_keys_of_another_type_are_in_no_range(kits, tmp_path, name):
    held = {(None, key): index for index, key in enumerate(["a", "c", b"a", 5, (1,), None])}
    folder = folder_of(kits[name], spread(kits[name], fill(ValueStateDescriptor("v", int), held)), tmp_path)
    with Snapshot.open(folder) as snapshot:
        for bounds, wanted in ((("b", None), [1]), ((None, "b"), [0]), ((b"", None), [2]), ((None, (2,)), [4])):
            found = snapshot.read(OPERATOR, "v", key_range=bounds, allow_pickle=True)
            assert found["value"].to_pylist() == wanted, bounds
        for options in ({"batch_rows": 0}, {"key_groups": (5, 3)}, {"key_groups": (1,)}):
            with pytest.raises(ConfigurationError, match="got"):
                snapshot.read(OPERATOR, "v", **options)


def exact(number):
    return number if isinstance(number, float) else Fraction(number)


def test_a_range_has_bounds_of_one_type(kits, tmp_path):
    kit = kits["heap"]
    folder = folder_of(kit, spread(kit, fill(ValueStateDescriptor("v"), {(None, 1): 5}), 1), tmp_path)
    with Snapshot.open(folder) as snapshot:
        for bounds in ((1, "a"), ("a", 0.5), ("a", b"a")):
            with pytest.raises(TypeMismatchError, match="of one type"):
                snapshot.read(OPERATOR, "v", key_range=bounds)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_every_nan_is_one_key_of_what_is_written(tmp_path, backend):
    """Each row of a table brings a NaN object of its own; as keys of a dict they would be strangers."""
    nan = float("nan")
    lists, maps = ListStateDescriptor("lists", int), MapStateDescriptor("maps", float, int)
    pairs = ValueStateDescriptor("pairs", int)
    writer = Snapshot.builder(max_parallelism=MAX_PARALLELISM, parallelism=3, backend=backend)
    writer.with_keyed_state(OPERATOR, lists, pa.table({"key": [nan, 1.5, nan], "value": [1, 2, 3]}))
    writer.with_keyed_state(OPERATOR, maps, pa.table({"key": [nan, nan], "map_key": [nan, 0.5], "value": [1, 2]}))
    doubled = pa.table({"key.f0": [1, 1], "key.f1": [nan, nan], "value": [1, 2]})
    with pytest.raises(TypeMismatchError, match="comes twice"):
        writer.with_keyed_state(OPERATOR, pairs, doubled)
    with pytest.raises(TypeMismatchError, match="map key nan twice"):
        writer.with_keyed_state(OPERATOR, maps, pa.table({"key": [1.5] * 2, "map_key": [nan] * 2, "value": [1, 2]}))
    with pytest.raises(TypeMismatchError, match="comes twice"):
        writer.with_broadcast_state(OPERATOR, MapStateDescriptor("all"), pa.table({"key": [nan] * 2, "value": [1, 2]}))
    with Snapshot.open(writer.write(tmp_path / "one")) as one:
        assert sorted(one.read(OPERATOR, "lists", keys=[nan])["value"].to_pylist()) == [1, 3]
        assert one.read(OPERATOR, "lists", keys=[nan])["index"].to_pylist() == [0, 1]
        copied = one.edit().with_keyed_state(OPERATOR, lists, one.read(OPERATOR, "lists")).write(tmp_path / "two")
        with Snapshot.open(copied) as two:
            assert two.read(OPERATOR, "lists")["value"].to_pylist() == one.read(OPERATOR, "lists")["value"].to_pylist()
            assert two.read(OPERATOR, "maps", keys=[nan]).num_rows == 2


class Numbered(enum.Enum):
    """Keys whose pickles are in another order than their encodings."""

    _ignore_ = ["number"]
    for number in range(200):
        locals()["x" * number + "y"] = number


def test_snapshots_with_closed_keys_and_nan_are_compared_row_by_row(kits, tmp_path):
    held = {(None, key): float("nan") if key.value % 2 else key.value for key in Numbered}
    folders = [
        folder_of(kit, spread(kit, fill(ValueStateDescriptor("v"), some)), tmp_path / f"{name} {len(some)}")
        for name, kit in kits.items()
        for some in (held,)
    ]
    kits["rocksdb"].reset()
    fewer = {place: value for place, value in held.items() if place[1].value != 7}
    backends = spread(kits["rocksdb"], fill(ValueStateDescriptor("v"), fewer))
    folders.append(folder_of(kits["rocksdb"], backends, tmp_path / "fewer"))
    with Snapshot.open(folders[0]) as heap, Snapshot.open(folders[1]) as rocksdb, Snapshot.open(folders[2]) as less:
        [row] = heap.diff(rocksdb).to_pylist()
        assert (row["same"], row["different"], row["only_here"], row["only_there"]) == (200, 0, 0, 0)
        [row] = heap.diff(less).to_pylist()
        assert (row["same"], row["different"], row["only_here"], row["only_there"]) == (199, 0, 1, 0)


def test_states_of_other_kinds_have_no_row_in_common(kits, tmp_path):
    kit = kits["heap"]
    for descriptor, value in ((ListStateDescriptor("s"), [1, 2]), (MapStateDescriptor("s"), {"a": 1})):
        folder_of(kit, spread(kit, fill(descriptor, {(None, "key"): value}), 1), tmp_path / descriptor.kind)
        kit.reset()
    with Snapshot.open(tmp_path / "list") as one, Snapshot.open(tmp_path / "map") as other:
        assert one.diff(other).to_pylist() == [
            {"operator": OPERATOR, "state": "s", "only_here": 2, "only_there": 1, "different": 0, "same": 0}
        ]


@pytest.mark.parametrize("name", ["heap", "rocksdb"])
@pytest.mark.parametrize("descriptor", [ListStateDescriptor("s", int), MapStateDescriptor("s", str, int)])
def test_states_with_closed_keys_can_be_looked_at_by_whoever_trusts_them(kits, tmp_path, name, descriptor, capsys):
    value = [5, 6] if descriptor.kind == "list" else {"a": 5, "b": 6}
    held = {(None, Color.RED): value, (None, Color.BLUE): value}
    folder = folder_of(kits[name], spread(kits[name], fill(descriptor, held)), tmp_path)
    with Snapshot.open(folder) as one, Snapshot.open(folder) as other:
        [state] = one.states(look=True, allow_pickle=True)
        assert (state.num_entries, state.key_type) == (4, "int64")
        assert one.diff(other, allow_pickle=True)["same"].to_pylist() == [4]
    for command in (["ls", "--count", folder], ["show", folder, OPERATOR], ["diff", folder, folder]):
        assert main(["state", *command, "--allow-pickle"]) == 0
    assert "same: 1 states" in capsys.readouterr().out


def test_an_edited_snapshot_keeps_the_splits_of_every_source_and_none_of_the_runs_marks(tmp_path):
    """Whatever its uid begins with: without them it would read everything again."""
    enumerators = {"(numbers)": {"next": 5}, "rows": 1, STOPPING: "suspend"}
    storage = CheckpointStorage.at(str(tmp_path / "one"))
    storage.publish(Manifest("job", "job", 1, 1, 0, (), enumerators), 1)
    with Snapshot.open(tmp_path / "one") as one:
        assert one.enumerators() == {"(numbers)": {"next": 5}, "rows": 1}
        with Snapshot.open(one.edit().write(tmp_path / "two")) as two:
            assert two.enumerators() == one.enumerators()


@pytest.mark.parametrize("name", ["heap", "rocksdb"])
def test_a_state_beside_one_that_stays_closed_can_be_replaced(kits, tmp_path, name):
    """The closed one is looked at for the type of its keys only, and carried over as it is."""
    kit = kits[name]
    values, closed = ValueStateDescriptor("values", int), MapStateDescriptor("closed")

    def put(backend):
        fill(closed, {(None, "a"): {Color.RED: 1}, (None, "b"): {Color.BLUE: 2}})(backend)
        fill(values, {(None, "a"): 1})(backend)

    folder = folder_of(kit, spread(kit, put), tmp_path / "one")
    with Snapshot.open(folder) as one:
        table = pa.table({"key": ["a", "c"], "value": [5, 6]})
        with Snapshot.open(one.edit().with_keyed_state(OPERATOR, values, table).write(tmp_path / "two")) as two:
            assert sorted(two.read(OPERATOR, "values")["value"].to_pylist()) == [5, 6]
            read = two.read(OPERATOR, "closed", allow_pickle=True)
            assert sorted(read["value"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("name", ["same", "same (operator)"])
def test_of_two_states_of_one_name_each_can_be_left_out(tmp_path, name):
    entries = pa.table({"key": ["a"], "value": [1]})
    writer = Snapshot.builder().with_keyed_state(OPERATOR, ValueStateDescriptor("same"), entries)
    path = writer.with_broadcast_state(OPERATOR, MapStateDescriptor("same"), entries).write(tmp_path / "one")
    with Snapshot.open(path) as one:
        kinds = {state.name: state.kind for state in one.states()}
        assert sorted(kinds) == ["same", "same (operator)"]
        with Snapshot.open(one.edit().without_state(OPERATOR, name).write(tmp_path / "two")) as two:
            assert [state.kind for state in two.states()] == [kind for other, kind in kinds.items() if other != name]
