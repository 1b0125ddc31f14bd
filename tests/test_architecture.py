"""The dependency rule and the other structural promises, checked on the syntax trees of the source files."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("api", "engine", "actors", "state")

MAY_IMPORT = {
    "state": {"state"},
    "engine": {"engine", "state"},
    "actors": {"actors", "engine", "state"},
    "api": {"api", "engine", "state"},
}
"""Folder -> folders it may import at module level."""

REACHES_ACTORS = {"environment.py", "cli.py", "cluster_commands.py", "simulated.py"}
"""The files of api/ that may import actors, inside functions only."""

ONLY_IN_ACTORS = {"ray", "pyspark", "raydp"}

NOT_IN_ENGINE = {
    "asyncio", "concurrent", "multiprocessing", "random", "secrets", "select", "shutil", "signal", "socket",
    "subprocess", "tempfile", "threading", "time", "urllib", "uuid", "http", "requests", "pathlib", "os", "io",
}  # fmt: skip
"""Clock, chance, threads, network, files: arguments of the engine, never imports."""

CLOCK_CALLS = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")}

FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def folder_of(path):
    return path.relative_to(ROOT).parts[0]


def imports_of(path):
    """Pairs of (dotted module, whether at module level), relative imports resolved as '.'."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nested = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(outer)
    }
    typing_only = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.If) and isinstance(outer.test, ast.Name) and outer.test.id == "TYPE_CHECKING"
        for node in ast.walk(outer)
    }
    for node in ast.walk(tree):
        level = "function" if id(node) in nested else "typing" if id(node) in typing_only else "module"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, level
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module, level
            if module == "headrace":
                for alias in node.names:
                    yield f"headrace.{alias.name}", level


def folder_of_module(module):
    """The folder a headrace module lives in; None for other packages."""
    parts = module.split(".")
    if parts[0] != "headrace":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ("engine", "actors", "state") else "api"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_dependencies_point_one_way(path):
    folder = folder_of(path)
    for module, level in imports_of(path):
        assert not module.startswith("."), f"relative import {module}"
        assert module.split(".")[0] not in FOLDERS, f"{module}: the package is headrace"
        target = folder_of_module(module)
        if target is None or target in MAY_IMPORT[folder]:
            continue
        assert folder == "api", f"{folder} must not import {module}"
        assert target == "actors"
        assert path.name in REACHES_ACTORS, f"{path.name} must not import {module}"
        assert level != "module", f"{module} must be imported inside a function"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_ray_and_spark_are_known_in_actors_only(path):
    if folder_of(path) == "actors":
        return
    used = {module.split(".")[0] for module, _ in imports_of(path)}
    assert not used & ONLY_IN_ACTORS


@pytest.mark.parametrize("path", [p for p in FILES if folder_of(p) == "engine"], ids=lambda p: p.name)
def test_the_engine_has_no_clock_chance_threads_network_or_files(path):
    used = {module.split(".")[0] for module, level in imports_of(path) if level != "typing"}
    assert not used & NOT_IN_ENGINE
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "input", "print"), f"line {node.lineno}: {node.func.id}()"
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            assert (owner, node.attr) not in CLOCK_CALLS, f"line {node.lineno}: {owner}.{node.attr}"
            assert (owner, node.attr[:6]) != ("random", "random"), f"line {node.lineno}: numpy's random numbers"
        if isinstance(node, ast.Attribute) and node.attr == "random":
            assert not (isinstance(node.value, ast.Name) and node.value.id in ("np", "numpy")), f"line {node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_is_over_a_thousand_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 1_000


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), "no module docstring"


def test_the_packages_in_pyproject_are_the_folders_on_disk():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = text.split("packages = [", 1)[1].split("]", 1)[0]
    listed = {line.strip().strip('",') for line in block.splitlines() if line.strip()}
    on_disk = set()
    for folder in FOLDERS:
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            on_disk.add(".".join(("headrace", *(parts[1:] if folder == "api" else parts))))
    assert listed == on_disk
    folders_with_code = {path.parent for path in FILES}
    assert all((folder / "__init__.py").exists() for folder in folders_with_code)
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


def test_every_public_name_can_be_imported():
    import headrace

    assert headrace.__all__ == sorted(headrace.__all__)
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Flink'"):
        headrace.Flink  # noqa: B018
