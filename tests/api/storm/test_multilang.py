"""The multi-lang protocol: messages and their frames.

Risks and families: what a program may say, good and bad, taken one for the other; frames of all forms.
"""

from __future__ import annotations

import io
import json

import pytest

from headrace.storm import multilang
from headrace.storm.multilang import Message, ProtocolError, message_of, read_frame, write_frame


def said(**message):
    return message_of(json.dumps(message).encode())


def test_frames_go_through_a_pipe():
    pipe = io.BytesIO()
    messages = [{"command": "next"}, [1, 2], {"text": "end\nend", "of": "ü"}]
    for message in messages:
        write_frame(pipe, message)
    pipe.seek(0)
    assert [json.loads(read_frame(pipe)) for _ in messages] == messages
    assert read_frame(pipe) is None


def test_a_message_may_have_several_lines():
    assert json.loads(read_frame(io.BytesIO(b'{"a":\n 1}\r\nend\r\n'))) == {"a": 1}


def test_frames_that_break_off_or_never_end_are_errors(monkeypatch):
    with pytest.raises(ProtocolError, match="ends within a message"):
        read_frame(io.BytesIO(b'{"a": 1}\n'))
    monkeypatch.setattr(multilang, "MOST_BYTES", 100)
    for endless in (b"x" * 500, b"x\n" * 500):
        with pytest.raises(ProtocolError, match="more than 100 bytes"):
            read_frame(io.BytesIO(endless))


def test_what_programs_say():
    emitted = Message("emit", values=("a", 1), anchors=("1", "2"), wants_tasks=True)
    assert said(command="emit", tuple=["a", 1], anchors=["1", "2"]) == emitted
    direct = Message("emit", message_id=7, stream="s", values=([None],), task=9)
    assert said(command="emit", id=7, tuple=[[None]], stream="s", task=9) == direct
    assert said(command="emit", tuple=[], need_task_ids=False) == Message("emit")
    assert said(command="emit", tuple=[], task=0, stream=None, id=None) == Message("emit", wants_tasks=True)
    assert said(command="ack", id="1") == Message("ack", message_id="1")
    assert said(command="log", msg="x", level=4) == Message("log", text="x", level=4)
    assert said(command="log", msg=["x"], level="high") == Message("log", text='["x"]')
    assert said(command="metrics", name="n", params=1) == Message("metrics", name="n", params=1)
    assert said(command="sync") == Message("sync")


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"hello", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "no JSON object"),
        (b"{}", "no command None"),
        (b'{"command": ["emit"]}', "no command"),
        (b'{"command": "emit"}', "no list"),
        (b'{"command": "emit", "tuple": [], "stream": 1}', "named by a text"),
        (b'{"command": "emit", "tuple": [], "task": "1"}', "a task is a number"),
        (b'{"command": "emit", "tuple": [], "anchors": "1"}', "anchors are a list"),
        (b'{"command": "emit", "tuple": [], "id": [1]}', "a text or a number"),
        (b'{"command": "ack"}', "names no id"),
        (b'{"command": "metrics"}', "no name"),
    ],
)
def test_what_the_protocol_does_not_have_is_an_error(frame, reason):
    with pytest.raises(ProtocolError, match=reason):
        message_of(frame)
