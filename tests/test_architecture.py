"""The order of folders and the other structural promises, checked on the syntax trees of the source files."""

import ast
import gc
import os
import re
import subprocess
import sys
from collections import deque
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [pytest.mark.xdist_group("architecture"), pytest.mark.slow]  # in one process each file is read once

TOP_FOLDERS = ("state", "engine", "actors", "api")

ROOMS = (
    "state",
    "state/reading",
    "state/values",
    "state/keys",
    "state/files",
    "state/checkpoints",
    "state/keyed",
    "state/backends/heap",
    "state/backends/rocksdb",
    "state/backends",
    "state/open",
    "engine",
    "engine/kernel",
    "engine/columns",
    "engine/functions",
    "engine/functions/aggregates",
    "engine/tables",
    "engine/frames",
    "engine/operators",
    "engine/changelog/accumulators",
    "engine/changelog",
    "engine/multi_joins",
    "engine/timed",
    "engine/connectors",
    "engine/lookups",
    "engine/windows/columnar",
    "engine/windows",
    "engine/joins",
    "engine/graph",
    "engine/protocol",
    "engine/task",
    "engine/execution",
    "engine/autoscaler",
    "engine/checkpoint",
    "engine/job/sources",
    "engine/job/context",
    "engine/job/phases",
    "engine/job",
    "engine/cluster",
    "engine/plan",
    "engine/partitions",
    "engine/optimizer",
    "engine/optimizer/tuning",
    "engine/optimizer/upgrades",
    "actors/clients",
    "actors/hosts",
    "actors/local",
    "actors/sim",
    "actors/ray",
    "actors/rest/resources",
    "actors/rest",
    "actors/reporters",
    "actors/spark",
    "actors",
    "api/data",
    "api/formats",
    "api/formats/containers",
    "api/arguments",
    "api/rest",
    "api/jobs",
    "api/connectors/files",
    "api/connectors/hybrid",
    "api/connectors/messages",
    "api/connectors/upserts",
    "api/connectors/kafka",
    "api/connectors/kinesis",
    "api/connectors/nifi",
    "api/connectors/opensearch",
    "api/connectors/cassandra",
    "api/connectors/hbase",
    "api/connectors/mongodb",
    "api/connectors/lake",
    "api/connectors/delta",
    "api/connectors/iceberg",
    "api/connectors/hudi",
    "api/connectors/http",
    "api/connectors/websocket",
    "api/connectors/mqtt",
    "api/connectors/pulsar",
    "api/connectors/rabbitmq/protocol",
    "api/connectors/rabbitmq/queues",
    "api/connectors/rabbitmq/streams",
    "api/connectors/rabbitmq",
    "api/connectors/redis",
    "api/connectors/sql",
    "api/connectors/postgres_cdc",
    "api/connectors",
    "api/stream",
    "api/storm",
    "api/dataset/files",
    "api/dataset",
    "api/sql/parsing",
    "api/sql/functions",
    "api/sql",
    "api/table/expressions",
    "api/table/connectors",
    "api/table/services",
    "api/table/lowering",
    "api/table",
    "api/testing/operators",
    "api/testing/pipelines",
    "api/testing/sinks",
    "api/testing/sources",
    "api/testing",
    "api",
    "api/cli/sql",
    "api/cli",
)
"""All folders, from the ground up: each imports only itself and those before it, for types and in functions, too."""

CIRCLES = (
    # The calls of a program go from one kind of stream to another, and back: each makes the next one, in functions.
    (
        "api/stream",
        (
            "async_data_stream", "cached_stream", "combined_streams", "connected_streams",
            "data_stream",
            "data_stream_sink", "environment", "iterative_stream", "joined_streams",
            "keyed_stream", "partitioned_streams", "sources", "windowed_stream",
        ),
    ),
    # So do those of data sets.
    (
        "api/dataset",
        (
            "columns", "dataset", "environment", "grouped", "iterations", "joins_and_crosses", "recorded", "sources",
            "two_inputs", "writes",
        ),
    ),
    # A function is opened with a RuntimeContext, which refuses state whose own function wants to be opened.
    ("engine/functions", ("contract", "life", "runtime_context")),
)  # fmt: skip
"""The only modules that import each other, one of them for types or in functions: room, names, and above them why."""

