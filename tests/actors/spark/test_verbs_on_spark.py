"""Oracle: every verb against plain Python, on Spark; few tables, since a job takes a second."""

import zlib

import pytest
from campaigns import planted
from verbs_oracle import VERBS, check, random_tables

pytestmark = [pytest.mark.spark, pytest.mark.slow]


RELATIVES = {
    "flat_map", "filter by times", "groups by a decimal and a time", "max_by", "first of groups", "right join by times",
    "full join by two fields", "anti join", "left join where", "anti join where", "minus", "intersect_all",
    "over ranks of decimals", "over ranks of doubles, descending", "over ranks of times",
}  # fmt: skip
"""Verbs that reach Spark in the way of another one, of other types or with another end: for campaigns."""


def test_relatives_are_verbs():
    assert set(VERBS) >= RELATIVES


@pytest.mark.parametrize("name", planted(VERBS, RELATIVES))
@pytest.mark.sampled(4)
def test_a_verb_on_spark_gives_what_plain_python_gives(name, on_spark):
    check(VERBS[name], on_spark, *random_tables(zlib.crc32(name.encode()), 12, 6))


@pytest.mark.campaign
@pytest.mark.parametrize(
    "name",
    ["aggregate of all", "groups by a double", "full join by two fields", "left join where", "over rows", "minus_all",
     "sort", "iterate_delta"],
)  # fmt: skip
def test_a_verb_on_spark_of_nothing(name, on_spark):
    check(VERBS[name], on_spark, [], [])
