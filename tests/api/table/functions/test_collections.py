"""Arrays, maps and rows: what Flink gives for them."""

from __future__ import annotations

import random
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from expression_kit import bound, column_of, value_of

from headrace.engine.errors import UserFunctionError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment


@pytest.mark.parametrize(
    ("expression", "value", "kind"),
    [
        ("SPLIT('a,b,,c', ',')", ["a", "b", "", "c"], "ARRAY<STRING>"),
        ("SPLIT('abc', '')", ["a", "b", "c"], "ARRAY<STRING>"),
        ("SPLIT('', ',')", [], "ARRAY<STRING>"),
        ("SPLIT('', '')", [], "ARRAY<STRING>"),
        ("SPLIT(',a,', ',')", ["", "a", ""], "ARRAY<STRING>"),
        ("STR_TO_MAP('a=1,b=2')", [("a", "1"), ("b", "2")], "MAP<STRING, STRING>"),
        ("STR_TO_MAP('a:1;b:2;c', ';', ':')", [("a", "1"), ("b", "2"), ("c", None)], "MAP<STRING, STRING>"),
        ("STR_TO_MAP('a=1,a=2,b')", [("a", "2"), ("b", None)], "MAP<STRING, STRING>"),
        ("STR_TO_MAP('a=1=2,b=')", [("a", "1=2"), ("b", "")], "MAP<STRING, STRING>"),
        ("CARDINALITY(ARRAY[1,2])", 2, "INT"),
        ("CARDINALITY(MAP['a',1])", 1, "INT"),
        ("CARDINALITY(CAST(NULL AS ARRAY<INT>))", None, "INT"),
        ("ARRAY[1,2][1]", 1, "INT"),
        ("ARRAY[1, 2.5]", [Decimal("1.0"), Decimal("2.5")], "ARRAY<DECIMAL(11, 1)>"),
        ("ARRAY['a','bcd']", ["a", "bcd"], "ARRAY<STRING>"),
        ("ARRAY[1,NULL]", [1, None], "ARRAY<INT>"),
        ("ELEMENT(ARRAY[7])", 7, "INT"),
        ("MAP['a',1]['a']", 1, "INT"),
        ("MAP['a',1,'a',2]", [("a", 2)], "MAP<STRING, INT>"),
        ("MAP['a',1,'b',CAST(NULL AS INT)]", [("a", 1), ("b", None)], "MAP<STRING, INT>"),
        ("ARRAY_APPEND(ARRAY[1,2], 3)", [1, 2, 3], "ARRAY<INT>"),
        ("ARRAY_APPEND(ARRAY[1,2], CAST(NULL AS INT))", [1, 2, None], "ARRAY<INT>"),
        ("ARRAY_APPEND(CAST(NULL AS ARRAY<INT>), 1)", None, "ARRAY<INT>"),
        ("ARRAY_CONTAINS(ARRAY[1,2], 2)", True, "BOOLEAN"),
        ("ARRAY_CONTAINS(ARRAY[1,NULL], CAST(NULL AS INT))", True, "BOOLEAN"),
        ("ARRAY_CONTAINS(ARRAY[1,2], CAST(NULL AS INT))", False, "BOOLEAN"),
        ("ARRAY_DISTINCT(ARRAY[3,1,3,NULL,1,NULL])", [3, 1, None], "ARRAY<INT>"),
        ("ARRAY_POSITION(ARRAY[3,1,NULL,1], 1)", 2, "INT"),
        ("ARRAY_POSITION(ARRAY[3,1,NULL], CAST(NULL AS INT))", None, "INT"),
        ("ARRAY_POSITION(ARRAY[3,1], 9)", 0, "INT"),
        ("ARRAY_PREPEND(ARRAY[1,2], 0)", [0, 1, 2], "ARRAY<INT>"),
        ("ARRAY_REMOVE(ARRAY[1,2,1,NULL], 1)", [2, None], "ARRAY<INT>"),
        ("ARRAY_REMOVE(ARRAY[1,NULL], CAST(NULL AS INT))", [1], "ARRAY<INT>"),
        ("ARRAY_REVERSE(ARRAY[1,2,NULL])", [None, 2, 1], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 2, 4)", [2, 3, 4], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 0, 2)", [1, 2], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], -3, -2)", [3, 4], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 3)", [3, 4, 5], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], -20, 2)", [1, 2], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 2, 0)", [], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 4, 2)", [], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 7, 9)", [], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 4, 20)", [4, 5], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], -20, -10)", [], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 0, 0)", [1], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], -2)", [4, 5], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], CAST(NULL AS INT), 2)", None, "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 1, -6)", [1], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 1, -5)", [1], "ARRAY<INT>"),
        ("ARRAY_SORT(ARRAY[3,NULL,1])", [None, 1, 3], "ARRAY<INT>"),
        ("ARRAY_SORT(ARRAY[3,NULL,1], FALSE)", [3, 1, None], "ARRAY<INT>"),
        ("ARRAY_SORT(ARRAY[3,NULL,1], TRUE, FALSE)", [1, 3, None], "ARRAY<INT>"),
        ("ARRAY_SORT(ARRAY[3,NULL,1], FALSE, TRUE)", [None, 3, 1], "ARRAY<INT>"),
        ("ARRAY_SORT(ARRAY['b','a'])", ["a", "b"], "ARRAY<STRING>"),
        ("ARRAY_UNION(ARRAY[1,2,NULL,2], ARRAY[3,1,NULL])", [1, 2, None, 3], "ARRAY<INT>"),
        ("ARRAY_UNION(ARRAY[1], CAST(NULL AS ARRAY<INT>))", None, "ARRAY<INT>"),
        ("ARRAY_UNION(ARRAY[1], ARRAY[1.5])", [Decimal("1.0"), Decimal("1.5")], "ARRAY<DECIMAL(11, 1)>"),
        ("ARRAY_CONCAT(ARRAY[1,2], ARRAY[2,NULL])", [1, 2, 2, None], "ARRAY<INT>"),
        ("ARRAY_CONCAT(ARRAY[1])", [1], "ARRAY<INT>"),
        ("ARRAY_EXCEPT(ARRAY[1,2,2,NULL,3], ARRAY[2])", [1, None, 3], "ARRAY<INT>"),
        ("ARRAY_EXCEPT(ARRAY[1,NULL,1], ARRAY[NULL,2])", [1], "ARRAY<INT>"),
        ("ARRAY_INTERSECT(ARRAY[3,1,1,NULL], ARRAY[1,NULL,3])", [3, 1, None], "ARRAY<INT>"),
        ("ARRAY_MAX(ARRAY[1,NULL,3])", 3, "INT"),
        ("ARRAY_MIN(ARRAY[1,NULL,3])", 1, "INT"),
        ("ARRAY_MAX(ARRAY_REMOVE(ARRAY[1],1))", None, "INT"),
        ("ARRAY_MAX(ARRAY['a','b'])", "b", "STRING"),
        ("ARRAY_JOIN(ARRAY['a',NULL,'b'], ',')", "a,b", "STRING"),
        ("ARRAY_JOIN(ARRAY['a',NULL,'b'], ',', '-')", "a,-,b", "STRING"),
        ("ARRAY_JOIN(ARRAY['a','b'], CAST(NULL AS STRING))", None, "STRING"),
        ("MAP_KEYS(MAP['a',1,'b',2])", ["a", "b"], "ARRAY<STRING>"),
        ("MAP_VALUES(MAP['a',1,'b',2])", [1, 2], "ARRAY<INT>"),
        ("MAP_ENTRIES(MAP['a',1])", [{"key": "a", "value": 1}], "ARRAY<ROW<`key` STRING, `value` INT>>"),
        ("MAP_FROM_ARRAYS(ARRAY['a','b'], ARRAY[1,2])", [("a", 1), ("b", 2)], "MAP<STRING, INT>"),
        ("MAP_FROM_ARRAYS(ARRAY['a','a'], ARRAY[1,2])", [("a", 2)], "MAP<STRING, INT>"),
        ("MAP_UNION(MAP['a',1], MAP['a',2,'b',3])", [("a", 2), ("b", 3)], "MAP<STRING, INT>"),
        ("MAP_UNION(MAP['a',1], CAST(NULL AS MAP<STRING,INT>))", None, "MAP<STRING, INT>"),
        ("ROW(1,'a')", {"EXPR$0": 1, "EXPR$1": "a"}, "ROW<`EXPR$0` INT, `EXPR$1` STRING>"),
        ("(1,'a')", {"EXPR$0": 1, "EXPR$1": "a"}, "ROW<`EXPR$0` INT, `EXPR$1` STRING>"),
        ("ROW(1,'a').EXPR$0", 1, "INT"),
        ("(DATE '2024-01-01', DATE '2024-02-01') OVERLAPS (DATE '2024-02-01', DATE '2024-03-01')", True, "BOOLEAN"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], -20, 20)", [1, 2, 3, 4, 5], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 0, 20)", [1, 2, 3, 4, 5], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 20, 0)", [], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 7, 2)", [], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], -20, 0)", [1], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 6, -6)", [], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 6)", [], "ARRAY<INT>"),
        ("ARRAY_SLICE(ARRAY[1,2,3,4,5], 5, 20)", [5], "ARRAY<INT>"),
        ("ARRAY_SORT(ARRAY[2,1], CAST(NULL AS BOOLEAN))", None, "ARRAY<INT>"),
    ],
)
def test_an_expression_has_the_value_and_type_of_flink(expression, value, kind):
    assert value_of(expression) == (value, kind)


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("ARRAY[1, 2][0]", "numbered from 1"),
        ("ARRAY[1, 'a']", "no type in common"),
        ("ARRAY[]", "has no type"),
        ("MAP['a']", "a value for each key"),
        ("ARRAY_JOIN(ARRAY[1], ',')", "arrays of texts"),
        ("ARRAY_DISTINCT(1)", "expected an array"),
        ("ARRAY_DISTINCT(NULL)", "expected an array"),
        ("MAP_KEYS(1)", "expected a map"),
    ],
)
def test_what_is_no_collection_is_refused_when_planned(expression, error):
    with pytest.raises(SqlError, match=error):
        bound(expression)


