"""Functions of texts: what Flink gives for them."""

from __future__ import annotations

import random
import re

import duckdb
import pyarrow as pa
import pytest
from expression_kit import column_of, value_of


@pytest.mark.parametrize(
    ("expression", "value", "kind"),
    [
        ("STARTSWITH('abc','')", True, "BOOLEAN"),
        ("ENDSWITH(X'0102', X'02')", True, "BOOLEAN"),
        ("TRANSLATE('www.apache.org','wapcheg',' APCHCG')", "   .APACHC.orG", "STRING"),
        ("TRANSLATE('abc','ab','x')", "xc", "STRING"),
        ("TRANSLATE('aabb','aba','xyz')", "xxyy", "STRING"),
        ("TRANSLATE('abc', '', 'x')", "abc", "STRING"),
        ("TRANSLATE('abc', 'a', CAST(NULL AS STRING))", "bc", "STRING"),
        ("TRANSLATE('abc', CAST(NULL AS STRING), 'x')", "abc", "STRING"),
        ("PRINTF('%d%s, %2$s', 1, 'ok')", "1ok, ok", "STRING"),
        ("PRINTF('%s %s', 'a')", None, "STRING"),
        (
            "PRINTF('%05d|%-5s|%,d|%.2f', 42, 'ab', 1234567, CAST(3.14159 AS DOUBLE))",
            "00042|ab   |1,234,567|3.14",
            "STRING",
        ),
        ("PRINTF('%s', CAST(NULL AS STRING))", "null", "STRING"),
        ("PRINTF('%d', CAST(NULL AS INT))", "null", "STRING"),
        ("PRINTF('%x %X %o %e %%', 255, 255, 8, CAST(12345.678 AS DOUBLE))", "ff FF 10 1.234568e+04 %", "STRING"),
        ("PRINTF('%s', TRUE)", "true", "STRING"),
        ("PRINTF('%b', TRUE)", "true", "STRING"),
        ("PRINTF('%s', 1.50)", "1.50", "STRING"),
        ("PRINTF('%s', CAST(1.5 AS DOUBLE))", "1.5", "STRING"),
        ("PRINTF('%c', 65)", "A", "STRING"),
        ("PRINTF('%S', 'abc')", "ABC", "STRING"),
        ("PRINTF('%+d % d %(d', 5, 5, -5)", "+5  5 (5)", "STRING"),
        ("ELT(2, 'a', 'b', 'c')", "b", "STRING"),
        ("ELT(0, 'a', 'b', 'c')", None, "STRING"),
        ("ELT(4, 'a', 'b', 'c')", None, "STRING"),
        ("ELT(1, X'01', X'02')", b"\x01", "BYTES"),
        ("ELT(CAST(NULL AS INT), 'a')", None, "STRING"),
        ("BTRIM('  ab  ')", "ab", "STRING"),
        ("BTRIM('wxaw', 'wx')", "a", "STRING"),
        ("BTRIM('abc', '')", "abc", "STRING"),
        ("LTRIM('xxab','x')", "ab", "STRING"),
        ("RTRIM('abxx','x')", "ab", "STRING"),
        ("SPLIT_INDEX('a,b', ',', 1)", "b", "STRING"),
        ("SPLIT_INDEX('a,,b', ',', 1)", "", "STRING"),
        ("SPLIT_INDEX('a,b', '', 0)", "a,b", "STRING"),
        ("SPLIT_INDEX('', ',', 0)", None, "STRING"),
        ("SPLIT_INDEX('a,b,', ',', 2)", "", "STRING"),
        ("SPLIT_INDEX('abcb', 98, 1)", "c", "STRING"),
        ("IS_ALPHA('abc')", True, "BOOLEAN"),
        ("IS_ALPHA('')", False, "BOOLEAN"),
        ("IS_ALPHA('abé')", True, "BOOLEAN"),
        ("IS_ALPHA('a1')", False, "BOOLEAN"),
        ("IS_DIGIT('12')", True, "BOOLEAN"),
        ("IS_DIGIT('')", False, "BOOLEAN"),
        ("IS_DIGIT('1.2')", False, "BOOLEAN"),
        ("IS_DECIMAL('12.3')", True, "BOOLEAN"),
        ("IS_DECIMAL('-1e5')", True, "BOOLEAN"),
        ("IS_DECIMAL('abc')", False, "BOOLEAN"),
        ("IS_DECIMAL('')", False, "BOOLEAN"),
        ("IS_DECIMAL(' 12')", True, "BOOLEAN"),
        ("IS_DECIMAL('.5')", True, "BOOLEAN"),
        ("IS_DECIMAL(12)", True, "BOOLEAN"),
        ("IS_ALPHA(12)", False, "BOOLEAN"),
        ("IS_ALPHA(CAST(NULL AS STRING))", False, "BOOLEAN"),
        ("INITCAP('hello wORLD it''s a-b 1st')", "Hello World It'S A-B 1st", "STRING"),
        ("LOCATE('a', 'banana', 3)", 4, "INT"),
        ("LOCATE('a', 'banana', 0)", 2, "INT"),
        ("LOCATE('', 'abc')", 1, "INT"),
        ("LOCATE('', 'abc', 2)", 1, "INT"),
        ("LOCATE('a', 'banana', 100)", 0, "INT"),
        ("INSTR('banana', 'a')", 2, "INT"),
        ("INSTR('banana', 'a', 3)", 4, "INT"),
        ("INSTR('banana', 'a', -1)", 6, "INT"),
        ("INSTR('banana', 'a', 1, 2)", 4, "INT"),
        ("POSITION('' IN 'abc')", 1, "INT"),
        ("LEFT('abc', -1)", "", "STRING"),
        ("RIGHT('abc', 0)", "", "STRING"),
        ("RIGHT('abc', 5)", "abc", "STRING"),
        ("REPEAT('a', -1)", "", "STRING"),
        ("OVERLAY('abc' PLACING 'x' FROM 0)", "abc", "STRING"),
        ("OVERLAY('abc' PLACING 'x' FROM 5)", "abc", "STRING"),
        ("OVERLAY('abc' PLACING 'xy' FROM 2 FOR 0)", "axy", "STRING"),
        ("OVERLAY('abc' PLACING 'xy' FROM 2 FOR -1)", "axy", "STRING"),
        ("OVERLAY('abc' PLACING 'xy' FROM 4)", "abc", "STRING"),
        ("SUBSTRING('abc' FROM 0 FOR 2)", "ab", "STRING"),
        ("SUBSTRING('abc' FROM -5 FOR 3)", "", "STRING"),
        ("SUBSTRING('abc' FROM -2 FOR 1)", "b", "STRING"),
        ("SUBSTRING('abc' FROM 2 FOR -1)", None, "STRING"),
        ("SUBSTR('abc', 0)", "abc", "STRING"),
        ("REPLACE('abc', '', 'x')", "xaxbxcx", "STRING"),
        ("REPLACE('ababab', 'abab', 'z')", "zab", "STRING"),
        ("CONCAT('a', CAST(NULL AS STRING))", None, "STRING"),
        ("CONCAT_WS('~', 'AA', CAST(NULL AS STRING), 'BB', '', 'CC')", "AA~BB~~CC", "STRING"),
        ("CONCAT_WS(CAST(NULL AS STRING), 'a')", None, "STRING"),
        ("CONCAT_WS('~')", "", "STRING"),
        ("REVERSE('aé日')", "日éa", "STRING"),
    ],
)
def test_an_expression_has_the_value_and_type_of_flink(expression, value, kind):
    assert value_of(expression) == (value, kind)


