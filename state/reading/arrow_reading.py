"""Arrow data from storage: read only when it is whole, and never larger than it may be.

Every reader of stored Arrow data goes through here: state files, runs of columnar state, records in flight, staged rows
of sinks. Arrow itself trusts what it reads: offsets that point elsewhere end the process, a compressed buffer grows to
whatever it claims. So the claims are added up before (`headrace.state.reading.arrow_framing`), types are held to those
that say how large they are, and every batch is validated in full before anybody sees it.
"""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import CheckpointCorruptError
from .arrow_framing import claims_of, stream_of_file
from .read_limits import MAX_DEPTH, MAX_FACTOR, check_expansion

__all__ = ["read_arrow_file", "read_arrow_schema", "read_arrow_stream"]

_FAILURES = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError, MemoryError)

_MAX_SCALE = 76
"""Of decimals: the digits that the widest ones have."""

_FREE_SLOTS_OF_FILE = 1 << 24
_FREE_SLOTS_OF_STREAM = 1 << 17
_FREE_VALIDATED_BYTES = 1 << 34
"""Each batch is validated with the dictionaries that it refers to."""

_SLOTS_PER_BYTE = 64
"""A column needs a bit per row at least, unless it holds nulls only."""


def read_arrow_file(data: Any, what: str, **context: Any) -> pa.Table:
    """Read a stored Arrow file. It must not be compressed: Headrace writes none.

    Args:
        data: Its bytes, or a buffer of them, which the table then refers to.
        what: What it is, for errors.
        **context: Where it is from, for errors.

    Raises:
        CheckpointCorruptError: If anything is wrong with it.
    """
    try:
        view = memoryview(data)
        stream = stream_of_file(view)
        schema, batches = _read(stream, allow_compression=False, free_slots=_FREE_SLOTS_OF_FILE)
        return pa.Table.from_batches(batches, schema)
    except _FAILURES as error:
        raise _corrupt(what, error, context) from error


def read_arrow_stream(
    data: Any, what: str, *, allow_compression: bool = False, **context: Any
) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Read a stored Arrow stream.

    Args:
        data: Its bytes, or a buffer of them, which the batches then refer to.
        what: What it is, for errors.
        allow_compression: Whether it may be compressed; then it may grow by `headrace.state.reading.read_limits`.
        **context: Where it is from, for errors.

    Raises:
        CheckpointCorruptError: If anything is wrong with it.
    """
    try:
        return _read(memoryview(data), allow_compression=allow_compression, free_slots=_FREE_SLOTS_OF_STREAM)
    except _FAILURES as error:
        raise _corrupt(what, error, context) from error


def read_arrow_schema(encoded: bytes | str, what: str, **context: Any) -> pa.Schema:
    """Read a schema that is stored as bytes, or as base64.

    Raises:
        CheckpointCorruptError: If anything is wrong with it.
    """
    try:
        data = base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else encoded
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        _check_fields(list(schema), 0)
        return schema
    except _FAILURES as error:
        raise _corrupt(what, error, context) from error


def _corrupt(what: str, error: BaseException, context: dict[str, Any]) -> CheckpointCorruptError:
    text = f"{error}" if type(error) is ValueError else f"{error!r}"
    return CheckpointCorruptError(f"{what} cannot be decoded: {text:.400}", **context)


def _read(stream: memoryview, *, allow_compression: bool, free_slots: int) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    claims = claims_of(stream)
    if claims.is_compressed and not allow_compression:
        message = "it is compressed, which it was not when it was written"
        raise ValueError(message)
    check_expansion(claims.num_bytes, len(stream))
    if claims.num_slots > free_slots + _SLOTS_PER_BYTE * max(len(stream), claims.num_bytes):
        message = f"{len(stream):,} bytes claim {claims.num_slots:,} values"
        raise ValueError(message)
    if claims.dictionary_bytes * claims.num_batches > max(_FREE_VALIDATED_BYTES, MAX_FACTOR * len(stream)):
        message = f"{claims.num_batches:,} batches share {claims.dictionary_bytes:,} bytes of dictionaries"
        raise ValueError(message)
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        schema = reader.schema
        has_dictionaries = _check_fields(list(schema), 0)
        batches = list(reader)
    if len(batches) != claims.num_batches:
        message = f"it holds {len(batches)} batches and claims {claims.num_batches}"
        raise ValueError(message)
    for batch in batches:
        batch.validate(full=True)  # offsets that point elsewhere would end the process, not the read
    batches = [_with_whole_offsets(batch) for batch in batches]
    if has_dictionaries:
        check_expansion(sum(_decoded_bytes(column) for batch in batches for column in batch.columns), len(stream))
    return schema, batches


def _with_whole_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give a batch whose empty columns and lists have an offset that may be followed.

    Arrow does not validate the offsets of an array without values, which may be absent or anything. Its sums of bytes
    follow them all the same, into memory that belongs to something else.
    """
    if all(_has_whole_offsets(column) for column in batch.columns):
        return batch
    whole = batch.take(pa.array(range(batch.num_rows), pa.int64()))
    if not all(_has_whole_offsets(column) for column in whole.columns):
        message = "a column without values has offsets that lead nowhere"
        raise ValueError(message)
    return whole


