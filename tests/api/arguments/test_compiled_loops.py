"""The line that says that loops are compiled: when it is true, and only then.

Families: against numba itself (which files it leaves), end to end on a copy of the installation that nobody has used.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.arguments import compiled_loops
from headrace.arguments.compiled_loops import are_compiled
from headrace.table import TableEnvironment

LOOPS = """
import numba

@numba.njit("int64(int64)", cache=True)
def one_more(n):
    return n + 1
"""


def test_what_numba_has_compiled_is_seen_until_its_source_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "own_loops.py"
    source.write_text(LOOPS)
    assert not are_compiled(source)
    spec = importlib.util.spec_from_file_location("own_loops", source)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.one_more(1) == 2
    assert are_compiled(source)
    kept = next((tmp_path / "__pycache__").glob("*.nbi"))
    os.utime(source, ns=(0, kept.stat().st_mtime_ns + 1))
    assert not are_compiled(source)


def test_a_job_runs_where_a_folder_of_caches_cannot_be_looked_into(tmp_path, monkeypatch):
    """A name that is too long stands for a folder that is forbidden, which it is not to everybody."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/" + 300 * "x")
    source = tmp_path / "table_loops.py"
    source.write_text(LOOPS)
    monkeypatch.setattr(compiled_loops, "_source", lambda module: source)
    monkeypatch.setenv("HEADRACE_PROGRESS", "lines")
    with TableEnvironment.create(parallelism=1, actor_system="sim", seed=0) as t:
        t.create_temporary_view("v", pa.table({"k": [1, 1, 2]}))
        assert sorted(t.execute_sql(GROUPED).to_arrow()["n"].to_pylist()) == [1, 2]


PROGRAM = """
import sys
import pyarrow as pa
from headrace.table import TableEnvironment

options = {"mode": "batch"} if sys.argv[1] == "batch" else {"actor_system": "local"}
with TableEnvironment.create(parallelism=1, **options) as t:
    t.create_temporary_view("v", pa.table({"k": [1, 1, 2]}))
    for query in sys.argv[2:]:
        print(sorted(t.execute_sql(query).to_arrow().to_pylist(), key=str))
"""
PLAIN, GROUPED = "SELECT k + 1 AS n FROM v", "SELECT k, COUNT(*) AS n FROM v GROUP BY k"
OVER = "SELECT k, SUM(k) OVER (ORDER BY k) AS s FROM v"


@pytest.mark.campaign
def test_a_new_installation_says_once_that_it_compiles(tmp_path):
    package = Path(headrace.__path__[0])
    shutil.copytree(package, tmp_path / "installed" / "headrace", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "HEADRACE_PROGRESS": "lines"}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    environment.pop("NUMBA_CACHE_DIR", None)

    def run(*queries, mode="streaming"):
        command = [sys.executable, "-c", PROGRAM, mode, *queries]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        return ended.stdout.count("\n"), ended.stderr.count("compiling loops for the first use")

    assert run(PLAIN) == (1, 0)
    assert run(GROUPED, GROUPED) == (2, 1)
    assert run(GROUPED) == (1, 0)
    # Batch mode has loops for OVER alone, and those of a module that nobody has used yet.
    assert run(GROUPED, PLAIN, mode="batch") == (2, 0)
    assert run(OVER, OVER, mode="batch") == (2, 1)
    assert run(OVER, mode="batch") == (1, 0)
    assert run(OVER) == (1, 0)
    kept = list((tmp_path / "installed" / "headrace" / "engine" / "tables" / "__pycache__").glob("table_loops.*.nbi"))
    assert kept
    shutil.rmtree(tmp_path / "installed" / "headrace" / "engine" / "tables" / "__pycache__")
    environment["NUMBA_CACHE_DIR"] = str(tmp_path / "own")
    assert [run(GROUPED), run(GROUPED)] == [(1, 1), (1, 0)]
