"""Programs of PyFlink's Table API: its names, and what they mean here.

Families: inventory (each name of PyFlink 2.3 is here, or an error says what to use), differential (methods and
functions against the same query in SQL), behaviour (a program that came along from PyFlink).
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace import ProgramError
from headrace.sql.parsing.errors import SqlError
from headrace.table import (
    DataTypes,
    EnvironmentSettings,
    Expression,
    FormatDescriptor,
    Over,
    ScalarFunction,
    Schema,
    StatementSet,
    Table,
    TableDescriptor,
    TableEnvironment,
    TableFunction,
    TableResult,
    expressions,
    udf,
    udtf,
)
from headrace.table import expressions as fn
from headrace.table.expressions import TimeIntervalUnit, col, lit

METHODS = """
    exp log10 log2 ln log cosh sinh sin cos tan cot asin acos atan tanh degrees radians sqrt abs sign round
    concat between not_between then if_null is_null is_not_null is_true is_false is_not_true is_not_false
    distinct sum sum0 min max count avg first_value last_value list_agg stddev_pop stddev_samp var_pop var_samp
    collect array_agg alias cast try_cast asc desc in_ start end bin hex unhex truncate percentile starts_with
    ends_with substring substr trim_leading trim_trailing trim replace translate char_length upper_case
    lower_case init_cap like similar position lpad rpad overlay regexp regexp_count regexp_replace
    regexp_extract regexp_extract_all regexp_instr regexp_substr from_base64 to_base64 ascii chr decode encode
    flatten left right instr locate url_decode url_encode parse_url printf ltrim rtrim btrim repeat over reverse
    inet_aton inet_ntoa split_index str_to_map elt to_date to_time to_timestamp extract floor ceil get at
    cardinality element array_append array_contains array_distinct array_position array_prepend array_remove
    array_reverse array_slice array_sort array_union array_concat array_max array_join array_min array_except
    array_intersect split map_keys map_union map_values map_entries rowtime year years quarter quarters month
    months week weeks day days hour hours minute minutes second seconds milli millis md5 sha1 sha224 sha256
    sha384 sha512 sha2 is_json json_exists json_value json_query json_quote json_unquote
"""
FUNCTIONS = """
    range_ with_columns without_columns json json_object_agg json_array_agg current_database JsonType
    JsonExistsOnError JsonValueOnEmptyOrError JsonQueryWrapper JsonQueryOnEmptyOrError JsonOnNull
    col lit and_ or_ not_ current_date current_time current_timestamp current_watermark local_time
    local_timestamp to_date to_timestamp to_timestamp_ltz temporal_overlaps date_format timestamp_diff
    convert_tz from_unixtime unix_timestamp array row map_ map_from_arrays row_interval pi e rand rand_integer
    atan2 negative concat concat_ws uuid null_of log if_then_else coalesce with_all_columns json_string
    json_object json_array lag lead call call_sql UNBOUNDED_ROW UNBOUNDED_RANGE CURRENT_ROW CURRENT_RANGE
