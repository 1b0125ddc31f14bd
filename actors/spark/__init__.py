"""Bounded programs on Spark inside the Ray cluster, through RayDP.

Here is what the API asks for. Importing it loads neither Spark nor Ray; running a plan does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.dataset.plan import ForeignSource, wire_schema
from headrace.engine.errors import ProgramError

if TYPE_CHECKING:
    from headrace.actors.spark.executor import SparkExecutor

__all__ = ["SparkExecutor", "arrow_refs_of", "arrow_schema_of", "fetch_table"]


def __getattr__(name: str) -> Any:
    if name == "SparkExecutor":
        from headrace.actors.spark.executor import SparkExecutor

        return SparkExecutor
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


def arrow_schema_of(frame: Any) -> pa.Schema:
    """The schema of the records of a Spark DataFrame.

    Raises:
        ProgramError: If two columns have one name.
    """
    from headrace.actors.spark.sources import schema_of_frame

    schema = schema_of_frame(frame)
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if doubled:
        message = f"the data frame has several columns called {', '.join(map(repr, doubled))}"
        raise ProgramError(message)
    return schema


def arrow_refs_of(refs: Any) -> tuple[list[Any], pa.Schema]:
    """References to Arrow tables in Ray's object store, and the schema of the first of them.

    Args:
        refs: Object references of tables or record batches, or a ``ray.data`` Dataset of Arrow blocks.

    Raises:
        ProgramError: If there is none, or the first is no Arrow table.
    """
    import ray

    references = _references(refs)
    if not references:
        message = "there is no object reference"
        raise ProgramError(message)
    first = ray.get(references[0])
    if not isinstance(first, (pa.Table, pa.RecordBatch)):
        message = f"object references of Arrow tables are needed; the first is of a {type(first).__name__}"
        raise ProgramError(message)
    return references, first.schema.remove_metadata()


def _references(refs: Any) -> list[Any]:
    if hasattr(refs, "to_arrow_refs"):
        return list(refs.to_arrow_refs())
    return [refs] if type(refs).__name__ == "ObjectRef" else list(refs)


def fetch_table(source: ForeignSource) -> pa.Table:
    """All records of a foreign source as a wire table of this process; for the local executor."""
    wire = wire_schema(source.schema)
    if source.kind == "ray":
        import ray

        tables = ray.get(list(source.handle))
        whole = [t if isinstance(t, pa.Table) else pa.Table.from_batches([t]) for t in tables]
        return pa.concat_tables([table.select(wire.names).cast(wire) for table in whole])
    batches = source.handle._collect_as_arrow()
    table = pa.Table.from_batches(batches) if batches else wire.empty_table()
    return table.cast(wire)
