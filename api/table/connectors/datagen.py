"""Tables whose rows are drawn by lot, or counted: ``'connector' = 'datagen'``.

A row follows from its number, the seed and its columns alone: every restart and every parallelism gives the same rows.
Times follow from the number, too: row n is ``n / rows-per-second`` behind ``start-time``, less a random part of
``max-past``. Flink's go by the clock.

Source: Flink's documentation ("DataGen SQL Connector"), ``DataGenConnectorOptions``, ``RandomGeneratorVisitor``.
"""

from __future__ import annotations

import datetime
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.datagen import GeneratorSource
from ...sql.parsing.sql_types import sql_name
from .contract import Options, TableConnector

if TYPE_CHECKING:
    from ...dataset import DataSet, ExecutionEnvironment
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["DatagenTable"]

Column = Callable[[Any], pa.Array]
"""From the numbers of rows, as uint64, to their values."""

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


class DatagenTable(TableConnector):
    """Random rows. Options: ``rows-per-second``, ``number-of-rows``, ``seed``, ``start-time``, and of each column
    ``fields.NAME.kind`` (``random`` or ``sequence``), ``min``, ``max``, ``start``, ``end``, ``length``, ``max-past``,
    ``null-rate``.
    """

    name = "datagen"
    of_columns = ("fields.",)
    makes_watermarks = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        self._rate = options.take("rows-per-second", _at_least(1), 10_000)
        count = options.take("number-of-rows", _at_least(0))
        seed = options.take("seed", int, 0)
        begin_ms = options.take("start-time", _epoch_ms, 0)
        columns, ends = {}, [] if count is None else [count]
        for field in schema:
            columns[field.name], end = _column(options, field, seed, begin_ms, self._rate)
            ends += [] if end is None else [end]
        self._count = min(ends, default=None)
        self._rows = _Rows(columns, schema)
        self.is_bounded = self._count is not None
        if not any(pa.types.is_timestamp(field.type) for field in schema):  # times of rows depend on the rate
            self.manner = ("rows-per-second",)

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Make the rows up, at the rate that the table says."""
        source = GeneratorSource.batches(self._rows.of(schema), self._count, self._rate)
        return env.from_source(
            source, watermarks or WatermarkStrategy.no_watermarks(), "datagen", self._rows.of(schema).schema
        )

    def data_set(self, env: ExecutionEnvironment, schema: pa.Schema) -> DataSet:
        """Make the rows up, as fast as they are taken."""
        assert self._count is not None
        rows = self._rows.of(schema)
        if not self._count:
            return env.from_arrow(rows(0, 0))
        return env.generate_sequence(0, self._count - 1).map_batches(rows.of_numbers, output_type=rows.schema)


class _Rows:
    """Makes rows of their numbers."""

    def __init__(self, columns: dict[str, Column], schema: pa.Schema) -> None:
        self._columns = columns
        self.schema = schema

    def of(self, schema: pa.Schema) -> _Rows:
        """Return what makes only some of the columns."""
        fields = pa.schema([self.schema.field(name) for name in schema.names])
        return _Rows({name: self._columns[name] for name in schema.names}, fields)

    def __call__(self, start: int, length: int) -> pa.RecordBatch:
        return self._made(np.arange(start, start + length, dtype=np.uint64))

    def of_numbers(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._made(np.asarray(batch.column(0)).astype(np.uint64))

    def _made(self, numbers: Any) -> pa.RecordBatch:
        arrays = [self._columns[field.name](numbers).cast(field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _column(options: Options, field: pa.Field, seed: int, begin_ms: int, rate: int) -> tuple[Column, int | None]:
    """What makes a column, and after how many rows it has no more values."""
    own = f"fields.{field.name}"
    kind = options.choice(f"{own}.kind", ("random", "sequence"), "random")
    nulls = options.take(f"{own}.null-rate", float, 0.0)
    if not 0 <= nulls <= 1:
        message = f"option '{own}.null-rate' is between 0 and 1; got {nulls}"
        raise ConfigurationError(message)
    draw = _Draw(seed, field.name)
    if kind == "sequence":
        start, end = options.need(f"{own}.start", int), options.need(f"{own}.end", int)
        if not pa.types.is_integer(field.type) or end < start:
            message = (
                f"column {field.name!r} of kind 'sequence' is a whole number; it is {sql_name(field.type)}"
                if end >= start else f"option '{own}.end' is not below '{own}.start'"
            )  # fmt: skip
            raise ConfigurationError(message)
        return _with_nulls(lambda numbers: pa.array(numbers.astype(np.int64) + start), draw, nulls), end - start + 1
    return _with_nulls(_random(options, own, field, draw, begin_ms, rate), draw, nulls), None


def _with_nulls(column: Column, draw: _Draw, rate: float) -> Column:
    if not rate:
        return column

    def made(numbers: Any) -> pa.Array:
        values = column(numbers)
        is_null = pa.array(draw.shares(numbers, 1) < rate)
        return pc.if_else(is_null, pa.scalar(None, values.type), values)

    return made


def _random(options: Options, own: str, field: pa.Field, draw: _Draw, begin_ms: int, rate: int) -> Column:
    kind = field.type
    if pa.types.is_boolean(kind):
        return lambda numbers: pa.array(draw.bits(numbers) >> np.uint64(63) == 1)
    if pa.types.is_integer(kind):
        bound = 2 ** (kind.bit_width - 1)
        low, high = options.take(f"{own}.min", int, -bound), options.take(f"{own}.max", int, bound - 1)
        if not -bound <= low <= high < bound:
            message = f"option '{own}.min' is not above '{own}.max', and both fit into {sql_name(kind)}"
            raise ConfigurationError(message)
        return lambda numbers: pa.array(draw.whole(numbers, low, high))
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        least, most = options.take(f"{own}.min", float, 0.0), options.take(f"{own}.max", float, 1.0)
        if not least <= most:
            message = f"option '{own}.min' is not above '{own}.max'"
            raise ConfigurationError(message)
        return lambda numbers: _reals(draw.shares(numbers) * (most - least) + least, kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        length = options.take(f"{own}.length", _at_least(1), 100)
        return lambda numbers: draw.texts(numbers, length)
    if pa.types.is_timestamp(kind):
        past_ms = options.take(f"{own}.max-past", Options.duration, 0)

        def times(numbers: Any) -> pa.Array:
            late = draw.whole(numbers, 0, past_ms)
            moments = begin_ms + (numbers.astype(np.int64) * 1_000) // rate - late
            return pa.array(moments).cast(pa.timestamp("ms"))

        return times
    message = f"datagen makes no values of column {field.name!r}: {sql_name(kind)}"
    raise ConfigurationError(message, hint="compute it of others: name AS ...")


def _reals(values: Any, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_decimal(kind):
        return pa.array(values)
    import decimal

    step = decimal.Decimal(1).scaleb(-kind.scale)
    return pa.array([decimal.Decimal(value).quantize(step) for value in values.tolist()], kind)


class _Draw:
    """Random bits of row numbers: SplitMix64, one stream for each column.

    Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
    """

    def __init__(self, seed: int, column: str) -> None:
        self._seed = np.uint64((zlib.crc32(column.encode()) << 32 ^ seed * 0x9E3779B97F4A7C15) & 0xFFFF_FFFF_FFFF_FFFF)

    def bits(self, numbers: Any, lane: int = 0) -> Any:
        """64 bits for each number; another lane gives others."""
        with np.errstate(over="ignore"):
            start = self._seed + np.uint64(lane) * np.uint64(0xD1B54A32D192ED03)
            mixed = numbers * np.uint64(0x9E3779B97F4A7C15) + start
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return mixed ^ (mixed >> np.uint64(31))

    def shares(self, numbers: Any, lane: int = 0) -> Any:
        """Numbers from 0 to below 1."""
        return (self.bits(numbers, lane) >> np.uint64(11)) * 2.0**-53

    def whole(self, numbers: Any, low: int, high: int) -> Any:
        """Whole numbers from one to another, both included."""
        size = high - low + 1
        bits = self.bits(numbers)
        with np.errstate(over="ignore"):
            offset = bits if size == 1 << 64 else bits % np.uint64(size)
            return (offset + np.uint64(low % (1 << 64))).astype(np.int64)

    def texts(self, numbers: Any, length: int) -> pa.Array:
        """Texts of hexadecimal digits."""
        lanes = [self.bits(numbers, lane + 2) for lane in range(-(-length // 16))]
        digits = [(lane[:, None] >> np.arange(0, 64, 4, dtype=np.uint64)) & np.uint64(15) for lane in lanes]
        letters = _HEX[np.concatenate(digits, axis=1)[:, :length].astype(np.intp)]
        offsets = np.arange(len(numbers) + 1, dtype=np.int32) * length
        data = pa.py_buffer(np.ascontiguousarray(letters).tobytes())
        return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets.tobytes()), data)


def _at_least(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if int(text) < low:
            message = f"it is at least {low}"
            raise ValueError(message)
        return int(text)

    return parse


def _epoch_ms(text: str) -> int:
    moment = datetime.datetime.fromisoformat(text)
    return round(moment.replace(tzinfo=moment.tzinfo or datetime.timezone.utc).timestamp() * 1_000)
