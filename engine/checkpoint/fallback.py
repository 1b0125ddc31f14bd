"""Which sinks of a job stand in the way of going on from an older checkpoint than the newest.

With a checkpoint its sinks' output was made public. A job that goes on from an older one produces that output again,
in other transactions and maybe in another order, so what is there already cannot be told record by record. What can be
told is that *nothing* was committed behind the older one. A sink that can find that out says so
(`SupportsCommitProof`); its subtasks are asked once earlier attempts are shut out. A sink without a committer promises
nothing that a repetition would break.
"""

from __future__ import annotations

from ..errors import CheckpointCorruptError, CheckpointError
from ..graph.job_graph import JobGraph

__all__ = ["may_pass_over", "with_public_output"]


def may_pass_over(job_graph: JobGraph) -> bool:
    """Return whether every sink that commits can prove what it has committed, so that it depends on what they find."""
    return not _sinks(job_graph, only_unproven=True)


def with_public_output(error: CheckpointError, job_graph: JobGraph) -> CheckpointError:
    """Say beside what is wrong with the newest checkpoint which output was made public with it.

    Args:
        error: What is wrong.
        job_graph: The job.
    """
    context = dict(error.context)
    nodes = {str(node.uid): node.name for vertex in job_graph.vertices.values() for node in vertex.chain}
    if context.get("operator") in nodes:
        context["operator"] = nodes[context["operator"]]
    sinks = _sinks(job_graph, only_unproven=False)
    if not sinks:
        return type(error)(error.message, hint=error.hint, **context)
    names = ", ".join(f'"{name}"' for name in sinks)
    message = f"{error.message}; what it committed is public, in {names}, and would be written again"
    hint = error.hint
    if isinstance(error, CheckpointCorruptError) or hint is None:
        hint = "restore the checkpoint's files; or start anew from another one, with restore_from; or choose"
        hint += " set_damaged_checkpoint_policy(FALL_BACK_AT_LEAST_ONCE)"
    return type(error)(message, hint=hint, **context)


def _sinks(job_graph: JobGraph, *, only_unproven: bool) -> list[str]:
    """The names of the sinks that commit, in order."""
    nodes = [node for vertex in job_graph.vertices.values() for node in vertex.chain]
    return [
        node.name for node in nodes if node.operator.commits and not (only_unproven and node.operator.proves_commits)
    ]
