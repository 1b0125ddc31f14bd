"""Queries that are stopped with a savepoint, and go on from there under another text: for tests."""

from __future__ import annotations

import contextlib
import time

from headrace import JobStatus, Snapshot
from headrace.engine.optimizer.upgrades.stored_plan import StoredPlan
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.errors import SavepointError
from headrace.table import TableEnvironment

NUM_ROWS = 9_000
TABLES = f"""
    CREATE TABLE src (
        k INT, v INT, w INT, x BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '0.05' SECOND
    ) WITH (
        'connector' = 'datagen', 'rows-per-second' = '9000', 'number-of-rows' = '{NUM_ROWS}',
        'fields.k.min' = '0', 'fields.k.max' = '9', 'fields.v.min' = '0', 'fields.v.max' = '99',
        'fields.w.min' = '0', 'fields.w.max' = '9', 'fields.x.min' = '0', 'fields.x.max' = '3000'
    );
    CREATE TABLE nothing (a INT, b BIGINT, c BIGINT, d BIGINT) WITH ('connector' = 'blackhole');
"""


def environment(parallelism, backend="hashmap", **settings):
    env = TableEnvironment.create(parallelism=parallelism, actor_system="local")
    env.execute_script(TABLES)
    for key, value in {"table.dml-sync": "false", "state.backend.type": backend, **settings}.items():
        env.execute_sql(f"SET '{key}' = '{value}'")
    return env


def stopped(folder, statement, backend="hashmap", *, after=0.4, before=None, **settings):
    """The savepoint of a query that was stopped on the way; ``before`` is a statement ahead of it.

    A machine that is busy with other things may come to it when the query has ended: it begins again then.
    """
    for _ in range(8):
        with environment(2, backend, **{"execution.checkpointing.savepoint-dir": str(folder), **settings}) as env:
            if before is not None:
                env.execute_sql(before)
            env.execute_sql(statement)
            client = env._execution.jobs[-1]
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                views = client.view().vertices
                # The last one, too: on a busy machine sources may be far ahead of what keeps state.
                if views and views[-1].records_in and sum(one.records_in for one in views) > NUM_ROWS * after / 4:
                    break
                time.sleep(0.01)
            with contextlib.suppress(SavepointError):
                return client.stop_with_savepoint()
            assert client.get_job_status() is JobStatus.FINISHED
    message = "the query has always ended before it could be stopped"
    raise AssertionError(message)


def in_batch_mode(query):
    with TableEnvironment.create(mode="batch") as env:
        env.execute_script(TABLES)
        return env.execute_sql(query).to_arrow()


def gone_on(saved, query, **settings):
    path, backend = saved
    with environment(3, backend, **{"execution.savepoint.path": path, **settings}) as env:
        return env.execute_sql(query).to_arrow()


def explained(path, query, **settings):
    with environment(1, **settings) as env:
        rows = env.execute_sql(f"EXPLAIN UPGRADE FROM '{path}' {query}").to_arrow().to_pylist()
    return {row["operator"]: row for row in rows}, rows


def of_kind(rows, kind):
    return [row for row in rows if row["kind"] == kind]


def kept(path):
    """By key what the first query has kept, read from the savepoint's files."""
    _, manifest = CheckpointStorage.from_manifest(path)
    (operator,) = [one for one in StoredPlan.from_json(manifest.plan, path).operators if one.kind == "aggregate"]
    names = {part.text: part.name for part in operator.parts.values()}
    table = Snapshot.open(path).read(operator.uid, "groups").sort_by("key_group")
    (key,) = [name for name in table.column_names if name.startswith("key.")]
    last = {}
    for row in table.to_pylist():
        last[row[key]] = {
            "n": row["records"],
            "s": row[f"{names['sum(v)']}$sum"],
            **{text: row[f"{name}$count"] for text, name in names.items() if text.startswith("count(")},
        }
    return last
