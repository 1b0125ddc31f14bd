"""MapReduce programs as data sets: mapper, combiner and reducer classes, and Hadoop streaming's scripts.

The contract is Hadoop's: a mapper turns a pair of key and value into any number of pairs; pairs are brought to reducers
by their key and sorted by it; a reducer is called once per key, keys ascending, and gives pairs; a combiner does a
reducer's work on a part of the pairs before they are moved, or not at all. Scripts read lines from standard input and
write lines to standard output, key and value with a TAB between them; lines ``reporter:counter:group,counter,amount``
on standard error count, and what else is there is shown if the script fails.

What Hadoop writes into files is a data set of tuples (key, value) here.

Source: Hadoop's ``org.apache.hadoop.mapreduce`` and Hadoop Streaming; Flink's ``flink-hadoop-compatibility``.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import IO, Any

from headrace.engine.errors import ProgramError, UserFunctionError
from headrace.engine.functions.accumulators import LongCounter
from headrace.engine.functions.contract import FlatMapFunction, Function
from headrace.engine.functions.given import records_of
from headrace.engine.functions.runtime_context import RuntimeContext
from headrace.engine.plan.user_functions import GroupCombineFunction, MapPartitionFunction
from headrace.state.reading.read_limits import number_in

from ..arguments.checks import whole
from .dataset import DataSet

__all__ = ["Combiner", "HadoopJob", "Mapper", "Reducer"]

Pair = tuple[Any, Any]


class Mapper(Function, ABC):
    """Turns a pair into others."""

    @abstractmethod
    def map(self, key: Any, value: Any) -> Iterable[Pair] | None:
        """Yield or return pairs of key and value.

        Args:
            key: The first of a tuple of two; None for any other record, as a line of a file.
            value: The second of a tuple of two, else the record.
        """


class Reducer(Function, ABC):
    """Turns a key and its values into pairs."""

    @abstractmethod
    def reduce(self, key: Any, values: Iterator[Any]) -> Iterable[Pair] | None:
        """Yield or return pairs; ``values`` can be gone through once."""


class Combiner(Reducer):
    """A reducer of parts of a key's values; any `Reducer` whose output is of the kind of its input will do, too."""


class HadoopJob:
    """One round of MapReduce, to be applied to data sets.

    Args:
        mapper: A `Mapper` object.
        reducer: A `Reducer` object; None for a job of mappers only.
        combiner: A `Combiner` or `Reducer` object; None for none.
        num_reducers: How many there are; None for the environment's parallelism.
        partitioner: Names the reducer of a key, ``(key, num_reducers) -> number``; None to go by the key's hash.

    Raises:
        ProgramError: If something is not of its kind, or a combiner has no reducer.
    """

    def __init__(
        self,
        mapper: Mapper,
        reducer: Reducer | None = None,
        combiner: Reducer | None = None,
        num_reducers: int | None = None,
        partitioner: Any = None,
    ) -> None:
        for what, value, kind in (
            ("mapper", mapper, Mapper),
            ("reducer", reducer, Reducer),
            ("combiner", combiner, Reducer),
        ):
            if not isinstance(value, kind) and not (value is None and what != "mapper"):
                message = f"a {what} must be a {kind.__name__} object; got {value!r}"
                raise ProgramError(message)
        self._set_up(num_reducers, partitioner, has_reducer=reducer is not None, has_combiner=combiner is not None)
        self._mapper: Any = _MapperFunction(mapper)
        self._combiner: Any = None if combiner is None else _CombinerFunction(combiner)
        self._reducer: Any = None if reducer is None else _ReducerFunction(reducer)
        self._maps_partitions = False

    @classmethod
    def streaming(
        cls,
        mapper: str | Sequence[str],
        reducer: str | Sequence[str] | None = None,
        combiner: str | Sequence[str] | None = None,
        num_reducers: int | None = None,
        partitioner: Any = None,
        environment: Mapping[str, str] | None = None,
    ) -> HadoopJob:
        """Make a job of scripts, as of ``hadoop jar hadoop-streaming.jar -mapper ... -reducer ...``.

        Args:
            mapper: A command line, or its words; run once per partition that has records.
            reducer: As ``mapper``; run once per reducer, also without input.
            combiner: As ``mapper``.
            num_reducers: See the class.
            partitioner: See the class.
            environment: Environment variables beyond those there are.
        """
        job = cls.__new__(cls)
        job._set_up(num_reducers, partitioner, has_reducer=reducer is not None, has_combiner=combiner is not None)
        variables = dict(environment or {})
        job._mapper = _Script(mapper, variables, skips_empty=True)
        job._combiner = None if combiner is None else _Script(combiner, variables, skips_empty=True)
        job._reducer = None if reducer is None else _Script(reducer, variables, skips_empty=False)
        job._maps_partitions = True
        return job

    def _set_up(self, num_reducers: int | None, partitioner: Any, *, has_reducer: bool, has_combiner: bool) -> None:
        if num_reducers is not None:
            whole("num_reducers", num_reducers, 1, None)
        if not has_reducer and (has_combiner or num_reducers is not None or partitioner is not None):
            message = "combiner, partitioner and num_reducers are for a job with a reducer"
            raise ProgramError(message)
        self._num_reducers = num_reducers
        self._partitioner = partitioner

    def apply(self, data: DataSet) -> DataSet:
        """Return the output of the job as a data set of tuples (key, value).

        Args:
            data: Tuples of key and value; other records are values with the key None.
        """
        mapped = data.map_partition(self._mapper) if self._maps_partitions else data.flat_map(self._mapper)
        mapped.name("hadoop mapper")
        if self._reducer is None:
            return mapped
        if self._combiner is not None:
            if self._maps_partitions:
                mapped = mapped.sort_partition(0).map_partition(self._combiner).name("hadoop combiner")
            else:
                mapped = mapped.group_by(0).combine_group(self._combiner).name("hadoop combiner")
        moved = (
            mapped.partition_by_hash(0) if self._partitioner is None else mapped.partition_custom(self._partitioner, 0)
        )
        if self._num_reducers is not None:
            moved.set_parallelism(self._num_reducers)
        return moved.sort_partition(0).map_partition(self._reducer).name("hadoop reducer")


