"""Snapshots as tables, and made of tables.

Families: differential (heap and RocksDB give the same tables), oracle (what a snapshot says is what the program's
functions say), round trip (a snapshot written from what was read is read the same, and a job goes on from it at another
parallelism), refusals. Random states are in ``tests/state/open/test_snapshot_tables.py``.
"""

from __future__ import annotations

import dataclasses
import html
import shutil
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from snapshot_programs import (
    ACCOUNT,
    ANYTHING,
    COUNT,
    EVERYONE,
    FAR_MS,
    FRESH,
    HIGHEST,
    MEAN,
    NUM_KEYS,
    NUMBERS,
    PER_DIGIT,
    PRICE,
    RULE_ENTRIES,
    RULES,
    SEEN,
    TTL_MS,
    environment,
    questions,
    records,
    snapshot_of,
)

from headrace.cli import main
from headrace.jobs.snapshots import Snapshot
from headrace.state.errors import (
    AlreadyExistsError,
    CheckpointCorruptError,
    CheckpointMismatchError,
    ConfigurationError,
    TypeMismatchError,
)
from headrace.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

NUM_RECORDS = 200
KEYED = (COUNT, ACCOUNT, ANYTHING, NUMBERS, PER_DIGIT, HIGHEST, MEAN, FRESH, PRICE)
OPERATOR = "every kind"


@pytest.fixture(scope="module", params=["heap", "rocksdb"])
def taken(request, tmp_path_factory):
    """A snapshot of the program on each backend, taken at parallelism 3, and what its functions said they held."""
    folder = tmp_path_factory.mktemp("taken")
    with environment(folder, request.param, 3) as env:
        path, answers = snapshot_of(env, [*records(NUM_RECORDS), *questions()], NUM_KEYS)
    return request.param, path, sorted(answers, key=lambda answer: answer["key"])


@pytest.fixture
def snapshot(taken):
    with Snapshot.open(taken[1]) as opened:
        yield opened


def held_in(snapshot):
    """What a snapshot holds per key, in the form in which the program's functions say it."""
    held = {f"key-{n}": {"key": f"key-{n}"} for n in range(NUM_KEYS)}
    read = {state.name: snapshot.read(OPERATOR, state.name).to_pylist() for state in KEYED}
    for name in ("count", "highest", "fresh"):
        for row in read[name]:
            held[row["key"]][name] = row["value"]
    for row in read["price"]:
        held[row["key"]]["price"] = Decimal(row["value"])
    for row in read["account"]:
        fields = ("owner", "balance", "tags")
        held[row["key"]]["account"] = {field: row[f"value.{field}"] for field in fields}
    for row in read["anything"]:
        held[row["key"]]["anything"] = (row["value.f0"], row["value.f1"])
    for row in read["mean"]:
        held[row["key"]]["mean"] = row["value.f0"] / row["value.f1"]
    for row in read["numbers"]:
        held[row["key"]].setdefault("numbers", []).append(row["value"])
    for row in read["per digit"]:
        held[row["key"]].setdefault("per digit", {})[row["map_key"]] = row["value"]
    return sorted(held.values(), key=lambda answer: answer["key"])


# ------------------------------------------------------------------------------------------------------------- reading
def test_what_is_read_is_what_the_functions_hold(taken, snapshot):
    assert held_in(snapshot) == taken[2]
    assert {answer["count"] for answer in taken[2]} == {15, 16}


