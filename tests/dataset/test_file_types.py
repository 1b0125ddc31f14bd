"""Files of one source that differ, and columns that are in the names of folders."""

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import ExecutionEnvironment, ProgramError, SourceError, TypeMismatchError, col
from headrace.dataset.files.reading import FilesOfSource


@pytest.fixture
def folder(tmp_path):
    def make(**tables):
        for name, columns in tables.items():
            pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
        return str(tmp_path)

    return make


def test_a_file_of_other_types_is_refused_with_file_and_column(env, folder):
    path = folder(a={"v": pa.array([1], pa.int32())}, b={"v": pa.array([2])})
    with pytest.raises(SourceError, match=r"column 'v' is int64, and int32 in .*a\.parquet.*b\.parquet"):
        env.read_parquet(path)


@pytest.mark.parametrize("first", [True, False])
def test_a_file_with_a_column_more_or_less_is_refused(env, folder, first):
    more, less = {"v": [1], "w": [1]}, {"v": [1]}
    path = folder(a=more if first else less, b=less if first else more)
    with pytest.raises(SourceError, match=r"column 'w' .*is not in .*b\.parquet" if first else "column 'w' is not in"):
        env.read_parquet(path)


def test_the_order_of_columns_is_no_difference(env, folder):
    path = folder(a={"v": [1], "w": ["x"]}, b={"w": ["y"], "v": [2]})
    assert env.read_parquet(path).sort("v").collect() == [{"v": 1, "w": "x"}, {"v": 2, "w": "y"}]


def test_merged_types_hold_what_all_files_have(env, folder):
    path = folder(a={"v": pa.array([1], pa.int32())}, b={"v": [2**40], "w": ["x"]}, c={"w": ["y"]})
    data = env.read_parquet(path, merge_schema=True)
    assert data.schema == pa.schema([("v", pa.int64()), ("w", pa.string())])
    assert data.collect() == [{"v": 1, "w": None}, {"v": 2**40, "w": "x"}, {"v": None, "w": "y"}]
    assert data.filter(col("v") > 1).select("w").collect() == [{"w": "x"}]
    path = folder(a={"v": [1]}, b={"v": ["one"]})
    with pytest.raises(SourceError, match=r"column 'v' is string, and int64 .*b\.parquet"):
        env.read_parquet(path, merge_schema=True)


def test_a_declared_type_is_kept_to_exactly(env, folder):
    path = folder(a={"v": pa.array([1], pa.int32())}, b={"v": [2**40], "w": [1.5]})
    found = env.read_parquet(path, schema={"w": float, "v": int}).collect()
    assert found == [{"w": None, "v": 1}, {"w": 1.5, "v": 2**40}]
    with pytest.raises(SourceError, match=r"column 'v' of type int64 does not fit int32.*b\.parquet"):
        env.read_parquet(path, schema={"v": "int32"}).collect()
    with pytest.raises(SourceError, match="column 'z' is not in"):
        env.read_parquet(path, schema={"z": int})
    with pytest.raises(ProgramError, match="not both"):
        env.read_parquet(path, schema={"v": int}, merge_schema=True)


def test_csv_files_with_other_columns_are_refused_unless_columns_are_chosen(env, tmp_path):
    (tmp_path / "a.csv").write_text("v,w\n1,2\n")
    (tmp_path / "b.csv").write_text("w,z,v\n3,4,5\n")
    with pytest.raises(SourceError, match=r"the file's columns are \['w', 'z', 'v'\].*b\.csv"):
        env.read_csv(str(tmp_path))
    assert env.read_csv(str(tmp_path), {"w": int}).sort("w").collect() == [{"w": 2}, {"w": 3}]


# -------------------------------------------------------------------------------------------------------------- folders


def partitioned(tmp_path, form):
    for day in ("2024-05-01", "2024-05-02"):
        for shop in ("7", "12", "__HIVE_DEFAULT_PARTITION__"):
            for place in ("a%2Fb", "007"):
                path = tmp_path / f"day={day}" / f"shop={shop}" / f"place={place}"
                path.mkdir(parents=True)
                if form == "parquet":
                    pq.write_table(pa.table({"v": [1, 2]}), path / "x.parquet")
                elif form == "csv":
                    (path / "x.csv").write_text("v\n1\n2\n")
                else:
                    (path / "x.json").write_text('{"v": 1}\n{"v": 2}\n')
    return str(tmp_path)


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_columns_in_names_of_folders_are_read(env, tmp_path, form):
    data = getattr(env, f"read_{form}")(partitioned(tmp_path, form))
    types = [("v", pa.int64()), ("day", pa.date32()), ("shop", pa.int64()), ("place", pa.string())]
    assert data.schema == pa.schema(types)
    expected = {
        (v, dt.date(2024, 5, day), shop, place)
        for v in (1, 2)
        for day in (1, 2)
        for shop in (7, 12, None)
        for place in ("a/b", "007")
    }
    assert {tuple(r.values()) for r in data.collect()} == expected
    assert data.count() == len(expected)
    per_shop = data.group_by("shop").count().collect()
    assert sorted(per_shop, key=str) == [{"shop": s, "count": 8} for s in (12, 7, None)]
    assert data.select("place").distinct().count() == 2


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_records_of_which_folders_say_everything_are_all_there(env, tmp_path, form):
    argument = "schema" if form == "parquet" else "types"
    data = getattr(env, f"read_{form}")(partitioned(tmp_path, form), **{argument: {"shop": pa.int64()}})
    assert data.count() == 24
    shops = [row["shop"] for row in data.select("shop").collect()]
    assert sorted(shops, key=str) == [12] * 8 + [7] * 8 + [None] * 8


