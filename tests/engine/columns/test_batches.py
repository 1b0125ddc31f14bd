"""Batches on their way between processes. Family: property (what arrives is what was sent, also when it is sent on)."""

from __future__ import annotations

import pickle

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.columns.records import OUT_OF_BAND_BYTES, Batch, RowKind, times_or_none
from headrace.engine.functions.keys import KeySelector
from headrace.state.errors import TypeMismatchError
from headrace.state.keys.hashing import hash_key

SMALL = [(1, "a"), {"k": None}, 2.5]
LARGE = [(i, f"text {i}") for i in range(10_000)]


def sent(batch, protocol=5, *, out_of_band=True):
    """The batch in another process; with the buffers that travelled on their own, as views of foreign memory."""
    buffers = []
    keep = buffers.append if out_of_band and protocol >= 5 else None
    payload = pickle.dumps(batch, protocol=protocol, buffer_callback=keep)
    views = [memoryview(bytes(buffer.raw())) for buffer in buffers]
    return pickle.loads(payload, buffers=views), views


@pytest.mark.parametrize("rows", [SMALL, LARGE, []], ids=["small", "large", "none"])
@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_rows_arrive_as_they_were(rows, protocol, times):
    batch = Batch.of_rows(rows, np.arange(len(rows)))
    for _ in range(times):  # from process to process, never opened on the way
        batch, _ = sent(batch, protocol)
        assert batch.num_rows == len(rows)
        assert batch.has_rows
        assert not batch.has_columns
    assert batch.rows == rows
    assert batch.timestamps.tolist() == list(range(len(rows)))
    assert batch.rows is batch.rows


def test_large_rows_are_not_copied_and_small_ones_stay_in_the_message():
    assert sent(Batch.of_rows(SMALL))[1] == []
    _, views = sent(Batch.of_rows(LARGE))
    assert sum(view.nbytes for view in views) > OUT_OF_BAND_BYTES


def test_arrays_in_rows_travel_on_their_own():
    rows = [np.arange(3), np.arange(1_000)]
    batch, views = sent(sent(Batch.of_rows(rows))[0])
    assert len(views) >= 2
    assert [row.tolist() for row in batch.rows] == [row.tolist() for row in rows]


def test_whatever_is_asked_of_rows_that_came_from_elsewhere():
    rows = [{"a": i} for i in range(6)]
    times = np.arange(6)
    received = lambda: sent(Batch.of_rows(rows, times))[0]
    assert received().take(np.array([4, 1])).rows == [{"a": 4}, {"a": 1}]
    assert received().filter(np.arange(6) > 3).rows == rows[4:]
    assert received().slice(1, 2).rows == rows[1:3]
    assert received().with_timestamps(times + 1).rows == rows
    assert Batch.concat([received(), received()]).rows == rows + rows
    assert received().columns == pa.RecordBatch.from_pylist(rows)
    assert received().nbytes == Batch.of_rows(rows).nbytes
    assert "rows" in repr(received())


def test_both_faces_arrive():
    batch = Batch.of_rows([{"a": 1}])
    assert batch.columns.num_rows == 1
    received, _ = sent(batch)
    assert received.has_rows
    assert received.has_columns
    columns, _ = sent(Batch.of_columns(batch.columns))
    assert not columns.has_rows
    assert columns.rows == [{"a": 1}]


def test_classes_of_the_main_program_go_by_value():
    namespace = {"__name__": "__main__"}
    exec("class Point:\n    def __init__(self, x): self.x = x", namespace)
    rows = [namespace["Point"](3)]
    payload = cloudpickle.dumps(Batch.of_rows(rows), protocol=5)
    assert pickle.loads(payload).rows[0].x == 3


class NeverAgain:
    def __reduce__(self):
        return int, ("not a number",)


def test_a_record_that_cannot_be_built_is_an_error_where_it_is_asked_for():
    received, _ = sent(Batch.of_rows([NeverAgain()]))
    assert received.num_rows == 1
    with pytest.raises(TypeMismatchError, match=r"records of another process cannot be built.*not a number"):
        received.rows  # noqa: B018 - it is asked for


def test_a_record_that_cannot_be_sent_is_an_error_of_the_sender():
    with pytest.raises(TypeError, match="lock"):
        pickle.dumps(Batch.of_rows([__import__("threading").Lock()]), protocol=5)


# ------------------------------------------------------------------------------------------------ what is cut out of it
def cuts(batch):
    return [
        batch.take(np.array([2, 0])),
        batch.filter(np.array([True, False, True])),
        batch.slice(1, 2),
        Batch.concat([batch, batch]),
        batch.with_timestamps(np.arange(3)),
        sent(batch)[0],
    ]


def test_rows_are_not_made_anew_of_columns_that_were_made_of_them():
    rows = [{"t": (n, n)} for n in range(3)]
    batch = Batch.of_rows(rows)
    assert batch.columns.num_rows == 3
    for part in cuts(batch):
        assert all(type(row["t"]) is tuple for row in part.rows)
        assert part.columns.equals(pa.RecordBatch.from_pylist(part.rows))


