"""Restart strategies (row D31): when a failure is the last one, and how long the pause before a restart is."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.config import (
    ExponentialDelayRestartStrategy,
    FailureRateRestartStrategy,
    RestartStrategy,
)
from headrace.engine.errors import ConfigurationError
from headrace.engine.restart_backoff import RestartBackoff


def delays(strategy, *times_ms):
    backoff, found = RestartBackoff(strategy), []
    for now_ms in times_ms:
        backoff = backoff.after_failure(now_ms)
        found.append(backoff.delay_ms)
    return found


def test_restarts_end_with_the_number_of_attempts():
    backoff = RestartBackoff(RestartStrategy.fixed_delay(2, 50))
    for now_ms in (10, 20):
        assert backoff.can_restart(now_ms)
        backoff = backoff.after_failure(now_ms)
        assert backoff.delay_ms == 50
    assert not backoff.can_restart(10**9)
    assert not RestartBackoff(RestartStrategy.none()).can_restart(0)
    assert RestartBackoff(RestartStrategy(-1), 10**6).can_restart(0)


def test_failure_rate_counts_what_is_within_the_interval():
    backoff = RestartBackoff(FailureRateRestartStrategy(2, 1_000, 10))
    for now_ms in (0, 900):
        assert backoff.can_restart(now_ms)
        backoff = backoff.after_failure(now_ms)
    assert not backoff.can_restart(999)
    assert backoff.can_restart(1_000)
    backoff = backoff.after_failure(1_000)
    assert backoff.failures_ms == (900, 1_000)
    assert not backoff.can_restart(1_899)
    assert backoff.delay_ms == 10


def test_a_clock_that_is_put_back_loses_no_job():
    backoff = RestartBackoff(FailureRateRestartStrategy(2, 1_000, 10))
    for now_ms in (86_400_000, 86_400_500):  # a day ahead
        backoff = backoff.after_failure(now_ms)
    assert backoff.can_restart(5_000)
    assert backoff.after_failure(5_000).failures_ms == (5_000,)


@given(st.lists(st.integers(0, 400), max_size=40), st.integers(1, 4), st.integers(1, 1_000))
def test_no_interval_ever_has_more_restarts_than_the_rate(pauses, most, interval_ms):
    backoff, now_ms, restarts = RestartBackoff(FailureRateRestartStrategy(most, interval_ms, 0)), 0, []
    for pause in pauses:
        now_ms += pause
        if not backoff.can_restart(now_ms):
            break
        backoff = backoff.after_failure(now_ms)
        restarts.append(now_ms)
    assert all(sum(end - interval_ms < at <= end for at in restarts) <= most for end in restarts)


def test_exponential_delay_grows_to_its_bound_and_begins_anew_after_quiet_time():
    strategy = ExponentialDelayRestartStrategy(100, 350, 2.0, 5_000, jitter_factor=0)
    assert delays(strategy, 0, 1_000, 2_000, 3_000) == [100, 200, 350, 350]
    assert delays(strategy, 0, 1_000, 1_000 + 200 + 4_999) == [100, 200, 350]
    assert delays(strategy, 0, 1_000, 1_000 + 200 + 5_000) == [100, 200, 100]
    assert RestartBackoff(strategy, 10**6).can_restart(0)


@given(st.integers(1, 50), st.floats(1.001, 3))
def test_exponential_delay_always_grows_until_its_bound(initial_ms, multiplier):
    strategy = ExponentialDelayRestartStrategy(initial_ms, 60, multiplier, 10**9, jitter_factor=0)
    found = delays(strategy, *range(70))
    assert found[-1] == 60
    assert all(later > earlier or later == 60 for earlier, later in pairwise(found))


@given(st.integers(0, 5), st.integers(1, 12))
def test_jitter_follows_from_the_seed_and_stays_in_its_share(seed, count):
    strategy = ExponentialDelayRestartStrategy(1_000, 60_000, 2.0, 10**9, jitter_factor=0.25, seed=seed)
    plain = ExponentialDelayRestartStrategy(1_000, 60_000, 2.0, 10**9, jitter_factor=0)
    times = range(0, count)
    found = delays(strategy, *times)
    assert found == delays(strategy, *times)
    for delay, middle in zip(found, delays(plain, *times), strict=True):
        assert max(1_000, 0.75 * middle) <= delay <= min(60_000, 1.25 * middle)


def test_jitter_of_different_seeds_differs():
    assert len({delays(ExponentialDelayRestartStrategy(5_000, seed=s), 0, 1, 2)[-1] for s in range(10)}) > 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: FailureRateRestartStrategy(0, 1, 1),
        lambda: FailureRateRestartStrategy(1, 0, 1),
        lambda: ExponentialDelayRestartStrategy(0),
        lambda: ExponentialDelayRestartStrategy(100, 99),
        lambda: ExponentialDelayRestartStrategy(backoff_multiplier=0.9),
        lambda: ExponentialDelayRestartStrategy(jitter_factor=1.1),
        lambda: ExponentialDelayRestartStrategy(reset_backoff_threshold_ms=0),
    ],
)
def test_values_out_of_range_are_refused(make):
    with pytest.raises(ConfigurationError):
        make()
