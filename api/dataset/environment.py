"""The environment of data sets: where a program is written down, and on what it runs.

Sources are read and results are computed by an *executor*: ``spark``, which is started inside the Ray cluster when a
job first needs it and kept until ``close``, or ``local``, which runs in this process and needs neither. One program
gives equal results on both. ``HEADRACE_EXECUTOR`` says which one programs use that do not say it themselves, else it is
Spark.

Source: Flink's ``ExecutionEnvironment``; PyFlink's names.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, ProgramError, SourceError, StorageError
from headrace.engine.functions.accumulators import AccumulatorPart, accumulated_value
from headrace.engine.plan.plan import (
    ExecutionResult,
    Executor,
    ForeignSource,
    Node,
)
from headrace.engine.plan.run_watch import RunWatch
from headrace.state.files.filesystem import filesystem_for

from ..arguments.checks import text, whole
from ..arguments.compiled_loops import loops_of_plan
from ..arguments.places import absolute_place
from ..jobs.deployment import rest_from_environment
from ..jobs.progress import tell_of_loops
from ..jobs.shown_program import ProgramShown, is_only_shown
from .dataset import DataSet
from .file_types import plain_schema
from .files.outputs import require_apart
from .record_types import declared_schema
from .reported_runs import RunReports
from .run_record import RunRecord, listener_of, now_ms, showing
from .sources import DataSetSources

if TYPE_CHECKING:
    from headrace.engine.kernel.rest_settings import RestSettings

    from ..jobs.progress import ProgressListener
    from ..rest.client import RestClient

__all__ = ["DataSetResult", "ExecutionEnvironment"]

_EXECUTORS = ("spark", "local")

_LOG = logging.getLogger("headrace.dataset")


@dataclass(frozen=True)
class DataSetResult:
    """How a job went.

    Attributes:
        job_name: Its name.
        net_runtime_ms: How long it ran, milliseconds.
        paths: Files written by each write, in the order of the program.
        statistics: What the executor tells of the run; of iterations their supersteps and sizes, by name, and of those
            that are to end by themselves whether they did (``is_converged``) or reached their limit.
        accumulators: For the methods below.
    """

    job_name: str
    net_runtime_ms: int
    paths: tuple[list[str], ...] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    accumulators: Mapping[str, tuple[AccumulatorPart, ...]] = field(default_factory=dict, repr=False)

    def get_net_runtime(self) -> int:
        """Return how long it ran, milliseconds."""
        return self.net_runtime_ms

    def get_accumulator_result(self, accumulator_name: str) -> Any:
        """Return the value of an accumulator over all subtasks; None if there is none of that name."""
        return accumulated_value(accumulator_name, self.accumulators.get(accumulator_name, ()))

    def get_all_accumulator_results(self) -> dict[str, Any]:
        """Return the values of all accumulators by name."""
        return {name: accumulated_value(name, parts) for name, parts in self.accumulators.items()}


class ExecutionEnvironment(DataSetSources):
    """Where programs of data sets begin. Made by ``get_execution_environment``; may be used as a context manager.

    Args:
        executor: ``spark``, ``local``, or an object that runs plans.
        parallelism: Partitions of whatever does not say; None for the executor's default.
        optimize: Whether plans are optimised; without, they run as they were written.
        options: For the Spark executor.
        cluster_name: Of the cluster that shows its runs.
        rest: How REST about its runs is served out of this process; None: it is not.
    """

    def __init__(
        self,
        executor: str | Executor,
        parallelism: int | None,
        *,
        optimize: bool = True,
        options: Mapping[str, Any],
        cluster_name: str | None = None,
        rest: RestSettings | None = None,
    ) -> None:
        if isinstance(executor, str) and executor not in _EXECUTORS:
            message = f"executor must be one of {', '.join(_EXECUTORS)}; got {executor!r}"
            raise ConfigurationError(message)
        if parallelism is not None:
            whole("parallelism", parallelism, 1, None)
        self._executor_name = executor if isinstance(executor, str) else type(executor).__name__
        # Made when a job first needs it.
        self._executor: Executor | None = None if isinstance(executor, str) else executor
        self._options = dict(options)
        self._parallelism = parallelism
        self._optimize = optimize
        self._next_id = 0
        # Writes that wait for execute, oldest first.
        self._sinks: list[Node] = []
        self._cached_files: dict[str, str] = {}
        self._last: DataSetResult | None = None
        # Who is told how runs go on; None leaves it to the surroundings.
        self._on_progress: ProgressListener | None = None
        outside = rest_from_environment("local") if rest is None else None
        address = self._options.get("address") or os.environ.get("HEADRACE_ADDRESS") or None
        self._reports = RunReports(
            self._executor_name, address, cluster_name, rest or outside, says_where=outside is not None
        )

    @staticmethod
    def get_execution_environment(
        executor: str | Executor | None = None,
        parallelism: int | None = None,
        *,
        optimize: bool = True,
        cluster_name: str | None = None,
        rest: RestSettings | None = None,
        **options: Any,
    ) -> ExecutionEnvironment:
        """Make an environment.

        Args:
            executor: ``spark`` (on the Ray cluster) or ``local`` (in this process); None for what
                ``HEADRACE_EXECUTOR`` says, else ``spark``, or ``local`` where Spark is not installed. An object with
                ``execute`` and ``close`` is used as it is.
            parallelism: How many partitions data sets have that do not say; None for what ``HEADRACE_PARALLELISM``
                says, else for the executor's default.
            optimize: Whether plans are optimised before they run; off for tests of the optimiser.
            cluster_name: Of a Headrace cluster on Ray that is to show its runs among its jobs; without it that is the
                one that ``headrace run --target session`` names, or, with Spark, the only one on the same Ray.
            rest: Serve REST, with the dashboard, out of this process about its runs; None for what
                ``headrace run --rest-port`` says.
            **options: For the local executor ``memory_bytes``: how much the records of a job may take before they are
                laid on disk; without it half of what is available. For the Spark executor the fields of
                ``SparkSettings`` (`headrace.actors.spark.session_size`); the ``address`` of the Ray cluster is that of
                ``HEADRACE_ADDRESS`` if none is given.

        Raises:
            ConfigurationError: If there is no such executor, or an option that it does not know.
        """
        chosen = executor if executor is not None else os.environ.get("HEADRACE_EXECUTOR") or _default_executor(options)
        if chosen == "local":
            for name, value in options.items():
                if name != "memory_bytes":
                    message = f"the local executor has no option {name!r}; it has memory_bytes"
                    raise ConfigurationError(message)
                whole(name, value, 1, None)
        if chosen == "spark" and "address" not in options and os.environ.get("HEADRACE_ADDRESS"):
            options["address"] = os.environ["HEADRACE_ADDRESS"]
        if parallelism is None:
            parallelism = _parallelism_from_outside()
        return ExecutionEnvironment(
            chosen, parallelism, optimize=optimize, options=options, cluster_name=cluster_name, rest=rest
        )

    # --------------------------------------------------------------------------------------------------------- settings

    def set_parallelism(self, parallelism: int | None) -> ExecutionEnvironment:
        """Set how many partitions data sets have that do not say; None for the executor's default."""
        if parallelism is not None:
            whole("parallelism", parallelism, 1, None)
        self._parallelism = parallelism
        return self

    def get_parallelism(self) -> int | None:
        """Return how many partitions data sets have that do not say; None for the executor's default."""
        return self._parallelism

    def register_cached_file(self, path: str | os.PathLike[str], name: str, executable: bool = False) -> None:
        """Bring a file to every machine; functions find it by ``runtime_context.get_distributed_cache()``.

        Args:
            path: A local path or a URI.
            name: What functions call it.
            executable: Whether it is made executable.

        Raises:
            SourceError: If there is no such file.
        """
        text("a cached file's name", name)
        if name in self._cached_files:
            message = f"there is a cached file {name!r} already"
            raise ProgramError(message)
        location = absolute_place(path)
        fs, inside = filesystem_for(location)
        try:
            if not fs.exists(inside):
                message = f"cached file {name!r} does not exist"
                raise SourceError(message, path=location)
        except StorageError as error:
            message = f"cached file {name!r} cannot be read: {error}"
            raise SourceError(message, path=location) from error
        if executable and "://" not in location and not os.access(location, os.X_OK):
            message = f"cached file {name!r} is not executable"
            raise SourceError(message, path=location, hint="chmod +x it")
        self._cached_files[name] = location

    # ----------------------------------------------------------------------------------------- records of Spark and Ray

    def from_spark(self, frame: Any) -> DataSet:
        """Read the records of a Spark data frame; with ``executor="local"`` they are fetched when the program runs."""
        if getattr(getattr(frame, "schema", None), "fields", None) is None:
            message = f"a Spark data frame is needed; got {type(frame).__name__}"
            raise ProgramError(message)
        from headrace.actors.spark.sources import schema_of_frame

        return self._source(ForeignSource, "spark data frame", schema_of_frame(frame), kind="spark", handle=frame)

    def from_ray(self, refs: Any, type_info: Any = None) -> DataSet:
        """Return the records of Arrow tables in Ray's object store.

        Args:
            refs: Object references of tables or record batches, or a ``ray.data`` Dataset of Arrow blocks.
            type_info: The records' type; None to look at the first table.
        """
        from headrace.actors.ray.foreign_data import references_of, schema_of_references

        found = references_of(refs)
        schema = declared_schema(type_info) if type_info is not None else plain_schema(schema_of_references(found))
        return self._source(ForeignSource, "ray objects", schema, kind="ray", handle=found)

    # -------------------------------------------------------------------------------------------------------- recording

    def new_id(self) -> int:
        """Return an id for the next node; called by the data set classes."""
        self._next_id += 1
        return self._next_id

    def _data_set(self, node: Node) -> DataSet:
        return DataSet(self, node)

    def add_sink(self, sink: Node) -> None:
        """Take a write that waits for ``execute``; called by the data set classes.

        Raises:
            ProgramError: If another one that waits writes into the same folder, or into one above or below it.
        """
        require_apart(sink, self._sinks)
        self._sinks.append(sink)

    @contextlib.contextmanager
    def all_sinks_or_none(self) -> Iterator[None]:
        """Inside, writes are said that belong together: if one is refused, none of them waits for `execute`."""
        before = list(self._sinks)
        try:
            yield
        except BaseException:
            self._sinks = before
            raise

    def set_progress_listener(self, listener: ProgressListener | None) -> ExecutionEnvironment:
        """Have how runs go on told to ``listener``, as views of a job with stages.

        None leaves it to the surroundings: under ``headrace run`` and in the log of a submitted program runs of more
        than half a second are shown, elsewhere none; see `StreamExecutionEnvironment.set_progress_listener`.
        """
        self._on_progress = listener
        return self

    @contextlib.contextmanager
    def telling(self, listener: ProgressListener | None) -> Iterator[None]:
        """Inside, runs are told to a listener."""
        before, self._on_progress = self._on_progress, listener
        try:
            yield
        finally:
            self._on_progress = before

    @property
    def has_sinks(self) -> bool:
        """Whether writes wait for `execute`."""
        return bool(self._sinks)

    def require_same(self, one: DataSet, other: Any) -> None:
        """Refuse a data set of another environment."""
        if not isinstance(other, DataSet):
            message = f"a data set is needed; got {other!r}"
            raise ProgramError(message)
        if other.get_execution_environment() is not self or one.get_execution_environment() is not self:
            message = "data sets of different environments cannot be combined"
            raise ProgramError(message)

    # -------------------------------------------------------------------------------------------------------- execution

    def get_execution_plan(self) -> str:
        """Return the plan of what ``execute`` would run, as JSON."""
        from headrace.engine.optimizer.plan_text import explain_json

        return explain_json(self._optimized(tuple(self._sinks)))

    def execute(self, job_name: str = "headrace dataset job") -> DataSetResult:
        """Run all writes that were said since the last time.

        Raises:
            ProgramError: If there is nothing to write.
        """
        if not self._sinks:
            message = "there is nothing to execute"
            raise ProgramError(message, hint="write a data set somewhere; collect, count and print run by themselves")
        sinks = tuple(self._sinks)
        self._sinks = []
        self.run(sinks, job_name)
        return self.get_last_job_execution_result()

    def get_last_job_execution_result(self) -> DataSetResult:
        """Return how the last job went, also one that was run by ``collect``.

        Raises:
            ProgramError: If none has run.
        """
        if self._last is None:
            message = "no job has run in this environment"
            raise ProgramError(message)
        return self._last

    def run(
        self, sinks: tuple[Node, ...], job_name: str = "headrace dataset job", *, watch: RunWatch | None = None
    ) -> ExecutionResult:
        """Run a plan from its sinks; called by the data set classes."""
        if is_only_shown():
            from headrace.engine.optimizer.plan_text import explain_json, explain_text

            optimized = self._optimized(sinks)
            shown = f"data set {job_name!r}\n{explain_text(optimized)}"
            raise ProgramShown(shown, explain_json(optimized))
        executor = self._get_executor()
        started = monotonic()
        record = RunRecord(job_name, watch or RunWatch(now_ms))
        listener, since_s = listener_of(self._on_progress)
        with contextlib.ExitStack() as around:
            cached = around.enter_context(self._fetched_files())
            told = around.enter_context(self._reports.tell(record))
            optimized = self._optimized(sinks)
            if told is not None:
                from headrace.engine.optimizer.plan_text import explain_text

                told.plan = explain_text(optimized)
            if self._executor_name == "local":
                tell_of_loops(loops_of_plan(optimized), listener)
            if listener is not None:
                around.enter_context(showing(record, listener, since_s))
            if told is not None or listener is not None:
                watch = record.watch
            result = executor.execute(optimized, parallelism=self._parallelism, cached_files=cached, watch=watch)
            record.accumulators = result.accumulators
        paths = tuple(value for value in (result.values[sink.id] for sink in sinks) if isinstance(value, list))
        runtime_ms = round((monotonic() - started) * 1_000)
        self._last = DataSetResult(job_name, runtime_ms, paths, result.statistics, result.accumulators)
        for name, iteration in result.statistics.get("iterations", {}).items():
            if iteration.get("is_converged") is False:
                supersteps = iteration["supersteps"]
                _LOG.warning(
                    "iteration %r was ended by its limit of %s supersteps before it was done", name, supersteps
                )
        return result

    def _optimized(self, sinks: tuple[Node, ...]) -> tuple[Node, ...]:
        from headrace.engine.optimizer.optimizer import optimize

        return optimize(sinks, self._parallelism) if self._optimize else sinks

    def _get_executor(self) -> Executor:
        if self._executor is None:
            if self._executor_name == "local":
                from headrace.engine.partitions.in_process import InProcessExecutor

                self._executor = InProcessExecutor(_resolved, self._room, monotonic)
            else:
                from headrace.actors.spark.executor import SparkExecutor

                self._executor = SparkExecutor(**self._options)
        return self._executor

    def _room(self) -> int | None:
        """How many bytes the records of a job of the local executor may take in memory; None for no limit."""
        given: int | None = self._options.get("memory_bytes")
        if given is not None:
            return given
        from headrace.actors.machine_resources import memory_of

        _total, available = memory_of(Path("/"))
        return available // 2 or None

    @contextlib.contextmanager
    def _fetched_files(self) -> Any:
        """Cached files as local paths: those that are somewhere else are copied for the time of the job."""
        if all("://" not in location for location in self._cached_files.values()):
            yield self._cached_files
            return
        with tempfile.TemporaryDirectory(prefix="headrace-cache-") as folder:
            local = {}
            for number, (name, location) in enumerate(self._cached_files.items()):
                if "://" in location:
                    fs, inside = filesystem_for(location)
                    path = os.path.join(folder, f"{number}-{os.path.basename(inside)}")
                    with open(path, "wb") as copy:
                        copy.write(fs.read_bytes(inside))
                    local[name] = path
                else:
                    local[name] = location
            yield local

    def close(self) -> None:
        """Let go of the executor; further jobs of this environment start another."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.close()
        self._reports.close()

    def get_rest_client(self, *, read_only: bool = False) -> RestClient:
        """Return a client of the REST server that tells of this environment's runs.

        Args:
            read_only: Whether it may look only.

        Raises:
            ConfigurationError: If there is none: see option ``rest``.
        """
        return self._reports.get_rest_client(read_only=read_only)

    def __enter__(self) -> ExecutionEnvironment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _default_executor(options: dict[str, Any]) -> str:
    """The executor of programs that name none: Spark, or this process where Spark is not installed, which is said.

    Options of Spark name Spark.
    """
    missing = [name for name in ("pyspark", "raydp") if importlib.util.find_spec(name) is None]
    if not missing or set(options) - {"memory_bytes"}:
        return "spark"
    packages = " and ".join(missing)
    sys.stderr.write(f"data sets run in this process: {packages} not installed (pip install 'headrace[spark]')\n")
    return "local"


def _parallelism_from_outside() -> int | None:
    outside = os.environ.get("HEADRACE_PARALLELISM")
    if not outside:
        return None
    if not outside.isdecimal() or int(outside) < 1:
        message = f"HEADRACE_PARALLELISM must be a whole number, 1 or more; got {outside!r}"
        raise ConfigurationError(message)
    return int(outside)


def _resolved(source: ForeignSource) -> pa.Table:
    """The records of a foreign source, for the local executor."""
    from headrace.actors.ray.foreign_data import fetch

    return fetch(source)
