"""Formats of messages: one record of each good one, and each bad one told by its place.

Risks and families: records that come from the wrong message (differential: each message alone against all together);
formats that lose what they wrote (round trip).
"""

from __future__ import annotations

import datetime as dt
import json
import random

import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, TypeMismatchError
from headrace.formats.change_messages import DebeziumMessages
from headrace.formats.messages import BytesMessages, CsvMessages, JsonMessages, TextMessages

SCHEMA = {"a": "int64", "b": "string"}
FORMATS = {
    "json columns": JsonMessages(SCHEMA),
    "json rows": JsonMessages(),
    "csv": CsvMessages(SCHEMA),
    "text": TextMessages(),
    "bytes": BytesMessages("v"),
}

PIECES = [b'{"a":1}', b'{"a":2,"b":"x"}', b'{"a":', b"3}", b'{"b":"', b'"}', b"\n", b"\r\n", b" ", b"", b'"', b"1,x",
          b"2,", b',"y"', b"\0", b"\xff", b"null", b"[]", b"{}", b"4,5,6"]  # fmt: skip


def values(batch):
    """The records as text: NaN and times compare by it, too."""
    return [repr(row) for row in batch.rows]


@pytest.mark.hypothesis
@settings(max_examples=examples(600), deadline=None)
@given(
    name=st.sampled_from(sorted(FORMATS)),
    messages=st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map(b"".join), max_size=8),
)
def test_a_message_means_the_same_among_others(name, messages):
    """No message lends another one a part of itself, or takes its place."""
    together = FORMATS[name].decode(messages)
    alone = [FORMATS[name].decode([message]) for message in messages]
    assert together.good.tolist() == [place for place, one in enumerate(alone) if len(one.good)]
    assert [(one.index, one.raw) for one in together.bad] == [
        (place, messages[place]) for place, one in enumerate(alone) if one.bad
    ]
    assert values(together.batch) == [text for one in alone for text in values(one.batch)]


WRITTEN_AS_TEXT = pa.struct(
    [
        ("day", pa.date32()), ("time", pa.time64("us")), ("second", pa.time32("s")), ("bytes", pa.binary()),
        ("two", pa.binary(2)), ("days", pa.list_(pa.date32())), ("pieces", pa.list_(pa.binary())),
    ]
)  # fmt: skip


@pytest.mark.parametrize("inside", [False, True])
def test_json_gives_back_dates_times_and_bytes(inside):
    fields = list(WRITTEN_AS_TEXT)
    schema = pa.schema([pa.field("x", WRITTEN_AS_TEXT)] if inside else fields)
    given = {
        "day": dt.date(1960, 2, 29), "time": dt.time(1, 2, 3, 456_789), "second": dt.time(23, 59, 59),
        "bytes": b"\0\xff", "two": b"ab", "days": [dt.date(1, 1, 1), None], "pieces": [b"", None, b"q"],
    }  # fmt: skip
    rows = [given, dict.fromkeys(given), {**given, "pieces": [], "bytes": b""}]
    rows = [{"x": row} for row in rows] if inside else rows
    messages = JsonMessages(schema)
    written = messages.encode(Batch.of_columns(pa.RecordBatch.from_pylist(rows, schema=schema)))
    found = messages.decode(written)
    assert found.batch.rows == rows
    assert found.batch.columns_as(None).schema == schema


@pytest.mark.parametrize(
    "text", ['{"bytes":"*"}', '{"bytes":"YQ"}', '{"day":"2024-13-01"}', '{"day":5}', '{"time":"25:00:00"}',
             '{"time":"01:02:03+01:00"}', '{"two":"YQ=="}', '{"days":["x"]}'],
)  # fmt: skip
def test_texts_of_json_that_are_no_dates_times_or_bytes_are_named(text):
    found = JsonMessages(pa.schema(list(WRITTEN_AS_TEXT))).decode([b'{"bytes":"YQ=="}', text.encode()])
    assert found.good.tolist() == [0]
    assert [(bad.index, bad.raw) for bad in found.bad] == [(1, text.encode())]