"""
OF_CLASSES = {
    TableEnvironment: """create create_catalog create_temporary_system_function drop_temporary_system_function
        create_temporary_function drop_temporary_function create_temporary_table create_table from_descriptor from_path
        execute_sql explain_sql sql_query list_catalogs list_databases list_tables list_views list_functions
        list_temporary_tables list_temporary_views drop_temporary_table drop_table drop_temporary_view drop_view
        get_current_catalog use_catalog get_current_database use_database get_config create_temporary_view create_view
        create_statement_set from_elements from_pandas from_data_stream to_data_stream from_changelog_stream
        to_changelog_stream""",
    Table: """select alias filter where group_by distinct join left_outer_join right_outer_join full_outer_join
        flat_aggregate join_lateral left_outer_join_lateral minus minus_all union union_all intersect
        intersect_all order_by offset fetch limit window over_window add_columns add_or_replace_columns
        rename_columns drop_columns map flat_map aggregate to_pandas print_schema execute_insert insert_into
        execute explain print_explain""",
    TableResult: "get_job_client wait collect print",
    StatementSet: "add add_insert add_insert_sql explain print_explain execute",
}
ABSENT = {"bitmap_and": "BITMAP", "object_update": "ROW"}


def test_names_of_pyflink_are_here():
    assert [name for name in METHODS.split() if not hasattr(Expression, name)] == []
    assert [name for name in FUNCTIONS.split() if not hasattr(expressions, name)] == []
    missing = [
        (of.__name__, name) for of, names in OF_CLASSES.items() for name in names.split() if not hasattr(of, name)
    ]
    assert missing == []
    assert set(expressions.__all__) <= {*FUNCTIONS.split(), "expr", "TimeIntervalUnit", "TimePointUnit"}


@pytest.mark.parametrize("name", ABSENT)
def test_what_is_not_here_says_why(name):
    with pytest.raises(AttributeError, match=rf"{name} is PyFlink's and not here: .*{ABSENT[name]}"):
        getattr(col("a"), name)


def test_a_name_that_is_nobodys_has_a_neighbour():
    with pytest.raises(AttributeError, match=r"no 'upper_cas': .*'upper_case'"):
        _ = col("a").upper_cas
    assert not hasattr(col("a"), "_no_such")


ROWS = pa.table({
    "n": pa.array([1, -7, 40, None], pa.int64()),
    "x": pa.array([0.25, 0.5, -0.75, None], pa.float64()),
    "s": ["  one,two ", "abcabc", "Zürich", None],
    "j": ['{"a": 1, "b": [2, 3]}', "[]", "no json", None],
    "l": pa.array([[3, 1, 2, 1], [], [None, 5], None], pa.list_(pa.int64())),
    "m": pa.array([[("k", 1)], [], [("k", 2), ("v", None)], None], pa.map_(pa.string(), pa.int64())),
    "b": [True, False, None, None],
    "d": pa.array([dt.date(2024, 1, 31), dt.date(2023, 12, 1), dt.date(1969, 2, 28), None], pa.date32()),
    "t": pa.array([0, 86_399_999, -1, None], pa.timestamp("ms")),
})  # fmt: skip
n, x, s, j, elements, m, b, d, t = map(col, ("n", "x", "s", "j", "l", "m", "b", "d", "t"))
SAME = [
    (n.cast(DataTypes.VARCHAR(1)), "CAST(n AS VARCHAR(1))"), (s.try_cast("CHAR(9)"), "TRY_CAST(s AS CHAR(9))"),
    (s.left(3), "LEFT(s, 3)"), (s.right(length=2), "RIGHT(s, 2)"), (s.trim(), "TRIM(s)"),
    (s.trim(" o"), "TRIM(BOTH ' o' FROM s)"), (s.trim_leading(), "TRIM(LEADING FROM s)"),
    (s.trim_trailing("c"), "TRIM(TRAILING 'c' FROM s)"), (s.ltrim(), "LTRIM(s)"), (s.rtrim("c"), "RTRIM(s, 'c')"),
    (s.btrim("a"), "BTRIM(s, 'a')"), (s.starts_with("abc"), "STARTSWITH(s, 'abc')"),
    (s.ends_with("h"), "ENDSWITH(s, 'h')"), (s.concat("!"), "CONCAT(s, '!')"), (s.substr(2, 3), "SUBSTR(s, 2, 3)"),
    (s.substring(2), "SUBSTRING(s, 2)"), (s.translate("abc", "xy"), "TRANSLATE(s, 'abc', 'xy')"),
    (s.overlay("--", 2), "OVERLAY(s PLACING '--' FROM 2)"),
    (s.overlay("--", 2, 3), "OVERLAY(s PLACING '--' FROM 2 FOR 3)"), (s.repeat(2), "REPEAT(s, 2)"),
    (s.instr("c"), "INSTR(s, 'c')"), (lit("c").locate(s, 4), "LOCATE('c', s, 4)"), (s.ascii, "ASCII(s)"),
    (s.split_index(",", 1), "SPLIT_INDEX(s, ',', 1)"), (s.split(","), "SPLIT(s, ',')"),
    (s.str_to_map(",", "="), "STR_TO_MAP(s, ',', '=')"), (s.str_to_map(), "STR_TO_MAP(s)"),
    (s.regexp("[a-c]+"), "REGEXP(s, '[a-c]+')"), (s.regexp_count("b"), "REGEXP_COUNT(s, 'b')"),
    (s.regexp_extract("(b)c"), "REGEXP_EXTRACT(s, '(b)c')"),
    (s.regexp_extract("(b)c", 1), "REGEXP_EXTRACT(s, '(b)c', 1)"),
    (s.regexp_extract_all("b(c)", 1), "REGEXP_EXTRACT_ALL(s, 'b(c)', 1)"),
    (s.regexp_instr("c"), "REGEXP_INSTR(s, 'c')"), (s.regexp_substr("b."), "REGEXP_SUBSTR(s, 'b.')"),
    (s.to_base64, "TO_BASE64(s)"), (s.to_base64.from_base64, "FROM_BASE64(TO_BASE64(s))"),
    (s.encode("UTF-8").decode("UTF-8"), "DECODE(ENCODE(s, 'UTF-8'), 'UTF-8')"), (s.url_encode(), "URL_ENCODE(s)"),
    (lit("127.1").inet_aton(), "INET_ATON('127.1')"),
    (n.inet_ntoa(), "INET_NTOA(n)"),
    (lit("%s-%s").printf(s, n), "PRINTF('%s-%s', s, n)"), (lit(2).elt("a", s), "ELT(2, 'a', s)"),
    (s.sha2(256), "SHA2(s, 256)"), (s.sha512, "SHA512(s)"), (s.like("a\\_%", "\\"), "s LIKE 'a\\_%' ESCAPE '\\'"),
    (s.lpad(9, "*"), "LPAD(s, 9, '*')"), (n.log(2.0).is_null, "LOG(2e0, n) IS NULL"), (x.acos, "ACOS(x)"),
    (x.degrees, "DEGREES(x)"), (x.tanh, "TANH(x)"), (x.round(), "ROUND(x)"), (x.round(1), "ROUND(x, 1)"),
    (x.truncate(1), "TRUNCATE(x, 1)"), (n.bin, "BIN(n)"), (n.hex, "HEX(n)"), (x.floor(), "FLOOR(x)"),
    (t.floor("HOUR"), "FLOOR(t TO HOUR)"), (t.ceil(TimeIntervalUnit.DAY), "CEIL(t TO DAY)"),
    (t.extract(TimeIntervalUnit.MINUTE), "EXTRACT(MINUTE FROM t)"),
    (lit("10:11:12").to_time, "CAST('10:11:12' AS TIME)"), (d + lit(2).months, "d + INTERVAL '2' MONTH"),
    (t - lit(1).year, "t - INTERVAL '12' MONTH"), (t + lit(2).weeks, "t + INTERVAL '14' DAY"),
    (t + lit(250).millis, "t + INTERVAL '0.250' SECOND"), (d + lit(1).quarter, "d + INTERVAL '3' MONTH"),
    (elements.array_contains(1), "ARRAY_CONTAINS(l, 1)"), (elements.array_sort(), "ARRAY_SORT(l)"),
    (elements.array_sort(False), "ARRAY_SORT(l, FALSE)"),
    (elements.array_sort(False, True), "ARRAY_SORT(l, FALSE, TRUE)"), (elements.array_slice(2), "ARRAY_SLICE(l, 2)"),
    (elements.array_max(), "ARRAY_MAX(l)"), (elements.array_concat(elements, elements), "ARRAY_CONCAT(l, l, l)"),
    (elements.array_distinct(), "ARRAY_DISTINCT(l)"), (elements.array_append(None), "ARRAY_APPEND(l, NULL)"),
    (s.split(",").array_join("-"), "ARRAY_JOIN(SPLIT(s, ','), '-')"), (m.map_keys, "MAP_KEYS(m)"),
    (m.map_union(m), "MAP_UNION(m, m)"), (m.at("k"), "m['k']"), (b.is_not_true, "b IS NOT TRUE"),
    (b.is_not_false, "b IS NOT FALSE"), (j.is_json(), "j IS JSON"), (j.is_json("ARRAY"), "j IS JSON ARRAY"),
    (j.json_exists("$.a", "FALSE"), "JSON_EXISTS(j, '$.a' FALSE ON ERROR)"),
    (j.json_value("$.a", DataTypes.INT(), default_on_empty=9), "JSON_VALUE(j, '$.a' RETURNING INT DEFAULT 9 ON EMPTY)"),
    (
        j.json_value("$.c", on_empty="NULL", on_error="DEFAULT", default_on_error="?"),
        "JSON_VALUE(j, '$.c' NULL ON EMPTY DEFAULT '?' ON ERROR)",
    ),
    (
        j.json_query("$.b", "UNCONDITIONAL_ARRAY", on_error="EMPTY_ARRAY"),
        "JSON_QUERY(j, '$.b' WITH UNCONDITIONAL ARRAY WRAPPER EMPTY ARRAY ON ERROR)",
    ),
    (s.json_quote(), "JSON_QUOTE(s)"), (fn.and_(n > 0, b, x > 0), "n > 0 AND b AND x > 0"),
    (fn.or_(n > 0, b), "n > 0 OR b"), (fn.not_(b), "NOT b"), (fn.negative(n), "-n"),
    (fn.if_then_else(b, 1, n), "CASE WHEN b THEN 1 ELSE n END"), (fn.coalesce(n, 0), "COALESCE(n, 0)"),
    (fn.concat(s, "a", "b"), "CONCAT(s, 'a', 'b')"), (fn.concat_ws("-", s, "b"), "CONCAT_WS('-', s, 'b')"),
    (fn.pi(), "PI()"), (fn.e(), "E()"), (fn.atan2(x, 2.0), "ATAN2(x, 2e0)"), (fn.log(8.0, 2.0), "LOG(2e0, 8e0)"),
    (fn.null_of("BIGINT"), "CAST(NULL AS BIGINT)"), (fn.array(n, 2), "ARRAY[n, 2]"),
    (fn.row(n, "a").get("EXPR$1"), "ROW(n, 'a').`EXPR$1`"), (fn.map_("a", n, "b", 2), "MAP['a', n, 'b', 2]"),
    (fn.map_from_arrays(fn.array("a"), fn.array(n)), "MAP_FROM_ARRAYS(ARRAY['a'], ARRAY[n])"),
    (fn.timestamp_diff(fn.TimePointUnit.DAY, d, lit(dt.date(2024, 3, 1))), "TIMESTAMPDIFF(DAY, d, DATE '2024-03-01')"),
    (fn.temporal_overlaps(t, lit(1).hours, t, lit(2).days), "(t, INTERVAL '1' HOUR) OVERLAPS (t, INTERVAL '2' DAY)"),
    (fn.to_date("2024-01-02"), "TO_DATE('2024-01-02')"),
    (fn.to_timestamp("2024-01-02 03:04:05", None), "TO_TIMESTAMP('2024-01-02 03:04:05')"),
    (fn.date_format(t, "yyyy"), "DATE_FORMAT(t, 'yyyy')"), (fn.from_unixtime(44), "FROM_UNIXTIME(44)"),
    (fn.json_object(None, "a", n, "b", s), "JSON_OBJECT(KEY 'a' VALUE n, KEY 'b' VALUE s)"),
    (fn.json_array("NULL", n, s), "JSON_ARRAY(n, s NULL ON NULL)"),
]  # fmt: skip


def test_methods_and_functions_are_those_of_sql():
    with TableEnvironment.create(EnvironmentSettings.in_batch_mode(), parallelism=1) as env:
        table = env.from_arrow(ROWS)
        env.create_temporary_view("r", table)
        names = [f"c{index}" for index in range(len(SAME))]
        by_verbs = table.select(*(one.alias(name) for (one, _), name in zip(SAME, names, strict=True))).to_arrow()
        texts = ", ".join(f"{text} AS {name}" for (_, text), name in zip(SAME, names, strict=True))
        in_sql = env.sql_query(f"SELECT {texts} FROM r").to_arrow()
    different = [SAME[index][1] for index, name in enumerate(names) if not by_verbs[name].equals(in_sql[name])]
    assert different == []
    assert by_verbs.schema == in_sql.schema
    assert [by_verbs[name].to_pylist() for name in ("c0", "c1", "c2")] == [
        ["1", "-", "4", None],
        ["  one,two", "abcabc   ", "Zürich   ", None],
        ["  o", "abc", "Zür", None],
    ]


def test_aggregates_are_those_of_sql():
    with TableEnvironment.create("batch", parallelism=2) as env:
        table = env.from_arrow(ROWS)
        found = table.group_by(b).select(b, n.sum0.alias("s"), s.list_agg("|").alias("g"), x.percentile(0.5).alias("p"))
        rows = sorted(found.to_arrow().to_pylist(), key=str)
        assert [row["s"] for row in rows if row["b"] is False] == [-7]
        assert {row["b"]: row["p"] for row in rows} == {True: 0.25, False: 0.5, None: -0.75}
        assert {row["b"]: row["g"] for row in rows}[None] == "Zürich"


@pytest.mark.parametrize(
    ("made", "error", "text"),
    [
        (lambda: col("a").left(), TypeError, "missing a required argument: 'length'"),
        (lambda: col("a").left(1, 2), TypeError, "too many positional arguments"),
        (lambda: col("t").floor("half; DROP"), ProgramError, "a unit of time is a word"),
        (lambda: col("j").is_json("TREE"), ProgramError, "one of VALUE, SCALAR, ARRAY, OBJECT; got 'TREE'"),
        (lambda: fn.map_("a", 1, "b"), ProgramError, "a value for each key"),
        (lambda: TableDescriptor.for_connector("print").statement("t"), ProgramError, "no columns"),
        (lambda: Schema.new_builder().column("a", "NUMBRE"), SqlError, "NUMBRE"),
    ],
)
def test_mistakes_are_told_where_they_are_made(made, error, text):
    with pytest.raises(error, match=text):
        made()


def test_functions_that_sql_refuses_say_why():
    with TableEnvironment.create("batch", parallelism=1) as env, pytest.raises(SqlError, match="after each restart"):
        env.from_elements([(1,)], ["a"]).select(fn.rand()).to_arrow()


LINES = ["To be, or not to be,--that is the question:--", "Whether 'tis nobler in the mind to suffer"]


@pytest.mark.parametrize("mode", [EnvironmentSettings.in_batch_mode(), EnvironmentSettings.in_streaming_mode()])
def test_the_word_count_of_pyflink_runs(mode, tmp_path):
    """As in PyFlink's examples, but for its imports, and its sink, which is a table of files."""
    (tmp_path / "in.csv").write_text("".join(f'"{line}"\n' for line in LINES))
    options = {"actor_system": "local"} if mode.is_streaming_mode() else {}
    with TableEnvironment.create(mode, **options) as t_env:
        t_env.get_config().set("parallelism.default", "1")
        t_env.create_temporary_table(
            "source",
            TableDescriptor.for_connector("filesystem")
            .schema(Schema.new_builder().column("word", DataTypes.STRING()).build())
            .option("path", str(tmp_path / "in.csv"))
            .format("csv")
            .build(),
        )
        t_env.create_temporary_table(
            "sink",
            TableDescriptor.for_connector("print")
            .schema(Schema.new_builder().column("word", DataTypes.STRING()).column("count", DataTypes.BIGINT()).build())
            .build(),
        )

        @udf(result_type=DataTypes.ARRAY(DataTypes.STRING()))
        def words_of(line: str) -> list[str]:
            return re.findall(r"[a-z]+", line.lower())

        tab = t_env.from_path("source")
        t_env.create_temporary_function("words_of", words_of)
        words = t_env.sql_query("SELECT w.word FROM source CROSS JOIN UNNEST(words_of(source.word)) AS w(word)")
        counts = words.group_by(col("word")).select(col("word"), lit(1).count.alias("count"))
        assert tab.schema.names == ["word"]
        counts.execute_insert("sink").wait()
        statements = t_env.create_statement_set()
        statements.add(counts.insert_into("sink"))
        statements.execute().wait(60_000)
        found = {row["word"]: row["count"] for row in counts.to_arrow().to_pylist()}
    expected = re.findall(r"[a-z]+", " ".join(LINES).lower())
    assert found == {word: expected.count(word) for word in expected}


