"""The demo against pandas, which shares no code with it; with a kill on Ray, where there is a process to kill."""

from __future__ import annotations

import pandas as pd
import pytest
from campaigns import campaign

from headrace.cli import demo
from headrace.data import flights_path


@pytest.fixture(scope="module")
def expected() -> pd.DataFrame:
    """Count, mean and worst delay per airport and day-long window every six hours, by pandas."""
    flights = pd.read_parquet(flights_path())
    size, slide = pd.Timedelta("24h"), pd.Timedelta("6h")
    last = flights["scheduled"].dt.floor("6h")
    windows = pd.concat([flights.assign(window_start=last - n * slide) for n in range(size // slide)])
    grouped = windows.groupby(["origin", "window_start"])["dep_delay"].agg(["count", "mean", "max"])
    return grouped.sort_index()


def check(output: str, expected: pd.DataFrame) -> None:
    parts = demo.read_table(output).to_pandas()
    got = parts.set_index(["origin", "window_start"]).sort_index()[["flights", "mean_delay", "worst_delay"]]
    got.columns = expected.columns
    assert got.index.is_unique
    pd.testing.assert_frame_equal(got, expected, check_dtype=False, check_index_type=False)


@pytest.mark.parametrize("parallelism", [campaign(1), 2, campaign(3)])
def test_the_result_is_what_pandas_says(tmp_path, expected, parallelism):
    result = demo.run(output=str(tmp_path / "out"), parallelism=parallelism, speed="max", actor_system="local")
    assert result.is_correct
    check(result.output, expected)


@pytest.mark.campaign
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_killed_process_changes_nothing(tmp_path, expected, parallelism):
    result = demo.run(output=str(tmp_path / "out"), parallelism=parallelism, speed="max", kill=True)
    assert result.killed is not None
    assert result.view.num_restarts == 1
    check(result.output, expected)