def test_folders_that_a_filter_leaves_out_are_not_read(tmp_path, monkeypatch):
    env = ExecutionEnvironment.get_execution_environment("local", 2)
    data = env.read_parquet(partitioned(tmp_path, "parquet")).filter(col("shop") == 7).filter(col("v") > 1)
    opened = []
    plain = FilesOfSource.read
    monkeypatch.setattr(
        FilesOfSource, "read", lambda reader, source, split: opened.append(split.path) or plain(reader, source, split)
    )
    assert data.count() == 4
    assert len(opened) == 4
    assert all("shop=7/" in path for path in opened)


def test_types_of_folders_may_be_declared(env, tmp_path):
    path = partitioned(tmp_path, "csv")
    data = env.read_csv(path, {"v": float, "shop": str})
    assert data.schema.field("shop").type == pa.string()
    assert {r["shop"] for r in data.collect()} == {"7", "12", None}
    with pytest.raises(SourceError, match="folders of 'place' have values that are no int64"):
        env.read_csv(path, {"v": int, "place": int})


def test_a_column_of_the_files_is_theirs_and_a_folder_that_is_named_is_none(env, tmp_path):
    path = tmp_path / "v=9"
    path.mkdir()
    pq.write_table(pa.table({"v": [1]}), path / "x.parquet")
    assert env.read_parquet(str(tmp_path)).collect() == [{"v": 1}]
    (path / "x.parquet").rename(path / "y.parquet")
    other = tmp_path / "k=3"
    other.mkdir()
    pq.write_table(pa.table({"w": [1]}), other / "x.parquet")
    assert env.read_parquet(str(other)).collect() == [{"w": 1}]
    with pytest.raises(SourceError):
        env.read_parquet(str(tmp_path), merge_schema=True)


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_what_is_written_into_folders_is_read_from_them(env, tmp_path, form):
    rows = [
        {"v": i, "day": dt.date(2024, 5, 1 + i % 2), "place": place}
        for i, place in enumerate(["a/b", "ü=?", "", "a b", None, "x" * 50] * 4)
    ]
    data = env.from_collection(rows)
    write, read = (getattr(data, f"write_as_{form}"), getattr(env, f"read_{form}"))
    path = str(tmp_path / "out")
    write(path, partition_by=["day", "place"])
    (written,) = env.execute().paths
    assert all("/day=2024-05-0" in name and "/place=" in name for name in written)
    found = read(path)
    assert found.schema.names == ["v", "day", "place"]
    assert sorted(found.collect(), key=lambda r: r["v"]) == rows
    smaller = env.from_collection([{"v": 9, "day": dt.date(2024, 5, 2), "place": "new"}])
    getattr(smaller, f"write_as_{form}")(path, partition_by=("day", "place"), mode="overwrite")
    env.execute()
    assert read(path).collect() == [{"v": 9, "day": dt.date(2024, 5, 2), "place": "new"}]
    nothing = smaller.filter(col("v") < 0)
    nothing.write_as_parquet(str(tmp_path / "none"), partition_by="place")
    env.execute()
    assert env.read_parquet(str(tmp_path / "none")).collect() == []


def test_what_cannot_be_a_folder_is_refused(env, tmp_path):
    data = env.from_collection([{"v": 1, "x": 0.5, "_k": 1}])
    for names, error, text in [
        ("x", TypeMismatchError, "of type double cannot be a folder"),
        ("_k", TypeMismatchError, "cannot be a folder"),
        ("z", ProgramError, "no field 'z'"),
        (["v", "v"], ProgramError, "twice"),
        (["v", "x", "_k"], ProgramError, "leaves none"),
    ]:
        with pytest.raises(error, match=text):
            data.write_as_parquet(str(tmp_path / "o"), partition_by=names)
    with pytest.raises(ProgramError, match="known type"):
        data.with_schema(None).write_as_json(str(tmp_path / "o"), partition_by="v")
