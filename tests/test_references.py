"""Texts point only at what a reader can open: pages of this repository, Flink's classes, FLIPs, RFCs, papers.

No text cites documents that are not in the repository; each page, and each module or name in full, that a text names
is there; and each file and function that docs/architecture.md sends its readers to exists. Names that stand alone in
backticks, of classes, their attributes, functions and modules, are those of today in docs/architecture.md, in pages of
decisions and in what rooms say of themselves.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
MODULES = [path for top in ("api", "engine", "actors", "state", "tests") for path in (ROOT / top).rglob("*.py")]
TEXTS = [*PAGES, *(path for path in MODULES if path != Path(__file__).resolve()), ROOT / ".ci" / "run"]
ARCHITECTURE = ROOT / "docs" / "architecture.md"

# Rows of a table, by letter and number, and sections of papers that were never published.
PRIVATE = re.compile(
    r"\b[Rr]ows?\s+[A-J]\d{1,2}\b|\b[Ff]eatures\s+row\b|\([A-J]\d{1,2}(?:,\s+[A-J]\d{1,2})+\)"
    r"|\bDESIGN(?:\.md|\s+\d)|\bSTYLE(?:\.md|\s+\d)|\bfault\s+catalogue\b|\bfeatures\.md\b"
)
LETTER, PAPER = "D", "DESIGN"  # so that this file is none that cites them
PAGE = re.compile(r"\bdocs/[\w./-]*\w")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?:api|engine|actors|state|tests|docs)/[\w./-]*|\.ci/\w+|[A-Z]+\.md|\w+\.toml")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
DOTTED = re.compile(r"`(headrace(?:\.[A-Za-z_]\w*)+)`")
DEFINED = re.compile(r"^\s*class (\w+)|^(\w+)(?:: .*)? = |^(?:async )?def (\w+)", re.MULTILINE)
ALONE = re.compile(r"(?<!`)`(_?[A-Za-z]\w*(?:\.\w+)*)(?:\(\))?`(?!`)")

OF_OTHERS = {
    # Flink
    "BatchCoBroadcastWithNonKeyedOperator", "GroupAggFunction", "IndexedCombinedWatermarkStatus",
    "MessageAcknowledgingSourceBase", "MultiInputSortingDataInput", "SplitAssignmentTracker",
    "WatermarkOutputMultiplexer", "enableObjectReuse", "jobmanager.archive.fs.dir", "updateStatus",
    # Kafka, OpenSearch, Delta Lake, Iceberg, Storm
    "DescribeTransactions", "EndTxn", "LocalCluster", "_shard_doc", "delta.setTransactionRetentionDuration",
    "remove_orphan_files", "send_offsets_to_transaction",
    # Spark, Java, Linux, browsers, HTTP
    "Authorization", "Host", "MADV_POPULATE_WRITE", "NaN", "Origin", "OutOfMemoryError", "innerHTML",
    "localCheckpoint", "mapInArrow",
    # What stands before a dot: in lines of programs, in names of packages, in options
    "env", "index", "pa", "ray", "stream",
}  # fmt: skip
"""Names in pages of decisions that are not ours, and what such names begin with."""


@functools.cache
def text_of(path):
    return path.read_text(encoding="utf-8")


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def private_references(text):
    """What a text cites that nobody but its author has, each with its line."""
    return [f"line {line_of(text, match.start())}: {match[0]}" for match in PRIVATE.finditer(text)]


def dead_pages(text):
    """Pages under docs/ that a text names and that are not there."""
    return [page for page in PAGE.findall(text) if not (ROOT / page).exists()]


def slug(heading):
    """The anchor that a heading has on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def without_blocks(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def headings(text):
    return {slug(title) for title in re.findall(r"^#+ (.*)", without_blocks(text), re.MULTILINE)}


def dead_links(path, text):
    """Relative links of a page to files or headings that are not there."""
    dead = []
    for target in LINK.findall(without_blocks(text)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        page = (path.parent / name).resolve() if name else path
        if not page.exists() or (anchor and anchor not in headings(text_of(page) if name else text)):
            dead.append(target)
    return dead


@functools.cache
def names_of(path):
    """All names that a module defines: classes, functions, Class.method and Class.attribute, constants, imports."""
    names = set()

    def walk(body, prefix):
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{prefix}{node.name}.")
                elif node.name == "__init__":
                    names.update(prefix + each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute))
            elif isinstance(node, ast.ImportFrom):
                names.update(prefix + (each.asname or each.name) for each in node.names)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    walk(ast.parse(text_of(path)).body, "")
    return names


def unresolved(text, *, with_names=True):
    """Files of a page that are not there, and names behind a file (up to the next one, or the end) that it lacks."""
    missing = []
    for line in without_blocks(text).splitlines():
        module = None
        for piece in CODE.findall(line):
            if FILE.fullmatch(piece):
                path = ROOT / piece
                module = path if piece.endswith(".py") and path.exists() else None
                if not path.exists():
                    missing.append(piece)
            elif with_names and module is not None and NAME.fullmatch(piece) and piece not in names_of(module):
                missing.append(f"{piece} in {module.relative_to(ROOT)}")
    return missing


def is_there(dotted):
    """Whether a name like headrace.engine.task.task.Task is that of a package, a module, or of something in one."""
    parts = dotted.split(".")[1:]
    place = ROOT / "api" if not parts or not (ROOT / parts[0]).is_dir() else ROOT
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if not parts:
        return True
    if (place / f"{parts[0]}.py").exists():
        place /= f"{parts.pop(0)}.py"
        return not parts or ".".join(parts) in names_of(place)
    return place == ROOT / "api" or ".".join(parts) in names_of(place / "__init__.py")


def absent_names(text):
    return [name for name in DOTTED.findall(text) if not is_there(name)]


@functools.cache
def defined():
    """The modules that define a class, or a name outside of classes, by its name; and modules by theirs."""
    places, by_name = defaultdict(list), defaultdict(list)
    for path in MODULES:
        by_name[path.parent.name if path.name == "__init__.py" else path.stem].append(path)
        by_name[f"{path.parent.name}.{path.stem}"].append(path)
        for name in DEFINED.findall(text_of(path)):
            places["".join(name)].append(path)
    return places, by_name


@functools.cache
def attributes_of(name):
    """What all classes of a name have, those of their bases among it."""
    found, bases = set(), set()
    for path in defined()[0][name]:
        found |= {one.partition(f"{name}.")[2] for one in names_of(path) if f".{one}".find(f".{name}.") >= 0}
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.ClassDef) and node.name == name:
                bases |= {re.sub(r".*\.|\[.*", "", ast.unparse(base)) for base in node.bases}
    return found.union(*(attributes_of(base) for base in bases - {name}))


