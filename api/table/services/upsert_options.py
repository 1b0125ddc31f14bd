"""Tables that are written by key to a service without transactions: what their options have in common.

``sink.order-column`` names what says which row of a key is newer; a second column behind a comma is for ties.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, nearest

from ...connectors.upserts import OrderKey, UpsertOptions
from ..connectors.contract import Options, TableConnector

__all__ = ["UpsertTable", "order_of", "refused_of", "writing_of"]


class UpsertTable(TableConnector):
    """Rows that are written by the PRIMARY KEY; what needs one is refused without.

    Attributes:
        order: What says which row of a key is newer; None for the order of the changes.
        marker: Where it is said that a row was deleted; None where it goes.
    """

    order: OrderKey | None = None
    marker: str | None = None

    def keyed_by(self, primary_key: tuple[str, ...]) -> None:
        """Take the PRIMARY KEY.

        Raises:
            ConfigurationError: If there is none, and an option is about it.
        """
        super().keyed_by(primary_key)
        self.takes_changes = self.applies_by_key = bool(primary_key)
        said = {"sink.order-column": self.order, "sink.deletion-marker": self.marker}
        for option, value in () if primary_key else said.items():
            if value is not None:
                message = f"{option!r} is for tables with a PRIMARY KEY"
                raise ConfigurationError(message)


def order_of(options: Options, schema: pa.Schema) -> OrderKey | None:
    """Return the order that a table's options name; None for none.

    Raises:
        ConfigurationError: If the table has no such column, or it is no number or time.
    """
    text = options.take("sink.order-column")
    ties_below = options.take("sink.order-column.ties-below", int)
    if text is None:
        if ties_below is not None:
            message = "'sink.order-column.ties-below' is about the second column of 'sink.order-column'"
            raise ConfigurationError(message)
        return None
    columns = [part.strip() for part in text.split(",")]
    for column in columns:
        if column not in schema.names:
            message = f"'sink.order-column' names {column!r}, and the table has no such column"
            hint = nearest(column, schema.names) or f"it has {', '.join(schema.names)}"
            raise ConfigurationError(message, hint=hint)
        kind = schema.field(column).type
        if not pa.types.is_integer(kind) and not (pa.types.is_timestamp(kind) and column == columns[0]):
            message = f"'sink.order-column' names {column!r}, which is {kind}: an order is a whole number or a time"
            raise ConfigurationError(message)
    if len(columns) > 2:
        message = f"'sink.order-column' is a column, and maybe another one for ties; got {text!r}"
        raise ConfigurationError(message)
    return OrderKey(columns[0], columns[1] if len(columns) == 2 else None, 1_000 if ties_below is None else ties_below)


def writing_of(options: Options) -> UpsertOptions:
    """Return how rows are brought there."""
    return UpsertOptions(
        batch_size=options.take("sink.buffer-flush.max-rows", int, 1_000),
        batch_interval=options.take("sink.buffer-flush.interval", Options.duration, 1_000),
        request_timeout=options.take("connection.request-timeout", Options.duration, 30_000),
        patience=options.take("sink.patience", Options.duration, 60_000),
        on_error=refused_of(options, "failure-handler"),
    )


def refused_of(options: Options, name: str) -> Literal["fail", "skip"]:
    """Return what is to become of rows that a service refuses: ``fail`` or, as Flink calls it, ``ignore``."""
    return "skip" if options.choice(name, ("fail", "ignore"), "fail") == "ignore" else "fail"
