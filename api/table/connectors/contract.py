"""What a connector of a table is: rows for streams and for data sets, and a place for results.

Options have Flink's names and are all texts; what is unknown, missing or wrong is refused when the table is created.

Source: Flink's ``DynamicTableSource``, ``DynamicTableSink``, ``FactoryUtil``.
"""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.connectors.table_lookup import TableLookup
from headrace.engine.errors import ConfigurationError, ProgramError, nearest
from headrace.engine.kernel.config import parse_duration_ms
from headrace.engine.lookups.enrichment import LookupCache

if TYPE_CHECKING:
    from headrace.engine.graph.transformations import OperatorTransformation
    from headrace.engine.operators.event_time import WatermarkStrategy

    from ...dataset import DataSet, ExecutionEnvironment
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["Options", "TableConnector", "lookup_cache_of"]


class TableConnector(ABC):
    """One table's connection, made of its options. Subclasses offer what they can; the rest is refused by name.

    Attributes:
        name: As in the option ``connector``.
        manner: Options that say how it is read or written, not what: their names, or what these begin with and ``*``.
            Another value leaves state in savepoints where it is.
        of_columns: What options begin with that have the name of a column in theirs.
        identity: What is read or written, as a text without secrets; None if only the table's name tells.
        first_identity: The same with all options, as plans of version 1 have it.
        path: Under which a catalog has it, or the program alone; None if it has no name.
        is_bounded: Whether it ends, as a source.
        gives_changes: Whether, as a source, it gives rows that are updated and deleted.
        gives_upserts: Whether of these only the new row of a key is told, or that it has none: those of a PRIMARY KEY.
        takes_changes: Whether, as a sink, it takes rows that are updated and deleted.
        applies_by_key: Whether, as a sink, it applies changes by its PRIMARY KEY.
        primary_key: The columns of the PRIMARY KEY; none if the table has none.
        can_look_up: Whether its rows can be asked for by key.
        lookup_cache: What such a question remembers; None for nothing.
        waits_for_answers: Whether such a question goes outside, so that it is worth while to have several under way.
        is_of_program: Whether its rows are in this program alone, with the table.
        makes_watermarks: Whether, as a source, it gives rows their event times when it is told how.
        metadata_types: What it tells of a record beside its columns, by name.
        metadata: Which of it the table has, by the names of its columns.
    """

    name: str
    manner: tuple[str, ...] = ()
    of_columns: tuple[str, ...] = ()
    identity: str | None = None
    first_identity: str | None = None
    path: str | None = None
    is_bounded = True
    gives_changes = False
    gives_upserts = False
    takes_changes = False
    applies_by_key = False
    primary_key: tuple[str, ...] = ()
    can_look_up = False
    lookup_cache: LookupCache | None = None
    waits_for_answers = True
    is_of_program = False
    makes_watermarks = False
    metadata_types: Mapping[str, pa.DataType] = {}
    metadata: Mapping[str, str] = {}

    def known_as(self, column: str) -> str:
        """Return what a column is called where its values are: its name, or its place where that counts alone."""
        return f"metadata {self.metadata[column]}" if column in self.metadata else column

    def identity_in_program(self) -> str:
        """Return what tells it from other tables of the program, if it has no `identity`."""
        return f"{self.path}"

    def sources(self) -> Sequence[OperatorTransformation]:
        """Return what the program itself reads for its rows; nothing where the table does."""
        return ()

    def tell(self, metadata: Mapping[str, str]) -> None:
        """Take the metadata columns, once, when the table is created.

        Args:
            metadata: What they are of, by their names.

        Raises:
            ConfigurationError: If it does not tell something of that name.
        """
        for column, name in metadata.items():
            if name not in self.metadata_types:
                message = f"connector {self.name!r} tells no metadata {name!r}, for which column {column!r} asks"
                told = f"it tells {', '.join(self.metadata_types)}" if self.metadata_types else "it tells none"
                raise ConfigurationError(message, hint=nearest(name, list(self.metadata_types)) or told)
        self.metadata = dict(metadata)

    def keyed_by(self, primary_key: tuple[str, ...]) -> None:
        """Take the columns of the PRIMARY KEY, once, when the table is created."""
        self.primary_key = primary_key

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Return the rows as a stream of columns.

        Args:
            env: Of the program.
            schema: The columns that are wanted, with their types.
            watermarks: Their event times; None for none, and where it does not make any.
        """
        msg = "be read as a stream"
        raise self._cannot(msg)

    def data_set(self, env: ExecutionEnvironment, schema: pa.Schema) -> DataSet:
        """Return the rows as a data set."""
        msg = "be read in batch mode"
        raise self._cannot(msg)

    def lookup(self, keys: Sequence[str], schema: pa.Schema) -> TableLookup:
        """Return what finds rows by key.

        Args:
            keys: The columns of the key.
            schema: The columns that are wanted, those of the key among them.
        """
        msg = "be looked up"
        raise self._cannot(msg)

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """End a stream of columns here."""
        msg = "be written by a stream"
        raise self._cannot(msg)

    def write_data_set(self, data: DataSet, table: str) -> None:
        """End a data set here; its environment is executed afterwards."""
        msg = "be written in batch mode"
        raise self._cannot(msg)

    def _cannot(self, what: str) -> ProgramError:
        message = f"a table with connector {self.name!r} cannot {what}"
        return ProgramError(message)


class Options:
    """The options of a table, taken one by one; what nobody has taken is refused.

    Args:
        given: As they stand in WITH.
        what: Whose they are, for errors.
    """

    def __init__(self, given: Mapping[str, str], what: str) -> None:
        self._given = dict(given)
        self._what = what
        self._known: list[str] = []

    def take(self, name: str, parse: Callable[[str], Any] = str, default: Any = None) -> Any:
        """Return an option's value, or a default.

        Raises:
            ConfigurationError: If it cannot be parsed.
        """
        self._known.append(name)
        text = self._given.pop(name, None)
        if text is None:
            return default
        try:
            return parse(text)
        except (ValueError, ConfigurationError) as error:
            message = f"option {name!r} of {self._what} cannot be {text!r}: {error}"
            raise ConfigurationError(message) from error

    def need(self, name: str, parse: Callable[[str], Any] = str) -> Any:
        """Return the value of an option that must be there.

        Raises:
            ConfigurationError: If it is not.
        """
        if name not in self._given:
            message = f"{self._what} needs option {name!r}"
            raise ConfigurationError(message)
        return self.take(name, parse)

    def take_all(self, prefix: str) -> dict[str, str]:
        """Return all options that begin with a prefix, without it."""
        self._known.append(f"{prefix}*")
        names = [name for name in self._given if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._given.pop(name) for name in names}

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """Return an option that is one of several words."""
        value: str | None = self.take(name, str, default)
        if value is None:
            message = f"{self._what} needs option {name!r}: one of {', '.join(choices)}"
            raise ConfigurationError(message)
        if value not in choices:
            message = f"option {name!r} of {self._what} is one of {', '.join(choices)}; got {value!r}"
            raise ConfigurationError(message)
        return value

    def end(self) -> None:
        """Refuse what is left.

        Raises:
            ConfigurationError: If there is something.
        """
        for name in self._given:
            message = f"{self._what} has no option {name!r}"
            hint = nearest(name, self._known) or f"its options are {', '.join(self._known)}"
            raise ConfigurationError(message, hint=hint)

    @staticmethod
    def boolean(text: str) -> bool:
        """Parse ``true`` or ``false``."""
        if text.lower() not in ("true", "false"):
            message = "expected true or false"
            raise ValueError(message)
        return text.lower() == "true"

    @staticmethod
    def memory(text: str) -> int:
        """Parse a size, as ``16MB``, to bytes."""
        match = re.fullmatch(r"([0-9]+)\s*([kmgt]?)(?:b|bytes)?", text.strip().lower())
        if match is None:
            message = "expected a size such as 16MB"
            raise ValueError(message)
        return int(match[1]) << (10 * " kmgt".index(match[2] or " "))

    @staticmethod
    def duration(text: str) -> int:
        """Parse a duration to milliseconds."""
        return parse_duration_ms(text)


def lookup_retries_of(options: Options) -> int:
    """Take how often rows that were not answered are asked for again.

    Raises:
        ConfigurationError: If it is less than never.
    """
    retries: int = options.take("lookup.max-retries", int, 3)
    if retries < 0:
        message = f"lookup.max-retries must be at least 0; got {retries}"
        raise ConfigurationError(message)
    return retries


def lookup_cache_of(options: Options) -> LookupCache | None:
    """Take the options of a cache; None if there is to be none.

    Raises:
        ConfigurationError: If one means nothing.
    """
    is_cached = options.choice("lookup.cache", ("NONE", "PARTIAL"), "NONE") == "PARTIAL"
    max_rows = options.take("lookup.partial-cache.max-rows", int)
    expires_ms = options.take("lookup.partial-cache.expire-after-write", Options.duration)
    keeps_missing = options.take("lookup.partial-cache.cache-missing-key", Options.boolean, True)
    if not is_cached:
        return None
    return LookupCache(max_rows, expires_ms, keeps_missing)