def test_a_descriptor_is_the_statement_that_it_stands_for(tmp_path):
    schema = (
        Schema.new_builder()
        .from_schema(Schema.new_builder().column("id", DataTypes.INT().not_null()).build())
        .from_fields(["price", "tags"], [DataTypes.DECIMAL(10, 2), DataTypes.MAP(DataTypes.STRING(), DataTypes.INT())])
        .column("who", DataTypes.ROW([DataTypes.FIELD("name", DataTypes.VARCHAR(9)), DataTypes.FIELD("n", pa.int64())]))
        .column("ts", DataTypes.TIMESTAMP(3))
        .column_by_expression("twice", col("price") * 2)
        .column_by_metadata("offset", DataTypes.BIGINT(), is_virtual=True)
        .column_by_metadata("at", DataTypes.TIMESTAMP_LTZ(3), "timestamp")
        .watermark("ts", "ts - INTERVAL '5' SECOND")
        .primary_key("id")
        .build()
    )
    table = (
        TableDescriptor.for_connector("kafka")
        .schema(schema)
        .format(FormatDescriptor.for_format("json").option("ignore-parse-errors", True).build())
        .format("raw", "key.format")
        .option("topic", "it's")
        .partitioned_by("id", "ts")
        .comment("orders")
        .build()
    )
    assert table.statement("`orders`", "TEMPORARY") == (
        "CREATE TEMPORARY TABLE `orders` (`id` INT NOT NULL, `price` DECIMAL(10, 2), `tags` MAP<STRING, INT>, "
        "`who` ROW<`name` VARCHAR(9), `n` BIGINT>, `ts` TIMESTAMP(3), `twice` AS (`price` * 2), "
        "`offset` BIGINT METADATA VIRTUAL, `at` TIMESTAMP_LTZ(3) METADATA FROM 'timestamp', "
        "WATERMARK FOR `ts` AS ts - INTERVAL '5' SECOND, PRIMARY KEY (`id`) NOT ENFORCED) COMMENT 'orders' "
        "PARTITIONED BY (`id`, `ts`) WITH ('connector' = 'kafka', 'format' = 'json', "
        "'json.ignore-parse-errors' = 'true', 'key.format' = 'raw', 'topic' = 'it''s')"
    )
    assert DataTypes.ARRAY(DataTypes.BIGINT(nullable=False), nullable=False).nullable() == "ARRAY<BIGINT NOT NULL>"