@pytest.mark.sampled(9)
def test_both_backends_read_alike(taken, tmp_path):
    """The other backend's snapshot of the same program has the same columns, types and rows."""
    other = {"heap": "rocksdb", "rocksdb": "heap"}[taken[0]]
    with environment(tmp_path, other, 3) as env:
        path, _ = snapshot_of(env, [*records(NUM_RECORDS), *questions()], NUM_KEYS)
    with Snapshot.open(taken[1]) as one, Snapshot.open(path) as two:
        for uid in (OPERATOR, "sums", "triggered"):
            names = [state.name for state in one.states(uid)]
            for name in set(names) & {state.name for state in two.states(uid)}:
                first, second = one.read(uid, name), two.read(uid, name)
                if name == "fresh":  # their times differ
                    first, second = (t.drop_columns(["updated_at", "expires_at"]) for t in (first, second))
                if first.num_rows:
                    assert first.schema.equals(second.schema, check_metadata=True), name
                    assert first.equals(second), name
        changes = one.diff(two).to_pylist()
        assert all(
            row["only_here"] == row["only_there"] == row["different"] == 0
            for row in changes
            if row["state"] not in ("fresh", "history")  # times, and names of the two runs
        )
        assert sum(row["same"] for row in changes) > 4 * NUM_RECORDS


def test_operators_and_states_are_listed(snapshot):
    uids = [operator.uid for operator in snapshot.operators()]
    assert {OPERATOR, "sums", "triggered", "ruled", "remembering", "numbers"} <= set(uids)
    assert (snapshot.operator(OPERATOR).parallelism, snapshot.operator(OPERATOR).max_parallelism) == (3, 32)
    states = {state.name: state for state in snapshot.states(OPERATOR, look=True)}
    kinds = ["value", "value", "value", "list", "map", "reducing", "aggregating", "value", "value"]
    assert [states[state.name].kind for state in KEYED] == kinds
    assert states["numbers"].num_entries == states["event-time-timers"].num_entries == NUM_RECORDS
    assert states["count"].key_type == "string"
    assert states["count"].value_type == "int64"
    assert states["account"].value_type.endswith("Account(owner: string, balance: int64, tags: list of string)")
    assert states["anything"].value_type == "tuple(string, list of int64)"
    assert (states["fresh"].has_ttl, states["fresh"].ttl_ms) == (True, TTL_MS)
    assert states["count"].num_files > 0
    assert states["count"].num_bytes > 0


def test_a_notebook_shows_which_operators_there_are(snapshot):
    shown = snapshot._repr_html_()
    assert f"checkpoint {snapshot.checkpoint_id} of " in shown
    assert snapshot.path in shown
    operators = snapshot.operators()
    assert shown.count("<tr>") == 1 + len(operators)
    for operator in operators:
        assert f">{html.escape(operator.uid)}</td>" in shown
        assert f">{operator.num_bytes}</td>" in shown


def test_timers_windows_and_positions(snapshot):
    timers = snapshot.timers(OPERATOR).to_pylist()
    by_domain = {domain: [t for t in timers if t["domain"] == domain] for domain in ("event-time", "processing-time")}
    assert sorted(t["time"] for t in by_domain["event-time"]) == [FAR_MS + n for n in range(NUM_RECORDS)]
    assert {t["key"] for t in by_domain["event-time"] if t["time"] == FAR_MS + 5} == {"key-5"}
    assert sorted(t["time"] - FAR_MS for t in by_domain["processing-time"]) == [5] * 10 + [6] * 3
    [window] = snapshot.windows("sums").to_pylist()
    assert (window["window_start"], window["window_end"], window["num_rows"]) == (0, 1_000_000, NUM_KEYS)
    ends = {(t["window_start"], t["window_end"], t["time"]) for t in snapshot.timers("triggered").to_pylist()}
    assert ends == {(0, 1_000_000, 999_999)}
    positions = {row["operator"]: row["position"] for row in snapshot.source_positions().to_pylist()}
    assert positions["rules"] == str(len(RULE_ENTRIES))
    assert positions["numbers"] == str(NUM_RECORDS + NUM_KEYS)
    assert set(snapshot.enumerators()) == {"numbers", "rules"}


