"""The guide, the concepts and the README, executed: every ```python block, in order, and what it shows.

A block that prints is followed by a ```text block with exactly what it prints; so an output that is missing, extra or
wrong is a failure, as is a block that raises. The blocks of one file share their names, as the cells of a notebook do.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import StreamExecutionEnvironment

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "guide"
CHAPTERS = sorted(GUIDE.glob("*.md"))
CONCEPTS = sorted((ROOT / "docs" / "concepts").glob("*.md"))
MAX_LINES = 250

OF_SERVERS = {"kafka-first.md"}
"""Chapters whose programs run beside a server: those of Kafka by tests/api/connectors/kafka/test_first_pipeline.py."""


class Block(NamedTuple):
    line: int
    language: str
    text: str


def blocks_of(text):
    """The fenced blocks of a page; a fence that is not closed is an error."""
    blocks, opened = [], None
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"```(\w*)\s*$", line)
        if opened is None and fence:
            opened = Block(number, fence[1], "")
        elif opened is not None and line.startswith("```"):
            assert fence, f"line {number}: {line}"
            blocks.append(opened)
            opened = None
        elif opened is not None:
            opened = opened._replace(text=f"{opened.text}{line}\n")
    assert opened is None, f"the block of line {opened.line} is not closed"
    return blocks


def run(path, text, namespace):
    """Run a page's blocks in order and compare what they print with what the page shows."""
    blocks = blocks_of(text)
    for block, following in itertools.zip_longest(blocks, blocks[1:]):
        if block.language != "python":
            continue
        shown = following.text if following is not None and following.language == "text" else ""
        printed = io.StringIO()
        # Blank lines in front, so that a traceback names the line of the page.
        code = compile("\n" * block.line + block.text, str(path), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        place = f"{path.name}, block of line {block.line}"
        assert lines(printed.getvalue()) == lines(shown), f"{place}: left is what it prints, right what is shown"


def lines(text):
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.fixture
def namespace(monkeypatch, tmp_path):
    """The names of one page; its environments are closed at the end."""
    monkeypatch.setenv("HEADRACE_ACTOR_SYSTEM", "local")
    monkeypatch.setenv("HEADRACE_PARALLELISM", "2")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "documentation"}
    yield names
    for value in list(names.values()):
        if isinstance(value, StreamExecutionEnvironment):
            value.close()
    names.clear()


ALONE = [path for path in (*CHAPTERS, *CONCEPTS) if path.name not in OF_SERVERS]


@pytest.mark.parametrize("path", ALONE, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_guide_does_what_it_says(path, namespace):
    run(path, path.read_text(encoding="utf-8"), namespace)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapters_are_short_and_linked(path):
    text = path.read_text(encoding="utf-8")
    # A list that a program writes is looked up, not read.
    assert len(text.splitlines()) <= MAX_LINES or "<!-- Written by tests/" in text
    index = (GUIDE / "index.md").read_text(encoding="utf-8")
    assert path.name == "index.md" or f"({path.name})" in index
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert "://" in target or (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_readme_does_what_it_says(namespace, tmp_path):
    events = {
        "ts": [1_000, 2_500, 3_000, 9_000],
        "kind": ["bid", "ask", "bid", "bid"],
        "auction": [1, 1, 1, 2],
    }
    pq.write_table(pa.table(events), tmp_path / "events.parquet")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(docs/guide/index.md)" in text
    run(ROOT / "README.md", text, namespace)
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and not path.name.startswith(".")]
    rows = sorted(json.loads(line) for path in written for line in path.read_text(encoding="utf-8").splitlines())
    # Windows of 10 s every 2 s: auction 1 has bids at 1 s and 3 s, auction 2 one at 9 s.
    assert rows == [[1, 1], [1, 1], [1, 2], [1, 2], [1, 2], [1, 2], [2, 1], [2, 1], [2, 1], [2, 1], [2, 1]]


# ------------------------------------------------------------------------------------------- that the check is a check

PAGE = """
A page.

```python
x = 1
```

```python
print(x)
print("b")
```

It prints:

```text
1
b
```
"""


def test_a_page_that_is_right_passes(tmp_path):
    run(tmp_path / "page.md", PAGE, {})


@pytest.mark.parametrize(
    ("old", "new"),
    [("1\nb\n```", "1\n```"), ("1\nb\n```", "1\nb\nc\n```"), ("```text\n1\nb\n```", ""), ("x = 1", "x = 2")],
    ids=["output missing", "output too much", "output not shown", "output wrong"],
)
def test_a_page_that_is_wrong_fails(tmp_path, old, new):
    assert old in PAGE
    with pytest.raises(AssertionError):
        run(tmp_path / "page.md", PAGE.replace(old, new), {})


def test_a_page_that_raises_fails_with_its_line(tmp_path):
    with pytest.raises(ZeroDivisionError) as caught:
        run(tmp_path / "page.md", PAGE.replace("x = 1", "x = 1 / 0"), {})
    line = next(number for number, text in enumerate(PAGE.splitlines(), 1) if text == "x = 1")
    assert caught.traceback[-1].lineno + 1 == line
    with pytest.raises(AssertionError, match="not closed"):
        run(tmp_path / "page.md", PAGE + "\n```python\n", {})
