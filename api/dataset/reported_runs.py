"""What a cluster is told of data sets that this program runs, so that they are seen, and canceled, with its other jobs.

The program runs them, the cluster shows them: a thread tells the Dispatcher how a run stands, every second, and hears
whether somebody wants it to end. Telling must not disturb: if the cluster does not answer, the run goes on, and that is
said once. A run that is over waits until its end is heard, and that only where the cluster has answered so far; whether
it is stored is asked beside the program, which waits for that once, when it ends.

*Which cluster.* On Spark the one that is on the same Ray, if there is one and no other. For either executor the one
that is named, by ``cluster_name`` or ``headrace run --target session``. Without any, ``rest=`` serves REST out of this
very process, as for streams that run in it. Where nobody is to be told nothing is done: on Spark that is known once
this process is connected to Ray, so a first run may begin to be watched in vain. Nobody is told by a process that
was forked off: connections do not outlive that. And only the program's own threads open a connection to Ray: it is the
whole process's, so one that came and went beside them would take the ground from under their feet.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.engine.errors import ClusterUnavailableError, ConfigurationError, HeadraceError
from headrace.engine.protocol.details import JobDetails
from headrace.engine.protocol.messages import JobReported, ReportJob
from headrace.state.credentials import masked
from headrace.state.identifiers import JobId

from ..jobs.deployment import Deployment, rest_client_of, rest_lines
from .run_record import MOST_CHARACTERS, RunRecord, sent

if TYPE_CHECKING:
    from headrace.actors.cluster import Cluster
    from headrace.engine.kernel.rest_settings import RestSettings

    from ..rest.client import RestClient

__all__ = ["RunReports", "ToldRun"]

INTERVAL_S = 1.0

ANSWER_TIMEOUT_MS = 5_000

HEARD_S = 2.0
"""How long a run that is over waits for an answer of a cluster that has answered so far."""

LAST_WORD_S = 10.0
"""How long it is tried to have the end of a run recorded, and how long a program that ends waits for that."""

MOST_LATE = 20
"""Runs that are over and whose ends are not recorded yet; while there are so many, further runs are not told of."""

LOOK_FOR_CLUSTER_S = 10.0
"""How often a cluster is looked for that is not there."""

_LOG = logging.getLogger("headrace.dataset")


class RunReports:
    """Tells of the runs of one environment. The cluster is looked for when one begins, and kept until `close`.

    Args:
        executor: ``spark``, ``local`` or another.
        address: Of the Ray cluster, None as for Spark.
        cluster_name: Of the cluster; None for what the command line says, else see the module.
        rest: How REST is served out of this process; None: it is not.
        says_where: Whether it is said on standard error where REST is served.
    """

    def __init__(
        self, executor: str, address: str | None, cluster_name: str | None, rest: RestSettings | None, says_where: bool
    ) -> None:
        outside = Deployment.from_environment("ray")
        self._is_on_ray = executor == "spark"
        self._address = address
        self._name = cluster_name or outside.cluster_name
        # Whether it is an error that the cluster is not there: it was asked for.
        self._must_be_there = cluster_name is not None or outside.joins_only
        self._says_runs = outside.is_detached
        self._rest = rest
        self._says_where = says_where
        self._cluster: Cluster | None = None
        self._former: list[Cluster] = []
        self._look_again_s = 0.0
        self._lock = threading.Lock()
        self._pid = os.getpid()
        # A cluster was there, so that it has gone since is no error.
        self._was_there = False
        # The cluster has not failed to answer since it was heard of last.
        self.is_answering = True
        # Runs that are over, and whose ends are not recorded yet.
        self._late: list[ToldRun] = []
        self._late_lock = threading.Lock()
        # They are waited for when this program ends.
        self._is_awaited = False
        # It was said that looking for a cluster failed, and that runs are not told of as too many are late.
        self._says_unfound = self._says_too_many = False

    @property
    def _is_named(self) -> bool:
        return self._must_be_there or self._name is not None or self._rest is not None

    def is_alone(self) -> bool:
        """Return whether there is nobody to tell, as it is certain: no cluster was named, and none is on the Ray of
        Spark.
        """
        if os.getpid() != self._pid:
            return True
        if self._cluster is not None or self._is_named:
            return False
        if not self._is_on_ray:
            return True
        from headrace.actors.connecting import is_connected_to_ray

        return is_connected_to_ray() and self.cluster() is None

    @contextlib.contextmanager
    def tell(self, record: RunRecord) -> Iterator[ToldRun | None]:
        """Tell of the run in the block, if there is anybody; gives None if there is nobody.

        Raises:
            ClusterUnavailableError: If a cluster was asked for that has never been there.
        """
        if self.is_alone() or self._are_too_many_late(record.name):
            yield None
            return
        self._connect_if_due()
        run = ToldRun(self, record)
        try:
            yield run
        except BaseException as error:
            run.end(error)
            raise
        run.end(None)

    def cluster(self) -> Cluster | None:
        """Return the cluster, if there is one by now; called in threads of runs, too, so it opens no connection."""
        if self._cluster is None and self._is_due():
            from headrace.actors.connecting import only_cluster_on_ray

            try:
                with self._lock:
                    if self._cluster is None and (self._rest is None or self._must_be_there):
                        self._found(only_cluster_on_ray(self._name))
            except Exception as error:  # Ray may say many things, and none of them is the run's
                self._not_found(error)
            self._look_later()
        return self._cluster

    def lost(self) -> None:
        """Have the cluster looked for again, as it may have been started anew."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            self._former.append(cluster)  # it may have opened the connection to Ray, which Spark uses, too
            self._look_again_s = time.monotonic() + INTERVAL_S

    def _is_due(self) -> bool:
        return time.monotonic() >= self._look_again_s

    def _look_later(self) -> None:
        if self._cluster is None and self._is_named:
            self._look_again_s = time.monotonic() + LOOK_FOR_CLUSTER_S

    def _found(self, cluster: Cluster | None) -> None:
        self._cluster = cluster
        if cluster is not None:
            self._was_there = self.is_answering = True
            self._says_unfound = False

    def _not_found(self, error: Exception) -> None:
        """Say once that looking failed, which is not the same as that there is none."""
        text = str(error) if isinstance(error, HeadraceError) else repr(error)
        level = logging.DEBUG if self._says_unfound else logging.WARNING
        _LOG.log(level, "data sets are not shown by a cluster, as looking for it failed: %s", masked(text))
        self._says_unfound = True

    def _connect_if_due(self) -> None:
        """Look for the cluster, and open a connection to Ray for that; for threads of the program."""
        must_be_there = (self._must_be_there or self._rest is not None) and not self._was_there
        if self._cluster is not None or not (must_be_there or self._is_due()):
            return
        try:
            self._connect()
        except Exception as error:
            if must_be_there:
                raise
            self._not_found(error)
        self._look_later()

    def _connect(self) -> None:
        with self._lock:
            if self._cluster is None:
                self._found(self._find_or_start())

    def _find_or_start(self) -> Cluster | None:
        from headrace.actors.connecting import connect, only_cluster_on_ray
        from headrace.engine.kernel.config import ClusterSettings

        if self._rest is not None and not self._must_be_there:
            cluster = connect("local", settings=ClusterSettings(rest=self._rest), name=self._name or "data-sets")
            cluster.run_in_background()
            if self._says_where:
                sys.stderr.write("".join(f"{line}\n" for line in rest_lines(cluster)))
            return cluster
        if self._must_be_there or (self._name is not None and not self._is_on_ray):
            return connect("ray", address=self._address or "auto", name=self._name, joins_only=True)
        return only_cluster_on_ray(self._name)

    def is_late(self, run: ToldRun) -> None:
        """Remember a run that is over, and whose end is not recorded yet."""
        with self._late_lock:
            self._late.append(run)
            if not self._is_awaited:
                atexit.register(self._wait_for_late)
            self._is_awaited = True

    def _are_too_many_late(self, job_name: str) -> bool:
        with self._late_lock:
            self._late = [run for run in self._late if not run.is_done]
            are_too_many = len(self._late) >= MOST_LATE
            is_news = are_too_many and not self._says_too_many
            self._says_too_many = are_too_many
        if is_news:
            message = (
                "the cluster is not told of data set %r, nor of others, until it has recorded the ends of %d before"
            )
            _LOG.warning(message, job_name, MOST_LATE)
        return are_too_many

    def _wait_for_late(self) -> None:
        with self._late_lock:
            late, self._late = self._late, []
        until_s = time.monotonic() + LAST_WORD_S
        for run in late:
            run.wait(until_s)

    def says(self, job_id: JobId, job_name: str) -> None:
        """Say, in a program that nobody waits for, which job is shown where."""
        if self._says_runs and self._cluster is not None:
            sys.stdout.write(f"runs {job_id} ({job_name}), which cluster {self._cluster.name} shows\n")
            sys.stdout.flush()

    def get_rest_client(self, *, read_only: bool) -> RestClient:
        """Return a client of the REST server in this process.

        Raises:
            ConfigurationError: If there is none.
        """
        if self._rest is None:
            message = "this program serves no REST"
            raise ConfigurationError(message, hint="make the environment with rest=RestSettings()")
        self._connect()
        assert self._cluster is not None
        return rest_client_of(self._cluster, self._rest, read_only=read_only)

    def close(self) -> None:
        """Let go of the cluster; what was served out of this process is served no more."""
        self._wait_for_late()
        with self._late_lock:
            atexit.unregister(self._wait_for_late)
            self._is_awaited = False
        self.lost()
        while self._former:
            self._former.pop().close()


