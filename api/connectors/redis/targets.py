"""What records become in Redis: entries of a stream, hashes, strings; and the script that writes them.

A row is a list of arguments for the script, which writes many rows at once, and knows by a publisher's last number
which of them are there already. Nothing comes between a row and the note of its number: a script is one step for Redis,
in its append-only file, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, TypeMismatchError
from headrace.state.values.json_text import json_text

from ...formats.messages import MessageFormat, require_format

__all__ = ["SCHEMA", "RedisHashes", "RedisStream", "RedisStrings", "RedisTarget"]

SCHEMA = pa.schema([("arguments", pa.list_(pa.binary()))])
"""Rows, as the script takes them."""

MOST_ARGUMENTS = 7_000
"""Of one row: Lua hands on no more than some 8,000 values at once."""

_SCRIPT = """
local name, number = ARGV[1], tonumber(ARGV[2])
local last = 0
if name ~= '' then
  last = tonumber(redis.call('HGET', KEYS[2], name) or '0')
  if last < number - 1 then return {err = 'GAP ' .. last} end
end
local written, failed = last, nil
local place = 4
while place <= #ARGV do
  local count = tonumber(ARGV[place])
  if name == '' or number > last then
    local result = write(place + 1, place + count)
    if type(result) == 'table' and result.err then failed = result; break end
    written = number
  end
  place = place + count + 1
  number = number + 1
end
if name ~= '' and written > last then redis.call('HSET', KEYS[2], name, written) end
if failed then return failed end
return written
"""
"""Writes rows by the function ``write`` of a target. Where a row fails, those before it are noted."""


class RedisTarget(ABC):
    """Where records go. Subclasses say what becomes of one."""

    write_function: str
    """In Lua: writes the row whose arguments are in ``ARGV`` between two places; gives a result, or an error."""

    @property
    @abstractmethod
    def place(self) -> str:
        """What is written, as text."""

    @property
    @abstractmethod
    def key(self) -> str:
        """The key that the script is told to write, beside which the numbers are kept."""

    @property
    def script(self) -> str:
        """Writes rows."""
        return self.write_function + _SCRIPT

    @property
    def option(self) -> str:
        """What the function is told besides, as ``ARGV[3]``."""
        return ""

    @property
    def numbers_key(self) -> str:
        """Where it is noted what is written: a hash, in the same slot."""
        key = self.key
        has_tag = 0 <= key.find("{") < key.find("}", key.find("{") + 1) - 1
        return f"{key}:headrace" if has_tag else f"{{{key}}}:headrace"

    @abstractmethod
    def arguments(self, batch: Batch) -> list[list[bytes]]:
        """Return a row of each record.

        Raises:
            TypeMismatchError: If there is no form for one.
        """

    def encode(self, batch: Batch) -> pa.RecordBatch:
        """Return rows, as `SCHEMA` has them."""
        rows = self.arguments(batch)
        if any(len(row) > MOST_ARGUMENTS for row in rows):
            message = f"a record has more fields than Redis takes at once, {MOST_ARGUMENTS // 2}"
            raise TypeMismatchError(message)
        return pa.RecordBatch.from_arrays([pa.array(rows, SCHEMA.field(0).type)], schema=SCHEMA)


@dataclass(frozen=True)
class RedisStream(RedisTarget):
    """A stream: each record is an entry with one field.

    Attributes:
        name: The stream's key.
        value: How a record is a message.
        field: The field that the message is in.
        max_length: About how many entries the stream keeps at least; None for all.
    """

    name: str
    value: MessageFormat
    field: str = "value"
    max_length: int | None = None

    write_function = """
local function write(first, last)
  if ARGV[3] == '' then return redis.pcall('XADD', KEYS[1], '*', unpack(ARGV, first, last)) end
  return redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[3], '*', unpack(ARGV, first, last))