def _has_whole_offsets(array: pa.Array) -> bool:
    kind = array.type
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _has_whole_offsets(array.storage)
    if types.is_struct(kind):
        return all(_has_whole_offsets(array.field(i)) for i in range(kind.num_fields))
    if types.is_fixed_size_list(kind):
        return _has_whole_offsets(array.values)
    is_large = types.is_large_list(kind) or types.is_large_string(kind) or types.is_large_binary(kind)
    if types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind):
        children = (array.keys, array.items) if types.is_map(kind) else (array.values,)
        return _is_first_offset_whole(array, len(array.values), is_large=is_large) and all(
            _has_whole_offsets(child) for child in children
        )
    if is_large or types.is_string(kind) or types.is_binary(kind):
        values = array.buffers()[2]
        return _is_first_offset_whole(array, values.size if values is not None else 0, is_large=is_large)
    return True


def _is_first_offset_whole(array: pa.Array, num_values: int, *, is_large: bool) -> bool:
    """Whether an array without values has a first offset, and within its values. Others have been validated."""
    if len(array):
        return True
    offsets, width = array.buffers()[1], 8 if is_large else 4
    if offsets is None or offsets.size < width:
        return False
    return 0 <= int.from_bytes(memoryview(offsets)[:width], "little", signed=True) <= num_values


def _check_fields(fields: list[pa.Field], depth: int) -> bool:
    found = False
    for field in fields:
        str(field.name)  # fails for a name that is no text
        found |= _check_type(field.type, depth)
    return found


def _check_type(kind: pa.DataType, depth: int) -> bool:
    """See that a type's values are as large as their buffers; gives whether there are dictionaries in it."""
    types = pa.types
    if depth > MAX_DEPTH:
        message = f"a column's type is nested more than {MAX_DEPTH} deep"
        raise ValueError(message)
    if isinstance(kind, pa.BaseExtensionType):
        return _check_type(kind.storage_type, depth + 1)
    if types.is_dictionary(kind):
        if types.is_nested(kind.value_type) or types.is_dictionary(kind.value_type):
            message = f"a column is of type {kind}, whose size is not bounded by what is stored"
            raise ValueError(message)
        _check_type(kind.value_type, depth + 1)
        return True
    if types.is_struct(kind) or types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind):
        return _check_fields([kind.field(i) for i in range(kind.num_fields)], depth + 1)
    if types.is_fixed_size_list(kind):
        return _check_fields([kind.value_field], depth + 1)
    if types.is_timestamp(kind) and kind.tz is not None:
        pa.lib.string_to_tzinfo(kind.tz)  # fails for one that is not known
    if types.is_decimal(kind) and abs(kind.scale) > _MAX_SCALE:
        message = f"a column is of type {kind}, which no number has"
        raise ValueError(message)
    if types.is_nested(kind) or _is_view(kind):  # unions, run ends, views: small buffers, many values
        message = f"a column is of type {kind}, whose size is not bounded by what is stored"
        raise ValueError(message)
    return False


def _is_view(kind: pa.DataType) -> bool:
    return kind in (pa.string_view(), pa.binary_view()) or "run_end" in str(kind)


def _decoded_bytes(array: pa.Array) -> int:
    """How large the dictionaries of a column become when each value gets a copy of its own."""
    kind = array.type
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _decoded_bytes(array.storage)
    if types.is_dictionary(kind):
        values = array.dictionary
        if not (types.is_string(values.type) or types.is_large_string(values.type)) and not (
            types.is_binary(values.type) or types.is_large_binary(values.type)
        ):
            return 0  # as large as an index, or a few times that
        sizes = pc.binary_length(values).cast(pa.int64()).take(array.indices)
        return int(pc.sum(sizes).as_py() or 0)
    if types.is_struct(kind):
        return sum(_decoded_bytes(array.field(i)) for i in range(kind.num_fields))
    if types.is_map(kind):
        return _decoded_bytes(array.keys) + _decoded_bytes(array.items)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _decoded_bytes(array.values)
    return 0
