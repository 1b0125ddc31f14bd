"""Which subtask goes into which slot, and who is connected to whom.

*Slots.* Subtasks of different vertices of one slot sharing group share slots (Flink's ``SlotSharingGroup``): a group
needs as many slots as its largest parallelism, a job the sum over its groups. Slot ``k`` of a group hosts a slice of
the whole pipeline; a vertex of lower parallelism is spread over the group's slots so that its subtask meets the ones
that a rescale exchange connects it to. Co-located vertices share one spread, so equal indices share a slot
(``CoLocationGroup``). Slots are taken from TaskManagers in turn, the emptiest first (four pipelines on two TaskManagers
of three slots are two on each).

*Channels.* A pointwise exchange (forward, rescale) connects a subtask to a contiguous few of the other side.

Source: Flink's ``SlotSharingManager``, ``LocalInputPreferredSlotSharingStrategy``,
``VertexInputInfoComputationUtils``.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.state.identifiers import VertexId

from ..errors import ConfigurationError, NoResourceAvailableError
from ..graph.job_graph import JobEdge, JobGraph
from ..protocol.views import SlotInfo
from .graph import SlotPlace

__all__ = ["connected_consumers", "connected_producers", "fill", "slot_layout", "slots_needed"]


def slots_needed(job_graph: JobGraph) -> int:
    """Return how many slots a job needs: the largest parallelism of each slot sharing group, summed."""
    return sum(_group_sizes(job_graph).values())


def _group_sizes(job_graph: JobGraph) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for vertex in job_graph.vertices.values():
        group = vertex.slot_sharing_group
        sizes[group] = max(sizes.get(group, 0), vertex.parallelism)
    return sizes


def slot_layout(job_graph: JobGraph) -> dict[tuple[VertexId, int], int]:
    """Number the slots a job needs from 0, and say which of them each subtask is in.

    Raises:
        ConfigurationError: If co-located vertices are in different slot sharing groups.
    """
    first: dict[str, int] = {}
    sizes = _group_sizes(job_graph)
    for group in sizes:
        first[group] = sum(sizes[earlier] for earlier in first)
    widths = _co_location_widths(job_graph)
    layout: dict[tuple[VertexId, int], int] = {}
    for vertex in job_graph.vertices.values():
        group = vertex.slot_sharing_group
        width = vertex.parallelism if vertex.co_location_group is None else widths[vertex.co_location_group]
        for subtask in range(vertex.parallelism):
            layout[(vertex.vertex_id, subtask)] = first[group] + subtask * sizes[group] // width
    return layout


def fill(
    num_slots: int, slots: dict[str, list[SlotInfo]], kept: Mapping[int, SlotPlace] | None = None
) -> dict[int, SlotPlace]:
    """Choose processes for the numbered slots of a job. Equal arguments give equal choices.

    Args:
        num_slots: How many the job needs.
        slots: All slots of each TaskManager.
        kept: Slots that stay what they are, by number.

    Raises:
        NoResourceAvailableError: If there are too few slots.
    """
    chosen = dict(kept or {})
    occupied = {place.host for place in chosen.values()}
    free = {name: [slot for slot in offered if slot.address.host not in occupied] for name, offered in slots.items()}
    in_turn = _spread(free, {name: len(offered) for name, offered in slots.items()})
    missing = [number for number in range(num_slots) if number not in chosen]
    if len(in_turn) < len(missing):
        message = f"{num_slots} slots needed, {sum(map(len, slots.values()))} available"
        raise NoResourceAvailableError(message)
    return {**chosen, **dict(zip(missing, in_turn, strict=False))}


def _spread(unused: dict[str, list[SlotInfo]], sizes: dict[str, int]) -> list[SlotPlace]:
    """Unused slots in the order in which they are taken: always from the TaskManager with the smallest share in use."""
    taken: list[SlotPlace] = []
    free = {name: sorted(slots, key=lambda slot: slot.index) for name, slots in sorted(unused.items()) if slots}
    while free:
        name = min(free, key=lambda task_manager: (1 - len(free[task_manager]) / sizes[task_manager], task_manager))
        taken.append(SlotPlace(name, free[name].pop(0)))
        if not free[name]:
            del free[name]
    return taken


def _co_location_widths(job_graph: JobGraph) -> dict[str, int]:
    """The largest parallelism of each co-location group."""
    widths: dict[str, int] = {}
    sharing: dict[str, str] = {}
    for vertex in job_graph.vertices.values():
        group = vertex.co_location_group
        if group is None:
            continue
        if sharing.setdefault(group, vertex.slot_sharing_group) != vertex.slot_sharing_group:
            message = (
                f'co-location group "{group}" spans slot sharing groups "{sharing[group]}" and '
                f'"{vertex.slot_sharing_group}": what must be together cannot be kept apart'
            )
            raise ConfigurationError(message, operator=vertex.name)
        widths[group] = max(widths.get(group, 0), vertex.parallelism)
    return widths


def connected_producers(edge: JobEdge, num_producers: int, num_consumers: int, consumer: int) -> range:
    """Return the producing subtasks that a consuming one has a channel from.

    Args:
        edge: The exchange.
        num_producers: Parallelism of its source vertex.
        num_consumers: Parallelism of its target vertex.
        consumer: Index of the consuming subtask.
    """
    if not edge.partitioner.is_pointwise:
        return range(num_producers)
    if num_producers >= num_consumers:
        return range(consumer * num_producers // num_consumers, (consumer + 1) * num_producers // num_consumers)
    producer = consumer * num_producers // num_consumers
    return range(producer, producer + 1)


def connected_consumers(edge: JobEdge, num_producers: int, num_consumers: int, producer: int) -> range:
    """Return the consuming subtasks that a producing one has a channel to; the inverse of `connected_producers`."""
    if not edge.partitioner.is_pointwise:
        return range(num_consumers)
    if num_producers >= num_consumers:
        consumer = ((producer + 1) * num_consumers - 1) // num_producers
        return range(consumer, consumer + 1)
    start = -(-producer * num_consumers // num_producers)
    return range(start, -(-(producer + 1) * num_consumers // num_producers))
