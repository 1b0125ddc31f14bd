"""Random nested types as the types of data sets on Spark; few of them, since a job takes a second."""

import pytest
from campaigns import examples
from hypothesis import HealthCheck, given, settings
from typed_values import COLUMN_TYPES, check_data_set, typed_columns

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@settings(max_examples=examples(6), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(typed_columns(COLUMN_TYPES))
def test_records_of_a_declared_type_come_back_from_spark_as_they_were(on_spark, typed):
    check_data_set(on_spark, *typed)
