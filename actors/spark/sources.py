"""Sources of a plan as DataFrames.

Tables in memory: small ones travel with Spark's tasks; larger ones go through Ray's object store, where executors,
being Ray actors, read them themselves. References to Arrow tables that Ray holds already are turned into Arrow streams
by Ray tasks, next to the data, and read the same way; nothing of them passes through the driver. Parquet is read by
Spark where all types are Spark's own, so that it can prune row groups and columns; every other file by its source's own
reader, in Python processes, split by split.

Source: RayDP's ``ObjectStoreReader`` and ``RayDatasetRDD``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.errors import InternalError, ProgramError
from headrace.engine.plan.plan import FileSource, ForeignSource, Node, SequenceSource, TableSource, wire_schema
from headrace.state.reading.program_pickles import dump_program, load_program

from .catalyst import column_of
from .columns import Layout, column_name
from .relations import Job, Relation

__all__ = ["schema_of_frame", "source_relation"]

SMALL_BYTES = 4 << 20
"""Tables up to this size travel inside of Spark's plan and tasks."""


def source_relation(node: Node, job: Job) -> Relation:
    """Return the relation of a source."""
    if isinstance(node, TableSource):
        return _table(node, job)
    if isinstance(node, SequenceSource):
        return _sequence(node, job)
    if isinstance(node, FileSource):
        return _parquet(node, job) or _files(node, job)
    if isinstance(node, ForeignSource):
        return _foreign(node, job)
    message = f"{node!r} is no source"
    raise InternalError(message)


def _count(node: Node, job: Job) -> int:
    return node.parallelism or job.parallelism


# ------------------------------------------------------------------------------------------------------------ in memory


def _table(node: TableSource, job: Job) -> Relation:
    layout = Layout(wire_schema(node.schema))
    count = _count(node, job)
    slices = [_physical(layout, part) for part in _dealt(node.table, count)]
    if node.table.nbytes > SMALL_BYTES and job.session.has_object_store:
        df = _of_streams([_put(_stream(layout, part)) for part in slices], layout, job)
    else:
        df = _of_batches(slices, layout, job)
    return job.relation(df, layout, node.schema, partitions=count, num_rows=node.table.num_rows)


