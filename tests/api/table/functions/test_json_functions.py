"""JSON in texts: what Flink gives for it."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from expression_kit import bound, column_of, value_of

from headrace.engine.errors import UserFunctionError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment


@pytest.mark.parametrize(
    ("expression", "value", "kind"),
    [
        (r"""JSON_QUOTE('a"b/c\d')""", '"a\\"b\\/c\\\\d"', "STRING"),
        ("JSON_QUOTE('é')", '"\\u00e9"', "STRING"),
        (r"""JSON_UNQUOTE('"a\u0041b"')""", "aAb", "STRING"),
        (r"""JSON_UNQUOTE('"abc')""", '"abc', "STRING"),
        (r"""JSON_UNQUOTE('"a\nb"')""", "a\nb", "STRING"),
        ("JSON_UNQUOTE('[1]')", "[1]", "STRING"),
        (r"""JSON_VALUE('{"a": true}', '$.a')""", "true", "STRING"),
        (r"""JSON_VALUE('{"a": true}', '$.a' RETURNING BOOLEAN)""", True, "BOOLEAN"),
        (r"""JSON_VALUE('{}', '$.a' RETURNING INT NULL ON EMPTY DEFAULT 1 ON ERROR)""", 1, "INT"),
        (r"""JSON_VALUE('{"a": []}', '$.a' RETURNING INT DEFAULT 1 ON EMPTY NULL ON ERROR)""", None, "INT"),
        (r"""JSON_VALUE('{"a": 1.50}', '$.a')""", "1.50", "STRING"),
        (r"""JSON_VALUE('{"a": 1e5}', '$.a')""", "1E+5", "STRING"),
        (r"""JSON_VALUE('{"a": 100000000000000000000}', '$.a')""", "100000000000000000000", "STRING"),
        (r"""JSON_VALUE('{"a": "x"}', '$.a')""", "x", "STRING"),
        (r"""JSON_VALUE('{"a": null}', '$.a')""", None, "STRING"),
        (r"""JSON_VALUE('{"a": [1]}', '$.a')""", None, "STRING"),
        (r"""JSON_VALUE('{"a": [1]}', '$.a' DEFAULT 'd' ON ERROR)""", "d", "STRING"),
        (r"""JSON_VALUE('{"a": [1,2]}', '$.a[0]' RETURNING INTEGER)""", 1, "INT"),
        (r"""JSON_VALUE('{"a": [1,2]}', '$.a[5]')""", None, "STRING"),
        (r"""JSON_VALUE('{"a": [1,2]}', 'strict $.a[5]' DEFAULT 'e' ON ERROR)""", "e", "STRING"),
        (r"""JSON_VALUE('{"a": true}', 'lax $.b' DEFAULT FALSE ON EMPTY)""", "false", "STRING"),
        (r"""JSON_VALUE('{"a": true}', 'lax $.b' DEFAULT 'x' ON EMPTY)""", "x", "STRING"),
        (r"""JSON_VALUE('{"a": true}', 'strict $.b' DEFAULT 'y' ON ERROR)""", "y", "STRING"),
        (r"""JSON_VALUE('{"a.b": [0.998,0.996]}','$.["a.b"][0]' RETURNING DOUBLE)""", 0.998, "DOUBLE"),
        ("JSON_VALUE('not json', '$.a')", None, "STRING"),
        ("JSON_VALUE('not json', '$.a' DEFAULT 'z' ON ERROR)", "z", "STRING"),
        (r"""JSON_VALUE('{"a": 1}', 'a')""", "1", "STRING"),
        (r"""JSON_VALUE('{"a": [{"b":1},{"b":2}]}', '$.a[*].b')""", None, "STRING"),
        (r"""JSON_VALUE('{"a": [{"b":1}]}', '$.a.b')""", None, "STRING"),
        (r"""JSON_VALUE('{"a": [{"b":1}]}', '$.a[*].b')""", None, "STRING"),
        ("JSON_VALUE('[1,2,3]', '$[-1]')", "3", "STRING"),
        (r"""JSON_VALUE('"abc"', '$')""", "abc", "STRING"),
        (r"""JSON_VALUE('{"a": "é\u0041\n"}', '$.a')""", "éA\n", "STRING"),
        (r"""JSON_VALUE('{"a": 1, "a": 2}', '$.a')""", "2", "STRING"),
        (r"""JSON_VALUE('{"a": 1', '$.a')""", None, "STRING"),
        ("JSON_VALUE('', '$.a')", None, "STRING"),
        ("JSON_VALUE(CAST(NULL AS STRING), '$.a' DEFAULT 'q' ON EMPTY)", None, "STRING"),
        (r"""JSON_EXISTS('{"a": true}', '$.a')""", True, "BOOLEAN"),
        (r"""JSON_EXISTS('{"a": null}', '$.a')""", False, "BOOLEAN"),
        (r"""JSON_EXISTS('{"a": true}', '$.b')""", False, "BOOLEAN"),
        (r"""JSON_EXISTS('{"a": true}', 'strict $.b')""", False, "BOOLEAN"),
        (r"""JSON_EXISTS('{"a": true}', 'strict $.b' TRUE ON ERROR)""", True, "BOOLEAN"),
        (r"""JSON_EXISTS('{"a": true}', 'strict $.b' UNKNOWN ON ERROR)""", None, "BOOLEAN"),
        (r"""JSON_EXISTS('{"a": [{ "b": 1 }]}', '$.a[0].b')""", True, "BOOLEAN"),
        (r"""JSON_EXISTS('{"a": [{ "b": 1 }]}', '$.a[*].c')""", True, "BOOLEAN"),
        ("JSON_EXISTS('nope', '$.a')", False, "BOOLEAN"),
        ("JSON_EXISTS('nope', 'lax $.a' TRUE ON ERROR)", False, "BOOLEAN"),
        ("JSON_EXISTS('[]', '$[*]')", True, "BOOLEAN"),
        ("JSON_EXISTS(CAST(NULL AS STRING), '$')", None, "BOOLEAN"),
        (r"""JSON_QUERY('{ "a": { "b": 1 } }', '$.a')""", '{"b":1}', "STRING"),
        (
            r"""JSON_QUERY('{"b":1,   "a": {"z": [1, 2.50], "c": "é/"}}', '$')""",
            '{"a":{"c":"é/","z":[1,2.50]},"b":1}',
            "STRING",
        ),
        ("JSON_QUERY('[1, 2]', '$')", "[1,2]", "STRING"),
        ("JSON_QUERY('1', '$')", None, "STRING"),
        (r"""JSON_QUERY('{"a":[{"c":"c1"},{"c":"c2"}]}', 'lax $.a[*].c')""", '["c1","c2"]', "STRING"),
        (
            r"""JSON_QUERY('{"a":[{"c":"c1"},{"c":"c2"}]}', 'lax $.a[*].c' WITH UNCONDITIONAL ARRAY WRAPPER)""",
            '[["c1","c2"]]',
            "STRING",
        ),
        (
            r"""JSON_QUERY('{"a":[{"c":"c1"},{"c":"c2"}]}', 'lax $.a[*].c' RETURNING ARRAY<STRING>)""",
            ["c1", "c2"],
            "ARRAY<STRING>",
        ),
        ("JSON_QUERY('{}', '$' WITH CONDITIONAL ARRAY WRAPPER)", "[{}]", "STRING"),
        ("JSON_QUERY('[1, 2]', '$' WITH CONDITIONAL ARRAY WRAPPER)", "[1,2]", "STRING"),
        ("JSON_QUERY('[1, 2]', '$' WITH UNCONDITIONAL ARRAY WRAPPER)", "[[1,2]]", "STRING"),
        ("JSON_QUERY('1', '$' WITH CONDITIONAL ARRAY WRAPPER)", "[1]", "STRING"),
        ("JSON_QUERY('1', '$' EMPTY ARRAY ON ERROR)", "[]", "STRING"),
        ("JSON_QUERY('{}', 'lax $.invalid' EMPTY OBJECT ON EMPTY)", "{}", "STRING"),
        ("JSON_QUERY('{}', 'strict $.invalid' EMPTY ARRAY ON ERROR)", "[]", "STRING"),
        (r"""JSON_QUERY('{"a": null}', '$.a')""", None, "STRING"),
        (r"""JSON_QUERY('{"a": null}', '$.a' WITH UNCONDITIONAL WRAPPER)""", None, "STRING"),
        ("JSON_QUERY('nope', '$')", None, "STRING"),
        ("JSON_QUERY('nope', '$' EMPTY OBJECT ON ERROR)", "{}", "STRING"),
        ("JSON_OBJECT()", "{}", "STRING"),
        ("JSON_OBJECT('K1' VALUE 'V1', 'K2' VALUE 2)", '{"K1":"V1","K2":2}', "STRING"),
        ("JSON_OBJECT(KEY 'K1' VALUE CAST(NULL AS STRING) NULL ON NULL)", '{"K1":null}', "STRING"),
        ("JSON_OBJECT(KEY 'K1' VALUE CAST(NULL AS STRING) ABSENT ON NULL)", "{}", "STRING"),
        ("JSON_OBJECT('a': 1)", '{"a":1}', "STRING"),
        ("JSON_OBJECT(KEY 'K1' VALUE JSON_OBJECT(KEY 'K2' VALUE 'V'))", '{"K1":{"K2":"V"}}', "STRING"),
        ("JSON_OBJECT('a' VALUE 1, 'a' VALUE 2)", '{"a":2}', "STRING"),
        ("JSON_ARRAY()", "[]", "STRING"),
        ("JSON_ARRAY(1, '2')", '[1,"2"]', "STRING"),
        ("JSON_ARRAY(CAST(NULL AS STRING) NULL ON NULL)", "[null]", "STRING"),
        ("JSON_ARRAY(1, CAST(NULL AS STRING))", "[1]", "STRING"),
        ("JSON_ARRAY(JSON_ARRAY(1))", "[[1]]", "STRING"),
        ("JSON_ARRAY(JSON_STRING(1))", '["1"]', "STRING"),
        ("JSON_STRING(1)", "1", "STRING"),
        ("JSON_STRING(TRUE)", "true", "STRING"),
        (r"""JSON_STRING('Hello, "World"!')""", '"Hello, \\"World\\"!"', "STRING"),
        ("JSON_STRING(ARRAY[1, 2])", "[1,2]", "STRING"),
        ("JSON_STRING(CAST(NULL AS INT))", None, "STRING"),
        ("JSON_STRING(TIMESTAMP '2024-01-02 03:04:05')", '"2024-01-02T03:04:05"', "STRING"),
        ("JSON_STRING(TIMESTAMP '2024-01-02 03:04:05.120')", '"2024-01-02T03:04:05.12"', "STRING"),
        ("JSON_STRING(CAST(1E20 AS DOUBLE))", "1.0E+20", "STRING"),
        ("JSON_STRING(CAST(1.0 AS DOUBLE))", "1.0", "STRING"),
        ("JSON_STRING(CAST(1E-5 AS DOUBLE))", "0.000010", "STRING"),
        ("'1' IS JSON", True, "BOOLEAN"),
        ("'[]' IS JSON ARRAY", True, "BOOLEAN"),
        ("'abc' IS JSON", False, "BOOLEAN"),
        (r"""'"abc"' IS JSON SCALAR""", True, "BOOLEAN"),
        ("'{}' IS JSON OBJECT", True, "BOOLEAN"),
        ("'{}' IS NOT JSON", False, "BOOLEAN"),
        ("'' IS JSON", False, "BOOLEAN"),
        ("CAST(NULL AS STRING) IS JSON", False, "BOOLEAN"),
        ("CAST(NULL AS STRING) IS NOT JSON", True, "BOOLEAN"),
        ("'1' IS JSON VALUE", True, "BOOLEAN"),
        (r"""'{"a":1,}' IS JSON""", False, "BOOLEAN"),
        ("'null' IS JSON SCALAR", True, "BOOLEAN"),
        ("'NaN' IS JSON", False, "BOOLEAN"),
        ("'01' IS JSON", False, "BOOLEAN"),
        ("JSON_STRING(TIMESTAMP '2024-01-02 03:04:00')", '"2024-01-02T03:04:00"', "STRING"),
        ("JSON_STRING(CAST(TIMESTAMP '2024-01-02 03:04:00' AS TIMESTAMP_LTZ(3)))", '"2024-01-02T03:04:00Z"', "STRING"),
        ("JSON_STRING(CAST(12345678.0 AS DOUBLE))", "12345678", "STRING"),
        ("JSON_STRING(CAST(1.1 AS FLOAT))", "1.100000023841858", "STRING"),
        ("JSON_STRING(CAST(0.0000001 AS DECIMAL(10,7)))", "1E-7", "STRING"),
        (r"""JSON_QUERY('{"a": 1}', '$.a[*]')""", "[]", "STRING"),
        (r"""JSON_QUERY('{"a": [[1,2],[3]]}', '$.a[*][0]')""", "[1,3]", "STRING"),
        (r"""JSON_QUERY('{"a": {"b":1,"c":2}}', '$.a.*')""", "[1,2]", "STRING"),
        (
            r"""JSON_QUERY('{"a":["x",1,null,{"b":2}]}', '$.a' RETURNING ARRAY<STRING>)""",
            ["x", "1", None, '{"b":2}'],
            "ARRAY<STRING>",
        ),
        (r"""JSON_QUERY('{"a":"x"}', '$.a' RETURNING ARRAY<STRING>)""", None, "ARRAY<STRING>"),
    ],
)
def test_an_expression_has_the_value_and_type_of_flink(expression, value, kind):
    assert value_of(expression) == (value, kind)


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("JSON_VALUE('{}', '$..a')", "is not supported at"),
        ("JSON_VALUE('{}', '$.a[?(@.b)]')", "is not supported at"),
        ("JSON_VALUE('{}', '$' RETURNING DATE)", "STRING, BOOLEAN, INTEGER or DOUBLE"),
        ("JSON_QUERY('{}', '$' RETURNING INT)", "STRING or ARRAY<STRING>"),
        ("JSON_EXISTS('{}')", "a text and a path"),
        ("JSON_OBJECT('a')", "takes entries"),
        ("JSON_STRING(INTERVAL '1' DAY)", "there is no JSON"),
        ("JSON('{}')", "stands in JSON_OBJECT"),
        ("JSON_EXISTS('{}', '$' NULL ON EMPTY)", "takes no ON EMPTY"),
    ],
)
def test_what_is_not_there_is_refused_when_planned(expression, error):
    with pytest.raises(SqlError, match=error):
        bound(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "JSON_VALUE('nope', '$' ERROR ON ERROR)",
        "JSON_VALUE('{}', 'lax $.a' ERROR ON EMPTY)",
        "JSON_VALUE('{}', 'strict $.a' ERROR ON ERROR)",
        "JSON_VALUE('[\"x\"]', '$[0]' RETURNING INTEGER)",
        "JSON_QUERY('1', '$' ERROR ON ERROR)",
        "JSON_QUERY('{}', 'lax $.a' ERROR ON EMPTY EMPTY ARRAY ON ERROR)",
        "JSON_EXISTS('{}', 'strict $.a' ERROR ON ERROR)",
        "JSON_STRING(CAST('NaN' AS DOUBLE))",
    ],
)
def test_an_error_that_is_asked_for_fails(expression):
    with pytest.raises(UserFunctionError, match="failed"):
        column_of(expression)


WHERE = "DEFAULT 'E' ON EMPTY DEFAULT 'R' ON ERROR"


@pytest.mark.parametrize(
    ("document", "path", "value", "part", "exists"),
    [
        ('{"n": null}', "$.z", "R", "{}", True),
        ('{"n": null}', "lax $.z", "E", "[]", False),
        ('{"n": null}', "strict $.n", "R", "{}", True),
        ('{"n": null}', "lax $.n", "E", "[]", False),
        ("no json", "$", "R", "{}", True),
        ("no json", "lax $", "E", "[]", False),
        ("null", "$", "R", "{}", True),
        ("null", "lax $.a", "R", "{}", True),
        ('{"c": [1]}', "$.c", "R", "[1]", True),
        ('{"c": [1]}', "lax $.c", "E", "[1]", True),
        ('{"c": [1]}', "$.c[0]", "1", "{}", True),
        ('{"c": [1]}', "lax $.c[0]", "1", "[]", True),
        ('{"c": [1]}', "$.c[*].a", "R", "[]", True),
        ('{"c": [1]}', "lax $.c[*].a", "E", "[]", True),
    ],
)
def test_what_is_not_found_is_empty_or_an_error_as_in_flink(document, path, value, part, exists):
    assert value_of(f"JSON_VALUE('{document}', '{path}' {WHERE})")[0] == value
    assert value_of(f"JSON_QUERY('{document}', '{path}' EMPTY ARRAY ON EMPTY EMPTY OBJECT ON ERROR)")[0] == part
    assert value_of(f"JSON_EXISTS('{document}', '{path}' TRUE ON ERROR)")[0] is exists


def test_paths_and_defaults_may_be_columns():
    table = pa.table({"j": ['{"a": 1}', '{"b": [2]}', None], "p": ["$.a", "$.b[0]", "$.a"], "d": ["x", "y", "z"]})
    assert column_of("JSON_VALUE(j, p)", table).to_pylist() == ["1", "2", None]
    assert column_of("JSON_VALUE(j, 'lax $.a' DEFAULT d ON EMPTY)", table).to_pylist() == ["1", "y", None]
    assert column_of("JSON_OBJECT('d' VALUE d, 'j' VALUE JSON(j))", table).to_pylist()[:2] == [
        '{"d":"x","j":{"a":1}}', '{"d":"y","j":{"b":[2]}}',
    ]  # fmt: skip


def test_deep_and_broken_texts_are_no_json():
    deep = "[" * 100_000
    table = pa.table({"j": [deep, '"\\ud800"', "1 2", '{"a": NaN}', "{'a': 1}"]})
    assert column_of("j IS JSON", table).to_pylist() == [False, True, False, False, False]
    assert column_of("JSON_VALUE(j, '$')", table).to_pylist() == [None, "?", None, None, None]


def test_what_is_written_is_read_by_another_reader():
    table = pa.table({"t": ['a"b', "\u0007é/", None], "n": [1, -2, None], "f": [1.5, 1e300, 0.0]})
    made = column_of("JSON_OBJECT('t' VALUE t, 'n' VALUE n, 'f' VALUE f, 'a' VALUE ARRAY[t])", table).to_pylist()
    assert [json.loads(one) for one in made] == [
        {"t": t, "n": n, "f": f, "a": [t]} for t, n, f in zip(*table.to_pydict().values(), strict=True)
    ]


def test_fractions_of_a_second_are_read_from_files_as_they_were_written(tmp_path):
    kind = pa.struct([("at", pa.timestamp("ms")), ("all", pa.list_(pa.timestamp("s")))])
    times = pa.array(["2024-01-02 03:04:05.678", "2024-01-02 03:04:05", None]).cast(pa.timestamp("ms"))
    rows = pa.StructArray.from_arrays(
        [times, pa.array([[0], [], None], pa.list_(pa.timestamp("s")))], fields=list(kind)
    )
    table = pa.table({"t": times, "r": rows})
    with TableEnvironment.create(mode="batch", parallelism=1) as env:
        env.create_temporary_view("given", table)
        env.execute_sql(f"""
            CREATE TABLE files (t TIMESTAMP(3), r ROW<`at` TIMESTAMP(3), `all` ARRAY<TIMESTAMP(0)>>)
            WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/out', 'format' = 'json')
        """)
        env.execute_sql("INSERT INTO files SELECT t, r FROM given")
        found = env.execute_sql("SELECT t, r FROM files").to_arrow()
    assert found.to_pylist() == table.to_pylist()
