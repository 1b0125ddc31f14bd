"""Numbers: what Flink gives for them."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from expression_kit import column_of, value_of

from headrace.engine.errors import UserFunctionError


@pytest.mark.parametrize(
    ("expression", "value", "kind"),
    [
        ("COALESCE(NULL, 1, 2.5)", Decimal("1.0"), "DECIMAL(11, 1)"),
        ("1 BETWEEN SYMMETRIC 2 AND 0", True, "BOOLEAN"),
        ("MOD(-7.5, 2)", Decimal("-1.5"), "DECIMAL(2, 1)"),
        ("MOD(7.5, CAST(2 AS BIGINT))", Decimal("1.5"), "DECIMAL(2, 1)"),
        ("POWER(2, 0.5)", 1.4142135623730951, "DOUBLE"),
        ("SQRT(2)", 1.4142135623730951, "DOUBLE"),
        ("LOG(10, 100)", 2.0, "DOUBLE"),
        ("ROUND(1234, -2)", 1200, "INT"),
        ("ROUND(1.25E0, 1)", 1.3, "DOUBLE"),
        ("ROUND(-2.5)", Decimal("-3"), "DECIMAL(2, 0)"),
        ("ROUND(CAST(0.05 AS DECIMAL(3, 2)), -1)", Decimal("0"), "DECIMAL(2, 0)"),
        ("ROUND(CAST(99.55 AS DECIMAL(4, 2)), -2)", Decimal("100"), "DECIMAL(3, 0)"),
        ("ROUND(2.5E0)", 3.0, "DOUBLE"),
        ("TRUNCATE(42.345, 2)", Decimal("42.34"), "DECIMAL(5, 2)"),
        ("TRUNCATE(42.345)", Decimal("42"), "DECIMAL(3, 0)"),
        ("TRUNCATE(42.345, -1)", Decimal("40"), "DECIMAL(3, 0)"),
        ("TRUNCATE(1234, -2)", 1200, "INT"),
        ("TRUNCATE(CAST(42.345 AS DOUBLE), 2)", 42.34, "DOUBLE"),
        ("CEIL(1.2E0)", 2.0, "DOUBLE"),
        ("FLOOR(CAST(1.5 AS FLOAT))", 1.0, "FLOAT"),
        ("SIGN(-2)", -1, "INT"),
        ("SIGN(CAST(-2.5 AS DOUBLE))", -1.0, "DOUBLE"),
        ("GREATEST(1, 2.5)", Decimal("2.5"), "DECIMAL(11, 1)"),
        ("GREATEST('a', 'b')", "b", "STRING"),
        ("GREATEST(CAST(NULL AS INT), 1)", None, "INT"),
        ("COT(1)", 0.6420926159343306, "DOUBLE"),
        ("LOG2(8)", 3.0, "DOUBLE"),
        ("EXP(1)", 2.718281828459045, "DOUBLE"),
        ("DEGREES(PI())", 180.0, "DOUBLE"),
        ("ROUND(2.675, 2)", Decimal("2.68"), "DECIMAL(4, 2)"),
    ],
)
def test_an_expression_has_the_value_and_type_of_flink(expression, value, kind):
    assert value_of(expression) == (value, kind)


def test_a_remainder_of_decimals_has_the_sign_of_the_first():
    table = pa.table({"a": [Decimal("7.5"), Decimal("-7.5"), None], "b": [2, 2, 2]})
    assert column_of("MOD(a, b)", table).to_pylist() == [Decimal("1.5"), Decimal("-1.5"), None]
    with pytest.raises(UserFunctionError, match="division by zero"):
        column_of("a % 0", table)
