"""Records as CSV text, so that every reader finds as many records in it as were written.

Arrow writes null as nothing. In a file of one column that is an empty line, which readers, Arrow's own among them,
skip; there null is an empty field in quotes. It is null again where the column is no text; in text null and the empty
one are the same to CSV.

Source: RFC 4180; Python's ``csv.writer``.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["csv_text"]


def csv_text(columns: pa.RecordBatch, *, header: bool, delimiter: str) -> bytes:
    """Records as CSV, a line end behind each.

    Args:
        columns: The records.
        header: Whether the names come first.
        delimiter: One character.

    Raises:
        pyarrow.ArrowException: If a column has a type that CSV has no form for.
    """
    import pyarrow.csv as pacsv

    options = pacsv.WriteOptions(include_header=header, delimiter=delimiter)
    kind = columns.schema.types[0] if columns.num_columns == 1 and columns.column(0).null_count else None
    if kind is not None:
        column = columns.column(0)
        if pa.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
        elif pa.types.is_fixed_size_binary(kind):
            column = column.cast(pa.binary())
        if _is_text(column.type):
            column = column.fill_null(pa.scalar(b"", pa.binary()).cast(column.type))
        columns = pa.RecordBatch.from_arrays([column], names=columns.schema.names)
    buffer = pa.BufferOutputStream()
    pacsv.write_csv(columns, buffer, options)
    text: bytes = buffer.getvalue().to_pybytes()
    if kind is None or not columns.column(0).null_count:
        return text
    # Values that are no text have no line ends in them; a name may.
    lines = text.split(b"\n")
    first = len(lines) - 1 - columns.num_rows
    return b"\n".join([*lines[:first], *(line or b'""' for line in lines[first:-1]), b""])


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
    )