end
"""

    def __post_init__(self) -> None:
        require_format(self.value)
        if not self.name or not self.field:
            message = "a stream has a name, and an entry's field, too"
            raise ConfigurationError(message)
        if self.max_length is not None and self.max_length < 1:
            message = f"max_length must be 1 or more; got {self.max_length}"
            raise ConfigurationError(message)

    @property
    def place(self) -> str:
        return f"stream {self.name!r} of Redis"

    @property
    def key(self) -> str:
        return self.name

    @property
    def option(self) -> str:
        return "" if self.max_length is None else str(self.max_length)

    def arguments(self, batch: Batch) -> list[list[bytes]]:
        field = self.field.encode()
        return [[field, message] for message in self.value.encode(batch)]


@dataclass(frozen=True)
class _ByKey(RedisTarget):
    """Keys of Redis, each of which is made of a record's key.

    Attributes:
        prefix: What all of them begin with.
        fields: The fields of the record that follow it, with colons between.
        delete_column: A boolean field that is not written: where it is true the key is deleted. None for none.
    """

    prefix: str
    fields: str | Sequence[str]
    delete_column: str | None = None

    def __post_init__(self) -> None:
        if not self._fields:
            message = "a record's key is made of one field at least"
            raise ConfigurationError(message)

    @property
    def _fields(self) -> tuple[str, ...]:
        return (self.fields,) if isinstance(self.fields, str) else tuple(self.fields)

    @property
    def key(self) -> str:
        return self.prefix

    def arguments(self, batch: Batch) -> list[list[bytes]]:
        columns = batch.columns
        wanted = [*self._fields, *([] if self.delete_column is None else [self.delete_column])]
        for name in wanted:
            if name not in columns.schema.names:
                message = f"the records have no field {name!r}; they have {columns.schema.names}"
                raise TypeMismatchError(message)
        keys = [self._key_of(row) for row in columns.select(list(self._fields)).to_pylist()]
        gone = [False] * len(keys)
        if self.delete_column is not None:
            gone = columns.column(self.delete_column).to_pylist()
            columns = columns.drop_columns([self.delete_column])
        values = self._values(columns)
        return [[key] if is_gone else [key, *value] for key, is_gone, value in zip(keys, gone, values, strict=True)]

    def _key_of(self, row: dict[str, Any]) -> bytes:
        parts = list(row.values())
        if None in parts:
            message = f"a key of Redis is made of fields that are null: {row}"
            raise TypeMismatchError(message)
        # What stands between parts must not be in them, or two records would have one key.
        texts = [_as_bytes(part) for part in parts]
        if len(texts) > 1:
            texts = [text.replace(b"\\", b"\\\\").replace(b":", b"\\:") for text in texts]
        return self.prefix.encode() + b":".join(texts)

    @abstractmethod
    def _values(self, columns: pa.RecordBatch) -> list[list[bytes]]:
        """What stands behind the key, by record."""


@dataclass(frozen=True)
class RedisHashes(_ByKey):
    """A hash for each key, with a field for each column but those that are null. A later record replaces it as a whole.

    Texts and bytes are written as they are, other values as JSON.
    """

    write_function = """
local function write(first, last)
  local deleted = redis.pcall('DEL', ARGV[first])
  if last == first or type(deleted) == 'table' then return deleted end
  return redis.pcall('HSET', ARGV[first], unpack(ARGV, first + 1, last))
end
"""

    @property
    def place(self) -> str:
        return f"hashes {self.prefix!r} of Redis"

    def _values(self, columns: pa.RecordBatch) -> list[list[bytes]]:
        names = [name.encode() for name in columns.schema.names]
        rows: list[list[bytes]] = []
        for values in zip(*(column.to_pylist() for column in columns.columns), strict=True):
            row: list[bytes] = []
            for name, value in zip(names, values, strict=True):
                if value is not None:
                    row += (name, _as_bytes(value))
            rows.append(row)
        return rows


@dataclass(frozen=True)
class RedisStrings(_ByKey):
    """A string for each key, which a later record replaces.

    Attributes:
        value: How a record is a message; it must be set.
    """

    value: MessageFormat | None = None

    write_function = """
local function write(first, last)
  if last == first then return redis.pcall('DEL', ARGV[first]) end
  return redis.pcall('SET', ARGV[first], ARGV[last])
end
"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_format(self.value)

    @property
    def place(self) -> str:
        return f"strings {self.prefix!r} of Redis"

    def _values(self, columns: pa.RecordBatch) -> list[list[bytes]]:
        assert self.value is not None
        return [[message] for message in self.value.encode(Batch.of_columns(columns))]


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json_text(value)).encode()
