"""ORC: stripes decoded as they are, and records gathered into stripes.

ORC's times have nanoseconds, with a zone (moments, in UTC) or without one; so times are read as these, and one that has
no place in 64 bits of nanoseconds (before 1677 or after 2262) is an error, both ways. Its readers and writers are
Arrow's; what this writes of a fraction of a second before 1970 no other reader takes, so it is refused.

Source: the ORC specification; Flink's ``OrcColumnarRowInputFormat``, ``OrcBulkWriter``.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.orc as orc

from headrace.engine.errors import ConfigurationError, TypeMismatchError

from ..contract import in_types

__all__ = ["OrcCompression", "OrcEncoder", "open_orc", "orc_schema_of", "require_orc_compression", "stripe_batches"]

OrcCompression = Literal["zlib", "snappy", "lz4", "zstd", "none"]

_STRIPE_BYTES = 32 << 20
"""A stripe is written when about this much has come together: a reader decodes one as a whole."""

_GATHERED_ROWS = 1_024
"""Records are handed to Arrow's writer when there are so many, or at the end of the file."""


def open_orc(file: Any) -> orc.ORCFile:
    """Open a file.

    Raises:
        ArrowInvalid: If it is none, or cannot be read.
        ConfigurationError: If it has times, and the installed pyarrow makes others of some of them.
    """
    try:
        found = orc.ORCFile(file)
    except NotImplementedError as error:
        raise pa.ArrowInvalid(str(error)) from error
    if any(_has_times(field.type) for field in found.schema) and not _times_are_exact():
        message = f"pyarrow {pa.__version__} reads times before 1677 and after 2262 in files of ORC as others"
        raise ConfigurationError(message, hint="install a newer pyarrow")
    return found


