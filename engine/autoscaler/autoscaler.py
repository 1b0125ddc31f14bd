"""When a job is rescaled, and to what: the window of measurement, bounds, cool-downs, and the reason in words.

It is asked at intervals with what the job's tasks have done so far. After each deployment it lets the job settle, then
measures over a window, and from then on compares what is asked of each group of vertices with what it can do:

- More than it can do at the largest utilization: the parallelism is raised at once, to what the target utilization
  needs.
- Less than the least utilization: it is lowered, if a lower one has been enough for so long without a break, and the
  last raise is long enough ago. So a load that falls for a moment costs no restart.
- In between nothing happens.

What it remembers beside the window are the decisions that were made, which are the job's record and survive the
JobManager; and since when a lower parallelism would have been enough, which begins anew.

Source: FLIP-271; ``ScalingExecutor``, ``DelayedScaleDown`` of Flink's Kubernetes operator.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.state.identifiers import VertexId

from ..kernel.autoscaler_settings import AutoscalerSettings
from ..protocol.views import RescaleView
from .evaluation import Evaluation, Observation, evaluate, load, slots_for
from .topology import Group, Topology

__all__ = ["AUTOSCALER", "Autoscaler", "Decision"]

AUTOSCALER = "autoscaler"
"""Who has asked for a rescale that this module has decided on."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Run a job at another parallelism.

    Attributes:
        parallelism: Of the vertices that get another one.
        reason: Why, in words.
        numbers: What was measured, by vertex.
    """

    parallelism: dict[VertexId, int]
    reason: str
    numbers: dict[VertexId, dict[str, float]]


@dataclass(slots=True)
class _Lower:
    """A lower parallelism of a group, which has ``num_now`` slots, that has been enough since some moment."""

    since_ms: int
    num_now: int
    num_slots: int = 1


class Autoscaler:
    """The machine.

    Args:
        settings: When and how far.
    """

    def __init__(self, settings: AutoscalerSettings) -> None:
        self._settings = settings
        # The deployment that is measured, since when it runs, and what it had done at moments, oldest first.
        self._deployment: object = None
        self._since_ms = 0
        self._window: deque[Observation] = deque()
        self._lower: dict[str, _Lower] = {}
        # When it last knew what is needed, and whether the job has been measured without a break since.
        self._known_ms = 0
        self._has_gap = False
        self.status = "the job does not run"

    def pause(self) -> None:
        """Note that the job does not run; what was measured of it means nothing for what follows."""
        self._deployment = None
        self._window.clear()
        self._has_gap = True
        self.status = "the job does not run"

    def observe(
        self,
        now_ms: int,
        deployment: object,
        topology: Topology,
        totals: Observation | None,
        past: Sequence[RescaleView],
    ) -> Decision | None:
        """Take what the tasks of a running job have done so far; gives what is to be done.

        Args:
            now_ms: The time.
            deployment: Names the deployment; another one begins a new window.
            topology: The job, with the parallelism that it runs at.
            totals: What all tasks have done since they were deployed; None while some have not reported.
            past: The rescales of the job so far, oldest first.
        """
        if deployment != self._deployment:
            self.pause()
            self._deployment, self._since_ms = deployment, now_ms
        settings = self._settings
        settles_ms = self._since_ms + settings.stabilization_interval_ms - now_ms
        if settles_ms > 0:
            self.status = f"the job settles: {settles_ms / 1_000:g} s to go"
            return None
        if totals is None:
            self.status = "some tasks have not reported yet"
            return None
        first = self._measured(totals)
        if first is None:
            self.status = "it has not been measured for long enough"
            return None
        given_up = past[-1] if past and past[-1].error else None
        patience_ms = settings.stabilization_interval_ms + settings.metrics_window_ms
        if given_up is not None and now_ms - (given_up.ended_ms or now_ms) < patience_ms:
            self.status = f"the last rescale came to nothing: {given_up.error}"
            return None
        evaluation = evaluate(topology, first, totals, settings)
        if evaluation is None:
            self.status = "some tasks have not run between two reports"
            return None
        if self._has_gap:  # what was enough before it was not seen to be enough meanwhile
            for lower in self._lower.values():
                lower.since_ms += now_ms - self._known_ms
        self._known_ms, self._has_gap = now_ms, False
        return self._decide(now_ms, topology, evaluation, past)

    def _measured(self, totals: Observation) -> Observation | None:
        """Add to the window; gives its beginning once it is full."""
        window, length_ms = self._window, self._settings.metrics_window_ms
        if not window or totals.at_ms > window[-1].at_ms:
            window.append(totals)
        while len(window) > 1 and window[1].at_ms <= totals.at_ms - length_ms:
            window.popleft()
        return window[0] if window[0].at_ms <= totals.at_ms - length_ms else None

    # -------------------------------------------------------------------------------------------------------- decisions
    def _decide(
        self, now_ms: int, topology: Topology, evaluation: Evaluation, past: Sequence[RescaleView]
    ) -> Decision | None:
        changes: dict[VertexId, int] = {}
        reasons: list[str] = []
        now = {vertex: one.parallelism for vertex, one in evaluation.vertices.items()}
        for group in topology.groups:
            if group.is_fixed:
                continue
            wanted = self._wanted(now_ms, group, evaluation, now, past)
            if wanted is None:
                continue
            changed = {vertex: number for vertex, number in group.at(wanted).items() if number != now[vertex]}
            if changed:
                changes |= changed
                reasons.append(_reason(topology, group, evaluation, now, self._settings))
        self.status = "rescales" if changes else self._quiet(evaluation, topology, now)
        if not changes:
            return None
        for group in topology.groups:
            self._lower.pop(group.name, None)
        numbers = {vertex: one.as_numbers() for vertex, one in evaluation.vertices.items()}
        return Decision(changes, "; ".join(reasons), numbers)

    def _wanted(
        self,
        now_ms: int,
        group: Group,
        evaluation: Evaluation,
        now: Mapping[VertexId, int],
        past: Sequence[RescaleView],
    ) -> int | None:
        """How many slots a group is to have; None for as many as it has."""
        settings = self._settings
        has = _slots_of(group, now)
        wanted = slots_for(evaluation, group, settings.utilization_target)
        out_of_bounds = max(group.low, min(has, group.high)) != has
        if load(evaluation, group, now, settings.utilization_max, with_restart=False) > 1.0 or out_of_bounds:
            self._lower.pop(group.name, None)
            most = math.ceil(round(min(has * (1 + settings.scale_up_max_factor), group.high), 6))
            # A vertex may have less than its group has slots: then it may be enough that it gets as many.
            return max(group.low, min(max(wanted, has), most))
        at_least = settings.utilization_min
        is_idle = at_least > 0 and load(evaluation, group, now, at_least, with_restart=True) < 1.0
        if not is_idle or wanted >= has:
            self._lower.pop(group.name, None)
            return None
        least = math.ceil(round(has * (1 - settings.scale_down_max_factor), 6))
        lower = self._lower.get(group.name)
        if lower is None or lower.num_now != has:  # a client may have changed that
            lower = self._lower[group.name] = _Lower(now_ms, has)
        lower.num_slots = max(lower.num_slots, wanted, least, group.low)
        raised_ms = max((one.at_ms for one in past if _has_raised(one, group)), default=None)
        if raised_ms is not None and now_ms - raised_ms < settings.scale_up_grace_period_ms:
            return None
        if now_ms - lower.since_ms < settings.scale_down_interval_ms or lower.num_slots >= has:
            return None
        return lower.num_slots

    def _quiet(self, evaluation: Evaluation, topology: Topology, now: Mapping[VertexId, int]) -> str:
        if self._lower:
            return f"less would be enough for {', '.join(sorted(self._lower))}; it is not lowered yet"
        at_most = self._settings.utilization_max
        above = [group for group in topology.groups if load(evaluation, group, now, at_most, with_restart=False) > 1.0]
        if not above:
            return "within bounds"
        full = [name for group in above for name in self._full_for_good(evaluation, topology, group)]
        why = f": no number of slots relieves {', '.join(full)}" if full else ""
        return f"more would be needed than is allowed for {', '.join(group.name for group in above)}{why}"

    def _full_for_good(self, evaluation: Evaluation, topology: Topology, group: Group) -> list[str]:
        """Say which vertices of a group fill their slots by themselves and are left as they are, and why they are."""
        found = []
        for vertex in (member for unit in group.units if unit.is_fixed for member in unit.members):
            one = evaluation.vertices[vertex]
            share = one.work(self._settings.utilization_max, with_restart=False) / one.parallelism
            if share > evaluation.usable[group.name]:
                found.append(f"{topology.names[vertex]!r}, which {topology.left[vertex]}")
        return found


def _slots_of(group: Group, now: Mapping[VertexId, int]) -> int:
    """How many slots what may be scaled of a group has."""
    return max(now[member] for unit in group.units if not unit.is_fixed for member in unit.members)


def _has_raised(rescale: RescaleView, group: Group) -> bool:
    """Whether a rescale has given a group more; one that came to nothing, or was only advised, has not."""
    if rescale.error or rescale.is_advice:
        return False
    return any(rescale.after[one] > rescale.before[one] for one in group.vertices if one in rescale.after)


def _reason(
    topology: Topology, group: Group, evaluation: Evaluation, now: Mapping[VertexId, int], settings: AutoscalerSettings
) -> str:
    """Say what is asked of a group's heaviest vertex and what it can do, and how full its slots are."""
    asked = {
        vertex: evaluation.vertices[vertex].work(settings.utilization_max, with_restart=False)
        for vertex in group.vertices
    }
    heaviest = max(asked, key=asked.__getitem__)
    one = evaluation.vertices[heaviest]
    full = load(evaluation, group, now, 1.0, with_restart=False)
    rate = f"{one.target_rate + one.catch_up_rate:,.0f} records/s are asked of {topology.names[heaviest]!r}"
    can = "" if one.true_rate is None else f", which can do {one.true_rate * one.parallelism:,.0f} at {one.parallelism}"
    backlog = sum(vertex.backlog or 0.0 for vertex in evaluation.vertices.values())
    waiting = f"; backlog {backlog:,.0f}" if backlog else ""
    return f"{rate}{can}{waiting}; its fullest slot is asked for {full:.0%} of what it has"
