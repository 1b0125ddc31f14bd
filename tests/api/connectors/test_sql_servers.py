"""What the SQL sink does on PostgreSQL and on MariaDB alike, on real servers.

Families: contract (the checks of every sink, and of those that write by key), crash (the server is killed around
commits), example (rows by key, attempts that were replaced).
"""

from __future__ import annotations

import pytest
from campaigns import campaign
from mariadb_server import mariadb  # noqa: F401 - a fixture
from postgresql_server import postgresql  # noqa: F401 - a fixture
from sql_servers import SERVERS, Session, connection_of, lost_connection, numbers, rows, sink, with_numbers

from headrace.connectors.sql import SqlExecutionOptions, SqlSink
from headrace.engine.errors import SinkFencedError
from headrace.testing import SinkAttempt, SinkTestHarness
from headrace.testing.sink_contract import OWNED_SINK_CONTRACT, SINK_CONTRACT, SinkSubject
from headrace.testing.upsert_contract import UPSERT_CONTRACT, UpsertSubject

pytestmark = pytest.mark.slow


@pytest.fixture(params=SERVERS)
def server(request):
    return with_numbers(request.getfixturevalue(request.param))


# ------------------------------------------------------------------------------------------------------------ contracts
@pytest.mark.parametrize("staging", ["checkpoint", "table"])
@pytest.mark.parametrize("check", [*SINK_CONTRACT, *OWNED_SINK_CONTRACT], ids=lambda check: check.__name__)
@pytest.mark.sampled(4)
def test_contract(check, staging, server):
    check(SinkSubject(sink(server, staging=staging), lambda: numbers(server), lambda number: rows(number)[0]))
    # What a job has staged that another one has replaced stays for as long as markers do.
    table = "table_name = 'headrace_staged' AND table_schema IN ('public', 'shop')"
    if check in SINK_CONTRACT and server.rows(f"SELECT 1 FROM information_schema.tables WHERE {table}"):
        assert server.rows("SELECT count(*) FROM headrace_staged") == [(0,)], "staged rows were left"


class Attempt:
    """A subtask of a sink with a writer, for the contract of those that write by key."""

    def __init__(self, sink, attempt, restored):
        leader, _, number = attempt.partition(".")
        self._attempt = SinkAttempt(SinkTestHarness(sink), 100 * int(leader) + int(number), 1, restored)
        self._attempt.run_work()

    def write(self, rows):
        self._attempt.write(rows)

    def try_once(self):
        self._attempt.run_work()

    def snapshot(self):
        return self._attempt.snapshot(1)

    def flush(self):
        self._attempt.finish()
        self._attempt.run_work()


class Subject(UpsertSubject):
    def attempt(self, order, attempt="1.0", restored=(), **options):
        assert order is None
        assert not options
        return Attempt(self.sink(), attempt, restored)


@pytest.mark.parametrize("check", UPSERT_CONTRACT, ids=lambda check: check.__name__)
def test_contract_of_sinks_by_key(check, server):
    server.execute("CREATE TABLE kept (k BIGINT PRIMARY KEY, at BIGINT, v SMALLINT)")
    made = SqlSink.exactly_once(server.url, "kept", sink_id="k", form="upsert", key="k", delete_column="gone")
    check(
        Subject(
            lambda: made,
            rows=lambda: {k: (at, v) for k, at, v in server.rows("SELECT k, at, v FROM kept")},
            orders=False,
        )
    )


# ----------------------------------------------------------------------------------------------------- the server dies
@pytest.mark.parametrize(
    ("staging", "is_made"),
    [("checkpoint", False), ("table", True), campaign("checkpoint", True), campaign("table", False)],
)
@pytest.mark.sampled(9)
def test_the_server_dies_around_a_commit_and_the_marker_says_whether_it_was_made(server, staging, is_made):
    armed, deaths = [], []

    def commit(connection):
        if not armed:
            connection.commit()
            return
        armed.pop()
        if is_made:
            connection.commit()
        server.restart()
        deaths.append(is_made)
        raise lost_connection(server)

    job = SinkTestHarness(sink(server, lambda: Session(connection_of(server), commit), staging=staging), 2)
    job.start()
    for checkpoint_id in (1, 2, 3):
        job.write(rows(10 * checkpoint_id), 0)
        job.write(rows(10 * checkpoint_id + 1), 1)
        job.checkpoint(checkpoint_id, notifies=False)
        armed.append(True)
        job.notify(checkpoint_id)
        assert not armed
    job.finish()
    assert deaths == [is_made] * 3
    assert numbers(server) == [10, 11, 20, 21, 30, 31]
    # Both subtasks had sessions when the server died.
    assert len(job.pauses_ms) >= 3


# -------------------------------------------------------------------------------------------------------------- by key
def keyed_table(server):
    key_text = "text" if server.url.startswith("postgresql") else "VARCHAR(9) COLLATE utf8mb4_bin"
    server.execute(
        f"CREATE TABLE counts (word {key_text} PRIMARY KEY, n BIGINT, at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"
    )


def counts(server):
    return dict(server.rows("SELECT word, n FROM counts"))


def test_upserts_are_visible_at_once_keep_the_order_of_a_key_and_converge(server):
    keyed_table(server)
    options = SqlExecutionOptions(batch_size=3)
    made = SqlSink.exactly_once(
        server.url, "counts", sink_id="c", form="upsert", key="word", delete_column="gone", options=options
    )
    job = SinkTestHarness(made, 2)
    job.start()
    job.checkpoint(1)
    first = [{"word": w, "n": n, "gone": False} for w, n in [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("c", 1)]]
    job.write(first)
    assert counts(server) == {"a": 3, "b": 1, "c": 1}
    later = [
        {"word": "b", "n": None, "gone": True},
        {"word": "c", "n": 2, "gone": None},
        {"word": "d", "n": 1, "gone": False},
        {"word": "d", "n": 1, "gone": True},
        {"word": "a", "n": 9, "gone": True},
        {"word": "a", "n": 4, "gone": False},
    ]
    job.write(later)
    expected = {"a": 4, "c": 2}
    assert counts(server) == expected
    job.start()
    job.write(first)
    assert counts(server) == {"a": 3, "b": 1, "c": 1}, "for a while it is what it was before"
    job.write(later)
    assert counts(server) == expected
    job.checkpoint(2)
    job.finish()
    assert server.rows("SELECT count(*) FROM headrace_commits") == [(0,)]


def test_an_old_attempts_upserts_are_shut_out(server):
    keyed_table(server)
    job = SinkTestHarness(SqlSink.exactly_once(server.url, "counts", sink_id="c", form="upsert", key=["word"]))
    zombie = job.start()
    job.write([{"word": "a", "n": 1}])
    job.start()
    job.write([{"word": "a", "n": 2}])
    with pytest.raises(SinkFencedError):
        zombie.write([{"word": "a", "n": 1}])
    assert counts(server) == {"a": 2}


def test_a_transaction_may_have_a_key(server):
    keyed_table(server)
    made = SqlSink.exactly_once(server.url, "counts", sink_id="c", key="word", delete_column="gone")
    job = SinkTestHarness(made)
    job.start()
    job.write([{"word": "a", "n": n, "gone": False} for n in range(10)])
    assert counts(server) == {}
    job.checkpoint(1)
    assert counts(server) == {"a": 9}
    job.write([{"word": "a", "n": None, "gone": True}])
    job.checkpoint(2)
    assert counts(server) == {}
