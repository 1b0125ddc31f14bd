"""Messages of streams: AMQP 1.0, of which a stream keeps the bytes as they were sent.

Only what a message says is read, its body: one or several sections of data, or one value that is bytes or text. What
stands around it (headers, properties, annotations) is passed over.

Source: OASIS AMQP 1.0, part 1 ("Types") and 3 ("Messaging").
"""

from __future__ import annotations

__all__ = ["body_of", "message_of"]

_DESCRIBED = 0x00
_SMALL_ULONG, _ULONG, _ULONG_0 = 0x53, 0x80, 0x44
_DATA, _VALUE = 0x75, 0x77
_BYTES_OR_TEXT = {0xA0: 1, 0xA1: 1, 0xB0: 4, 0xB1: 4}
"""By constructor, how many bytes of length stand before bytes (binary) and text (string)."""

_FIXED = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
"""By the first digit of a constructor, how many bytes a value has."""
_LENGTHS = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}
"""The same, how many bytes say how many."""


def message_of(body: bytes) -> bytes:
    """Return a message with one section of data."""
    if len(body) < 256:
        return b"\x00\x53\x75\xa0" + len(body).to_bytes(1, "big") + body
    return b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body


def body_of(message: bytes) -> bytes:
    """Return the bytes that a message says.

    Raises:
        ValueError: If it is no message of AMQP 1.0, or has another body than data, bytes or text.
    """
    place = 0
    parts: list[bytes] = []
    try:
        while place < len(message):
            code, place = _section(message, place)
            end = _behind(message, place)
            if code in (_DATA, _VALUE):
                constructor = message[place]
                if constructor not in _BYTES_OR_TEXT:
                    what = "its body is neither data nor bytes nor text"
                    raise ValueError(what)
                parts.append(message[place + 1 + _BYTES_OR_TEXT[constructor] : end])
            place = end
    except IndexError:
        parts = []
    if not parts:
        what = "it is no message of AMQP 1.0 with a body of data"
        raise ValueError(what)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _section(message: bytes, place: int) -> tuple[int, int]:
    """The code of the section that begins at a place, and where its value is."""
    if message[place] == _DESCRIBED and message[place + 1] == _SMALL_ULONG:
        return message[place + 2], place + 3
    if message[place] == _DESCRIBED and message[place + 1] == _ULONG:
        return int.from_bytes(message[place + 2 : place + 10], "big"), place + 10
    what = "it is no message of AMQP 1.0"
    raise ValueError(what)


def _behind(message: bytes, place: int) -> int:
    """Where the value ends that begins at a place."""
    constructor = message[place]
    if constructor == _DESCRIBED:
        return _behind(message, _behind(message, place + 1))
    kind = constructor >> 4
    if kind in _FIXED:
        end = place + 1 + _FIXED[kind]
    elif kind in _LENGTHS:
        width = _LENGTHS[kind]
        end = place + 1 + width + int.from_bytes(message[place + 1 : place + 1 + width], "big")
    else:
        what = f"it has a value of an unknown type, {constructor:#x}"
        raise ValueError(what)
    if end > len(message):
        what = "it is cut off"
        raise ValueError(what)
    return end
