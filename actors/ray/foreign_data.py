"""Records that Ray or Spark hold, looked at from the program: for types while a plan is written, and whole for the
reference executor.

Source: Headrace's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ProgramError
from headrace.engine.plan.plan import ForeignSource, wire_schema

__all__ = ["fetch", "references_of", "schema_of_references"]


def references_of(data: Any) -> tuple[Any, ...]:
    """Return object references of Arrow tables.

    Args:
        data: References, or a ``ray.data`` Dataset.

    Raises:
        ProgramError: If it is neither.
    """
    import ray

    if callable(getattr(data, "to_arrow_refs", None)):
        data = data.to_arrow_refs()
    found = tuple(data) if isinstance(data, Iterable) else ()
    wrong = next((one for one in found if not isinstance(one, ray.ObjectRef)), None)
    if not found or wrong is not None:
        message = f"object references of Arrow tables are needed; got {data if wrong is None else wrong!r}"
        raise ProgramError(message)
    return found


def _as_table(value: Any) -> pa.Table:
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if not isinstance(value, pa.Table):
        message = f"an object reference must be of an Arrow table or record batch; got {type(value).__name__}"
        raise ProgramError(message)
    return value


def schema_of_references(references: tuple[Any, ...]) -> pa.Schema:
    """Return the schema of the first table."""
    import ray

    return _as_table(ray.get(references[0])).schema


def fetch(source: ForeignSource) -> pa.Table:
    """Return all records of a source, as a wire table."""
    schema = wire_schema(source.schema)
    if source.kind == "ray":
        import ray

        tables = [_as_table(value) for value in ray.get(list(source.handle))]
        table = pa.concat_tables([table.select(schema.names).cast(schema) for table in tables])
    elif callable(getattr(source.handle, "toArrow", None)):
        table = source.handle.toArrow()
    else:
        # Spark 3.5 has no toArrow; what it collects by Arrow it gives as a data frame of pandas.
        table = pa.Table.from_pandas(source.handle.toPandas(), preserve_index=False)
    return table.select(schema.names).cast(schema)