def _dealt(table: pa.Table, count: int) -> list[pa.Table]:
    """Runs of equal length."""
    bounds = [table.num_rows * i // count for i in range(count + 1)]
    return [table.slice(start, stop - start) for start, stop in itertools.pairwise(bounds)]


def _physical(layout: Layout, table: pa.Table) -> list[pa.RecordBatch]:
    return [layout.to_physical(batch) for batch in table.to_batches()]


def _one_batch(layout: Layout, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches, layout.physical).combine_chunks()
    found = table.to_batches()
    return found[0] if found else pa.RecordBatch.from_arrays(
        [pa.nulls(0, field.type) for field in layout.physical], schema=layout.physical
    )  # fmt: skip


def _of_batches(parts: list[list[pa.RecordBatch]], layout: Layout, job: Job) -> Any:
    """A DataFrame with a partition per part, sent through a file of the driver."""
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    spark = job.spark
    jvm = spark._jvm
    batches = [_one_batch(layout, part) for part in parts]
    batch_iterator = job.context._serialize_to_jvm(
        batches, ArrowStreamSerializer(), jvm.PythonSQLUtils.readArrowStreamFromFile, jvm.ArrowIteratorServer
    )
    frame = jvm.PythonSQLUtils.toDataFrame(batch_iterator, layout.spark_schema().json(), spark._jsparkSession)
    return DataFrame(frame, spark)


def _stream(layout: Layout, batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, layout.physical) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _put(stream: bytes) -> Any:
    import ray

    return ray.put(stream)


def _of_streams(references: Sequence[Any], layout: Layout, job: Job) -> Any:
    """A DataFrame of Arrow streams in Ray's object store, a partition each."""
    import ray
    from pyspark.sql import DataFrame

    spark = job.spark
    jvm = spark._jvm
    worker = ray._private.worker.global_worker.core_worker
    owners = [worker.get_owner_address(reference) for reference in references]
    rdd = jvm.org.apache.spark.rdd.RayDatasetRDD(spark._jsc, [r.binary() for r in references], owners)
    reader = jvm.org.apache.spark.sql.raydp.ObjectStoreReader
    frame = reader.RayDatasetToDataFrame(spark._jsparkSession, rdd, layout.spark_schema().json())
    job.root.cleanup.append(list(references).clear)  # held until the job has ended
    return DataFrame(frame, spark)


def _sequence(node: SequenceSource, job: Job) -> Relation:
    from pyspark.sql import functions as sf

    count = _count(node, job)
    # Spark's end is not included, and the greatest integer has none behind it: there all are counted from one less.
    by = 1 if node.end == 2**63 - 1 else 0
    df = job.spark.range(node.start - by, node.end + 1 - by, 1, count)
    df = df.select((sf.col("id") + sf.lit(by).cast("long")).alias(column_name(0)))
    return job.relation(df, Layout(wire_schema(node.schema)), node.schema, partitions=count)


# ---------------------------------------------------------------------------------------------------------------- files


class _SplitReader:
    """Reads the splits of one partition; runs in Python processes of Spark."""

    def __init__(self, source: FileSource, splits: list[list[Any]]) -> None:
        self._source = source
        self._splits = splits

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for split in self._splits[number]:
                    yield from self._source.files.read(self._source, split)


def _files(node: FileSource, job: Job) -> Relation:
    from pyspark.sql import functions as sf

    splits = node.files.splits(node)
    count = _count(node, job)
    numbers = Layout(pa.schema([pa.field("number", pa.int64())]))
    df = job.spark.range(0, count, 1, count).select(sf.col("id").alias(column_name(0)))
    reader = _SplitReader(node, [splits[i::count] for i in range(count)])
    relation = job.relation(df, numbers, node.schema, partitions=count)
    return Relation(df, node.schema, relation.source, function=reader, partitions=count)


def _parquet(node: FileSource, job: Job) -> Relation | None:
    """Parquet read by Spark, if it gives the same values."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StructField, StructType

    names = list(node.file_schema.names)
    if node.format != "parquet" or not node.paths or len(set(names)) < len(names):
        return None
    if not node.is_uniform or node.folder_columns:
        return None  # what a file lacks, or has in another type, is for the source's own reader to say
    if any("://" in path and not path.startswith("file://") for path in node.paths):
        return None  # by Arrow's file systems, which the program's settings are for
    wanted = list(node.columns) if node.columns is not None else names
    read = set(wanted) | (set() if node.condition is None else node.condition.columns_used())
    needed = [name for name in names if name in read]
    layout = Layout(pa.schema([node.file_schema.field(name) for name in needed]))
    readable = (pa.string(), pa.binary())
    for name, field in zip(needed, layout.physical, strict=True):
        large = node.file_schema.field(name).type in (pa.large_string(), pa.large_binary()) and field.type in readable
        if not layout.is_native(name) and not large:
            return None
    condition = None if node.condition is None else column_of(node.condition, layout)
    if node.condition is not None and condition is None:
        return None
    types = layout.spark_schema().fields
    schema = StructType([StructField(name, field.dataType) for name, field in zip(needed, types, strict=True)])
    df = job.spark.read.schema(schema).parquet(*node.paths)
    df = df.select(*(sf.col("`" + n.replace("`", "``") + "`").alias(column_name(i)) for i, n in enumerate(needed)))
    if condition is not None:
        df = df.filter(condition)
    df = df.select(*(sf.col(column_name(needed.index(n))).alias(column_name(i)) for i, n in enumerate(wanted)))
    output = Layout(wire_schema(node.schema))
    if [field.type for field in output.physical] != [
        layout.physical.field(column_name(needed.index(name))).type for name in wanted
    ]:
        return None
    return job.relation(df, output, node.schema)


# -------------------------------------------------------------------------------------------------------------- foreign


def schema_of_frame(df: Any) -> pa.Schema:
    """Return the schema of the records of a Spark DataFrame."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    schema: StructType = df.schema
    return pa.schema([pa.field(field.name, to_arrow_type(field.dataType)) for field in schema.fields])


def _foreign(node: ForeignSource, job: Job) -> Relation:
    if node.kind == "spark":
        return _spark_frame(node, job)
    if node.kind == "ray":
        return _ray_references(node, job)
    message = f"there is no source of kind {node.kind!r}"
    raise ProgramError(message)


def _spark_frame(node: ForeignSource, job: Job) -> Relation:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as sf

    layout = Layout(wire_schema(node.schema))
    handle = node.handle
    if handle.sparkSession.sparkContext is not job.context:
        message = "the DataFrame is of a Spark session that has ended"
        raise ProgramError(message)
    # Read in our own session, whose settings the rest of the plan counts on.
    dataset = job.spark._jvm.org.apache.spark.sql.Dataset
    df = DataFrame(dataset.ofRows(job.spark._jsparkSession, handle._jdf.logicalPlan()), job.spark)
    renamed = df.toDF(*layout.names)
    casts = [
        sf.col(field.name).cast(field.dataType).alias(field.name) for field in layout.spark_schema().fields
    ]  # fmt: skip
    return job.relation(renamed.select(*casts), layout, node.schema, is_exact=False)


def _ray_references(node: ForeignSource, job: Job) -> Relation:
    import ray

    layout = Layout(wire_schema(node.schema))
    pickled = dump_program(layout)

    def as_stream(table: Any) -> bytes:
        wanted = load_program(pickled)
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        batches = [wanted.to_physical(batch) for batch in table.cast(wanted.wire).to_batches()]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, wanted.physical) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return bytes(sink.getvalue().to_pybytes())

    references = list(node.handle)
    if not references:
        return job.relation(_of_batches([[]], layout, job), layout, node.schema, partitions=1)
    if not job.session.has_object_store:
        tables = ray.get(references)
        parts = [[layout.to_physical(b) for b in _as_table(t).cast(layout.wire).to_batches()] for t in tables]
        return job.relation(_of_batches(parts, layout, job), layout, node.schema, partitions=len(parts))
    convert = ray.remote(num_cpus=0)(as_stream)
    streams = [convert.remote(reference) for reference in references]
    ray.wait(streams, num_returns=len(streams))
    return job.relation(_of_streams(streams, layout, job), layout, node.schema, partitions=len(streams))


def _as_table(table: Any) -> pa.Table:
    return pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