@pytest.mark.hypothesis
@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), st.text(st.characters(exclude_categories=["Cs"]))),
        max_size=20,
    )
)
def test_json_gives_back_what_it_was_given(pairs):
    rows = [{"a": a, "b": b} for a, b in pairs]
    columns = Batch.of_columns(pa.RecordBatch.from_pylist(rows, pa.schema([("a", pa.int64()), ("b", pa.string())])))
    for format_ in (JsonMessages(SCHEMA), JsonMessages()):
        messages = format_.encode(columns)
        assert [json.loads(message) for message in messages] == rows
        assert format_.decode(messages).batch.rows == rows


def test_what_a_format_has_no_form_for_is_refused():
    lines = Batch.of_columns(pa.RecordBatch.from_pydict({"a": [1], "b": ["x\ny"]}))
    with pytest.raises(TypeMismatchError, match="line end"):
        CsvMessages(SCHEMA).encode(lines)
    with pytest.raises(TypeMismatchError, match="a message is bytes"):
        BytesMessages().encode(Batch.of_rows(["text"]))
    with pytest.raises(TypeMismatchError, match="cannot write"):
        TextMessages("latin-1").encode(Batch.of_rows(["€"]))
    with pytest.raises(TypeMismatchError, match="no field 'c'"):
        TextMessages(column="c").encode(lines)
    with pytest.raises(ConfigurationError, match="must be declared"):
        CsvMessages({})


# -------------------------------------------------------------------------------------------------- messages of changes
ENVELOPES = {"k": "string", "v": "int64"}


def test_envelopes_are_changes():
    one, two = {"k": "a", "v": 1}, {"k": "a", "v": 2}
    told = [
        {"before": None, "after": one, "op": "c", "ts_ms": 3, "source": {"db": "x"}},
        {"before": one, "after": two, "op": "u"},
        {"op": "u", "after": one},
        {"before": two, "op": "d"},
        {"op": "t", "after": one},
        {"op": "c"},
        {"after": {"v": 7}, "op": "r"},
    ]
    messages = [json.dumps(one).encode() for one in told]
    for has_schema, wrapped in (
        (False, messages),
        (True, [b'{"schema":{"type":"struct"},"payload":' + one + b"}" for one in messages]),
    ):
        decoded = DebeziumMessages(ENVELOPES, has_schema=has_schema).decode([*wrapped, b"[]"])
        assert decoded.batch.columns.to_pylist() == [one, one, two, two, {"k": None, "v": 7}]
        assert decoded.batch.row_kinds.tolist() == [0, 1, 2, 3, 0]
        assert decoded.good.tolist() == [0, 1, 1, 3, 6]
        causes = {bad.index: bad.cause for bad in decoded.bad}
        assert list(causes) == [2, 4, 5, 7]
        assert "REPLICA IDENTITY FULL" in causes[2]
        assert "'t'" in causes[4]
        assert "the row that there is" in causes[5]


def test_changes_come_back_as_they_were_written():
    rng = random.Random(5)
    rows = [
        {"op": rng.choice(["+I", "-U", "+U", "-D"]), "k": rng.choice(["a", "b\n", None]), "v": rng.choice([1, None])}
        for _ in range(300)
    ]
    made = DebeziumMessages(ENVELOPES)
    decoded = made.decode(made.encode(Batch.of_rows(rows)))
    assert decoded.batch.columns.to_pylist() == [{"k": row["k"], "v": row["v"]} for row in rows]
    assert decoded.batch.row_kinds.tolist() == [0 if row["op"] in ("+I", "+U") else 3 for row in rows]
    with pytest.raises(TypeMismatchError, match="no field 'op'"):
        made.encode(Batch.of_rows([{"k": "a", "v": 1}]))
    with pytest.raises(ConfigurationError, match="must be declared"):
        DebeziumMessages({})
