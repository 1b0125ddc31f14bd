"""The page of all functions: it is made of the functions, and leaves none of Flink's out."""

from __future__ import annotations

import pytest
from expression_kit import bound
from function_page import PAGE, page

from headrace.sql.functions.aggregates import AGGREGATES
from headrace.sql.functions.catalogue import ABSENT
from headrace.sql.functions.registry import SECTIONS, FunctionRegistry
from headrace.sql.parsing.errors import SqlError

FLINK = """
    ABS ACOS ARRAY_AGG ARRAY_APPEND ARRAY_CONCAT ARRAY_CONTAINS ARRAY_DISTINCT ARRAY_EXCEPT ARRAY_INTERSECT
    ARRAY_JOIN ARRAY_MAX ARRAY_MIN ARRAY_POSITION ARRAY_PREPEND ARRAY_REMOVE ARRAY_REVERSE ARRAY_SLICE ARRAY_SORT
    ARRAY_UNION ASCII ASIN ATAN ATAN2 AVG BIN BITMAP_AND BITMAP_ANDNOT BITMAP_AND_AGG BITMAP_AND_CARDINALITY_AGG
    BITMAP_BUILD BITMAP_BUILD_AGG BITMAP_BUILD_CARDINALITY_AGG BITMAP_CARDINALITY BITMAP_FROM_BYTES BITMAP_OR
    BITMAP_OR_AGG BITMAP_OR_CARDINALITY_AGG BITMAP_TO_ARRAY BITMAP_TO_BYTES BITMAP_TO_STRING BITMAP_XOR
    BITMAP_XOR_AGG BITMAP_XOR_CARDINALITY_AGG BTRIM CARDINALITY CEIL CEILING CHARACTER_LENGTH CHAR_LENGTH CHR
    COALESCE COLLECT CONCAT CONCAT_WS CONVERT_TZ COS COSH COT COUNT CUME_DIST CURRENT_DATABASE CURRENT_DATE
    CURRENT_ROW_TIMESTAMP CURRENT_TIME CURRENT_TIMESTAMP CURRENT_WATERMARK DATE_FORMAT DAYOFMONTH DAYOFWEEK
    DAYOFYEAR DECODE DEGREES E ELEMENT ELT ENCODE ENDSWITH EXP FIRST_VALUE FLOOR FROM_BASE64 FROM_UNIXTIME GREATEST
    GROUP_ID HEX HOUR IF IFNULL INET_ATON INET_NTOA INITCAP INSTR IS_ALPHA IS_DECIMAL IS_DIGIT JSON JSON_ARRAY
    JSON_ARRAYAGG JSON_EXISTS JSON_OBJECT JSON_OBJECTAGG JSON_QUERY JSON_QUOTE JSON_STRING JSON_UNQUOTE JSON_VALUE
    LAST_VALUE LEAST LEFT LISTAGG LN LOCALTIME LOCALTIMESTAMP LOCATE LOG LOG10 LOG2 LOWER LPAD LTRIM MAP_ENTRIES
    MAP_FROM_ARRAYS MAP_KEYS MAP_UNION MAP_VALUES MAX MD5 MIN MINUTE ML_PREDICT MOD MONTH NOW NTILE NULLIF OBJECT_OF
    OBJECT_UPDATE OVERLAY PARSE_JSON PARSE_URL PERCENTILE PERCENT_RANK PI POSITION POWER PRINTF PROCTIME QUARTER
    RADIANS RAND RAND_INTEGER REGEXP REGEXP_COUNT REGEXP_EXTRACT REGEXP_EXTRACT_ALL REGEXP_INSTR REGEXP_REPLACE
    REGEXP_SUBSTR REPEAT REPLACE REVERSE RIGHT ROUND RPAD RTRIM SECOND SHA1 SHA2 SHA224 SHA256 SHA384 SHA512 SIGN
    SIN SINH SPLIT SPLIT_INDEX SQRT STARTSWITH STDDEV_POP STDDEV_SAMP STR_TO_MAP SUBSTR SUBSTRING SUM TAN TANH
    TO_BASE64 TO_DATE TO_TIMESTAMP TO_TIMESTAMP_LTZ TRANSLATE TRIM TRUNCATE TRY_PARSE_JSON TYPEOF UNHEX
    UNIX_TIMESTAMP UPPER URL_DECODE URL_ENCODE UUID VARIANCE VAR_POP VAR_SAMP WEEK YEAR
""".split()  # noqa: SIM905
"""Names of Flink 2.3's documentation and of its `list_functions()`."""

WRITTEN = {"JSON", "JSON_ARRAY", "JSON_OBJECT"}
"""Functions whose arguments are more than values, which the parser knows."""


def test_the_page_is_that_of_the_functions():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/function_page.py"


def test_every_function_of_flink_is_there_or_said_not_to_be():
    names = set(FunctionRegistry().names()) | WRITTEN
    assert not [name for name in FLINK if name not in names and name not in ABSENT]
    assert not names & set(ABSENT)


def test_every_function_says_in_a_line_what_it_gives():
    functions = [*(one for functions in SECTIONS.values() for one in functions), *AGGREGATES.values()]
    assert len(functions) > 160
    for one in functions:
        assert one.meaning.endswith("."), one.name
        assert "\n" not in one.meaning + one.differs


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_what_is_not_there_says_why(name):
    with pytest.raises(SqlError, match=f"{name} is not supported: "):
        bound(f"{name}(1)")