@pytest.mark.parametrize(
    "expression",
    ["ELEMENT(ARRAY[1, 2])", "MAP_FROM_ARRAYS(ARRAY['a'], ARRAY[1, 2])", "MAP[CAST(NULL AS STRING), 1]"],
)
def test_a_value_that_cannot_be_fails(expression):
    with pytest.raises(UserFunctionError, match="failed"):
        column_of(expression)


def test_columns_of_arrays_and_maps_with_nulls_and_slices():
    arrays = [[1, None, 3], [], None, [4], [1, 1]]
    maps = [[("a", 1)], None, [], [("b", None), ("c", 2)], [("a", 5)]]
    table = pa.table({
        "a": pa.array(arrays, pa.list_(pa.int32())), "m": pa.array(maps, pa.map_(pa.string(), pa.int32())),
        "n": [1, 1, 1, 2, 2],
    })  # fmt: skip
    for rows in (table, table.slice(1), table.slice(2, 2), table.slice(0, 0)):
        first = table.num_rows - rows.num_rows if rows.num_rows != 2 else 2
        chosen = slice(first, first + rows.num_rows)
        assert column_of("CARDINALITY(a)", rows).to_pylist() == [
            None if one is None else len(one) for one in arrays[chosen]
        ]
        assert column_of("a[n]", rows).to_pylist() == [1, None, None, None, 1][chosen]
        assert column_of("m['a']", rows).to_pylist() == [1, None, None, None, 5][chosen]
        assert column_of("MAP_KEYS(m)", rows).to_pylist() == [["a"], None, [], ["b", "c"], ["a"]][chosen]
        assert column_of("MAP_VALUES(m)", rows).to_pylist() == [[1], None, [], [None, 2], [5]][chosen]
        assert column_of("ARRAY[n, n + 1][2]", rows).to_pylist() == [2, 2, 2, 3, 3][chosen]
        assert column_of("CAST(a AS ARRAY<STRING>)", rows).to_pylist() == [
            None if one is None else [None if n is None else str(n) for n in one] for one in arrays[chosen]
        ]


