"""Tables of Hudi in SQL."""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa
import pytest
from hudi_tables import HudiTables

from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.table import TableEnvironment

SALES = pa.schema([("n", pa.int64()), ("item", pa.string())])


@pytest.fixture
def t():
    with TableEnvironment.create(actor_system="local", parallelism=2) as env:
        yield env


@pytest.fixture
def tables(tmp_path):
    made = HudiTables(tmp_path)
    made.make(SALES)
    made.complete(made.begin(), [{"n": 1, "item": "lamp"}, {"n": 2, "item": "rug"}])
    return made


def create(t, tables, **options):
    given = {"connector": "hudi", "path": tables.path, **options}
    said = ", ".join(f"'{name}' = '{value}'" for name, value in given.items())
    t.execute_sql(f"CREATE TABLE sales (item STRING, n INT) WITH ({said})")


def test_a_table_is_read(t, tables):
    create(t, tables)
    found = t.execute_sql("SELECT item, n FROM sales WHERE n > 1").to_arrow().to_pylist()
    assert found == [{"item": "rug", "n": 2}]


def test_a_table_is_followed_from_a_commit_on(t, tables):
    second = tables.begin()
    tables.complete(second, [{"n": 3, "item": "mat"}])
    said = {
        "read.streaming.enabled": "true", "read.streaming.check-interval": "1", "read.start-commit": second,
        "table.type": "COPY_ON_WRITE",
    }  # fmt: skip
    create(t, tables, **said)
    with closing(t.execute_sql("SELECT item, n FROM sales").collect()) as changes:
        assert next(changes) == ("+I", "mat", 3)


@pytest.mark.parametrize(
    "options",
    [{"table.type": "MIXED"}, {"read.start-commit": "soon"}, {"read.start-commit": "20240229"}, {"strange": "1"},
     {"on-change": "x"}],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(t, tables, options):
    with pytest.raises(ConfigurationError):
        create(t, tables, **options)


def test_a_table_is_not_written(t, tables):
    create(t, tables)
    with pytest.raises(ProgramError, match="cannot be written by a stream"):
        t.execute_sql("INSERT INTO sales VALUES ('mat', 3)")
