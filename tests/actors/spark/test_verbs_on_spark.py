"""Oracle: every verb against plain Python, on Spark; few tables, since a job takes a second."""

import zlib

import pytest
from verbs_oracle import VERBS, check, random_tables

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("name", VERBS)
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
