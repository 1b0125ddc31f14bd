"""What may be chosen about a query over streams without changing what it comes to.

Source: Flink's ``OptimizerConfigOptions`` and ``ExecutionConfigOptions``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ...plan.plan import Aggregation, Distinct, Node, OverGroups
from ...plan.table_nodes import MultiJoin, SharedJoins, TableJoin, TopN
from ..stream_traits import is_timed

__all__ = ["MiniBatches", "Phases", "Tuning"]


class Phases(Enum):
    """How many phases a GROUP BY has."""

    AUTO = "auto"
    """Two where there are several subtasks; what the last batches have come to decides which ones are folded."""
    TWO_PHASE = "two_phase"
    ONE_PHASE = "one_phase"


@dataclass(frozen=True)
class MiniBatches:
    """Rows wait in front of operators over changes.

    Attributes:
        latency_ms: How long at most.
        size: How many at most.
    """

    latency_ms: int
    size: int

    @staticmethod
    def wait_for(node: Node) -> bool:
        """Return whether rows wait in front of a node: one that gives the net change of what comes to it at once."""
        is_over = isinstance(node, OverGroups) and not is_timed(node)
        return is_over or isinstance(node, (Aggregation, Distinct, TopN, TableJoin, MultiJoin, SharedJoins))


@dataclass(frozen=True)
class Tuning:
    """What was chosen.

    Attributes:
        phases: How many phases groups have.
        num_subtasks: How many each operator has.
        mini_batches: How rows wait; None if they do not.
        num_buckets: Into how many buckets the different values of an argument go; None if they stay together.
        shares_rows_of_joins: Whether joins that have an input in common are one operator, which keeps its rows once.
    """

    phases: Phases = Phases.ONE_PHASE
    num_subtasks: int = 1
    mini_batches: MiniBatches | None = None
    num_buckets: int | None = None
    shares_rows_of_joins: bool = False
