"""What the reference of the site says, against the code by another way: help texts, sources, documents.

The site itself is built by CI, where a warning is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
from pathlib import Path

import pytest

import headrace
from headrace.cli import main
from headrace.engine.kernel.config import ClusterSettings, JobSettings

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "docs" / "site"


@pytest.fixture(scope="module")
def reference():
    sys.path.insert(0, str(SITE))
    try:
        import reference

        yield reference
    finally:
        sys.path.remove(str(SITE))


@pytest.fixture(scope="module")
def pages(reference):
    return reference.pages()


def test_every_public_name_is_on_one_page(pages):
    for name in set(headrace.__all__) - {"__version__"}:
        found = [page for page, text in pages.items() if re.search(rf"^\.\. auto\w+:: headrace\.{name}$", text, re.M)]
        assert len(found) == 1, f"{name} is on {found}"


def test_a_name_without_a_page_stops_the_build(reference, monkeypatch):
    monkeypatch.setattr(reference, "GROUPS", reference.GROUPS[1:])
    with pytest.raises(ValueError, match="no page of the reference is for"):
        reference.public_names()


def test_options_have_their_defaults_and_meanings(pages):
    options = pages["configuration.md"].partition("## Keys of SET")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", options, re.M))
    made = JobSettings()
    assert rows["slot_request_timeout_ms"].startswith(f"`{made.slot_request_timeout_ms:_}` | ")
    assert rows["node_block_ms"].startswith(f"`{ClusterSettings().node_block_ms:_}` | ")
    assert [name for name, row in rows.items() if not row.partition(" | ")[2].strip()] == []
    assert "`execution.checkpointing.interval`" in pages["configuration.md"]


def test_a_field_without_a_meaning_stops_the_build(reference, monkeypatch):
    monkeypatch.setattr(JobSettings, "__doc__", JobSettings.__doc__.replace("        step_us:", "        step:"))
    with pytest.raises(ValueError, match="'step_us'"):
        list(reference.option_rows(JobSettings))


def test_the_variables_are_those_that_the_code_reads(reference):
    sources = (path for top in ("api", "actors", "engine", "state") for path in (ROOT / top).rglob("*.py"))
    read = {name for path in sources for name in re.findall(r'"(HEADRACE_[A-Z_]+)"', path.read_text("utf-8"))}
    assert {name.strip("`") for name, _ in reference.variables()} == read


def help_of(*command):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        main([*command, "--help"])
    return shown.getvalue()


def test_commands_and_their_options_are_those_of_the_help(pages):
    page = pages["command-line.md"]
    commands = re.search(r"^positional arguments:\n(?:.*COMMAND.*\n)?((?:    .*\n)+)", help_of(), re.M)
    names = re.findall(r"^    (\w[\w-]*) ", commands[1], re.M)
    assert len(names) > 15
    for name in names:
        section = page.partition(f"## headrace {name}\n")[2].partition("\n## ")[0]
        options = set(re.findall(r"^  (?:-\w[^,]*, )?(--[\w-]+)", help_of(name), re.M)) - {"--help"}
        assert options <= set(re.findall(r"--[\w-]+", section)), name


def test_arguments_that_are_hidden_are_left_out(reference):
    parser = argparse.ArgumentParser()
    parser.add_argument("--shown", choices=("a", "b"), help="so %(default)s", default="a")
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    assert list(reference.argument_rows(parser)) == [("`--shown`", "`a|b`", "so a")]


def test_routes_are_those_of_the_document(pages):
    document = json.loads((ROOT / "docs" / "openapi.json").read_text("utf-8"))
    wanted = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert set(re.findall(r"^\| `([A-Z]+ /[^`]*)`", pages["rest.md"], re.M)) == wanted


def test_a_notebook_becomes_a_page():
    sys.path.insert(0, str(SITE))
    try:
        from build import as_page
    finally:
        sys.path.remove(str(SITE))
    cells = [
        {"cell_type": "markdown", "source": ["# A\n", "text"]},
        {"cell_type": "code", "source": "1 + 1", "outputs": [{"data": {"text/plain": ["2"]}}]},
        {"cell_type": "code", "source": "%%sql\nSELECT 1", "outputs": [{"data": {"text/html": "<b>1</b>"}}]},
    ]
    page = as_page({"cells": cells})
    assert "# A\ntext\n" in page
    assert "```python\n1 + 1\n```\n\n````text\n2\n````" in page
    assert "```sql\n%%sql" in page
    assert '````{raw} html\n<div class="output"><b>1</b></div>\n````' in page


def test_all_pictures_of_the_dashboard_are_taken_by_scripts():
    """So that they can be taken anew, all of them, when a page changes."""
    script = (ROOT / "tests" / "bench" / "docs_pictures.py").read_text(encoding="utf-8")
    steps = (ROOT / "tests" / "first_steps.py").read_text(encoding="utf-8")
    taken = set(re.findall(r"\bdashboard-[a-z-]+", script))
    taken |= {f"first-steps-{name}" for name in re.findall(r'picture\("(\w+)"\)', steps)}
    assert {path.stem for path in (ROOT / "docs" / "pictures").glob("*.png")} == taken
    shown = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "guide").glob("*.md"))
    assert all(f"../pictures/{name}.png" in shown for name in taken)