def test_names_of_catalogs_are_used_and_dropped(tmp_path):
    descriptor = (
        TableDescriptor.for_connector("datagen")
        .schema(Schema.new_builder().column("a", DataTypes.INT()).build())
        .option("number-of-rows", 3)
        .build()
    )
    with TableEnvironment.create(EnvironmentSettings.in_batch_mode(), parallelism=1) as env:
        home = (env.get_current_catalog(), env.get_current_database())
        assert env.create_table("kept", descriptor)
        assert not env.create_table("kept", descriptor, ignore_if_exists=True)
        with pytest.raises(SqlError, match="kept"):
            env.create_table("kept", descriptor)
        env.create_temporary_table("mine", descriptor)
        env.create_temporary_table("mine", descriptor, ignore_if_exists=True)
        env.create_temporary_view("seen", env.from_path("kept"))
        env.execute_sql("CREATE VIEW stays AS SELECT a FROM kept")
        assert (env.list_tables(), env.list_views()) == (["kept", "mine", "seen", "stays"], ["seen", "stays"])
        assert (env.list_temporary_tables(), env.list_temporary_views()) == (["mine"], ["seen"])
        assert env.from_descriptor(descriptor).to_arrow().num_rows == 3
        assert [env.drop_temporary_table("mine"), env.drop_temporary_table("mine")] == [True, False]
        assert [env.drop_temporary_view("seen"), env.drop_temporary_view("seen")] == [True, False]
        assert [env.drop_view("stays"), env.drop_table("kept"), env.drop_table("kept")] == [True, True, False]
        with pytest.raises(SqlError, match="kept"):
            env.drop_table("kept", ignore_if_not_exists=False)
        env.create_catalog("files", {"type": "file", "path": str(tmp_path)})
        env.use_catalog("files")
        env.execute_sql("CREATE DATABASE shop")
        env.use_database("shop")
        assert (env.get_current_catalog(), env.get_current_database()) == ("files", "shop")
        assert {"files", home[0]} <= set(env.list_catalogs())
        assert "shop" in env.list_databases()
        env.create_temporary_system_function("plus_one", udf(lambda a: a + 1, result_type=DataTypes.INT()))
        assert env.sql_query("SELECT plus_one(1) AS a").to_arrow().to_pylist() == [{"a": 2}]
        assert [env.drop_temporary_function("plus_one"), env.drop_temporary_function("plus_one")] == [True, False]


