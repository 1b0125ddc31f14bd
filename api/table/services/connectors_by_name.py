"""The connectors of tables by the name that ``'connector' = '...'`` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, nearest
from headrace.state.credentials import is_secret, masked, without_secrets

from ..connectors.collect import CollectTable
from ..connectors.contract import Options, TableConnector
from ..connectors.datagen import DatagenTable
from ..connectors.ends import BlackholeTable, PrintTable
from ..connectors.files import FilesTable
from ..connectors.jdbc import JdbcTable
from ..connectors.kafka import KafkaTable, UpsertKafkaTable
from ..connectors.lake import DeltaLakeTable, HudiTable, IcebergTable
from ..connectors.nexmark import NexmarkTable
from ..connectors.postgres_cdc import PostgresCdcTable
from ..connectors.rabbitmq import RabbitmqTable
from ..connectors.redis import RedisTable
from .cassandra import CassandraTable
from .hbase import HbaseTable
from .http import HttpTable
from .kinesis import KinesisTable
from .mongodb import MongodbTable
from .mqtt import MqttTable
from .nifi import NiFiTable
from .opensearch import SEARCH_TABLES
from .pulsar import PulsarTable
from .websocket import WebSocketTable

__all__ = ["connector_of"]

_CONNECTORS: tuple[Any, ...] = (
    BlackholeTable,
    CassandraTable,
    CollectTable,
    DatagenTable,
    DeltaLakeTable,
    FilesTable,
    HbaseTable,
    HttpTable,
    HudiTable,
    IcebergTable,
    JdbcTable,
    KafkaTable,
    KinesisTable,
    MongodbTable,
    MqttTable,
    NexmarkTable,
    NiFiTable,
    PostgresCdcTable,
    PrintTable,
    PulsarTable,
    RabbitmqTable,
    RedisTable,
    UpsertKafkaTable,
    WebSocketTable,
    *SEARCH_TABLES,
)


def connector_of(
    table: str,
    options: Mapping[str, str],
    schema: pa.Schema,
    partitioned_by: tuple[str, ...],
    primary_key: tuple[str, ...] = (),
    metadata: Mapping[str, str] = {},
) -> TableConnector:
    """Return the connector of a table that is being created.

    Raises:
        ConfigurationError: If there is none of the name, or an option is unknown, missing or wrong.
    """
    by_name = {one.name: one for one in _CONNECTORS}
    given = dict(options)
    name = given.pop("connector", None)
    if name is None:
        message = f"table {table} needs option 'connector'"
        raise ConfigurationError(message, hint=f"there are {', '.join(by_name)}")
    if name not in by_name:
        message = f"there is no connector {name!r}"
        raise ConfigurationError(message, hint=nearest(name, list(by_name)) or f"there are {', '.join(by_name)}")
    taken = Options(given, f"table {table} with connector {name!r}")
    made: TableConnector = by_name[name](taken, schema, partitioned_by)
    made.keyed_by(primary_key)
    made.tell(metadata)
    taken.end()
    if made.is_of_program:
        return made
    told = [f"partitioned by {', '.join(partitioned_by)}"]
    if made.applies_by_key:
        # A database is read in its order, and written by it.
        told.append(f"primary key {', '.join(primary_key)}")
    first = sorted(masked(f"{key}={value}") for key, value in options.items())
    made.first_identity = "\n".join([*first, *told])
    what = sorted(f"{key}={without_secrets(value)}" for key, value in options.items() if not _is_manner(key, made))
    made.identity = "\n".join([*what, f"bounded={made.is_bounded}", *told])
    return made


def _is_manner(option: str, table: TableConnector) -> bool:
    """Whether an option does not say what is read or written; secrets never do, but columns may be called like them."""
    if any(option.startswith(one[:-1]) if one.endswith("*") else option == one for one in table.manner):
        return True
    return is_secret(option) and not option.startswith(table.of_columns)
