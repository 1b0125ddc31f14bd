"""The rows that a job hands to its client, one by one."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from headrace.engine.errors import ClusterUnavailableError, InternalError, ProgramError
from headrace.state.identifiers import OperatorId
from headrace.state.open.values import Opaque
from headrace.state.reading.stored_pickles import unpickle_value
from headrace.state.type_variables import T1

from ..jobs.notebook_output import LiveOutput, html_rows
from ..jobs.progress import summary_line

if TYPE_CHECKING:
    from ..jobs.client import JobClient

__all__ = ["CollectedRows"]

_END = object()
"""Behind the last row."""


class CollectedRows(Iterator[T1], Generic[T1]):
    """The records of a stream, as the job gives them; ends when the job does.

    A thread of its own fetches them, however slowly they are taken: a JobManager keeps what is not fetched only for a
    while after its job's end. Closing it (or leaving its ``with`` block) before the end cancels the job.

    Raises:
        JobFailedError: While iterating, if the job fails, behind the records that came before.
        ProgramError: If the environment was closed before all had come.
    """

    def __init__(self) -> None:
        self._client: JobClient | None = None
        # What has arrived: lists of rows, at last `_END` or the error with which following the job ended.
        self._arrived: SimpleQueue[Any] = SimpleQueue()
        # Rows that have been taken from there and not yet given, oldest first.
        self._rows: deque[T1] = deque()
        # How it ended, once that has been seen here.
        self._end: Any = None
        # Whether the environment that the job ran in has begun to close: there is nobody to ask from then on.
        self._is_environment_closed = False
        # Ids of reports already taken in: after a failure the same rows may be reported again. Only used where reports
        # are handed on, one at a time.
        self._seen: set[str] = set()

    def listen(self, _operator: OperatorId, _subtask: int, value: Any) -> None:
        """Take one report of a collect sink: ``(id, rows)``."""
        report_id, rows = value
        if report_id not in self._seen:
            self._seen.add(report_id)
            # Pickled rows of a checkpoint stay closed until here: they are this client's own.
            self._arrived.put(unpickle_value(rows.data) if isinstance(rows, Opaque) else rows)

    def follow(self, client: JobClient) -> None:
        """Begin to fetch the rows of a job that has been submitted."""
        self._client = client
        threading.Thread(target=self._fetch, args=(client,), name="headrace-collect", daemon=True).start()

    def _fetch(self, client: JobClient) -> None:
        try:
            client.result()
        except ClusterUnavailableError as error:
            self._arrived.put(_left_behind() if self._is_environment_closed else error)
        except BaseException as error:
            self._arrived.put(error)
        else:
            self._arrived.put(_END)

    def stop_with_savepoint(self, directory: str | os.PathLike[str] | None = None, *, drain: bool = False) -> str:
        """End the job with a savepoint, see `JobClient.stop_with_savepoint`; the records up to it can still be taken.

        Raises:
            InternalError: If the job has not been submitted.
        """
        return self.client.stop_with_savepoint(directory, drain=drain)

    def stop(self, *, drain: bool = False) -> str | None:
        """End the job in order, see `JobClient.stop`; the records that come up to its end can still be taken."""
        if self._client is None:
            return None
        return self._client.stop(drain=drain)

    @property
    def client(self) -> JobClient:
        """The job.

        Raises:
            InternalError: If it has not been submitted.
        """
        if self._client is None:
            message = "the rows of a job that was never submitted"
            raise InternalError(message)
        return self._client

    def __next__(self) -> T1:
        while not self._rows:
            if self._end is _END:
                raise StopIteration
            if self._end is not None:
                raise self._end
            arrived = self._arrived.get()
            if isinstance(arrived, list):
                self._rows.extend(arrived)
            else:
                self._end = arrived
        return self._rows.popleft()

    def arrived(self) -> list[T1]:
        """Return what the job has given and was not taken yet; how it ends is told elsewhere."""
        self._take_arrived()
        if self._end is None and self._client is not None:
            self._client.view()  # brings what has been reported until now
            self._take_arrived()
        rows = list(self._rows)
        self._rows.clear()
        return rows

    def _take_arrived(self) -> None:
        while self._end is None and not self._arrived.empty():
            arrived = self._arrived.get()
            if isinstance(arrived, list):
                self._rows.extend(arrived)
            else:
                self._end = arrived

    def live(self, limit: int) -> LiveOutput:
        """Show the newest ``limit`` records below a cell of a notebook as they come, until the job has ended."""
        newest: deque[Any] = deque(maxlen=limit)
        come = 0

        def look() -> tuple[str, bool]:
            nonlocal come
            arrived = self.arrived()
            come += len(arrived)
            newest.extend(arrived)
            view = self.client.view()
            has_ended = view.state.is_terminal
            failure = f" | {view.failures[-1].text}" if has_ended and view.failures else ""
            shown = f"the newest {limit} of {come:,}" if come > limit else f"{come:,}"
            note = f"{summary_line(view)}{failure} | {shown} record{'' if come == 1 else 's'}"
            return html_rows(newest, note), has_ended and self.is_over

        return LiveOutput(self.client, look, self.close)

    @property
    def is_over(self) -> bool:
        """Whether the job's end has been seen here, behind all rows."""
        return self._end is not None

    def close(self) -> None:
        """Cancel the job unless it has ended, and forget what was not taken."""
        if self._end is None and self._client is not None:
            self._client.cancel()
        self._end = _END
        self._rows.clear()

    def environment_closes(self) -> None:
        """Note that nobody answers from now on, as the environment ends: that is no failure."""
        self._is_environment_closed = True

    def environment_closed(self) -> None:
        """Have the reader be told so, behind what has arrived; unless the end of the job has, too."""
        self._arrived.put(_left_behind())

    def __enter__(self) -> CollectedRows[T1]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _left_behind() -> ProgramError:
    message = "the environment was closed before all records had come"
    return ProgramError(message, hint="read them before, or within its 'with' block")
