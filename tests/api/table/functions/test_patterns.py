"""LIKE, SIMILAR TO and regular expressions: what Flink gives for them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from expression_kit import bound, column_of, value_of

from headrace.sql.parsing.errors import SqlError


@pytest.mark.parametrize(
    ("expression", "value", "kind"),
    [
        ("REGEXP_COUNT('hello world! Hello everyone!', 'Hello')", 1, "INT"),
        ("REGEXP_COUNT('abcabcabc', 'abcab')", 1, "INT"),
        ("REGEXP_COUNT('abc', '')", 4, "INT"),
        ("REGEXP_COUNT('abc', 'x*')", 4, "INT"),
        (r"REGEXP_EXTRACT_ALL('100-200, 300-400', '(\d+)-(\d+)')", ["100", "300"], "ARRAY<STRING>"),
        (r"REGEXP_EXTRACT_ALL('100-200, 300-400', '(\d+)-(\d+)', 2)", ["200", "400"], "ARRAY<STRING>"),
        (r"REGEXP_EXTRACT_ALL('100-200, 300-400', '(\d+)-(\d+)', 0)", ["100-200", "300-400"], "ARRAY<STRING>"),
        (r"REGEXP_EXTRACT_ALL('100-200, 300-400', '(\d+)-(\d+)', 3)", None, "ARRAY<STRING>"),
        (r"REGEXP_EXTRACT_ALL('100-200, 300-400', '\d+')", None, "ARRAY<STRING>"),
        (r"REGEXP_EXTRACT_ALL('100-200, 300-400', '\d+', 0)", ["100", "200", "300", "400"], "ARRAY<STRING>"),
        ("REGEXP_EXTRACT_ALL('abc', 'x', 0)", [], "ARRAY<STRING>"),
        ("REGEXP_EXTRACT_ALL('ab', '(a)|(b)', 2)", [None, "b"], "ARRAY<STRING>"),
        ("REGEXP_INSTR('hello world! Hello everyone!', 'Hello')", 14, "INT"),
        ("REGEXP_INSTR('abc', 'x')", 0, "INT"),
        (r"REGEXP_INSTR('aé1', '\d')", 3, "INT"),
        ("REGEXP_INSTR('abc', '')", 1, "INT"),
        (r"REGEXP_SUBSTR('hello world! Hello everyone!', 'H\w+')", "Hello", "STRING"),
        ("REGEXP_SUBSTR('abc', 'x')", None, "STRING"),
        ("REGEXP_EXTRACT('abc', '(b)', 0)", "b", "STRING"),
        ("REGEXP_EXTRACT('abc', '(b)', 2)", None, "STRING"),
        ("REGEXP_EXTRACT('abc', '(b)')", "b", "STRING"),
        ("REGEXP('abc', '')", False, "BOOLEAN"),
        ("REGEXP_REPLACE('abc','','x')", "xaxbxcx", "STRING"),
    ],
)
def test_an_expression_has_the_value_and_type_of_flink(expression, value, kind):
    assert value_of(expression) == (value, kind)


@pytest.mark.parametrize("name", ["REGEXP", "REGEXP_COUNT", "REGEXP_EXTRACT", "REGEXP_EXTRACT_ALL", "REGEXP_SUBSTR"])
def test_a_pattern_that_is_none_is_refused_when_planned(name):
    with pytest.raises(SqlError, match="is not supported") as refused:
        bound(f"{name}('abc', '(')")
    assert (refused.value.line, refused.value.column) == (1, 8)


def test_patterns_may_be_a_column():
    table = pa.table({"t": ["a1b22", "a1b22", None], "p": ["[0-9]+", "[a-z]", "x"]})
    assert column_of("REGEXP_COUNT(t, p)", table).to_pylist() == [2, 2, None]
    assert column_of("REGEXP_SUBSTR(t, p)", table).to_pylist() == ["1", "a", None]
    assert column_of("REGEXP_REPLACE(t, p, '')", table).to_pylist() == ["ab", "122", None]