MAY_IMPORT = {
    "state": {"state"},
    "engine": {"engine", "state"},
    "actors": {"actors", "engine", "state"},
    "api": {"api", "engine", "state"},
}
"""Top folder -> top folders it may import at module level."""

REACHES_ACTORS = {
    "api/stream/environment.py",
    "api/dataset/environment.py",
    "api/dataset/reported_runs.py",
    "api/cli/main.py",
    "api/cli/applications.py",
    "api/cli/cluster.py",
    "api/cli/doctor.py",
    "api/jobs/client.py",
    "api/testing/simulated.py",
}
"""The files of api/ that may import actors, inside functions only."""

ONLY_IN_ACTORS = {"ray", "pyspark", "raydp"}

NOT_IN_ENGINE = {
    "asyncio", "concurrent", "multiprocessing", "random", "secrets", "select", "shutil", "signal", "socket",
    "subprocess", "tempfile", "threading", "time", "urllib", "uuid", "http", "requests", "pathlib", "os", "io",
}  # fmt: skip
"""Clock, chance, threads, network, files: arguments of the engine, never imports."""

FILES_ARE_NOT_IN_ENGINE = {"pyarrow.parquet", "pyarrow.csv", "pyarrow.json", "pyarrow.fs", "pyarrow.dataset"}
"""Formats and file systems: `headrace.formats`, and what reads and writes is handed in."""

REACH_STORAGE = {
    "engine/checkpoint/restore_choice.py",
    "engine/checkpoint/io.py",
    "engine/cluster/job_store_io.py",
    "engine/task/snapshot_io.py",
}
"""The calls that machines hand out as `Offload`: they alone open the stores of checkpoints and jobs."""

CLOCK_CALLS = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")}

MOST_FILES_OF_A_ROOM = 20


def source_files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@cache
def trees():
    """All syntax trees. They stay, so that no search for garbage needs to look at their two million nodes."""
    gc.disable()
    try:
        return {path: ast.parse(path.read_text(encoding="utf-8")) for path in source_files(*TOP_FOLDERS)}
    finally:
        gc.freeze()
        gc.enable()


def tree_of(path):
    return trees()[path]