def test_rows_of_python_have_the_types_that_are_declared():
    kind = DataTypes.ROW([DataTypes.FIELD("id", DataTypes.TINYINT()), DataTypes.FIELD("cost", DataTypes.DECIMAL(5, 2))])
    with TableEnvironment.create("batch", parallelism=1) as env:
        table = env.from_elements([(1, Decimal("2.50")), (2, None)], kind)
        assert table.schema == pa.schema({"id": pa.int8(), "cost": pa.decimal128(5, 2)})
        assert env.from_elements([], kind).to_arrow().num_rows == 0
        with pytest.raises(ProgramError, match="ROW type; got BIGINT"):
            env.from_elements([(1,)], "BIGINT")


def test_rows_behind_the_first_ones():
    with TableEnvironment.create("batch", parallelism=2) as env:
        table = env.from_elements([(i,) for i in range(10)], ["a"]).order_by(col("a").desc)
        assert table.offset(3).fetch(4).to_arrow()["a"].to_pylist() == [6, 5, 4, 3]
        assert table.offset(8).to_arrow()["a"].to_pylist() == [1, 0]
        assert table.fetch(5).offset(3).to_arrow()["a"].to_pylist() == [6, 5]
        assert table.offset(2).offset(2).limit(2, 1).to_arrow()["a"].to_pylist() == [4, 3]


