"""Memory of the local executor: what does not fit lies on disk, results are the same, and what must fit is refused."""

import numpy as np
import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import ExecutionEnvironment, ProgramError, col, count
from headrace import functions as f
from headrace.engine.frames import over_columns
from headrace.engine.partitions import spilling
from headrace.engine.partitions.spilling import Memory
from headrace.state.errors import ConfigurationError, StorageError
from headrace.state.files.spilling import SpillFile, mapped_on_disk

ROWS = 120_000
MB = 1 << 20


def environment(memory_bytes=None):
    options = {} if memory_bytes is None else {"memory_bytes": memory_bytes}
    return ExecutionEnvironment.get_execution_environment("local", 3, **options)


def table():
    number = np.arange(ROWS)
    return pa.table(
        {"i": number, "k": number * 7919 % 50, "v": number % 1000, "s": pa.array([f"record {n}" for n in range(ROWS)])}
    )


BANDS = pa.table({"low": range(0, 1000, 50), "high": range(100, 1100, 50), "band": [f"band {n}" for n in range(20)]})

PROGRAMS = {
    "shuffles": lambda env: env.from_arrow(table()).with_columns(w=col("v") * 2).partition_by_hash("k").rebalance(),
    "windows": lambda env: env.from_arrow(table()).over("k", "i", n=f.row_number(), so_far=f.sum("v"), last=f.lag("s")),
    "joins": lambda env: env.from_arrow(table()).join(env.from_arrow(table())).on("i").merge("_2"),
    "conditions": lambda env: env.from_arrow(table()).join_where(
        env.from_arrow(BANDS), (col("v") >= col("low")) & (col("v") < col("high"))
    ),
    "sorts": lambda env: env.from_arrow(table()).sort("v", "i"),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(4)
def test_results_that_do_not_fit_are_the_same(name):
    in_memory, on_disk = environment(1 << 40), environment(4 * MB)
    expected = PROGRAMS[name](in_memory).to_arrow()
    found = PROGRAMS[name](on_disk).to_arrow()
    assert found.num_rows == expected.num_rows
    assert found.combine_chunks().equals(expected.combine_chunks())
    assert in_memory.get_last_job_execution_result().statistics.get("spilled_bytes") is None
    assert on_disk.get_last_job_execution_result().statistics["spilled_bytes"] > MB


def test_iterations_may_lie_on_disk():
    env = environment(MB)
    data = env.from_arrow(table()).set_parallelism(1)
    found = (
        data.iterate(3, lambda d: d.with_columns(v=col("v") + 1, s=col("s") + "."))
        .aggregate(n=count(), total=f.sum("v"))
        .collect()
    )
    assert found == [{"n": ROWS, "total": sum(n % 1000 + 3 for n in range(ROWS))}]
    assert env.get_last_job_execution_result().statistics["spilled_bytes"] > MB


def test_an_operator_whose_partition_does_not_fit_is_refused():
    env = environment(MB)
    with pytest.raises(ProgramError, match=r"'over n' has to hold a partition of [\d,]+ bytes .* room for 1,048,576"):
        env.from_arrow(table()).over(None, "i", n=f.row_number()).count()
    small = env.from_arrow(BANDS)
    with pytest.raises(ProgramError, match="has to hold its second input of"):
        small.join_where(env.from_arrow(table()), col("low") < col("v")).count()
    assert env.from_arrow(table()).join_where(small, col("v") < col("low"), how="anti").count() > 0


@pytest.mark.parametrize(
    "hold",
    [
        lambda data: data.sort_partition("i"),
        lambda data: data.group_by("k").sort_group("v").first(2),
        lambda data: data.group_by("k").reduce_group(lambda rows: [len(list(rows))]),
        lambda data: data.group_by("k").combine_group(lambda rows: [len(list(rows))]),
    ],
    ids=["sort", "first", "reduce", "combine"],
)
@pytest.mark.parametrize("before", [lambda data: data, lambda data: data.filter(col("v") >= 0)], ids=["", "chained"])
def test_whatever_holds_a_partition_is_refused_also_behind_others(hold, before):
    with pytest.raises(ProgramError, match="has to hold a partition of"):
        hold(before(environment(MB).from_arrow(table()))).count()
    assert hold(before(environment(64 * MB).from_arrow(table()))).count() > 0


def test_a_full_disk_is_an_error_that_names_the_operator(monkeypatch):
    def full(_data, _directory=None):
        message = "records that do not fit in memory cannot be written to the local disk"
        raise StorageError(message)

    monkeypatch.setattr(spilling, "mapped_on_disk", full)
    with pytest.raises(StorageError, match="cannot be written") as failure:
        environment(MB).from_arrow(table()).with_columns(w=col("s") + ".").name("wide").count()
    assert "wide" in str(failure.value)


def test_the_local_executor_knows_one_option():
    with pytest.raises(ConfigurationError, match="no option 'executor_cores'; it has memory_bytes"):
        ExecutionEnvironment.get_execution_environment("local", executor_cores=2)
    with pytest.raises(ConfigurationError, match="memory_bytes must be a whole number"):
        ExecutionEnvironment.get_execution_environment("local", memory_bytes=0)


def test_what_lies_on_disk_goes_with_those_who_hold_it():
    view = mapped_on_disk(b"x" * 10_000)
    assert bytes(view[9_990:]) == b"x" * 10
    file = SpillFile()
    first, second = file.write(b"a" * 5_001), file.write(b"b" * 3)
    views = [file.mapped(place) for place in (first, second)]
    file.close()
    assert [bytes(view) for view in views] == [b"a" * 5_001, b"bbb"]


def test_a_job_without_a_limit_writes_nothing():
    room = Memory(None)
    batches = pa.table({"i": range(10)}).to_batches()
    assert room.kept(batches) == batches
    assert room.num_spilled_bytes == 0


_windows = st.tuples(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.one_of(st.none(), st.integers(-5, 5))), max_size=30),
    st.one_of(st.none(), st.tuples(st.integers(-4, 4), st.integers(0, 4)).map(lambda t: (t[0], t[0] + t[1]))),
    st.integers(1, 7),
)


@settings(max_examples=examples(60))
@given(_windows)
def test_windows_do_not_depend_on_the_pieces_that_they_are_made_in(case):
    rows, between, size = case
    records = [{"i": i, "k": k, "t": t, "v": v} for i, (k, t, v) in enumerate(rows)]

    def run():
        data = environment().from_collection(
            records, type_info=pa.schema([(name, pa.int64()) for name in ("i", "k", "t", "v")])
        )
        placed = data.over(
            "k", ["t", "i"], rows_between=between, no=f.row_number(), dense=f.dense_rank(), rank=f.rank(),
            total=f.sum("v"), n=count(), low=f.min("v"), before=f.lag("v", 3), behind=f.lead("i", 2, -1),
        )  # fmt: skip
        return placed.sort("i").collect()

    expected = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(over_columns, "MAX_BATCH_ROWS", size)
        assert run() == expected
