"""The clock of hosts, by two clocks of our own: whatever the system's does, it neither jumps nor goes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.hosts.host_system import CORRECTION_MS, LOOK_MS, SteadyClock

HOUR_MS = 3_600_000


class Machine:
    def __init__(self) -> None:
        self.monotonic_ms, self.wall_ms = 5_000, 1_700_000_000_000
        self.clock = SteadyClock(lambda: self.wall_ms, lambda: self.monotonic_ms)

    def go_on(self, ms: int) -> None:
        self.monotonic_ms += ms
        self.wall_ms += ms


def test_it_tells_the_time_of_day() -> None:
    machine = Machine()
    assert machine.clock() == machine.wall_ms
    machine.go_on(HOUR_MS)
    assert machine.clock() == machine.wall_ms


@given(
    st.lists(
        st.tuples(st.integers(0, 5_000), st.sampled_from([0, 0, 3, -3, 2_000, -2 * HOUR_MS, HOUR_MS])), max_size=40
    )
)
def test_time_passes_as_it_does_whatever_is_done_to_the_systems_clock(story: list[tuple[int, int]]) -> None:
    machine = Machine()
    for elapsed_ms, set_by_ms in story:
        before_ms = machine.clock()
        machine.go_on(elapsed_ms)
        machine.wall_ms += set_by_ms
        passed_ms = machine.clock() - before_ms
        slack_ms = CORRECTION_MS * (elapsed_ms // LOOK_MS + 1) * 2
        assert passed_ms >= 0
        assert abs(passed_ms - elapsed_ms) <= slack_ms


def test_it_follows_the_systems_clock_in_the_end() -> None:
    machine = Machine()
    machine.wall_ms += 2_000
    for _ in range(250):
        machine.go_on(LOOK_MS)
        machine.clock()
    assert machine.clock() == machine.wall_ms
