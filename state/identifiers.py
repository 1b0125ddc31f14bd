"""Identifiers that messages, files and logs are keyed by.

They are values: small, ordered, printable, safe to send. An attempt id is never reused, which is what makes fencing
by it sound: the holder of an old one can be recognised and ignored, in memory, in a message, in a file name or in a
sink.

Source: Flink's ``ExecutionAttemptID`` and ``OperatorID``; the epoch is the fencing token of the leading JobManager.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

__all__ = ["CheckpointId", "ExecutionAttemptId", "JobId", "OperatorId", "VertexId"]

JobId = NewType("JobId", str)
"""Identifies one submission of a job on one cluster; also the name of its folder of checkpoints."""

OperatorId = NewType("OperatorId", str)
"""The ``uid`` of an operator: what its state is matched by, given by the user or derived from the plan."""

VertexId = NewType("VertexId", str)
"""Identifies one vertex (operator chain) of a job graph: the ``uid`` of the chain's first operator."""

CheckpointId = NewType("CheckpointId", int)
"""Counts a job's checkpoints from 1; grows for the whole life of a job, over all its leaders."""


class ExecutionAttemptId(NamedTuple):
    """One run of one subtask.

    Attributes:
        epoch: Fencing token of the JobManager that deployed it; grows with each leader.
        attempt: Number of the deployment that it was part of, counted under that leader from 0. Deployments of a part
            of the job count, so a subtask's numbers may have gaps.
        vertex: The vertex of the job graph.
        subtask: Index of the subtask within the vertex, from 0.
    """

    epoch: int
    attempt: int
    vertex: VertexId
    subtask: int

    def __str__(self) -> str:
        return f"{self.vertex}[{self.subtask}]#{self.epoch}.{self.attempt}"
