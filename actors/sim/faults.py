"""What goes wrong in a simulated run: weather, deaths, zombies, lost nodes, and how long everything takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["FaultPlan", "Range"]

Range = tuple[float, float]
"""Lowest and highest value of something drawn evenly, in milliseconds unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What goes wrong. The default is a healthy, slightly uneven cluster.

    Weather concerns frames only. What a link carries stays in order, so one frame that is lost or held up delays all
    behind it until it is sent again, after 0.2, 0.6, 1.4, 3 s and so on. A job whose ``heartbeat_timeout_ms`` is
    shorter than what the weather makes of a round trip gives up TaskManagers that live, and they it; each time it
    restarts, which is right: silence is all that it hears. With a loss of 0.2 and frames held up for 1.5 s a timeout of
    1 s restarts the job for as long as the weather lasts, and spends a restart strategy's attempts; one of 10 s (the
    default) rides it out. After the weather, or a total loss of up to a day (``LinkTiming.give_up_ms``), the job goes
    on within seconds.

    Attributes:
        loss: Probability that a frame is lost.
        duplication: Probability that it arrives twice.
        reordering: Probability that it is held up for up to ``held_up_ms``, so that others overtake it.
        travel_ms: How long a frame travels.
        held_up_ms: How long one that is held up travels.
        weather_ms: When frames are lost, doubled and held up, from the beginning of the run; by default always.
        kills_at: Kills at protocol points: pairs of point name and occurrence, counted from 1 over all hosts that may
            die.
        kill_probability: Probability of a kill at any point that is passed.
        max_kills: Most kills by ``kill_probability``.
        random_kills: How many hosts, picked at random, die at random times within ``fault_window_ms``.
        freezes: How many hosts, picked at random, stop for ``freeze_ms`` at random times within ``fault_window_ms``.
        freeze_ms: How long a frozen host stands still.
        fault_window_ms: When kills and freezes happen, from the beginning of the run.
        late_kill: Probability that a `KillHost` takes effect only after ``late_kill_ms``: the host lives on as a
            zombie.
        late_kill_ms: How late that is.
        orphan_ms: How long a child outlives its parent.
        notice_ms: How long after a death the parent hears of it.
        spawn_ms: How long a host takes to start.
        offload_ms: How long offloaded work waits before it is done.
        completion_ms: How long its end takes to be heard.
        stray_work: Probability that work offloaded by a host that dies is done all the same, later, and no one hears
            of it.
        turn_us: How long handling takes, in microseconds.
        step_us: How long a step takes, in microseconds.
        stopwatch_us: What a stopwatch says that work has taken, in microseconds, one of these each time:
            batches are cut by it, at any record.
        num_nodes: How many nodes there are; hosts are put on them in turn, beside their parents if they ask for it. 0:
            nodes are unknown.
        node_deaths: How many nodes, picked at random, die at random times within ``fault_window_ms``: all that is on
            one at the same moment. It is back at once, with nothing on it.
        node_untold: Probability that a host's parent is never told its node, neither with its signs of life nor with
            its end; the host itself knows it.
        node_leak_ms: How long the processes of a dead node live on, given up for dead by everyone elsewhere.
        immortal: Hosts that are never killed or frozen; by name.
        pickle_messages: Send copies of messages, as real processes do; finds what cannot be pickled, and shared state.
    """

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    travel_ms: Range = (0.2, 2.0)
    held_up_ms: Range = (2.0, 100.0)
    weather_ms: Range = (0.0, math.inf)
    kills_at: tuple[tuple[str, int], ...] = ()
    kill_probability: float = 0.0
    max_kills: int = 3
    random_kills: int = 0
    freezes: int = 0
    freeze_ms: Range = (50.0, 20_000.0)
    fault_window_ms: Range = (0.0, 3_000.0)
    late_kill: float = 0.0
    late_kill_ms: Range = (100.0, 30_000.0)
    orphan_ms: Range = (1.0, 200.0)
    notice_ms: Range = (1.0, 100.0)
    spawn_ms: Range = (5.0, 50.0)
    offload_ms: Range = (0.2, 10.0)
    completion_ms: Range = (0.1, 10.0)
    stray_work: float = 0.0
    turn_us: Range = (20.0, 200.0)
    step_us: Range = (50.0, 1_000.0)
    stopwatch_us: tuple[int, ...] = (0, 0, 3_000, 15_000, 60_000)
    num_nodes: int = 0
    node_deaths: int = 0
    node_untold: float = 0.0
    node_leak_ms: Range = (0.0, 0.0)
    immortal: tuple[str, ...] = ("head",)
    pickle_messages: bool = False
