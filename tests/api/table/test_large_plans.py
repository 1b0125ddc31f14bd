"""Plans of many nodes: deep ones, and those that read the same many times over, cost what they have nodes."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from headrace.engine.errors import ProgramError
from headrace.engine.optimizer.rewriting import once_per_node
from headrace.engine.plan.plan import FORWARD, Node, Order, Sort, Union
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment

ROWS = pa.table({"k": [1, 2, 3], "v": [10, 20, 30]})


@pytest.fixture
def env():
    with TableEnvironment.create(actor_system="local", parallelism=2) as made:
        made.create_temporary_view("v0", ROWS)
        yield made


def chain_of_views(env, count, query):
    for number in range(1, count + 1):
        env.execute_sql(f"CREATE VIEW v{number} AS {query.format(below=f'v{number - 1}', number=number)}")
    return f"SELECT * FROM v{count}"


@pytest.mark.campaign
def test_a_long_chain_of_views_runs(env):
    """More operators than Python's stack has room for calls, through all stages from names to records."""
    query = chain_of_views(env, 105, "SELECT k, v + 1 AS v FROM {below}")
    assert sorted(env.execute_sql(query).to_arrow().to_pylist(), key=str) == [
        {"k": k, "v": v + 105} for k, v in ((1, 10), (2, 20), (3, 30))
    ]


def test_a_table_joined_with_itself_again_and_again_is_planned_once(env):
    """By levels that ask both sides it would be asked a million million times."""
    query = chain_of_views(env, 40, "SELECT a.k, a.v FROM {below} AS a JOIN {below} AS b ON a.k = b.k")
    assert env.explain_sql(query).count("inner join") >= 40


def test_a_union_of_many_is_one_operator(env):
    """Every row would go through all unions above its own."""
    parts = [f"SELECT k, v + {number} AS v FROM v0" for number in range(20)]
    query = " UNION ALL ".join(parts)
    plan = env.explain_sql(query).partition("== Plan of streams ==")[2]
    assert plan.count("union all") == 1
    expected = Counter((k, v + number) for k, v in ((1, 10), (2, 20), (3, 30)) for number in range(20))
    assert Counter(map(tuple, (row.values() for row in env.execute_sql(query).to_arrow().to_pylist()))) == expected


def test_unions_of_changes_are_one_too(env):
    env.create_temporary_view("w", pa.table({"k": [1, 1, 2, 1, 2, 3], "v": [1, 2, 3, 4, 5, 6]}))
    part = "SELECT k, SUM(v) AS s FROM w GROUP BY k"
    query = f"{part} UNION ALL {part} UNION ALL SELECT k, v AS s FROM w UNION ALL ({part} UNION ALL {part})"
    plan = env.explain_sql(query).partition("== Plan of streams ==")[2]
    assert plan.count("union all") == 1
    sums = Counter({(1, 7): 4, (2, 8): 4, (3, 6): 4})
    expected = sums + Counter([(1, 1), (1, 2), (2, 3), (1, 4), (2, 5), (3, 6)])
    assert Counter(map(tuple, (row.values() for row in env.execute_sql(query).to_arrow().to_pylist()))) == expected


def test_a_union_that_others_read_or_of_other_types_stays(env):
    env.execute_sql("CREATE VIEW both AS SELECT k, v FROM v0 UNION ALL SELECT k, v + 1 FROM v0")
    plan = env.explain_sql(
        "SELECT k, v FROM both UNION ALL SELECT k, v FROM v0 UNION ALL SELECT k, COUNT(*) AS n FROM both GROUP BY k"
    )
    assert "union all [I] (as above)" in plan.partition("== Plan of streams ==")[2]
    query = (
        "SELECT k, CAST(v AS INT) AS v FROM v0 UNION ALL SELECT k, CAST(v AS INT) FROM v0 UNION ALL SELECT k, v FROM v0"
    )
    found = env.execute_sql(query).to_arrow()
    assert found.schema.field("v").type == pa.int64()
    assert sorted(found["v"].to_pylist()) == [10, 10, 10, 20, 20, 20, 30, 30, 30]


def test_views_made_of_each_other_are_refused_as_before(env):
    env.execute_sql("CREATE VIEW a AS SELECT * FROM v0")
    env.execute_sql("CREATE VIEW b AS SELECT * FROM a")
    env.execute_sql("DROP VIEW a")
    env.execute_sql("CREATE VIEW a AS SELECT * FROM v0 WHERE k IN (SELECT k FROM v0)")
    env.execute_sql("DROP VIEW a")
    with pytest.raises(SqlError, match="there is no table 'a'"):
        env.execute_sql("SELECT * FROM b")


def test_a_view_that_is_hidden_by_a_name_of_with_is_not_asked_for(env):
    env.execute_sql("CREATE VIEW low AS SELECT * FROM v0")
    env.execute_sql("CREATE VIEW broken AS SELECT * FROM low")
    env.execute_sql("CREATE VIEW top AS WITH broken AS (SELECT k FROM v0) SELECT * FROM broken")
    env.execute_sql("DROP VIEW low")
    assert sorted(env.execute_sql("SELECT k FROM top").to_arrow()["k"].to_pylist()) == [1, 2, 3]


def two_chains(depth):
    """A plan in which each level reads the one below twice."""
    node = Node(id=0, name="source")
    nodes = [node]
    for number in range(1, depth + 1):
        node = Union(id=number, name="union", inputs=(node, node), ships=(FORWARD, FORWARD))
        nodes.append(node)
    return nodes


def test_a_trait_is_found_once_for_each_node():
    asked = Counter()

    @once_per_node
    def height(node):
        asked[node.id] += 1
        return 1 + max((height(one) for one in node.inputs), default=0)

    nodes = two_chains(2_000)
    assert height(nodes[-1]) == 2_001
    assert height(nodes[1_000]) == 1_001
    assert set(asked.values()) == {1}
    assert len(asked) == 2_001


def test_what_cannot_be_said_of_an_input_is_raised_for_who_asks():
    @once_per_node
    def is_plain(node):
        if isinstance(node, Union):
            message = "no union"
            raise ProgramError(message)
        return isinstance(node, Sort) or all(map(is_plain, node.inputs))

    below = two_chains(2)[-1]
    sort = Sort(id=7, name="sort", inputs=(below,), ships=(FORWARD,), orders=(Order("k"),))
    assert is_plain(sort)
    for _ in range(2):
        with pytest.raises(ProgramError, match="no union"):
            is_plain(below)
