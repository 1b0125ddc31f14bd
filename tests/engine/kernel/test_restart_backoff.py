"""Restart strategies: when a failure is the last one, and how long the pause before a restart is."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.config import (
    DEFAULT_RESTART,
    ExponentialDelayRestartStrategy,
    FailureRateRestartStrategy,
    RestartStrategy,
)
from headrace.engine.kernel.restart_backoff import RestartBackoff


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


def test_by_default_a_job_that_gets_nowhere_waits_longer_and_longer():
    backoff, now_ms, restarts = RestartBackoff(DEFAULT_RESTART), 0, []
    while now_ms < 60_000:
        backoff = backoff.after_failure(now_ms)
        assert backoff.has_grown == bool(restarts)
        restarts.append(now_ms)
        now_ms += backoff.delay_ms + 100  # it fails again at once
    assert len([at for at in restarts if at <= 6_000]) <= 6
    assert len(restarts) <= 10
    assert backoff.can_restart(now_ms)


def test_by_default_a_job_that_is_killed_now_and_then_is_back_at_once():
    backoff = RestartBackoff(DEFAULT_RESTART)
    for at_ms in range(0, 100_000, 1_000):
        backoff = backoff.after_failure(at_ms).after_checkpoint()
        assert backoff.delay_ms <= 220


@given(st.integers(1, 10_000), st.booleans())
def test_a_job_that_gets_somewhere_and_runs_for_as_long_as_it_waits_is_back_at_once(runs_ms, completes):
    assume(not 180 <= runs_ms < 220)  # the first delay is 200 ms, a tenth more or less
    backoff, now_ms = RestartBackoff(DEFAULT_RESTART), 0
    for _ in range(30):
        backoff = backoff.after_failure(now_ms)
        now_ms += backoff.delay_ms + runs_ms
        backoff = backoff.after_checkpoint() if completes else backoff
    if completes and runs_ms >= 220:
        assert backoff.delay_ms <= 220
    else:
        assert backoff.delay_ms >= 50_000


def test_quiet_time_alone_or_a_checkpoint_alone_is_no_progress():
    strategy = ExponentialDelayRestartStrategy(100, 800, 2.0, 10**9, jitter_factor=0, resets_with_checkpoints=True)
    grown = RestartBackoff(strategy).after_failure(0).after_failure(100)
    assert grown.after_failure(10_000).delay_ms == 400
    assert grown.after_checkpoint().after_failure(100 + 200 + 199).delay_ms == 400
    assert grown.after_checkpoint().after_failure(100 + 200 + 200).delay_ms == 100


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
