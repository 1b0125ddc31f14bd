"""What a cluster can offer: the nodes it has and may launch, which TaskManagers fit on them, and when to stop hoping.

A TaskManager is on one node, so one with more slots than any node has never comes: no autoscaler launches a node for
it. Where nodes come and go, what there is now says little. So TaskManagers are made to fit on every kind of node that
has, or may get, room; where no kind is known, they have one slot each, which fits wherever anything
does.

Everything here is a question about one `ClusterReport`, a picture that the actor system takes (`Observe`).

Source: Flink's ``WorkerResourceSpec`` and ``ActiveResourceManager``; the bin packing of Ray's autoscaler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .config import ClusterSettings

__all__ = ["ClusterReport", "NodeShape", "Observe", "awaited_text", "refusal", "task_manager_size"]


@dataclass(frozen=True, slots=True)
class NodeShape:
    """One kind of node.

    Attributes:
        name: Of the node type; empty for nodes that belong to none.
        num_cpus: Logical cores of each.
        max_nodes: How many there are, or may be if the cluster launches all it can.
    """

    name: str
    num_cpus: float
    max_nodes: int = 1


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """A picture of a cluster.

    Attributes:
        shapes: The kinds of nodes that there are or may be, as far as they are known.
        scales: Whether the cluster launches nodes for what has no room.
        is_complete: Whether ``shapes`` has all that there ever will be.
        launching: Node types with the number of nodes that are being launched.
        failures: What became of launches that failed, newest last.
    """

    shapes: tuple[NodeShape, ...] = ()
    scales: bool = False
    is_complete: bool = False
    launching: tuple[tuple[str, int], ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def is_launching(self) -> bool:
        """Whether waiting makes sense."""
        return bool(self.launching)


Observe = Callable[[], ClusterReport]
"""Takes a picture; may do I/O, and fail."""


def _slots_per_node(report: ClusterReport, cpu_per_slot: float) -> list[tuple[int, int]]:
    """Slots that fit on a node, and the number of such nodes, for all kinds that have room for any."""
    pairs = ((int(shape.num_cpus / cpu_per_slot + 1e-9), shape.max_nodes) for shape in report.shapes)
    return [(slots, number) for slots, number in pairs if slots > 0 and number > 0]


def _capacity(nodes: Iterable[tuple[int, int]], size: int) -> int:
    """Slots of all TaskManagers of a size that fit at once."""
    return sum(slots // size * size * number for slots, number in nodes)


def task_manager_size(wanted: int, settings: ClusterSettings, report: ClusterReport | None) -> int:
    """Return how many slots each TaskManager of a job gets.

    The largest number that fits on every kind of node, unless so much is left over on the nodes that not all slots
    would fit; then the largest one with which they do.

    Args:
        wanted: Slots of the job.
        settings: Of the cluster.
        report: What the cluster can offer; None where cores are not counted: then one TaskManager has all slots.
    """
    if settings.slots_per_task_manager:
        return settings.slots_per_task_manager
    if report is None or settings.cpu_per_slot <= 0:
        return wanted
    nodes = _slots_per_node(report, settings.cpu_per_slot)
    if not nodes:
        return 1
    smallest = min(slots for slots, _ in nodes)
    fitting = (size for size in range(smallest, 0, -1) if _capacity(nodes, size) >= wanted)
    return min(wanted, next(fitting, smallest if report.scales and not report.is_complete else 1))


def refusal(wanted: int, settings: ClusterSettings, report: ClusterReport | None) -> str | None:
    """Say in one sentence why so many slots can never come; None if they may."""
    if report is None or settings.cpu_per_slot <= 0 or not report.is_complete:
        return None
    nodes = _slots_per_node(report, settings.cpu_per_slot)
    size = task_manager_size(wanted, settings, report)
    if settings.slots_per_task_manager and not any(slots >= size for slots, _ in nodes):
        cpus = size * settings.cpu_per_slot
        return f"a TaskManager of {size} slots needs {cpus:g} cores on one node; {_offer(report)}"
    capacity = _capacity(nodes, size)
    if capacity >= wanted:
        return None
    return f"{wanted} slots needed, {capacity} can ever be had; {_offer(report)}"


def awaited_text(report: ClusterReport) -> str:
    """Return what the cluster does about slots that have not come."""
    failed = f"; the last launch failed: {report.failures[-1]}" if report.failures else ""
    if report.launching:
        nodes = ", ".join(f"{number} of type {name!r}" for name, number in report.launching)
        total = sum(number for _, number in report.launching)
        return f"the cluster launches {total} {'node' if total == 1 else 'nodes'} ({nodes}){failed}"
    if not report.scales:
        return f"the cluster launches no nodes by itself; {_offer(report)}"
    return f"the cluster launches nothing{failed}; {_offer(report)}"


def _offer(report: ClusterReport) -> str:
    kinds = [
        f"{shape.max_nodes} x {shape.num_cpus:g} {'core' if shape.num_cpus == 1 else 'cores'}"
        + (f" ({shape.name})" if shape.name else "")
        for shape in report.shapes
        if shape.num_cpus > 0 and shape.max_nodes > 0
    ]
    if not kinds:
        return "no node with cores is known"
    return f"it {'has, or may launch,' if report.scales else 'has'} {', '.join(kinds)}"
