"""The flights pipeline in full against pandas. Oracle: `flights_pipeline.worst_routes_in_pandas`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from flights_pipeline import assert_same_routes, worst_routes, worst_routes_in_pandas


def test_the_worst_routes_of_each_carrier_are_those_of_pandas(env):
    expected = worst_routes_in_pandas()
    assert len(expected) > 80
    assert_same_routes(worst_routes(env).collect(), expected)


def test_the_plan_reads_only_what_it_needs(env):
    text = worst_routes(env).explain()
    assert "reads only records with col('dep_delay').is_not_null()" in text
    assert "reads only columns tailnum, seats" in text
    assert "distance" not in text.split("Sort")[-1]


def test_the_result_is_a_data_frame(env):
    frame = worst_routes(env).to_pandas()
    assert list(frame.columns)[:3] == ["carrier", "origin", "dest"]
    assert frame["flights"].sum() == pytest.approx(sum(r["flights"] for r in worst_routes_in_pandas()))