def test_functions_of_random_arrays_are_those_of_duckdb():
    generator = random.Random(7)
    arrays = [[generator.choice([1, 2, 3, 4, 5]) for _ in range(generator.randrange(6))] for _ in range(200)]
    table = pa.table({"a": arrays, "b": arrays[::-1]})
    calls = {
        "ARRAY_REVERSE(a)": "list_reverse(a)", "ARRAY_CONCAT(a, b)": "list_concat(a, b)",
        "ARRAY_SORT(a, FALSE)": "list_reverse_sort(a)", "ARRAY_MAX(a)": "list_max(a)", "ARRAY_MIN(a)": "list_min(a)",
        "ARRAY_CONTAINS(a, CAST(3 AS BIGINT))": "list_contains(a, 3)",
        "ARRAY_SORT(ARRAY_DISTINCT(a))": "list_sort(list_distinct(a))",
        "ARRAY_SORT(ARRAY_INTERSECT(a, b))": "list_sort(list_intersect(a, b))",
        "ARRAY_POSITION(a, CAST(2 AS BIGINT))": "coalesce(list_position(a, 2), 0)",
        "ARRAY_SLICE(a, 2, 3)": "list_slice(a, 2, 3)", "CARDINALITY(a)": "len(a)", "a[2]": "a[2]",
    }  # fmt: skip
    with duckdb.connect() as connection:
        connection.register("t1", table)
        for ours, theirs in calls.items():
            expected = [row[0] for row in connection.execute(f"SELECT {theirs} FROM t1").fetchall()]
            assert column_of(ours, table).to_pylist() == expected, ours


def test_collections_go_through_a_query():
    with TableEnvironment.create(mode="batch", parallelism=1) as env:
        env.create_temporary_view("t", pa.table({"k": ["a", "b"], "n": [1, 2]}))
        found = env.execute_sql("SELECT ARRAY[n, 2] AS a, MAP[k, n] AS m, ROW(k, n) AS r FROM t WHERE ARRAY[n][1] > 1")
        assert found.to_arrow().to_pylist() == [{"a": [2, 2], "m": [("b", 2)], "r": {"EXPR$0": "b", "EXPR$1": 2}}]