def test_an_insert_that_goes_on_can_be_waited_for():
    with TableEnvironment.create("streaming", parallelism=1, actor_system="local") as env:
        env.execute_sql("SET 'table.dml-sync' = 'false'")
        env.execute_sql("CREATE TABLE rows_of (a INT) WITH ('connector' = 'datagen', 'rows-per-second' = '10')")
        env.execute_sql("CREATE TABLE nowhere (a INT) WITH ('connector' = 'blackhole')")
        result = env.execute_sql("INSERT INTO nowhere SELECT a FROM rows_of")
        with pytest.raises(TimeoutError, match="is still"):
            result.wait(50)
        result.get_job_client().cancel()
        env.execute_sql("SELECT 1").wait()


def test_a_sum_that_is_0_is_said_more_of():
    with TableEnvironment.create(mode="batch") as env:
        env.create_temporary_view("rows", pa.table({"k": [1, 1, 2, 2], "at": [1, 2, 1, 2], "v": [None, 5, None, None]}))
        rows = env.from_path("rows")
        window = Over.partition_by(col("k")).order_by(col("at")).preceding(fn.UNBOUNDED_ROW).alias("w")
        running = rows.over_window(window).select(col("k"), col("at"), col("v").sum0.over(col("w")))
        filtered = rows.group_by(col("k")).select(col("k"), col("v").sum0.filter(col("at") > 1).alias("s"))
        once = rows.group_by(col("k")).select(col("k"), col("v").distinct.sum0.alias("s"))
        assert sorted(row[1:] for row in running.execute().collect()) == [(1, 1, 0), (1, 2, 5), (2, 1, 0), (2, 2, 0)]
        for one in (filtered, once):
            assert sorted(row[1:] for row in one.execute().collect()) == [(1, 5), (2, 0)]


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_nulls_are_where_orders_of_pyflink_have_them(mode):
    """Last, with `desc` first, as PyFlink 2.3 gives them; those of a text are SQL's."""
    rows = pa.table({"a": pa.array([3, None, 1, 2, None], pa.int64()), "b": [1, 2, 3, 4, 5]})
    options = {"actor_system": "local"} if mode == "streaming" else {}
    with TableEnvironment.create(mode, parallelism=2, **options) as env:
        table = env.from_arrow(rows)

        def found(*orders, count=None, offset=0):
            ordered = table.order_by(*orders)
            ordered = ordered if count is None else ordered.limit(count, offset)
            return ordered.to_arrow()["b"].to_pylist()

        assert found(col("a"), col("b").desc) == [3, 4, 1, 5, 2]
        assert found(col("a").desc, col("b")) == [2, 5, 1, 4, 3]
        assert found("a, b") == [2, 5, 3, 4, 1]
        assert found("a DESC", col("b")) == [1, 4, 3, 2, 5]
        assert found(col("a"), col("b"), count=4) == [3, 4, 1, 2]
        assert found(col("a").desc, col("b"), count=2, offset=1) == [5, 1]
        assert found(fn.with_columns(fn.range_("a", "b")), count=3) == [3, 4, 1]


