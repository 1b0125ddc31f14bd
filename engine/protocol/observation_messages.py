"""The conversation about what a slot is doing: its host looks at it from beside, while its tasks run.

Nothing of this goes through the slot's machine: the host answers in a thread of its own (`OBSERVER_ACTOR` is the name
that it is asked by), so that what takes long is seen, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace.state.identifiers import ExecutionAttemptId, VertexId

__all__ = ["OBSERVER_ACTOR", "ObservedTask", "SampleTasks", "StackCount", "TaskSamples"]

OBSERVER_ACTOR = "observer"
"""Of an address: the host itself, beside its machines."""


class ObservedTask(NamedTuple):
    """A task at one moment.

    Attributes:
        attempt: Which one.
        is_backpressured: Whether it has output and no credit to send it.
        is_stepping: Whether the slot is in a step of it.
    """

    attempt: ExecutionAttemptId
    is_backpressured: bool
    is_stepping: bool


@dataclass(frozen=True, slots=True)
class SampleTasks:
    """Look at the tasks of a vertex in a slot, again and again. Answer, when it is over: a list of `TaskSamples`.

    Attributes:
        vertex: Whose tasks.
        num_samples: How often.
        delay_ms: From one look to the next.
        stack_depth: Calls that are told of each stack, the outermost first; 0 looks at no stacks.
    """

    vertex: VertexId
    num_samples: int
    delay_ms: int
    stack_depth: int = 0


class StackCount(NamedTuple):
    """How often a stack was seen.

    Attributes:
        frames: Calls, the outermost first.
        num_on_cpu: How often while the thread used the processor.
        num_off_cpu: How often while it did not.
    """

    frames: tuple[str, ...]
    num_on_cpu: int
    num_off_cpu: int


@dataclass(frozen=True, slots=True)
class TaskSamples:
    """What was seen of one attempt.

    Attributes:
        attempt: Which one.
        num_samples: How often it was looked at.
        num_backpressured: How often it had no credit for its output.
        stacks: What it did, if that was asked.
    """

    attempt: ExecutionAttemptId
    num_samples: int
    num_backpressured: int
    stacks: tuple[StackCount, ...] = ()

    @property
    def ratio(self) -> float:
        """Share of samples without credit."""
        return self.num_backpressured / self.num_samples if self.num_samples else 0.0
