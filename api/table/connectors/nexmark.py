"""Tables whose rows are made up: ``'connector' = 'nexmark'``.

Source: Nexmark's ``NexmarkTableSourceFactory``, with its options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.nexmark import NexmarkSource
from .contract import Options, TableConnector

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["NexmarkTable"]


class NexmarkTable(TableConnector):
    """Events of an online auction. Options: ``events.num`` (0 for no end), ``next-event.rate`` (events per second of
    event time), ``seed``.
    """

    name = "nexmark"
    makes_watermarks = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        self._events = options.take("events.num", int, 0) or None
        self._rate = options.take("next-event.rate", float, 10_000.0)
        self._seed = options.take("seed", int, 0)
        self.is_bounded = self._events is not None

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Make the events up, the same after every restart."""
        source = NexmarkSource(self._events, self._rate, seed=self._seed)
        return env.from_source(source, watermarks or WatermarkStrategy.no_watermarks(), "nexmark")