def test_a_stream_by_event_time_stays_in_order_as_it_comes():
    times = pa.array([5, 1, 3], pa.timestamp("ms"))
    with TableEnvironment.create("streaming", parallelism=1, actor_system="local") as env:
        rows = env.from_rows(pa.table({"at": times}), event_time="at", delay="1 s")
        assert [kind for kind, _ in rows.order_by(col("at")).execute().collect()] == ["+I"] * 3
        assert "rows until the watermark has passed them" in rows.order_by(col("at")).explain()


class Longest(ScalarFunction):
    def __init__(self, least):
        self.least = least

    def eval(self, text):
        return max(self.least, len(text or ""))

    def is_deterministic(self):
        return False


class Letters(TableFunction):
    def eval(self, text):
        yield from ((letter, place) for place, letter in enumerate(text or ""))


def test_functions_are_objects_and_take_series():
    with TableEnvironment.create("batch", parallelism=2) as env:
        table = env.from_elements([("ab", 1), (None, 2)], ["s", "n"])
        longest = udf(Longest(1), DataTypes.STRING(), DataTypes.BIGINT())
        twice = udf(lambda numbers: numbers * 2, result_type="BIGINT", func_type="pandas", name="twice")
        letters = udtf(Letters(), [DataTypes.STRING()], [DataTypes.STRING(), DataTypes.INT()])
        found = table.select(col("n"), longest(col("s")).alias("l"), twice(col("n")).alias("t")).to_arrow()
        assert sorted(map(tuple, (row.values() for row in found.to_pylist()))) == [(1, 2, 2), (2, 1, 4)]
        assert (longest.name, twice.name) == ("Longest", "twice")
        spread = table.join_lateral(letters(col("s")).alias("letter", "place")).to_arrow()
        assert sorted(spread["letter"].to_pylist()) == ["a", "b"]

        @udf(result_type="BIGINT")
        def one_more(n):
            return n + 1

        assert sorted(table.select(one_more(col("n")).alias("m")).to_arrow()["m"].to_pylist()) == [2, 3]


