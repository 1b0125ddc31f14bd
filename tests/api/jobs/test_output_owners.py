"""Jobs on the local system that restore one checkpoint into one place: no row is doubled."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from contextlib import closing

import pytest
from campaigns import campaign

from headrace import JobFailedError, StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from headrace.connectors.sql import SqlSink

COUNT = 1_200


def started(tmp_path, name, kind, parallelism, path=None):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism)
    env.enable_checkpointing(30, directory=tmp_path / "checkpoints")
    source = GeneratorSource(lambda n: {"n": n}, count=COUNT, records_per_second=1_000)
    stream = env.from_source(source, None, "numbers").uid("numbers")
    if kind == "files":
        stream.sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")
    else:
        stream.sink_to(SqlSink.exactly_once(f"sqlite:///{tmp_path}/db", "numbers", sink_id="numbers")).uid("out")
    return env.execute_async(name, **({} if path is None else {"from_checkpoint": path}))


def shown(tmp_path, kind):
    if kind == "files":
        lines = [line for path in (tmp_path / "out").glob("part-*") for line in path.read_text().splitlines()]
        return Counter(json.loads(line)["n"] for line in lines)
    with closing(sqlite3.connect(tmp_path / "db")) as db:
        return Counter(n for (n,) in db.execute("SELECT n FROM numbers"))


def ended(client):
    """How a job ended; a refusal is an end."""
    try:
        client.result()
    except JobFailedError as error:
        return "refused" if "taken over" in str(error) or "behind it" in str(error) else str(error)
    return "finished"


@pytest.mark.parametrize(("kind", "parallelism"), [("files", 3), ("sql", 1), campaign("files", 1), campaign("sql", 3)])
def test_two_jobs_that_restore_one_checkpoint_double_nothing(tmp_path, kind, parallelism):
    with closing(sqlite3.connect(tmp_path / "db")) as db:
        db.execute("CREATE TABLE numbers (n INTEGER)")
    first = started(tmp_path, "first", kind, parallelism)
    for view in first.views():
        if view.checkpoints_completed > 3 and view.vertices[0].records_in > 50:
            break
    path = first.stop()
    assert path is not None, "it had ended before it was stopped"
    before = shown(tmp_path, kind)
    assert before
    assert max(before.values()) == 1
    both = [started(tmp_path, name, kind, 4 - parallelism, path) for name in ("one", "other")]
    ends: list[str] = []
    threads = [threading.Thread(target=lambda client=client: ends.append(ended(client))) for client in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = shown(tmp_path, kind)
    assert max(rows.values()) == 1, "doubled"
    assert set(rows) >= set(before), "taken back"
    assert set(ends) <= {"refused", "finished"}
    assert "refused" in ends or len(before) == COUNT, "both went on, and something was left to do"
    if "finished" in ends:
        assert rows == Counter(range(COUNT))
    # The checkpoint once more, by itself: what came behind it is public.
    if rows != before:
        assert ended(started(tmp_path, "again", kind, parallelism, path)) == "refused"
        assert shown(tmp_path, kind) == rows