@pytest.mark.parametrize(
    ("call", "literals"),
    [
        ("REPLACE(t, p, r)", ("'banana'", "'an'", "'o'")),
        ("SPLIT_INDEX(t, p, n)", ("'a,b,c'", "','", "1")),
        ("SUBSTRING(t, n)", ("'abcdef'", "2")),
        ("SUBSTRING(t, n, m)", ("'abcdef'", "-3", "2")),
        ("STARTSWITH(t, p)", ("'banana'", "'ba'")),
        ("BTRIM(t, p)", ("'xxaxx'", "'x'")),
        ("INSTR(t, p, n, m)", ("'banana'", "'a'", "1", "2")),
        ("LPAD(t, n, p)", ("'a'", "3", "'xy'")),
        ("TRANSLATE(t, p, r)", ("'banana'", "'an'", "'o'")),
        ("OVERLAY(t PLACING p FROM n)", ("'banana'", "'xx'", "2")),
        ("ELT(n, t, p)", ("2", "'a'", "'b'")),
        ("CONCAT_WS(p, t, r)", ("'-'", "'a'", "'b'")),
    ],
)
def test_a_column_gives_what_a_literal_gives(call, literals):
    names = list(re.findall(r"\b[a-z]\b", call))
    values = dict(zip(names, literals, strict=True))
    literal = re.sub(r"\b[a-z]\b", lambda found: values[found.group()], call)
    columns = {name: column_of(given).to_pylist() * 3 for name, given in values.items()}
    table = pa.table({name: pa.array(column, column_of(values[name]).type) for name, column in columns.items()})
    assert column_of(call, table).to_pylist() == column_of(literal).to_pylist() * 3
    assert len(column_of(call, table.slice(0, 0))) == 0