def test_state_without_a_key(snapshot):
    seen = snapshot.read("remembering", "seen")
    assert sorted(seen["value"].to_pylist()) == list(range(NUM_RECORDS))
    assert seen.column_names == ["index", "value", "subtask"]
    everyone = snapshot.read("remembering", "everyone").to_pylist()
    assert sorted(row["value"] for row in everyone) == [f"subtask {n}" for n in range(3)]
    rules = snapshot.read("ruled", "rules").to_pylist()
    assert sorted((row["key"], row["value"]) for row in rules) == sorted(RULE_ENTRIES)


def test_time_to_live_is_shown(snapshot):
    row = snapshot.read(OPERATOR, "fresh").to_pylist()[0]
    assert (row["expires_at"] - row["updated_at"]).total_seconds() * 1_000 == TTL_MS


def test_rows_are_found_by_key_without_reading_everything(taken):
    whole = Snapshot.open(taken[1])
    for state in ("numbers", "count", "event-time-timers", "per digit"):
        everything = whole.read(OPERATOR, state).to_pylist()
        for wanted in (["key-3"], ["key-3", "key-7", "nobody"], []):
            found = whole.read(OPERATOR, state, keys=wanted).to_pylist()
            assert found == [row for row in everything if row["key"] in wanted], (state, wanted)
        ranged = whole.read(OPERATOR, state, key_range=("key-3", "key-7")).to_pylist()
        assert ranged == [row for row in everything if "key-3" <= row["key"] < "key-7"]
        groups = whole.read(OPERATOR, state, key_groups=(4, 17)).to_pylist()
        assert groups == [row for row in everything if 4 <= row["key_group"] <= 17]
        assert whole.read(OPERATOR, state, subtasks=[1]).to_pylist() == [r for r in everything if r["subtask"] == 1]
    whole.close()


def test_a_key_is_found_in_the_files_of_its_owner(taken):
    """Only files that may hold the key are copied, none of other subtasks."""
    with Snapshot.open(taken[1]) as whole:
        [row] = whole.read(OPERATOR, "count", keys=["key-3"]).to_pylist()
        files = {f.path: s.subtask for o in whole._manifest.operators for s in o.subtasks for f in s.files}
        assert {files[path] for path in whole._reader._copies} == {row["subtask"]}


