"""How a job went that has finished.

Source: PyFlink's ``JobExecutionResult``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.engine.functions.accumulators import accumulated_value
from headrace.engine.protocol.views import JobView
from headrace.state.identifiers import JobId

__all__ = ["JobExecutionResult"]


@dataclass(frozen=True)
class JobExecutionResult:
    """How a finished job went.

    Attributes:
        job_id: Its id.
        job_name: Its name.
        net_runtime_ms: From submission to the end, milliseconds.
        num_restarts: How often it was restarted after a failure.
        checkpoints_completed: How many checkpoints it took.
        view: All that is known of it: rates, counters, history.
    """

    job_id: JobId
    job_name: str
    net_runtime_ms: int
    num_restarts: int
    checkpoints_completed: int
    view: JobView = field(repr=False)

    def get_job_id(self) -> JobId:
        """Return the job's id."""
        return self.job_id

    def get_net_runtime(self) -> int:
        """From submission to the end, milliseconds."""
        return self.net_runtime_ms

    def get_accumulator_result(self, accumulator_name: str) -> Any:
        """Return the value of an accumulator over all subtasks; None if there is none of that name.

        It counts what the attempts have done that came to the end: accumulators are in no checkpoint.

        Raises:
            ProgramError: If operators have accumulators of different kinds under this name.
        """
        return accumulated_value(accumulator_name, self.view.accumulators.get(accumulator_name, ()))

    def get_all_accumulator_results(self) -> dict[str, Any]:
        """Return the values of all accumulators by name; else as `get_accumulator_result`."""
        return {name: accumulated_value(name, parts) for name, parts in self.view.accumulators.items()}

    def _repr_html_(self) -> str:
        from .progress import render_html

        return render_html(self.view)