def test_every_value_of_a_column_is_an_option_of_its_own():
    table = pa.table({"t": ["a-b", "a.b", None, "a-b"], "p": ["-", ".", "-", None]})
    assert column_of("SPLIT_INDEX(t, p, 1)", table).to_pylist() == ["b", "b", None, None]
    assert column_of("REPLACE(t, p, '')", table).to_pylist() == ["ab", "ab", None, None]
    assert column_of("t LIKE p || '%'", pa.table({"t": ["ab", "b"], "p": ["a", "a"]})).to_pylist() == [True, False]


def test_functions_of_random_texts_are_those_of_duckdb():
    generator = random.Random(5)
    texts = ["".join(generator.choices("abÄ -,x", k=generator.randrange(8))) for _ in range(300)] + [None]
    table = pa.table({"t": texts, "n": [generator.randrange(1, 6) for _ in texts]})
    calls = {
        "REVERSE(t)": "reverse(t)", "LEFT(t, n)": "left(t, n)", "RIGHT(t, n)": "right(t, n)",
        "REPLACE(t, 'a', 'bb')": "replace(t, 'a', 'bb')", "TRANSLATE(t, 'ab', 'x')": "translate(t, 'ab', 'x')",
        "SUBSTR(t, n)": "substr(t, n)", "SUBSTR(t, n, 2)": "substr(t, n, 2)", "INSTR(t, 'b')": "instr(t, 'b')",
        "BTRIM(t, 'a ')": "trim(t, 'a ')", "LPAD(t, n, 'yz')": "lpad(t, n::INT, 'yz')", "MD5(t)": "md5(t)",
        "REPEAT(t, n)": "repeat(t, n)", "STARTSWITH(t, 'a')": "starts_with(t, 'a')", "CHAR_LENGTH(t)": "length(t)",
        "SPLIT(t || '!', ',')": "string_split(t || '!', ',')",
            "SHA256(t)": "sha256(t)", "TO_BASE64(t)": "base64(encode(t))",
    }  # fmt: skip
    with duckdb.connect() as connection:
        connection.register("t1", table)
        for ours, theirs in calls.items():
            expected = [row[0] for row in connection.execute(f"SELECT {theirs} FROM t1").fetchall()]
            assert column_of(ours, table).to_pylist() == expected, ours


@pytest.mark.parametrize("expression", ["UPPER(t)", "LOWER(UPPER(t))"])
def test_texts_that_begin_within_their_bytes(expression):
    """As Arrow allows; its own functions of ASCII letters take them to begin at 0."""
    _, offsets, letters = pa.array(["not there", "ab", "", "cde"]).buffers()
    texts = pa.Array.from_buffers(pa.string(), 3, [None, offsets.slice(4), letters])
    expected = ["ab", "", "cde"] if "LOWER" in expression else ["AB", "", "CDE"]
    assert column_of(expression, pa.table({"t": texts})).to_pylist() == expected
