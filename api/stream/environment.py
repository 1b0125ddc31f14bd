"""The environment: where a program is written down, configured, and sent to a cluster.

An environment records transformations and settings; nothing runs before ``execute``. Only then is an actor system
started or connected to, so building, explaining and testing a program needs no Ray. One environment has at most one
cluster, kept for all its jobs until ``close`` or the end of the process.

What a program does not say itself may be said from outside, so that one program runs unchanged as a script, in a
notebook and through ``ray job submit``: ``HEADRACE_ACTOR_SYSTEM``, ``HEADRACE_ADDRESS``, ``HEADRACE_PARALLELISM``,
``HEADRACE_RESTORE_FROM``, ``HEADRACE_RESTORE_MODE``, ``HEADRACE_ALLOW_NON_RESTORED_STATE``,
``HEADRACE_SAVEPOINT_DIRECTORY``, ``HEADRACE_SLOT_REQUEST_TIMEOUT``, ``HEADRACE_NODE_LAUNCH_TIMEOUT``,
``HEADRACE_TARGET``, ``HEADRACE_CLUSTER_ID``, ``HEADRACE_DETACHED``, ``HEADRACE_APPLICATION``,
``HEADRACE_AUTOSCALER``, ``HEADRACE_DRY_RUN``, ``HEADRACE_PROGRESS``. What it does say wins.

Source: PyFlink's ``StreamExecutionEnvironment``, ``CheckpointConfig`` and ``RestartStrategies``.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from collections.abc import Iterator
from dataclasses import fields, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.engine.checkpoint.restore_check import RestoreReport
from headrace.engine.errors import ConfigurationError, ExternalError, HeadraceError, JobError, ProgramError, UserError
from headrace.engine.functions.operator import COLLECT, PRINT
from headrace.engine.graph.chaining import build_job_graph, num_slots
from headrace.engine.graph.explain import delivery_lines, explain_text, plan_json
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.graph.stream_graph import StreamGraph, build_stream_graph
from headrace.engine.graph.transformations import OperatorTransformation, Transformation
from headrace.engine.kernel.config import (
    ClusterSettings,
    HighAvailabilitySettings,
    JobSettings,
    RestoreMode,
)
from headrace.state.identifiers import JobId
from headrace.state.reading.program_pickles import dump_program

from ..arguments.absent_names import absence_of
from ..arguments.compiled_loops import loops_of_job
from ..arguments.places import absolute_place, check_shared_places
from ..jobs.application_run import ApplicationRun
from ..jobs.attendance import Attendance, is_at_terminal
from ..jobs.cell_jobs import note_job_of_cell
from ..jobs.client import JobClient, ReportListener, print_report
from ..jobs.deployment import (
    Deployment,
    DetachedJobExecutionResult,
    high_availability_from_environment,
    is_link_wanted,
    rest_client_of,
    rest_from_environment,
    waiting_times_from_environment,
)
from ..jobs.execution_result import JobExecutionResult
from ..jobs.operation_progress import look_at
from ..jobs.progress import (
    JobStart,
    Progress,
    ProgressListener,
    TerminalProgress,
    default_progress,
    tell_of_loops,
    write_line,
)
from ..jobs.restoring import DryRunOver, Restore, adopted_from, restore_mode_of, restore_report
from ..jobs.shown_program import ProgramShown, is_only_shown
from ..rest.job_link import JobLink, link_line
from .batch_mode import batch_checkpoints, is_batch
from .collected_rows import CollectedRows
from .environment_settings import checked_job_options, warn_of_exclusions
from .sources import EnvironmentSources

if TYPE_CHECKING:
    from headrace.actors.cluster import Cluster

    from ..rest.client import RestClient
    from .cached_stream import CachedDataStream, StreamCaches
    from .data_stream import DataStream

__all__ = ["StreamExecutionEnvironment"]

_Record = TypeVar("_Record")

_ACTOR_SYSTEMS = ("ray", "local", "sim")
_OWN_OPTIONS = ("cluster_name", "detached", "parallelism", "seed")
_DEFAULT_JOB_NAME = "headrace job"


class StreamExecutionEnvironment(EnvironmentSources):
    """The context in which a streaming program is written and run. Made by `get_execution_environment`."""

    def __init__(
        self,
        actor_system: str,
        address: str | None,
        cluster_settings: ClusterSettings,
        *,
        seed: int = 0,
        detached: bool = False,
        cluster_name: str | None = None,
    ) -> None:
        super().__init__(cluster_settings, cluster_name)
        self._actor_system = actor_system
        self._address = address
        self._seed = seed
        self._detached = detached
        self._deployment = Deployment()
        # Of a program in application mode whose jobs survive it; None of others.
        self._application_run: ApplicationRun | None = None
        # Operators and sinks of the program so far; what feeds them hangs on them. Emptied by every submission.
        self._transformations: list[OperatorTransformation] = []
        self._next_id = 0
        # Made by the first submission, gone after `close`.
        self._cluster: Cluster | None = None
        # Those who say where the dashboard shows the jobs.
        self._links: list[JobLink] = []
        # Streams whose records are kept from job to job; made with the first.
        self._caches: StreamCaches | None = None
        # Iterators that wait for rows of the program being written, by the uid of their sink's transformation.
        self._collecting: dict[int, CollectedRows] = {}
        # Those of jobs that were submitted: they are told when the environment is closed.
        self._followed: weakref.WeakSet[CollectedRows] = weakref.WeakSet()

    if not TYPE_CHECKING:  # who checks types says himself that there is no such method

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(absence_of("StreamExecutionEnvironment", name), name=name, obj=self)

    # ------------------------------------------------------------------------------------------------------- making one

    @staticmethod
    def get_execution_environment(
        actor_system: str | None = None, address: str | None = None, **options: Any
    ) -> StreamExecutionEnvironment:
        """Make an environment.

        Args:
            actor_system: ``ray`` (default), ``local`` (one process, for debugging) or ``sim`` (one thread, seeded,
                virtual time).
            address: Of a running Ray cluster; None takes the one this process runs in, else starts one on this machine.
            **options: ``parallelism``; ``seed`` (for sim); ``detached`` (leave the cluster and its jobs running at the
                end of this process) and ``cluster_name`` (by which a detached cluster is found again); any field of
                `ClusterSettings` (``slots_per_task_manager``, ``max_slots`` ...); any field of `JobSettings` without a
                setter here (``slot_request_timeout_ms``, ``max_batch_rows`` ...).

        Raises:
            ConfigurationError: If an option does not exist or has an illegal value.
        """
        actor_system = actor_system or os.environ.get("HEADRACE_ACTOR_SYSTEM") or "ray"
        if actor_system not in _ACTOR_SYSTEMS:
            message = f"actor_system must be one of {', '.join(_ACTOR_SYSTEMS)}; got {actor_system!r}"
            raise ConfigurationError(message)
        cluster_options = {f.name: options.pop(f.name) for f in fields(ClusterSettings) if f.name in options}
        deployment = Deployment.from_environment(actor_system)
        environment = StreamExecutionEnvironment(
            actor_system,
            address or os.environ.get("HEADRACE_ADDRESS") or None,
            ClusterSettings(**cluster_options),
            seed=int(options.pop("seed", 0)),
            detached=bool(options.pop("detached", deployment.is_detached)),
            cluster_name=options.pop("cluster_name", deployment.cluster_name),
        )
        environment._deployment = deployment
        if environment._cluster_settings.rest is None:
            rest = rest_from_environment(actor_system)
            environment._cluster_settings = replace(environment._cluster_settings, rest=rest)
        outside = HighAvailabilitySettings.from_configuration(high_availability_from_environment())
        if outside is not None and environment._cluster_settings.high_availability is None:
            environment._cluster_settings = replace(environment._cluster_settings, high_availability=outside)
            environment._cluster_name = outside.cluster_id
        if "parallelism" in options:
            environment.set_parallelism(options.pop("parallelism"))
        environment._job_options.update(waiting_times_from_environment())
        environment._job_options.update(checked_job_options(options, _OWN_OPTIONS))
        JobSettings(**environment._job_options)  # refuses what is out of range here, where it is written
        return environment

    # -------------------------------------------------------------------------------------------- recording the program

    def _as_environment(self) -> StreamExecutionEnvironment:
        return self

    def new_id(self) -> int:
        """Return an id for the next transformation; called by the stream classes."""
        self._next_id += 1
        return self._next_id

    def add_operator(self, transformation: OperatorTransformation) -> None:
        """Make an operator part of the program; called by the stream classes. Sources are found from what they feed."""
        self._transformations.append(transformation)

    def cached(self, stream: DataStream[_Record]) -> CachedDataStream[_Record]:
        """Keep a stream's records for the next jobs; called by ``cache``."""
        from .cached_stream import StreamCaches, cached

        if self._caches is None:
            self._caches = StreamCaches(self)
        return cached(stream, self._caches)

    def added_behind(self, number: int) -> list[OperatorTransformation]:
        """Return the operators that were added behind a number, as `new_id` gave it."""
        return [one for one in self._transformations if one.transformation_id > number]

    def add_collector(self, transformation: Transformation, rows: CollectedRows) -> None:
        """Have what a collect sink reports go to ``rows``; called by ``execute_and_collect``."""
        self._collecting[transformation.transformation_id] = rows

    @contextlib.contextmanager
    def for_one_job(self) -> Iterator[None]:
        """Inside, a job is written and submitted; afterwards settings are as before, and so is a program that failed.

        Operators that were added before an error would else be part of the next job.
        """
        before = list(self._transformations)
        with self.changed_apart():
            try:
                yield
            except BaseException:
                self._transformations = before
                raise

    # --------------------------------------------------------------------------------------------------------- the plan

    def get_stream_graph(self) -> StreamGraph:
        """Return the program as operators and edges.

        Raises:
            ProgramError: If it has no operator or would mean nothing.
            ConfigurationError: If a parallelism is out of range.
        """
        return self._stream_graph(self._restore_from)

    def _stream_graph(self, restore_from: str | None) -> StreamGraph:
        """The program as it would start from a snapshot, whose numbers of key groups it takes where it names none."""
        return build_stream_graph(
            self._transformations,
            chaining_enabled=self._chaining_enabled,
            max_parallelism=self._max_parallelism,
            adopted=None if restore_from is None else adopted_from(restore_from),
        )

    def get_job_graph(self, job_name: str = _DEFAULT_JOB_NAME) -> JobGraph:
        """Return the program as it would be submitted."""
        return self._job_graph(job_name, self._restore_from)

    def _job_graph(self, job_name: str, restore_from: str | None) -> JobGraph:
        graph = self._stream_graph(restore_from)
        return build_job_graph(graph, job_name, self._job_settings(graph, make_directory=False))

    def get_execution_plan(self) -> str:
        """Return the program's operators as JSON, in the form of Flink's plan visualizer."""
        return plan_json(self.get_stream_graph())

    def explain(self, job_name: str = _DEFAULT_JOB_NAME) -> str:
        """Return the program as text: tasks with their chains, exchanges, slots and which operators work on columns."""
        return explain_text(self.get_job_graph(job_name))

    def _job_settings(self, graph: StreamGraph, *, make_directory: bool) -> JobSettings:
        options: dict[str, Any] = dict(self._job_options)
        if is_batch(graph, self._runtime_mode):
            checkpoints = batch_checkpoints(graph, self._checkpoints, is_submitted=make_directory)
            options.update(is_batch=True)
        else:
            checkpoints = self._checkpoints.to_settings(make_directory=make_directory)
        autoscaler = self.get_autoscaler()
        if autoscaler is not None and (checkpoints is None or options.get("is_batch")):
            what = "takes none" if checkpoints is None else "is a batch"
            message = f"a job that is rescaled by itself goes on from checkpoints; it {what}"
            raise ConfigurationError(message, hint="enable checkpointing, or set job.autoscaler.enabled to false")
        return JobSettings(
            checkpoints=checkpoints,
            restart=self._restart,
            restore_from=self._restore_from,
            restore_mode=restore_mode_of(os.environ.get("HEADRACE_RESTORE_MODE") or RestoreMode.NO_CLAIM),
            allow_non_restored_state=self._allows_non_restored_state
            or os.environ.get("HEADRACE_ALLOW_NON_RESTORED_STATE") == "1",
            savepoint_directory=self.get_default_savepoint_directory(),
            # What one function does to the records of another is found where programs are tried out.
            watches_records=self._actor_system == "local",
            checkpoint_key_file=self._checkpoints.get_key_file(),
            autoscaler=autoscaler,
            **options,
        )

    # ---------------------------------------------------------------------------------------------------------- running

    def execute(
        self,
        job_name: str = _DEFAULT_JOB_NAME,
        *,
        from_checkpoint: str | os.PathLike[str] | None = None,
        from_savepoint: str | os.PathLike[str] | None = None,
        allow_non_restored_state: bool | None = None,
        restore_mode: RestoreMode | str | None = None,
        on_progress: ProgressListener | None = None,
    ) -> JobExecutionResult:
        """Run the program and wait for its end; under ``headrace run --detached`` submit it and go on at once.

        Args:
            job_name: For people.
            from_checkpoint: Directory of a checkpoint to start from, for this job only.
            from_savepoint: A savepoint to start from, for this job only; the same with another name.
            allow_non_restored_state: Start although the snapshot holds state of operators that the program does not
                have: that is lost. State is matched by ``uid``; operators that it holds nothing of start empty.
            restore_mode: ``no_claim`` (default): the snapshot stays the user's. ``claim``: it becomes the job's, which
                deletes it once ``max_retained_checkpoints`` of its own are complete, or when it has finished. Claim
                only what no other job needs.
            on_progress: Told each new `JobView`; None takes the environment's.

        Raises:
            JobFailedError: If the job failed.
            JobCanceledError: If somebody canceled it.
            ClusterUnavailableError: If there is no cluster at the address, or it went away.
            NoResourceAvailableError: If the cluster has too few slots.
            KeyboardInterrupt: After the job was canceled and the cluster closed.
        """
        client: JobClient | None = None
        restore = Restore.of(from_checkpoint, from_savepoint, allow_non_restored_state, restore_mode)
        if self._deployment.is_detached:
            return self._execute_detached(job_name, restore)
        try:
            client = self._submit(job_name, restore, on_progress, attached=True)
            return client.result()
        except (UserError, ExternalError, JobError):
            raise  # the job was refused, or has ended, or is out of reach
        except BaseException as error:
            # Ctrl-C, or a listener that failed: no one waits for the job any more.
            try:
                if client is not None and not (self._application_run is not None and self._application_run.is_cut_off):
                    with contextlib.suppress(HeadraceError):  # then its JobManager notices that its client has gone
                        client.cancel()
            finally:
                if not isinstance(error, Exception):
                    self.close()
            raise

    def _execute_detached(self, job_name: str, restore: Restore) -> JobExecutionResult:
        client = self._submit(job_name, restore, None, attached=False)
        assert self._cluster is not None
        job_id = client.get_job_id()
        print(f"submitted {job_id} ({job_name}) to cluster {self._cluster.name}", flush=True)  # noqa: T201
        if is_link_wanted():
            print(link_line(self._cluster, job_id), file=sys.stderr)  # noqa: T201
        if self._deployment.starts_only:
            self.close()  # the next job has another cluster
        return DetachedJobExecutionResult(job_id, job_name)

    def execute_async(
        self,
        job_name: str = _DEFAULT_JOB_NAME,
        *,
        from_checkpoint: str | os.PathLike[str] | None = None,
        from_savepoint: str | os.PathLike[str] | None = None,
        allow_non_restored_state: bool | None = None,
        restore_mode: RestoreMode | str | None = None,
        on_progress: ProgressListener | None = None,
    ) -> JobClient:
        """Run the program without waiting; see `execute`.

        The job ends with this process unless the environment was made with ``detached=True``.
        """
        restore = Restore.of(from_checkpoint, from_savepoint, allow_non_restored_state, restore_mode)
        client = self._submit(job_name, restore, on_progress, attached=False)
        self._connect().run_in_background()
        return client

    def _submit(
        self,
        job_name: str,
        restore: Restore,
        on_progress: ProgressListener | None,
        *,
        attached: bool,
    ) -> JobClient:
        if is_only_shown():
            raise ProgramShown(self.explain(job_name), self.get_execution_plan())
        with self._checkpoints.submitting():
            return self._submit_all(job_name, restore, on_progress, attached=attached)

    def _submit_all(
        self, job_name: str, restore: Restore, on_progress: ProgressListener | None, *, attached: bool
    ) -> JobClient:
        restore_from = restore.path or self._restore_from
        roots = self._transformations
        to_keep = [] if self._caches is None else self._caches.arrange(roots, is_restored=restore_from is not None)
        self._transformations = [*roots, *(one for kept in to_keep for one in kept.begin_to_write())]
        graph = self._stream_graph(restore_from)
        attached = attached and not self._is_run_again()  # else its jobs end before it is
        settings = restore.applied_to(replace(self._job_settings(graph, make_directory=True), attached=attached))
        job_graph = build_job_graph(graph, job_name, settings)
        warn_of_exclusions(job_graph, settings)
        collecting = {
            graph.nodes[node_id].uid: rows for node_id, rows in self._collecting.items() if node_id in graph.nodes
        }
        # The program has been taken over, even if it is refused now: the next one must not hold it again.
        self._transformations.clear()
        self._collecting.clear()
        _check_picklable(job_graph)
        if os.environ.get("HEADRACE_DRY_RUN") == "1" and settings.restore_from is not None:
            path, is_allowed = settings.restore_from, settings.allow_non_restored_state
            raise DryRunOver(restore_report(job_graph, path, is_allowed, open_functions=True))
        cluster = self._connect()
        if cluster.may_span_machines():
            is_directory_named = self._checkpoints.is_storage_dir_named()
            check_shared_places(job_graph, is_directory_named=is_directory_named, keeps_streams=bool(to_keep))
        run, hands_rows = self._application_run, bool(collecting or to_keep)
        job_id = None if run is None else run.next_job(job_name, cluster, hands_rows=hands_rows)
        job_id = cluster.submit(job_graph, num_slots(job_graph), job_id=job_id)
        delivery = tuple(delivery_lines(job_graph))
        listeners: dict[str, ReportListener] = {PRINT: print_report}
        if collecting:
            listeners[COLLECT] = lambda operator, subtask, value: collecting[operator].listen(operator, subtask, value)
        progress = on_progress or self._on_progress or default_progress()
        attendance = self._attendance_of(job_id, settings, progress)
        if isinstance(progress, Progress):
            takes, is_kept = settings.checkpoints, None
            offered = None if attendance is None else attendance.offered
            is_on_ray = self._actor_system == "ray"
            if attached and takes is not None and not takes.only_last and (is_on_ray or offered is not None):
                is_kept = takes.retain_on_cancellation
            is_reached = self._cluster_settings.rest is not None or (is_on_ray and not cluster.is_on_private_ray())
            progress.begins(JobStart(job_id, job_name, delivery, is_kept, is_reached, offered))
        if self._actor_system != "ray" or cluster.is_on_private_ray():
            tell_of_loops(loops_of_job(job_graph), progress)
        may_serve = self._actor_system == "ray" or self._cluster_settings.rest is not None
        if progress is not None and may_serve and is_link_wanted() and not self._deployment.is_detached:
            self._links.append(
                JobLink(cluster, job_id, progress.note if isinstance(progress, Progress) else write_line)
            )
        client = JobClient(
            cluster,
            job_id,
            job_name,
            on_progress=progress,
            delivery=delivery,
            on_report=listeners,
            attendance=attendance,
        )
        note_job_of_cell(client, job_name)
        for rows in collecting.values():
            rows.follow(client)
            self._followed.add(rows)
        for kept in to_keep:
            kept.writer = client
        return client

    def _attendance_of(self, job_id: JobId, settings: JobSettings, progress: Any) -> Attendance | None:
        """Who asks at a terminal what Ctrl-C is to do to a job; None where it cannot be asked, or has no choice."""
        takes = settings.checkpoints
        if not isinstance(progress, TerminalProgress) or takes is None or takes.only_last or not is_at_terminal():
            return None
        assert self._cluster is not None
        look = look_at(self._cluster, job_id)
        return Attendance(progress, look, with_savepoint=settings.savepoint_directory is not None)

    def check_restore(
        self,
        path: str | os.PathLike[str],
        *,
        allow_non_restored_state: bool = False,
        open_functions: bool = True,
    ) -> RestoreReport:
        """Say what would come of starting the program from a snapshot; starts nothing and keeps the program.

        State is matched by ``uid``, then by its name and descriptor. The snapshot's manifest is read, no state.

        Args:
            path: Of a savepoint or checkpoint.
            allow_non_restored_state: Whether state that has no place in the program may be lost.
            open_functions: Whether user functions may be opened and closed in this process, once each, on empty state:
                it is in ``open`` that they declare what they keep. Without it their states are not compared.

        Returns:
            The report; printed, it is a table.

        Raises:
            CheckpointNotFoundError, CheckpointCorruptError, CheckpointMismatchError: If there is no sound snapshot.
            ProgramError: If there is no program.
        """
        job_graph = self._job_graph(_DEFAULT_JOB_NAME, absolute_place(path))
        return restore_report(job_graph, path, allow_non_restored_state, open_functions=open_functions)

    def _own_application_run(self) -> ApplicationRun | None:
        """What a program finds its jobs by if it dies and is run again; None if it does not survive so."""
        ha = self._cluster_settings.high_availability
        return ApplicationRun.on(ha) if ha is not None and self._is_run_again() else None

    def _is_run_again(self) -> bool:
        """Whether a program that dies goes on with its jobs when it is run again."""
        ha = self._cluster_settings.high_availability
        return self._deployment.is_application and not self._detached and ha is not None

    def _connect(self) -> Cluster:
        if self._cluster is None:
            from headrace.actors.connecting import connect

            deployment, settings = self._deployment, self._cluster_settings
            if deployment.starts_only and self._detached:
                settings = replace(settings, ends_with_jobs=True)
            run = self._application_run = self._own_application_run()
            with contextlib.nullcontext(False) if run is None else run.connecting() as is_first:
                self._cluster = connect(
                    self._actor_system,
                    address=self._address,
                    detached=self._detached,
                    name=self._cluster_name,
                    settings=settings,
                    seed=self._seed,
                    joins_only=deployment.joins_only,
                    starts_only=deployment.starts_only or is_first,
                )
            self._is_connected = True
            atexit.register(self.close)
        return self._cluster

    def get_rest_client(self, *, read_only: bool = False) -> RestClient:
        """Return a client of the REST server of this environment's cluster.

        Args:
            read_only: Whether it may look only.

        Raises:
            ConfigurationError: If the cluster serves none: see option ``rest``.
        """
        if self._cluster_settings.rest is None:
            message = "the cluster serves no REST"
            raise ConfigurationError(message, hint="make the environment with rest=RestSettings()")
        return rest_client_of(self._connect(), self._cluster_settings.rest, read_only=read_only)

    def close(self) -> None:
        """Let go of the cluster; may be repeated.

        What this environment started is stopped, and what it has cached is deleted, unless it was made with
        ``detached=True``.
        """
        if self._caches is not None and not self._detached:
            self._caches.close()
        for rows in self._followed:
            rows.environment_closes()
        for link in self._links:
            link.close()
        self._links.clear()
        cluster, self._cluster = self._cluster, None
        self._is_connected = False
        if cluster is not None:
            atexit.unregister(self.close)
            run = self._application_run
            cluster.close(ends_jobs=run is None or run.close_cluster(is_owner=cluster.is_owner))
        for rows in self._followed:
            rows.environment_closed()
        self._followed.clear()

    def __enter__(self) -> StreamExecutionEnvironment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _repr_html_(self) -> str | None:
        """The drawing of the program in a notebook; None if nothing has been written down."""
        from ..jobs.plan_picture import html_of_plan

        return html_of_plan(self.get_execution_plan()) if self._transformations else None

    def __repr__(self) -> str:
        return f"StreamExecutionEnvironment({self._actor_system!r}, parallelism={self.get_parallelism()})"


def _check_picklable(job_graph: JobGraph) -> None:
    """See that every operator can be sent to another process, before anything is started.

    Raises:
        ProgramError: Naming the operator that cannot.
    """
    for vertex in job_graph.vertices.values():
        for link in vertex.chain:
            try:
                dump_program(link.operator)
            except Exception as error:
                message = f"an operator cannot be pickled: {error}"
                hint = (
                    "Make what cannot be sent to another process (locks, connections, files) in the function's open()."
                )
                raise ProgramError(message, hint=hint, operator=link.name) from error