def dotted(path):
    """The dotted name of a module, or of the package that an ``__init__`` makes."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "api" else parts
    return ".".join(("headrace", *(part for part in parts if part != "__init__")))


PATHS = {dotted(path): path for path in source_files(*TOP_FOLDERS)}


def nodes_of(path, *kinds):
    """The nodes of a file's syntax tree, each with where it is: module, function or typing; outer ones first.

    Kinds that are given are passed over with all that is in them.
    """
    left = deque([(tree_of(path), "module")])
    while left:
        node, where = left.popleft()
        if isinstance(node, kinds):
            continue
        yield node, where
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            inside = "function"
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            inside = "typing" if where == "module" else where
        else:
            inside = where
        left.extend((child, inside) for child in ast.iter_child_nodes(node))


@cache
def imports_of(path):
    """Pairs of (dotted module, where: module, function or typing); relative imports resolved."""
    found = []
    for node, where in nodes_of(path, ast.expr):
        if isinstance(node, ast.Import):
            found += [(alias.name, where) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = _resolved(node, path)
            inner = [f"{module}.{alias.name}" for alias in node.names]
            found += [(name if name in PATHS else module, where) for name in inner]
    return found


def _resolved(node, path):
    if not node.level:
        return node.module
    parts = dotted(path).split(".")
    package = parts if path.name == "__init__.py" else parts[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join((*base, node.module)) if node.module else ".".join(base)


def top_of(module):
    """The top folder a headrace module lives in; None for other packages."""
    parts = module.split(".")
    if parts[0] != "headrace":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ("engine", "actors", "state") else "api"


def room_of(path):
    return path.parent.relative_to(ROOT).as_posix()


def own_imports_of(path):
    """Pairs of (file of ours, where), but for itself."""
    for module, where in imports_of(path):
        target = PATHS.get(module)
        if target is not None and target != path:
            yield target, where


def test_dependencies_of_the_four_folders_point_one_way():
    wrong = []
    for path in source_files(*TOP_FOLDERS):
        name, top = name_of(path), name_of(path).split("/")[0]
        for module, where in imports_of(path):
            if module.split(".")[0] in TOP_FOLDERS:
                wrong.append(f"{name}: the package of {module} is headrace")
            target = top_of(module)
            if target is None or target in MAY_IMPORT[top]:
                continue
            if not (top == "api" and target == "actors" and name in REACHES_ACTORS and where != "module"):
                wrong.append(f"{name} must not import {module}")
    assert not wrong


def test_rooms_import_only_rooms_below_them():
    """Wherever the import stands: one for types or inside a function is a dependency, too."""
    wrong = [
        f"{name_of(path)} imports {name_of(target)} ({where})"
        for path in source_files(*TOP_FOLDERS)
        for target, where in own_imports_of(path)
        if ROOMS.index(room_of(target)) > ROOMS.index(room_of(path))
    ]
    assert not wrong


def test_modules_import_each_other_only_where_that_is_said():
    arrows = {path: [target for target, _where in own_imports_of(path)] for path in source_files(*TOP_FOLDERS)}
    found = {frozenset(map(name_of, circle)) for circle in circles_of(arrows)}
    assert found == {frozenset(f"{room}/{module}.py" for module in modules) for room, modules in CIRCLES}


def circles_of(arrows):
    """The sets of nodes that reach each other; ``arrows`` has the nodes that each one points to."""
    reached = {}
    for start in arrows:
        reached[start], todo = set(), [start]
        while todo:
            new = set(arrows[todo.pop()]) - reached[start]
            reached[start] |= new
            todo += new
    return {
        frozenset(other for other in reached[start] if start in reached[other])
        for start in arrows
        if start in reached[start]
    }


def test_circles_are_found():
    assert circles_of({1: [2], 2: [3], 3: [2], 4: [1, 4]}) == {frozenset({2, 3}), frozenset({4})}


def test_imports_are_relative_inside_a_top_folder_and_absolute_across():
    wrong = []
    for path in source_files(*TOP_FOLDERS):
        top = name_of(path).split("/")[0]
        for node, _where in nodes_of(path, ast.expr):
            if isinstance(node, ast.ImportFrom) and top_of(_resolved(node, path)) is not None:
                is_own = top_of(_resolved(node, path)) == top and _resolved(node, path) != "headrace"
                if bool(node.level) != is_own and _resolved(node, path) != "headrace":
                    wrong.append(f"{name_of(path)}:{node.lineno}")
    assert not wrong


def test_digits_are_told_by_one_rule():
    """`int` refuses digits that ``str.isdigit`` takes; the rule is `headrace.state.reading.read_limits.number_in`."""
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in source_files(*TOP_FOLDERS)
        if re.search(r"\.is(digit|numeric)\b", path.read_text(encoding="utf-8"))
        for node, _where in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr in ("isdigit", "isnumeric")
    ]
    assert not wrong


def test_a_room_has_few_files_and_says_what_it_is():
    for init in source_files(*TOP_FOLDERS):
        if init.name != "__init__.py":
            continue
        files = [path for path in init.parent.glob("*.py") if path != init]
        assert len(files) <= MOST_FILES_OF_A_ROOM, room_of(init)
        assert ast.get_docstring(tree_of(init)), room_of(init)
    assert sorted({room_of(path) for path in source_files(*TOP_FOLDERS)}) == sorted(ROOMS)


def test_a_room_says_what_it_may_import_and_where_to_begin():
    for room in ROOMS:
        said = ast.get_docstring(tree_of(ROOT / room / "__init__.py"))
        assert "May import: " in said, room
        assert "Start " in said, room


def rooms_allowed(room, said):
    """The rooms that a room may import by what it says: those that it names, with the rooms inside them.

    Any room may import its own sub-rooms, and the root of its top folder, where errors are.
    """
    sentence = said.split("May import: ")[1].split("Start ")[0]
    by_name = {dotted(ROOT / one / "__init__.py"): one for one in ROOMS}
    named = [by_name.get(name) or room_of(PATHS[name]) for name in re.findall(r"`(headrace[\w.]*)`", sentence)]
    allowed = {one for one in ROOMS for name in (*named, room) if f"{one}/".startswith(f"{name}/") or name == "api"}
    if "below" in sentence:
        highest = max(ROOMS.index(name) for name in named if not name.startswith("api"))
        allowed |= set(ROOMS[: highest + 1])
    return allowed | {room.split("/")[0]}


def test_a_room_imports_what_it_says_it_may():
    """But for actors in some files of api/, which `REACHES_ACTORS` names."""
    wrong = []
    for room in ROOMS:
        allowed = rooms_allowed(room, ast.get_docstring(tree_of(ROOT / room / "__init__.py")))
        for path in (ROOT / room).glob("*.py"):
            for target, _where in own_imports_of(path):
                if room_of(target) not in allowed and name_of(path) not in REACHES_ACTORS:
                    wrong.append(f"{name_of(path)} imports {name_of(target)}")
    assert not wrong


def test_ray_and_spark_are_known_in_actors_only():
    for path in source_files("state", "engine", "api"):
        used = {module.split(".")[0] for module, _ in imports_of(path)}
        assert not used & ONLY_IN_ACTORS, name_of(path)


def test_the_engine_has_no_clock_chance_threads_network_or_files():
    for path in source_files("engine"):
        used = {module.split(".")[0] for module, where in imports_of(path) if where != "typing"}
        name = name_of(path)
        assert not used & NOT_IN_ENGINE, name
        for node, _where in nodes_of(path):
            _check_pure(node, name)


def test_the_engine_reaches_storage_only_in_calls_that_are_offloaded():
    found = set()
    for path in source_files("engine"):
        name = name_of(path)
        assert not {module for module, _where in imports_of(path)} & FILES_ARE_NOT_IN_ENGINE, name
        for node, _where in nodes_of(path, ast.expr):
            names = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
            assert not names & {"filesystem_for", "parquet", "csv", "fs"}, name
            if names & {"CheckpointStorage", "LocalDirectory", "StoredJob"}:
                found.add(name)
    assert found == REACH_STORAGE


def _check_pure(node, name):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        assert node.func.id not in ("open", "input", "print"), f"{name}:{node.lineno}: {node.func.id}()"
    if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
        owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
        assert (owner, node.attr) not in CLOCK_CALLS, f"{name}:{node.lineno}: {owner}.{node.attr}"
        assert (owner, node.attr[:6]) != ("random", "random"), f"{name}:{node.lineno}: numpy's random numbers"
    if isinstance(node, ast.Attribute) and node.attr == "random":
        assert not (isinstance(node.value, ast.Name) and node.value.id in ("np", "numpy")), f"{name}:{node.lineno}"


def test_no_module_is_over_a_thousand_lines():
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in source_files(*TOP_FOLDERS)}
    assert not {name: length for name, length in lengths.items() if length > 1_000}


def test_every_module_says_what_it_is_for():
    assert not [name_of(path) for path in source_files(*TOP_FOLDERS) if not ast.get_docstring(tree_of(path))]


def test_the_packages_in_pyproject_are_the_folders_on_disk():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = text.split("packages = [", 1)[1].split("]", 1)[0]
    listed = {line.strip().strip('",') for line in block.splitlines() if line.strip()}
    inits = [path for path in source_files(*TOP_FOLDERS) if path.name == "__init__.py"]
    assert listed == {dotted(init) for init in inits}
    assert {path.parent for path in source_files(*TOP_FOLDERS)} == {init.parent for init in inits}
    assert not [name for name in ("engine", "actors", "state") if (ROOT / "api" / name).exists()]


def modules_after(statement):
    """The modules that are loaded in a fresh interpreter after a statement."""
    code = f"{statement}\nimport sys; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import headrace",
        "from headrace import StreamExecutionEnvironment, WatermarkStrategy, TumblingEventTimeWindows, col, count",
        "from headrace.connectors.files import FileSource, FileSink",
        "from headrace import *",
    ],
)
def test_importing_headrace_loads_no_cluster_and_no_data_frames(statement):
    loaded = modules_after(statement)
    assert not loaded & {"ray", "pyspark", "raydp", "pandas", "headrace.actors"}


def test_importing_headrace_alone_loads_little():
    """Well below half a second on any machine: not even Arrow, which takes most of the time of the full import."""
    loaded = modules_after("import headrace")
    assert not loaded & {"pyarrow", "numpy"}


def test_programs_in_sql_are_written_without_the_compiler():
    """It takes a second to load; tables in arrays load it where operators are opened."""
    assert not modules_after("import headrace.table") & {"ray", "numba", "headrace.actors"}


PARTS_OF_CONNECTORS = {"lake", "messages", "upserts"}
"""Folders of ``api/connectors/`` that several connectors are made of."""

EXTRAS_OF = {
    "files": set(), "http": set(), "hybrid": set(), "nifi": set(),
    "sql": {"jdbc", "mariadb", "postgresql"}, "postgres_cdc": {"postgresql"},
}  # fmt: skip
"""Connectors that need nothing, or extras of other names than their own."""


def folders_of_connectors():
    found = {path.parent.name for path in (ROOT / "api/connectors").glob("*/__init__.py")}
    assert found > PARTS_OF_CONNECTORS
    return sorted(found - PARTS_OF_CONNECTORS)


@pytest.mark.parametrize("name", folders_of_connectors())
def test_a_connector_is_where_one_looks_for_it(name):
    """Sources in ``source.py``, sinks in ``sink.py``; pages of guide and reference, an extra, and its face in SQL."""
    folder = ROOT / "api/connectors" / name
    (exported,) = re.findall(r"__all__ = \[(.*?)\]", (folder / "__init__.py").read_text(), re.DOTALL)
    classes = re.findall(r'"(\w+(?:Source|Sink))"', exported)
    assert classes
    for one in classes:
        kind = "source" if one.endswith("Source") else "sink"
        modules = [
            path.stem for path in folder.rglob("*.py") if re.search(rf"^class {one}\b", path.read_text(), re.MULTILINE)
        ]
        assert modules, f"{one} is a class of another folder"
        assert all(module == kind or module.endswith(f"_{kind}") for module in modules), f"{one} is in {modules}"
    module = f"headrace.connectors.{name}"
    pages = [path for path in (ROOT / "docs/guide").glob("*.md") if re.search(rf"\b{module}\b", path.read_text())]
    assert pages, f"no page of docs/guide imports {module}"
    extras = EXTRAS_OF.get(name, {name})
    declared = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", declared, re.MULTILINE) for extra in extras)
    told = " ".join(path.read_text() for path in pages)
    assert all(f"headrace[{extra}]" in told for extra in extras), f"a page says how {extras} is installed"
    assert f'"{module}"' in (ROOT / "docs/site/reference.py").read_text()
    faces = [path for room in ("connectors", "services") for path in (ROOT / "api/table" / room).glob("*.py")]
    assert name == "hybrid" or any(f"connectors.{name}" in path.read_text() for path in faces), "it has no face in SQL"


def test_every_public_name_can_be_imported():
    import headrace

    assert headrace.__all__ == sorted(headrace.__all__)
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Flink'"):
        headrace.Flink  # noqa: B018


def test_what_leads_opens_programs_that_were_submitted_and_nothing_else():
    """JobManagers and Dispatchers unpickle no part of a checkpoint, so that a folder alone cannot make one run code."""
    opened = set()
    for path in source_files("engine/job", "engine/checkpoint", "engine/cluster", "engine/execution"):
        for node, _where in nodes_of(path):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if name in ("load_program", "loads", "load", "unpickle_value", "Unpickler"):
                    opened.add((name, ast.unparse(node.args[0]) if node.args else ""))
    assert opened == {
        (
            "load_program",
            "job.submission.job_graph",
        ),  # the submission, which the Dispatcher had from a client or job store
        ("load_program", "job_graph"),  # the same, where its operators are noted for checkpoints
        ("load_program", "dump_program(vertex)"),  # a copy of what was opened
        ("load", "checkpoint_id"),  # a manifest: JSON
    }