def is_of_today(name):
    """Whether a name that stands alone is of a class, an attribute, a function, a module, an option, or is not ours."""
    head, _, rest = name.partition(".")
    places, by_name = defined()
    if {name, head} & OF_OTHERS or hasattr(builtins, head) or head == "headrace" or rest in ("md", "toml"):
        return True
    if not rest:
        is_written = "_" in name and any(name in text_of(path) for path in MODULES)
        return is_written or name in places or ("_" not in name and (name.islower() or name.isupper()))
    return (
        (rest == "py" and head in by_name)
        or name in by_name
        or (head in places and rest in attributes_of(head))
        or any(rest in names_of(path) for path in by_name[head])
        or head in sys.stdlib_module_names
        or (rest.count(".") > 0 and any(name in text_of(path) for path in MODULES))
    )


def names_of_yesterday(text):
    return [name for name in ALONE.findall(without_blocks(text)) if not is_of_today(name)]


def test_names_that_stand_alone_are_those_of_today():
    """In docs/architecture.md, in pages of decisions, and in what rooms say of themselves."""
    pages = [ARCHITECTURE, *(ROOT / "docs" / "design").glob("*.md")]
    found = {path: names_of_yesterday(text_of(path)) for path in pages}
    for path in MODULES:
        if path.name == "__init__.py" and path.parts[len(ROOT.parts)] != "tests":
            found[path] = names_of_yesterday(ast.get_docstring(ast.parse(text_of(path))) or "")
    assert {str(path.relative_to(ROOT)): what for path, what in found.items() if what} == {}