def stripe_batches(
    file: orc.ORCFile, stripes: Iterable[int], columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of stripes, one after the other.

    Args:
        file: The file.
        stripes: Their numbers.
        columns: Columns to decode; None for all, none for rows alone.
    """
    names = file.schema.names
    # Arrow counts the rows of a stripe by its columns: one is decoded to have their number.
    wanted = None if columns is None else list(columns) or names[:1]
    if any("." in name for name in names):  # which Arrow takes for parts of columns
        wanted = None
    for stripe in stripes:
        rows = file.read_stripe(stripe, wanted)
        yield rows if columns is None else rows.select(list(columns))


def _has_times(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_times(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_timestamp(kind))


@functools.cache
def _times_are_exact() -> bool:
    """Whether Arrow refuses a time that it has no place for; older ones give another time."""
    stream = io.BytesIO()
    with orc.ORCWriter(stream) as writer:
        writer.write(pa.table({"t": pa.array([1 << 56], pa.int64()).cast(pa.timestamp("us"))}))
    try:
        orc.ORCFile(pa.BufferReader(stream.getvalue())).read()
    except pa.ArrowInvalid:
        return True
    return False


# ------------------------------------------------------------------------------------------------------------- written
def require_orc_compression(compression: str) -> None:
    """See that files can be written in a compression.

    Raises:
        ConfigurationError: If there is none of that name.
    """
    if compression not in get_args(OrcCompression):
        message = f"compression of ORC must be one of {', '.join(get_args(OrcCompression))}; got {compression!r}"
        raise ConfigurationError(message)


_Is = Callable[[pa.DataType], bool]
_ATOMS: tuple[tuple[_Is, pa.DataType | None], ...] = (
    (pa.types.is_boolean, None),
    (pa.types.is_signed_integer, None),
    (pa.types.is_float32, None),
    (pa.types.is_float64, None),
    (pa.types.is_string, None),
    (pa.types.is_binary, None),
    (pa.types.is_date32, None),
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
)
"""What ORC has for a type; None for the same."""


def orc_schema_of(schema: pa.Schema) -> pa.Schema:
    """Return columns in the types that a file keeps them in, which hold all values, but for the farthest times.

    Raises:
        ConfigurationError: If ORC has none for a column.
    """
    return pa.schema([field.with_type(_orc_type(field.type, field.name)) for field in schema])


def _orc_type(kind: pa.DataType, place: str) -> pa.DataType:
    for is_it, other in _ATOMS:
        if is_it(kind):
            return kind if other is None else other
    if pa.types.is_dictionary(kind):
        return _orc_type(kind.value_type, place)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", None if kind.tz is None else "UTC")
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_orc_field(kind.value_field, place))
    if pa.types.is_map(kind):
        return pa.map_(_orc_type(kind.key_type, place), _orc_field(kind.item_field, place))
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.struct([_orc_field(field, f"{place}.{field.name}") for field in kind])
    message = f"ORC has no type for {kind}"
    raise ConfigurationError(message, column=place)


def _orc_field(field: pa.Field, place: str) -> pa.Field:
    return field.with_type(_orc_type(field.type, place))


def _has_old_fractions(column: pa.Array) -> bool:
    """Whether a time is before 1970 and not of whole seconds: Arrow's writer makes negative nanoseconds of it."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        numbers = column.drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False)
        return bool(((numbers < 0) & (numbers % 1_000_000_000 != 0)).any())
    if not _has_times(kind):
        return False
    if pa.types.is_map(kind):
        return _has_old_fractions(column.keys) or _has_old_fractions(column.items)
    parts = column.flatten() if pa.types.is_struct(kind) else [column.flatten()]
    return any(map(_has_old_fractions, parts))


class OrcEncoder:
    """Records gathered into stripes of a file. Its columns are those of the first records.

    Args:
        stream: Where bytes are written.
        compression: Of the stripes.
    """

    def __init__(self, stream: Any, compression: OrcCompression = "zlib") -> None:
        self._stream = stream
        self._compression = "uncompressed" if compression == "none" else compression
        self._writer: orc.ORCWriter | None = None
        self._schema: pa.Schema | None = None
        # What is not handed to Arrow's writer yet.
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        # Where the stream stood when the last stripe was written, and how much has come since.
        self._written_to = 0
        self.gathered_bytes = 0

    def write(self, columns: pa.RecordBatch) -> bool:
        """Take records; False if their types do not fit into the file.

        Raises:
            TypeMismatchError: If they have other columns than those before, or a value has no place in ORC.
            ConfigurationError: If a column's type has none.
        """
        if self._schema is None:
            self._schema = columns.schema
            self._stored = orc_schema_of(columns.schema)
            self._writer = orc.ORCWriter(self._stream, compression=self._compression, stripe_size=_STRIPE_BYTES)
        fitting = in_types(columns, self._schema)
        if fitting is None:
            return False
        try:
            stored = fitting.cast(self._stored)
        except (pa.ArrowException, ValueError) as error:
            message = f"a record has no form in ORC: {error}"
            raise TypeMismatchError(message) from error
        for field, column in zip(stored.schema, stored.columns, strict=True):
            if _has_times(field.type) and _has_old_fractions(column):
                message = f"a time before 1970 must be of whole seconds in ORC; column {field.name!r} has another one"
                hint = "Arrow's writer gives it a form that ORC's own readers refuse; Parquet and Avro keep it"
                raise TypeMismatchError(message, hint=hint, column=field.name)
        self._gathered.append(stored)
        self._gathered_rows += stored.num_rows
        self.gathered_bytes += stored.nbytes
        if self._gathered_rows >= _GATHERED_ROWS:
            self._hand_over()
        return True

    def finish(self) -> None:
        """Write what is left, and the footer."""
        self._hand_over()
        self.abandon()

    def abandon(self) -> None:
        """Close without what is gathered."""
        self._gathered = []
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _hand_over(self) -> None:
        gathered, self._gathered, self._gathered_rows = self._gathered, [], 0
        if self._writer is None:
            return
        self._writer.write(pa.Table.from_batches(gathered, self._stored))
        place = int(self._stream.tell())
        if place > self._written_to:
            self._written_to, self.gathered_bytes = place, 0