def test_columns_stay_columns_when_somebody_has_looked_at_the_rows():
    columns = pa.record_batch({"a": pa.array([1, 2, 3], pa.int8())})
    batch = Batch.of_columns(columns)
    assert batch.rows[0] == {"a": 1}
    for part in cuts(batch):
        assert part.columns.schema.equals(columns.schema)
    assert not sent(batch)[0].has_rows


def test_each_record_keeps_its_event_time_or_has_none():
    timed = Batch.of_rows(["a", "b"], np.array([5, 6]))
    merged = Batch.concat([timed, Batch.of_rows(["c"]), timed])
    assert times_or_none(merged.timestamps, merged.num_rows) == [5, 6, None, 5, 6]
    assert Batch.concat([Batch.of_rows(["c"]), Batch.of_rows(["d"])]).timestamps is None
    assert times_or_none(None, 2) == [None, None]


@pytest.mark.parametrize("key_of", [int, str, lambda number: 2**63 + number, lambda number: number > 3])
def test_keys_go_with_the_records_they_were_found_for(key_of):
    selector = pickle.loads(cloudpickle.dumps(KeySelector.of_function(lambda row: row["key"])))
    other = KeySelector.of_function(lambda row: f"other {row['key']}")
    batch = Batch.of_rows([{"key": key_of(number % 7)} for number in range(100)])
    assert selector.hashes(batch).tolist() == [hash_key(row["key"]) for row in batch.rows]
    cuts = (
        batch.slice(10, 50),
        batch.filter(np.arange(100) % 3 == 0),
        batch.take(np.array([5, 2, 99])),
        batch.with_timestamps(np.arange(100)),
        Batch.concat([batch.slice(90, 10), batch.slice(0, 7)]),
    )
    for cut in cuts:
        wanted = [row["key"] for row in cut.rows]
        assert cut.keys_by(selector.identity) == wanted
        assert selector.keys(cut) == wanted
        assert list(map(type, selector.keys(cut))) == list(map(type, wanted))
        assert other.keys(cut) == [f"other {key}" for key in wanted]
        received = pickle.loads(pickle.dumps(cut))
        assert received.keys_by(selector.identity) == (wanted if key_of is int else None)
        assert selector.keys(received) == wanted
        kept = pickle.loads(pickle.dumps(cut.without_keys()))
        assert kept.keys_by(selector.identity) is None
    with_others = Batch.concat([batch, Batch.of_rows([{"key": 8}])])
    assert with_others.keys_by(selector.identity) is None
    assert selector.keys(with_others)[-1] == 8


def test_keys_of_batches_are_joined_whatever_form_they_have():
    selector = KeySelector.of_field("key")
    batches = [Batch.of_rows([{"key": key}, {"key": key}]) for key in (5, "five", 6)]
    for batch in batches:
        selector.hashes(batch)
    assert Batch.concat(batches).keys_by(selector.identity) == [5, 5, "five", "five", 6, 6]
    assert Batch.concat(batches[::2]).keys_by(selector.identity) == [5, 5, 6, 6]


# -------------------------------------------------------------------------------------------------------------- changes
KINDS = np.array([RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE] * 5, np.int8)


def batches_of_changes():
    numbers = list(range(20))
    by_rows = Batch.of_rows([{"n": n} for n in numbers], np.arange(20))
    return {
        "rows": by_rows.with_row_kinds(KINDS),
        "columns": Batch.of_columns(pa.record_batch({"n": numbers}), row_kinds=KINDS),
        "of another process": sent(by_rows.with_row_kinds(KINDS))[0],
        "own rows": sent(by_rows.with_row_kinds(KINDS))[0].with_own_rows(list),
        "other columns": by_rows.with_row_kinds(KINDS).with_columns(
            pa.record_batch({"n": pa.array(numbers, pa.int8())})
        ),
    }


@pytest.mark.parametrize("made", batches_of_changes())
def test_kinds_of_changes_go_with_the_records_they_belong_to(made):
    batch = batches_of_changes()[made]
    parts = (
        batch,
        batch.take(np.array([5, 2, 19, 2])),
        batch.filter(np.arange(20) % 3 == 0),
        batch.slice(7, 6),
        batch.with_timestamps(np.arange(20) + 5),
        batch.with_own_rows(lambda rows: [dict(row) for row in rows]),
        Batch.concat([batch.slice(15, 5), batch.slice(0, 3)]),
        sent(batch)[0],
    )
    for part in parts:
        assert part.num_rows > 2
        assert part.row_kinds.tolist() == [KINDS[row["n"]] for row in part.rows]


def test_records_beside_changes_are_inserted_and_without_changes_there_are_no_kinds():
    inserted = Batch.of_rows([{"n": 0}, {"n": 1}])
    deleted = Batch.of_rows([{"n": 2}]).with_row_kinds(np.array([RowKind.DELETE], np.int8))
    merged = Batch.concat([inserted, deleted, inserted])
    assert [RowKind(kind).short for kind in merged.row_kinds] == ["+I", "+I", "-D", "+I", "+I"]
    assert Batch.concat([inserted, inserted]).row_kinds is None
    assert deleted.with_row_kinds(None).row_kinds is None