def test_names_in_docstrings_and_pages_exist():
    """Those that are written in full: in backticks, from the package on."""
    found = {path: absent_names(text_of(path)) for path in TEXTS}
    assert {str(path.relative_to(ROOT)): what for path, what in found.items() if what} == {}


def test_texts_cite_what_a_reader_can_open():
    found = {path: [*private_references(text), *dead_pages(text)] for path in TEXTS if (text := text_of(path))}
    assert {str(path.relative_to(ROOT)): what for path, what in found.items() if what} == {}


def test_links_lead_somewhere():
    found = {path: dead_links(path, text_of(path)) for path in PAGES}
    assert {str(path.relative_to(ROOT)): what for path, what in found.items() if what} == {}


def test_pages_name_files_that_there_are():
    """Files anywhere; in docs/architecture.md also the names behind them."""
    found = {path: unresolved(text_of(path), with_names=path == ARCHITECTURE) for path in PAGES}
    assert {str(path.relative_to(ROOT)): what for path, what in found.items() if what} == {}


def test_the_architecture_lists_every_design_page():
    listed = set(re.findall(r"\(design/([^)#]+)\)", text_of(ARCHITECTURE)))
    there = {path.name for path in (ROOT / "docs" / "design").glob("*.md")}
    assert sorted(there - listed) == [], "each decision has a line in the index at the end of docs/architecture.md"
    assert sorted(listed - there) == []


# ------------------------------------------------------------------------------------------ that the checks are checks


@pytest.mark.parametrize(
    "text",
    [
        f"Source: Flink's ``Task``; row {LETTER}9.",
        f"as in rows\n{LETTER}1 to {LETTER}3",
        f"given back ({LETTER}22, {LETTER}32)",
        f"Source: {PAPER} 3",
        "STYLE 1.2",
        "section 3.3 of our fault\ncatalogue",
        "(features row 0.10)",
    ],
)
def test_private_references_are_found(text):
    assert private_references(text)


@pytest.mark.parametrize(
    "text", ["row 3 of the table", "key='A1'", "by design 3 copies", "S3 and HDFS (S3, GCS)", "FLIP-27"]
)
def test_other_texts_pass(text):
    assert private_references(text) == []


def test_dead_pages_and_links_are_found():
    assert dead_pages("see docs/design/001-nothing.md") == ["docs/design/001-nothing.md"]
    assert dead_pages("see docs/design/011.") == ["docs/design/011"]
    page = ROOT / "docs" / "reliability.md"
    assert dead_links(page, "[a](guide/none.md) [b](guide/index.md) [c](guide/index.md#none)") == [
        "guide/none.md",
        "guide/index.md#none",
    ]
    assert dead_links(page, "# The one\n[a](#the-one) [b](#the-other)") == ["#the-other"]


def test_names_that_do_not_exist_are_found():
    assert absent_names("`headrace.engine.task.task.Task.step`, `headrace.connectors.files`, `headrace.testing`") == []
    assert absent_names("`headrace.engine.task`, `headrace.engine.machine`, `headrace.engine.task.task.Nothing`") == [
        "headrace.engine.machine",
        "headrace.engine.task.task.Nothing",
    ]
    line = "`engine/task/barriers.py` `BarrierAligner`, `BarrierAligner.nothing`; `engine/none.py`, `anything`"
    assert unresolved(line) == ["BarrierAligner.nothing in engine/task/barriers.py", "engine/none.py"]


def test_names_of_yesterday_are_found():
    text = "`BarrierAligner.on_barrier`, `BarrierAligner`, `barriers.py`, `barriers.Alignment`, `KeyError`, `Task.fail`"
    assert names_of_yesterday(text) == []
    stale = ["BarrierAligner.nothing", "Aligner", "aligners.py", "barriers.Aligner", "_".join(["none", "of", "ours"])]
    assert names_of_yesterday(", ".join(f"`{name}`" for name in stale)) == stale