class Opened(Longest):
    def open(self, context):
        raise AssertionError


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: udf(Longest, result_type="BIGINT"), "an object, not the class Longest"),
        (lambda: udf(Opened(1), result_type="BIGINT"), "open of a function of SQL is not called"),
        (lambda: udf(3, result_type="BIGINT"), "has a method eval; got 3"),
        (lambda: udf(len), "a function has a type"),
        (lambda: udtf(Letters()), "a function that gives rows has types"),
        (lambda: udtf(Letters(), result_types="STRING", deterministic=False), "the same ones for equal values"),
    ],
)
def test_functions_that_cannot_be_called_are_refused(make, text):
    with pytest.raises(ProgramError, match=text):
        make()


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_values_are_those_of_another_table(mode):
    with TableEnvironment.create(mode=mode, parallelism=2) as env:
        env.create_temporary_view("a", pa.table({"k": [1, 2, 3, None]}))
        env.create_temporary_view("b", pa.table({"n": [2, 3, 9]}))
        a, b = env.from_path("a"), env.from_path("b")
        assert sorted(a.where(col("k").in_(b)).to_arrow()["k"].to_pylist()) == [2, 3]
        both = col("k").in_(b) & ~col("k").in_(b.where(col("n") > 2).select(col("n")))
        assert a.where(both).to_arrow()["k"].to_pylist() == [2]
        with pytest.raises(ProgramError, match="another environment"), TableEnvironment.create(mode=mode) as other:
            other.create_temporary_view("c", pa.table({"k": [1]}))
            other.from_path("c").where(col("k").in_(b))


def test_rows_without_a_partner_need_no_condition():
    with TableEnvironment.create(mode="batch") as env:
        env.create_temporary_view("a", pa.table({"k": [1, 2]}))
        env.create_temporary_view("b", pa.table({"n": pa.array([], pa.int64())}))
        rows = env.from_path("a").left_outer_join(env.from_path("b")).to_arrow().to_pylist()
    assert rows == [{"k": 1, "n": None}, {"k": 2, "n": None}]


def test_times_of_long_ago_are_literals():
    times = [dt.datetime(1, 1, 1, 2, 3, 4, 5), dt.datetime(999, 12, 31, tzinfo=dt.timezone.utc)]  # noqa: DTZ001
    with TableEnvironment.create(mode="batch") as env:
        env.create_temporary_view("a", pa.table({"k": [1]}))
        rows = env.from_path("a").select(*map(lit, times)).to_arrow()
    assert [column[0].as_py() for column in rows.columns] == times
