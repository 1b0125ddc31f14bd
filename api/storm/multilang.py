"""Storm's multi-lang protocol: messages in JSON, each closed by a line ``end``, over the pipes of a program.

What a program says is checked before anything is done with it: it is somebody else's, and what it prints by mistake
comes the same way.

Source: Storm's "Multi-Lang Protocol"; ``JsonSerializer``, ``ShellMsg``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import IO, Any

from .layout import DEFAULT_STREAM, SYSTEM_COMPONENT, SYSTEM_TASK

__all__ = [
    "HEARTBEAT_STREAM", "Message", "ProtocolError", "heartbeat", "message_of", "parsed", "read_frame", "tuple_message",
    "write_frame",
]  # fmt: skip

HEARTBEAT_STREAM = "__heartbeat"

MOST_BYTES = 64 << 20
"""Of one message of a program."""

COMMANDS = frozenset(("ack", "emit", "error", "fail", "log", "metrics", "sync"))


class ProtocolError(Exception):
    """A program has said what the protocol does not have."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a program says.

    Attributes:
        command: ``ack``, ``emit``, ``error``, ``fail``, ``log``, ``metrics`` or ``sync``.
        message_id: Of the tuple that is acknowledged or failed, or that a spout emits; a text or a number.
        stream: That is emitted to.
        values: That are emitted.
        anchors: Ids of the tuples that an emitted one was made from.
        task: That gets an emitted tuple directly; None for whom the groupings say.
        wants_tasks: Whether the program waits for the numbers of the tasks that get the tuple.
        text: Of a log message or an error.
        level: Of a log message, from 0, trace, to 4, error.
        name: Of a metric.
        params: Its value.
    """

    command: str
    message_id: Any = None
    stream: str = DEFAULT_STREAM
    values: tuple[Any, ...] = ()
    anchors: tuple[str, ...] = ()
    task: int | None = None
    wants_tasks: bool = False
    text: str = ""
    level: int = 2
    name: str = ""
    params: Any = None


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """Read one message; None at the end of the pipe.

    Raises:
        ProtocolError: If it is too long, or the pipe ends in it.
    """
    lines: list[bytes] = []
    size = 0
    while line := pipe.readline(MOST_BYTES):
        if line in (b"end\n", b"end\r\n", b"end"):
            return b"".join(lines)
        lines.append(line)
        size += len(line)
        if size >= MOST_BYTES:
            message = f"a message has more than {MOST_BYTES} bytes"
            raise ProtocolError(message)
    if lines:
        message = "its output ends within a message"
        raise ProtocolError(message)
    return None


def write_frame(pipe: IO[bytes], message: Any) -> None:
    """Write one message.

    Raises:
        TypeError, ValueError: If JSON does not have it.
        OSError: If the pipe is closed.
    """
    pipe.write(json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\nend\n")


def parsed(frame: bytes) -> dict[str, Any]:
    """Return the object in a frame.

    Raises:
        ProtocolError: If there is none.
    """
    try:
        found = json.loads(frame)
    except (ValueError, RecursionError) as error:
        message = "it has written what is not JSON: a program of Storm prints nothing of its own on standard output"
        raise ProtocolError(message) from error
    if not isinstance(found, dict):
        message = "it has written what is no JSON object"
        raise ProtocolError(message)
    return found


def message_of(frame: bytes) -> Message:
    """Return what a program says in a frame.

    Raises:
        ProtocolError: If the protocol does not have it.
    """
    found = parsed(frame)
    command = found.get("command")
    if not isinstance(command, str) or command not in COMMANDS:
        message = f"the protocol has no command {command!r}"
        raise ProtocolError(message)
    if command == "emit":
        return _emit(found)
    if command in ("ack", "fail"):
        return Message(command, message_id=_id(found, is_needed=True))
    if command in ("log", "error"):
        level = found.get("level", 2)
        text = found.get("msg", "")
        is_level = type(level) is int and 0 <= level <= 4
        return Message(
            command, text=text if isinstance(text, str) else json.dumps(text), level=level if is_level else 2
        )
    if command == "metrics":
        name = found.get("name")
        if not isinstance(name, str) or not name:
            message = "a metric has no name"
            raise ProtocolError(message)
        return Message(command, name=name, params=found.get("params"))
    return Message(command)


def _emit(found: dict[str, Any]) -> Message:
    values, stream, task = found.get("tuple"), found.get("stream"), found.get("task")
    anchors, wants = found.get("anchors"), found.get("need_task_ids")
    if not isinstance(values, list):
        message = "an emitted tuple is no list"
        raise ProtocolError(message)
    if stream is not None and not isinstance(stream, str):
        message = f"a stream is named by a text; got {stream!r}"
        raise ProtocolError(message)
    if task is not None and type(task) is not int:
        message = f"a task is a number; got {task!r}"
        raise ProtocolError(message)
    if anchors is not None and not (isinstance(anchors, list) and all(isinstance(one, str) for one in anchors)):
        message = f"anchors are a list of ids of tuples; got {anchors!r}"
        raise ProtocolError(message)
    return Message(
        "emit",
        message_id=_id(found, is_needed=False),
        stream=stream or DEFAULT_STREAM,
        values=tuple(values),
        anchors=tuple(anchors or ()),
        task=task or None,  # Storm, too, takes task 0 for none
        wants_tasks=not task and wants is not False,
    )


def _id(found: dict[str, Any], *, is_needed: bool) -> Any:
    message_id = found.get("id")
    if isinstance(message_id, bool) or not isinstance(message_id, (str, int, float, type(None))):
        message = f"an id is a text or a number; got {message_id!r}"
        raise ProtocolError(message)
    if message_id is None and is_needed:
        message = f"{found['command']} names no id"
        raise ProtocolError(message)
    return message_id


def tuple_message(number: str, component: str, stream: str, task: int, values: Any) -> dict[str, Any]:
    """Return a tuple for a bolt."""
    return {"id": number, "comp": component, "stream": stream, "task": task, "tuple": list(values)}


def heartbeat(number: str) -> dict[str, Any]:
    """Return what a bolt must answer with ``sync``."""
    return tuple_message(number, SYSTEM_COMPONENT, HEARTBEAT_STREAM, SYSTEM_TASK, ())