def test_batches_are_small_and_of_one_schema(snapshot):
    batches = list(snapshot.read_batches(OPERATOR, "numbers", batch_rows=7))
    assert len(batches) == -(-NUM_RECORDS // 7)
    assert {batch.num_rows for batch in batches[:-1]} == {7}
    assert len({str(batch.schema) for batch in batches}) == 1


def test_unknown_names_are_refused_with_what_there_is(snapshot):
    with pytest.raises(CheckpointMismatchError, match=r"has no operator 'nobody'.*every kind"):
        snapshot.read("nobody", "count")
    with pytest.raises(CheckpointMismatchError, match=r"has no state 'nothing'.*count"):
        snapshot.read(OPERATOR, "nothing")


def test_damage_is_reported(taken, tmp_path):
    folder = Path(taken[1]).parent.parent
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with Snapshot.open(str(copy)) as opened:
        assert opened.verify() == []
        victims = [file for file in sorted(copy.rglob("*")) if "every_kind" in str(file) and file.is_file()]
        data = bytearray(victims[0].read_bytes())
        data[len(data) // 2] ^= 1
        victims[0].write_bytes(bytes(data))
        victims[1].unlink()
        problems = {problem.path: problem.reason for problem in opened.verify()}
        if str(victims[0].relative_to(copy)) in problems:  # files of older checkpoints are nobody's here
            assert "content" in problems[str(victims[0].relative_to(copy))]
        assert main(["state", "verify", str(copy)]) == bool(problems)
    assert main(["state", "verify", str(folder)]) == 0


# -------------------------------------------------------------------------------------------------------------- writing
@pytest.mark.parametrize("parallelism", [1, 4])
@pytest.mark.sampled(4)
def test_a_job_goes_on_from_a_snapshot_made_of_tables(taken, tmp_path, parallelism):
    """Every state is read, written into a fresh snapshot, and found by a job at another parallelism."""
    backend, path, answers = taken
    with Snapshot.open(path) as old:
        writer = Snapshot.builder(max_parallelism=32, parallelism=2, backend=backend)
        for state in KEYED:
            writer.with_keyed_state(OPERATOR, state, old.read(OPERATOR, state.name))
        writer.with_operator_state("remembering", SEEN, old.read("remembering", "seen"))
        writer.with_operator_state("remembering", EVERYONE, old.read("remembering", "everyone"), union=True)
        writer.with_broadcast_state("ruled", RULES, old.read("ruled", "rules"))
        written = writer.write(str(tmp_path / "written"))
        with Snapshot.open(written) as new:
            assert new.verify() == []
            for uid, names in (
                (OPERATOR, [state.name for state in KEYED]),
                ("remembering", ["seen", "everyone"]),
                ("ruled", ["rules"]),
            ):
                for name in names:
                    one, two = (s.read(uid, name).drop_columns(["subtask"]) for s in (old, new))
                    assert one.sort_by(one.column_names[0] if uid != OPERATOR else "key_group").num_rows == two.num_rows
                    assert one.schema.equals(two.schema, check_metadata=True), name
                    if uid == OPERATOR:
                        assert one.equals(two), name
    with environment(tmp_path, backend, parallelism) as env:
        env.set_restore_path(written)
        again, restored = snapshot_of(env, questions(), NUM_KEYS)
    assert sorted(restored, key=lambda answer: answer["key"]) == answers
    with Snapshot.open(again) as final:
        assert sorted(final.read("remembering", "seen")["value"].to_pylist()) == list(range(NUM_RECORDS))
        assert sorted((r["key"], r["value"]) for r in final.read("ruled", "rules").to_pylist()) == sorted(RULE_ENTRIES)


def test_an_edited_snapshot_keeps_what_was_not_changed(taken, tmp_path):
    _backend, path, _answers = taken
    with Snapshot.open(path) as old:
        counts = old.read(OPERATOR, "count")
        doubled = counts.set_column(
            counts.column_names.index("value"), "value", pa.array([v * 2 for v in counts["value"].to_pylist()])
        )
        editor = old.edit()
        editor.with_keyed_state(OPERATOR, "count", doubled)
        editor.with_keyed_state(OPERATOR, ValueStateDescriptor("brand new", str), counts, value_columns="key")
        editor.without_state(OPERATOR, "price").without_operator("triggered").with_uid("sums", "totals")
        written = editor.write(str(tmp_path / "edited"))
        with Snapshot.open(written) as new:
            assert new.verify() == []
            assert new.checkpoint_id == old.checkpoint_id
            changed = {
                (row["operator"], row["state"])
                for row in old.diff(new).to_pylist()
                if row["only_here"] or row["only_there"] or row["different"]
            }
            assert changed - {("sums", "watermark"), ("totals", "watermark")} == {
                (OPERATOR, "count"),
                (OPERATOR, "brand new"),
                (OPERATOR, "price"),
                ("sums", "window-contents"),
                ("totals", "window-contents"),
                *(("triggered", state.name) for state in old.states("triggered", look=True) if state.num_entries),
            }
            assert new.read(OPERATOR, "brand new")["value"].to_pylist() == counts["key"].to_pylist()
            assert new.source_positions().equals(old.source_positions())
    with pytest.raises(AlreadyExistsError):
        Snapshot.builder().write(str(tmp_path / "edited"))


def test_a_job_goes_on_from_an_edited_snapshot(taken, tmp_path):
    """The positions of its sources are carried over: it reads on where it stopped."""
    backend, path, answers = taken
    with Snapshot.open(path) as old:
        counts = old.read(OPERATOR, "count")
        more = counts.set_column(
            counts.column_names.index("value"), "value", pa.array([v + 1_000 for v in counts["value"].to_pylist()])
        )
        written = old.edit().with_keyed_state(OPERATOR, "count", more).write(str(tmp_path / "edited"))
    script = [*records(NUM_RECORDS), *questions(), *questions()]
    with environment(tmp_path, backend, 2) as env:
        env.set_restore_path(written)
        from snapshot_programs import program

        rows = program(env, script).execute_and_collect("on")
        restored = [next(rows) for _ in range(NUM_KEYS)]
        rows.stop()
    wanted = [{**answer, "count": answer["count"] + 1_000} for answer in answers]
    assert sorted(restored, key=lambda answer: answer["key"]) == wanted


def table(**columns):
    return pa.table(columns)


@pytest.mark.parametrize(
    ("descriptor", "rows", "options", "what"),
    [
        (COUNT, table(k=["a"], value=[1]), {}, "column 'key' is missing"),
        (COUNT, table(key=["a"], v=[1]), {}, "column 'value' is missing"),
        (COUNT, table(key=["a"], value=["1"]), {}, "declared as int64; the table has string"),
        (COUNT, table(key=["a", None], value=[1, 2]), {}, r"a key is null \(.*column 'key', row 1\)"),
        (COUNT, table(key=["a", "b", "a"], value=[1, 2, 3]), {}, r"comes twice.*row 2"),
        (COUNT, table(key=["a", "b"], value=[1, None]), {}, r"has a null \(.*row 1\)"),
        (COUNT, table(key=["a"], value=[1]), {"key_type": int}, "the key is declared as int64; the table has string"),
        (ACCOUNT, table(key=["a"], value=[{"owner": "x", "balance": 1}]), {}, "the table has dict"),
        (PER_DIGIT, table(key=["a", "a"], map_key=["1", "1"], value=[1, 2]), {}, "has the map key '1' twice"),
        (PER_DIGIT, table(key=["a"], value=[1]), {}, "column 'map_key' is missing"),
        (NUMBERS, table(key=["a"], value=[1.5]), {}, "declared as int64; the table has float64"),
        (MEAN, table(key=["a"], value=[1]), {}, r"declared as tuple\(int64, int64\)"),
        (COUNT, table(key=[[1]], value=[1]), {}, "keys must be hashable"),
    ],
)
def test_tables_that_do_not_fit_are_refused_with_their_place(descriptor, rows, options, what):
    with pytest.raises(TypeMismatchError, match=what) as caught:
        Snapshot.builder().with_keyed_state("op", descriptor, rows, **options)
    assert caught.value.context["operator"] == "op"
    assert caught.value.context["state"] == descriptor.name
    assert "column" in caught.value.context


def test_a_state_of_another_type_is_not_replaced(taken):
    with Snapshot.open(taken[1]) as old:
        for descriptor, rows in (
            (ValueStateDescriptor("count", str), table(key=["a"], value=["1"])),
            (ListStateDescriptor("count", int), table(key=["a"], value=[1])),
            (MapStateDescriptor("per digit", int, int), table(key=["a"], map_key=[1], value=[1])),
            (ValueStateDescriptor("count", int, ttl=5), table(key=["a"], value=[1])),
        ):
            with pytest.raises(CheckpointMismatchError, match=r"the snapshot has .* under the name"):
                old.edit().with_keyed_state(OPERATOR, descriptor, rows)
        with pytest.raises(CheckpointMismatchError, match="has keys of type string in state"):
            old.edit().with_keyed_state(OPERATOR, ValueStateDescriptor("new", int), table(key=[5], value=[1]))
        with pytest.raises(CheckpointMismatchError, match="has no keyed state 'nothing'"):
            old.edit().with_keyed_state(OPERATOR, "nothing", table(key=["a"], value=[1]))
        with pytest.raises(CheckpointMismatchError, match="no operator 'nobody'"):
            old.edit().without_operator("nobody")
        with pytest.raises(CheckpointMismatchError, match="there is an operator of that uid"):
            old.edit().with_uid("sums", OPERATOR)
    with pytest.raises(ConfigurationError, match="parallelism must be between"):
        Snapshot.builder(parallelism=200)


def test_damage_is_met_before_anything_is_complete(taken, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(Path(taken[1]).parent.parent, copy)
    with Snapshot.open(str(copy)) as old:
        victim = next(file for file in old._manifest.files() if file.state == "splits")
        data = bytearray((copy / victim.path).read_bytes())
        data[100] ^= 0x40
        (copy / victim.path).write_bytes(bytes(data))
        with pytest.raises(CheckpointCorruptError):
            old.edit().without_state(OPERATOR, "price").write(str(tmp_path / "new"))
        with pytest.raises(CheckpointCorruptError):
            old.source_positions()
    assert not list((tmp_path / "new").rglob("chk-*.json"))


def test_composite_keys_and_records_have_a_column_per_field(tmp_path):
    rows = table(city=["a", "b"], year=[1, 2], owner=["x", "y"], balance=[1, 2], tags=[["t"], []])
    writer = Snapshot.builder()
    writer.with_keyed_state(
        "op", ACCOUNT, rows, key_columns=["city", "year"], value_columns=["owner", "balance", "tags"]
    )
    with Snapshot.open(writer.write(str(tmp_path / "s"))) as made:
        read = made.read("op", "account")
        assert read.column_names[:5] == ["key.f0", "key.f1", "value.owner", "value.balance", "value.tags"]
        assert made.read("op", "account", flatten=False).column_names[:2] == ["key", "value"]
        found = made.read("op", "account", keys=[("b", 2)]).to_pylist()
        assert [(row["key.f0"], row["value.balance"]) for row in found] == [("b", 2)]
        again = Snapshot.builder(parallelism=3).with_keyed_state("op", ACCOUNT, read)
        with Snapshot.open(again.write(str(tmp_path / "t"))) as copied:
            assert copied.read("op", "account").drop_columns(["subtask"]).equals(read.drop_columns(["subtask"]))


# ----------------------------------------------------------------------------------------------------- pickled objects
@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_objects_stay_closed_unless_asked_for(tmp_path, backend, monkeypatch):
    from headrace import KeyedProcessFunction
    from headrace.connectors.scripted import Pause, ScriptedSource

    class Keeps(KeyedProcessFunction):
        def open(self, context):
            self.state = context.get_state(ValueStateDescriptor("point"))

        def process_element(self, value, context):
            self.state.update(Point(value, value / 2))

    with environment(tmp_path, backend, 2) as env:
        source = ScriptedSource([*range(5), Pause()], is_bounded=False)
        env.from_source(source, None, "numbers").key_by(lambda n: n).process(Keeps()).uid("keeps").print()
        client = env.execute_async("points")
        for view in client.views():
            if sum(v.records_in for v in view.vertices if v.name.startswith("keeps") or "process" in v.name) >= 5:
                break
        path = client.stop()
    with Snapshot.open(path) as closed:
        unpickled = []
        monkeypatch.setattr("headrace.state.reading.stored_pickles.pickle.loads", lambda data: unpickled.append(data))
        read = closed.read("keeps", "point")
        assert unpickled == []
        monkeypatch.undo()
        assert read.schema.field("value").type == pa.binary()
        assert read.schema.field("value").metadata[b"headrace.encoding"] == b"pickle"
        opened = closed.read("keeps", "point", allow_pickle=True)
        assert sorted(zip(*(opened[name].to_pylist() for name in ("key", "value.x", "value.y")), strict=True)) == [
            (n, n, n / 2) for n in range(5)
        ]
        writer = Snapshot.builder(max_parallelism=32, backend=backend)
        written = writer.with_keyed_state("keeps", ValueStateDescriptor("point"), read).write(str(tmp_path / "w"))
    with Snapshot.open(written) as copied:
        assert copied.read("keeps", "point").drop_columns(["subtask"]).equals(read.drop_columns(["subtask"]))
        assert copied.read("keeps", "point", allow_pickle=True)["value.x"].to_pylist() == opened["value.x"].to_pylist()