def _checked_pair(pair: Any, what: str) -> Pair:
    if not isinstance(pair, tuple) or len(pair) != 2:
        message = f"a {what} must give tuples of key and value; got {pair!r}"
        raise ProgramError(message)
    return pair


class _Wrapped(Function):
    """Opens and closes the user's object with it."""

    def __init__(self, wrapped: Function) -> None:
        self._wrapped = wrapped
        self.__qualname__ = type(wrapped).__qualname__

    def open(self, runtime_context: RuntimeContext) -> None:
        self._wrapped.open(runtime_context)

    def close(self) -> None:
        self._wrapped.close()


class _MapperFunction(_Wrapped, FlatMapFunction):
    _wrapped: Mapper

    def flat_map(self, value: Any) -> Iterable[Any]:
        key, content = value if isinstance(value, tuple) and len(value) == 2 else (None, value)
        return [_checked_pair(pair, "mapper") for pair in records_of(self._wrapped.map(key, content))]


class _CombinerFunction(_Wrapped, GroupCombineFunction):
    _wrapped: Reducer

    def combine(self, values: Iterator[Any]) -> Iterable[Any]:
        pairs = list(values)
        given = self._wrapped.reduce(pairs[0][0], iter([value for _key, value in pairs]))
        return [_checked_pair(pair, "combiner") for pair in records_of(given)]


class _ReducerFunction(_Wrapped, MapPartitionFunction):
    _wrapped: Reducer

    def map_partition(self, values: Iterator[Any]) -> Iterable[Any]:
        for key, pairs in groupby(values, key=itemgetter(0)):
            given = self._wrapped.reduce(key, (value for _key, value in pairs))
            for pair in records_of(given):
                yield _checked_pair(pair, "reducer")


# ------------------------------------------------------------------------------------------------------------ streaming

_SHOWN_BYTES = 4_000
_COUNTER = "reporter:counter:"


class _Script(MapPartitionFunction):
    """Runs a script over a partition: its input is put into a file first, so neither side can wait for the other."""

    def __init__(self, command: str | Sequence[str], variables: dict[str, str], *, skips_empty: bool) -> None:
        self._words = shlex.split(command) if isinstance(command, str) else list(command)
        if not self._words:
            message = "a script needs a command"
            raise ProgramError(message)
        self._variables = variables
        self._skips_empty = skips_empty
        self.__qualname__ = shlex.join(self._words)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._runtime_context = runtime_context

    def map_partition(self, values: Iterator[Any]) -> Iterable[Any]:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
            is_empty = True
            for record in values:
                is_empty = False
                given.write(_line_of(record))
            if is_empty and self._skips_empty:
                return
            given.seek(0)
            yield from self._run(given, errors)

    def _run(self, given: IO[bytes], errors: IO[bytes]) -> Iterator[Pair]:
        variables = {**os.environ, **self._variables}
        try:
            process = subprocess.Popen(self._words, stdin=given, stdout=subprocess.PIPE, stderr=errors, env=variables)
        except OSError as error:
            message = f"script {self.__qualname__!r} cannot be started: {error}"
            raise UserFunctionError(message) from error
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield _pair_of(line.removesuffix(b"\n").decode())
            status = process.wait()
        finally:
            process.stdout.close()
            if process.poll() is None:
                process.kill()
                process.wait()
        shown = self._take_errors(errors)
        if status != 0:
            message = f"script {self.__qualname__!r} ended with status {status}"
            raise UserFunctionError(message, traceback=shown)

    def _take_errors(self, errors: IO[bytes]) -> str:
        """Count what the script has counted; give the end of everything else it wrote."""
        errors.seek(0)
        rest = []
        for line in errors.read().decode(errors="replace").splitlines():
            parts = line.removeprefix(_COUNTER).split(",") if line.startswith(_COUNTER) else []
            text = parts[2].strip() if len(parts) == 3 else ""
            amount = number_in(text.removeprefix("-"))
            if amount is None:
                rest.append(line)
                continue
            counter: LongCounter = self._runtime_context.get_long_counter(f"{parts[0]}.{parts[1]}")
            counter.add(-amount if text.startswith("-") else amount)
        return "\n".join(rest)[-_SHOWN_BYTES:]


def _line_of(record: Any) -> bytes:
    if isinstance(record, tuple) and len(record) == 2:
        key, value = record
        return (
            f"{'' if key is None else key}\n" if value is None else f"{'' if key is None else key}\t{value}\n"
        ).encode()
    return f"{record}\n".encode()


def _pair_of(line: str) -> Pair:
    """Key and value of a line; a line without a TAB is a key, its value None."""
    key, tab, value = line.partition("\t")
    return (key, value) if tab else (key, None)
