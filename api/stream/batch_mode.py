"""What a program's runtime mode means for its job: whether it is a batch, and how one is run.

Source: Flink's ``RuntimeExecutionMode``; FLIP-134.
"""

from __future__ import annotations

import logging

from headrace.engine.connectors.sources import SourceOperator
from headrace.engine.errors import ProgramError
from headrace.engine.graph.stream_graph import StreamGraph
from headrace.engine.kernel.config import CheckpointSettings
from headrace.engine.task.loop_head import IterationHead

from .checkpoint_config import CheckpointConfig
from .environment_settings import RuntimeExecutionMode

__all__ = ["batch_checkpoints", "is_batch"]

_log = logging.getLogger(__name__)


def is_batch(graph: StreamGraph, mode: RuntimeExecutionMode) -> bool:
    """Return whether a program is run as a batch.

    Raises:
        ProgramError: If it is to be, and cannot.
    """
    if mode is RuntimeExecutionMode.STREAMING:
        return False
    operators = [(node.name, node.operator) for node in graph.nodes.values()]
    unbounded = [
        name for name, operator in operators if isinstance(operator, SourceOperator) and not operator.source.is_bounded
    ]
    loops = [name for name, operator in operators if isinstance(operator, IterationHead)]
    if mode is RuntimeExecutionMode.AUTOMATIC:
        return not unbounded and not loops
    if unbounded:
        message = f"runtime mode BATCH needs bounded sources; {unbounded[0]!r} is unbounded"
        raise ProgramError(message, hint="Set the runtime mode to STREAMING, or AUTOMATIC.")
    if loops:
        message = f"runtime mode BATCH has no iterations; {loops[0]!r} is one"
        raise ProgramError(message, hint="Set the runtime mode to STREAMING, or iterate over a data set.")
    return True


def batch_checkpoints(graph: StreamGraph, config: CheckpointConfig, *, is_submitted: bool) -> CheckpointSettings | None:
    """Return the one checkpoint of a batch, at its end; None if there is no output for it to commit.

    Args:
        graph: The program.
        config: What it says of checkpoints.
        is_submitted: Whether it is about to run.
    """
    if is_submitted and config.is_checkpointing_enabled():
        _log.warning("runtime mode BATCH: no checkpoint is taken while the job runs; the interval counts for nothing")
    if not any(node.operator.commits for node in graph.nodes.values()):
        return None
    return config.to_batch_settings(make_directory=is_submitted)