class ToldRun:
    """One run that a cluster is told of.

    Args:
        reports: Where.
        record: What is known of it.
    """

    def __init__(self, reports: RunReports, record: RunRecord) -> None:
        self.record = record
        # For people; known once the plan was made.
        self.plan = ""
        self._reports = reports
        self._was_heard = self._has_complained = False
        # Taken by who says that its end is not recorded: its own thread, or who waited for that.
        self._unrecorded = threading.Lock()
        self._is_over = threading.Event()
        # Its end was answered, or nobody tells of it any more; it is recorded, or that is not tried any more.
        self._is_heard, self._is_done = threading.Event(), threading.Event()
        try:
            threading.Thread(target=self._follow, name="headrace-dataset-reports", daemon=True).start()
        except RuntimeError as error:  # there are too many, or this program ends: runs go on all the same
            _LOG.warning("the cluster is not told of data set %r: %s", record.name, error)
            self._is_heard.set()
            self._is_done.set()

    @property
    def is_done(self) -> bool:
        """Whether nobody tells of it any more."""
        return self._is_done.is_set()

    def wait(self, until_s: float) -> None:
        """Wait until nobody tells of it any more, or for that time of the monotonic clock."""
        if not self._is_done.wait(max(0.0, until_s - time.monotonic())):
            self._say_unrecorded()

    def _say_unrecorded(self) -> None:
        """Say once that its end is not recorded, unless that the cluster does not answer has been said."""
        if self._was_heard and not self._has_complained and self._unrecorded.acquire(blocking=False):
            self._has_complained = True
            _LOG.warning("the cluster has not recorded the end of data set %r in %g s", self.record.name, LAST_WORD_S)

    def end(self, error: BaseException | None) -> None:
        """Tell how it ended; returns when that was heard, or soon, if nobody answers."""
        self.record.end(error)
        self._is_over.set()
        if self._reports.is_answering and not self._is_heard.wait(HEARD_S):
            self._reports.is_answering = False
        if not self.is_done:
            self._reports.is_late(self)

    def _follow(self) -> None:
        try:
            while not self._is_over.is_set():
                self._report(self._details())
                if not self._was_heard and self._reports.is_alone():
                    return
                self._is_over.wait(INTERVAL_S)
            until_s = time.monotonic() + LAST_WORD_S
            last_word = self._details()
            while not (is_kept := self._report(last_word)) and self._was_heard and time.monotonic() < until_s:
                time.sleep(0.1)
            if not is_kept:
                self._say_unrecorded()
        finally:
            self._is_heard.set()
            self._is_done.set()

    def _report(self, details: JobDetails) -> bool:
        """Tell how it stands; whether its end is recorded."""
        try:
            cluster = self._reports.cluster()
            if cluster is None:
                return False
            answer: JobReported = cluster.ask_dispatcher(ReportJob(details, _program()), ANSWER_TIMEOUT_MS)
        except Exception as error:  # whatever it is, it is not the run's
            if not self._has_complained:
                text = str(error) if isinstance(error, HeadraceError) else repr(error)
                _LOG.warning("the cluster is not told of data set %r: %s", self.record.name, text)
            self._has_complained = True
            self._reports.is_answering = False
            if isinstance(error, ClusterUnavailableError):
                self._reports.lost()
            return False
        self._has_complained = False
        self._reports.is_answering = True
        if details.view.ended_ms is not None:
            self._is_heard.set()
        if answer.is_canceled and not self._is_over.is_set():
            self.record.cancel()
        if not self._was_heard:
            self._was_heard = True
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                self._reports.says(self.record.job_id, self.record.name)
        return answer.is_kept

    def _details(self) -> JobDetails:
        return JobDetails(self.record.view(), plan=sent(self.plan, MOST_CHARACTERS))


def _program() -> str:
    """This program, for people."""
    return f"process {os.getpid()} on {socket.gethostname()}"
