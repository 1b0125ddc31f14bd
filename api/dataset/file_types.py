"""The type of the records of several files: one rule for all executors, applied when the program is written.

All files of a source have the same columns with the same types, in any order; the error of one that has not names file
and column. A program may ask for more: for the columns of all files in types that hold the values of all
(``merge_schema``), or for a type that it declares. Then a column that a file lacks is null, and values are taken over
exactly or fail.

Source: Spark's ``mergeSchema``; SQL's rule that a type does not depend on which file was listed first.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, ProgramError, SourceError, StorageError
from headrace.engine.plan.plan import record_shape
from headrace.state.files.filesystem import filesystem_for

from .record_types import schema_with_kind

__all__ = ["merged_type", "plain_schema", "refuse_doubled", "require_one_type", "types_in"]

_READERS = 8


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with dictionaries as their values and without metadata, but for what a record is."""
    fields = [
        pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type, f.nullable) for f in schema
    ]
    return schema_with_kind(fields, record_shape(schema))


def refuse_doubled(what: str, schema: pa.Schema) -> None:
    """Refuse columns of one name.

    Raises:
        ProgramError: If there are such.
    """
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if doubled:
        message = f"the {what} has several columns called {', '.join(map(repr, doubled))}"
        raise ProgramError(message)


def types_in(form: str, paths: Sequence[str]) -> list[pa.Schema]:
    """Return the types of the records of files that say them, of which only the ends or the beginnings are read.

    Args:
        form: ``parquet``, ``orc``, ``avro`` or ``sequence``.
        paths: The files.

    Raises:
        SourceError: If one cannot be read. ConfigurationError: If it has something that is not known.
    """
    with ThreadPoolExecutor(min(_READERS, len(paths))) as pool:
        return list(pool.map(functools.partial(_type_in, form), paths))


def _type_in(form: str, path: str) -> pa.Schema:
    from ..formats.containers.typed_files import columns_in

    try:
        fs, inside = filesystem_for(path)
        schema = plain_schema(columns_in(form, fs, inside))
    except (pa.ArrowException, OSError, StorageError) as error:
        message = f"a file cannot be read: {error}"
        raise SourceError(message, path=str(path)) from error
    except ConfigurationError as error:
        error.context.update(path=str(path))
        raise
    refuse_doubled("file", schema)
    return schema


_HINT = "merge_schema=True takes the columns of all files, in types that hold all values; schema=... declares them"


def require_one_type(paths: Sequence[str], schemas: Sequence[pa.Schema], hint: str = _HINT) -> pa.Schema:
    """Return the type of all files.

    Raises:
        SourceError: If one has other columns, or other types.
    """
    first = schemas[0]
    types = {field.name: field.type for field in first}
    for path, schema in zip(paths, schemas, strict=True):
        for field in schema:
            if field.name not in types:
                message = f"column {field.name!r} is not in {paths[0]!s}, the first file of the source"
                raise SourceError(message, path=str(path), hint=hint)
            if field.type != types[field.name]:
                kinds = f"{field.type}, and {types[field.name]} in {paths[0]!s}"
                message = f"column {field.name!r} is {kinds}, the first file of the source"
                raise SourceError(message, path=str(path), hint=hint)
        for name in types:
            if name not in schema.names:
                message = f"column {name!r} of {paths[0]!s}, the first file of the source, is not in the file"
                raise SourceError(message, path=str(path), hint=hint)
    return first


def merged_type(paths: Sequence[str], schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return a type that holds the records of all files; columns in the order in which they come.

    Raises:
        SourceError: If types of a column have nothing in common.
    """
    kinds: dict[str, pa.DataType] = {}
    for path, schema in zip(paths, schemas, strict=True):
        for field in schema:
            known = kinds.get(field.name, field.type)
            try:
                both = [pa.schema([pa.field(field.name, kind)]) for kind in (known, field.type)]
                kinds[field.name] = pa.unify_schemas(both, promote_options="permissive").field(0).type
            except pa.ArrowException as error:
                message = f"column {field.name!r} is {field.type}, and {known} in files before it"
                raise SourceError(message, path=str(path), hint="declare the types: schema=...") from error
    return schema_with_kind([pa.field(name, kind) for name, kind in kinds.items()], record_shape(schemas[0]))
