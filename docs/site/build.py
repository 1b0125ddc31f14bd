"""Builds the site: ``python docs/site/build.py [FOLDER]``, by default into ``build/site``; needs ``headrace[docs]``.

The pages are those of the repository, where they are, so that their links lead where they lead on GitHub; beside them
are pages that nobody writes: the reference (`docs/site/reference.py`) and the notebooks. All is put together in a
passing folder. Anything that Sphinx warns of is an error.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import reference

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "site"

HOME = """# Headrace

Stateful stream and batch processing in Python: Apache Flink's model and names, on [Ray](https://ray.io), with
exactly-once checkpoints, over Arrow batches.

```
python3 -m venv .venv && .venv/bin/pip install --quiet . && .venv/bin/headrace demo
```

- **New here?** [First steps](docs/guide/first-steps.md), from the install to a job that was slow; then
  [the course](course/index.md): notebooks to read and run.
- **Looking for how to do something?** [The guide](docs/guide/index.md), a page for each feature; every block
  on it is executed by the tests.
- **What does that word mean?** [Concepts](docs/concepts/index.md): one picture each.
- **Coming from PyFlink?** [Name by name](docs/guide/pyflink.md).
- **Running it for others?** [Clusters](docs/guide/clusters.md), [the dashboard](docs/guide/dashboard.md),
  [high availability](docs/guide/high-availability.md), [security](docs/SECURITY.md).
- **Which option, which method?** [The reference](reference/index.md), made from the code itself.

"""

COURSE = """# The course

Notebooks, in order; each is short, runs on a laptop, and brings its data along. They are in `notebooks/`, and the
tests execute them.

```{toctree}
:maxdepth: 1

PAGES
```
"""

OPERATIONS = (
    "clusters", "failover", "savepoints", "backpressure", "high-availability", "dashboard", "rest", "spark",
    "sql-upgrades", "sql-tuning", "snapshots", "queryable-state", "autoscaling", "deployment",
    "metrics",
)  # fmt: skip
"""Chapters of the guide that are for those who run jobs; the others are for those who write them."""


CONCEPTS = ("event-time", "windows", "state", "checkpoints", "sinks", "slots", "savepoints")
"""In the order of docs/concepts/index.md."""


def put_together(folder: Path) -> None:
    """Fill a folder with the sources of the site."""
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ray-cluster.yaml", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("site", "__pycache__"))
    shutil.copytree(SITE / "static", folder / "static")
    shutil.copy(SITE / "conf.py", folder)
    _write(folder / "reference", reference.pages())
    notebooks = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    lessons = {f"{path.stem}.md": as_page(json.loads(path.read_text(encoding="utf-8"))) for path in notebooks}
    lessons["index.md"] = COURSE.replace("PAGES", "\n".join(path.stem for path in notebooks))
    _write(folder / "course", lessons)
    (folder / "index.md").write_text(HOME + contents(), encoding="utf-8")


def contents() -> str:
    """What the side bar lists, part by part."""
    guide = [
        path.stem
        for path in sorted((ROOT / "docs" / "guide").glob("*.md"))
        if path.stem not in ("index", "first-steps")
    ]
    parts = {
        "Learn": ["docs/guide/first-steps", "Overview <README>", "course/index", "docs/guide/index"],
        "Understand": ["docs/concepts/index", *(f"docs/concepts/{name}" for name in CONCEPTS)],
        "Write": [f"docs/guide/{name}" for name in guide if name not in OPERATIONS],
        "Operate": [f"docs/guide/{name}" for name in guide if name in OPERATIONS]
        + ["docs/SECURITY", "docs/reliability"],
        "Look up": ["reference/index", "docs/usability", "CHANGELOG"],
        "Change": ["CONTRIBUTING", "docs/architecture"],
    }
    lines = []
    for caption, pages in parts.items():
        lines += ["```{toctree}", ":hidden:", ":maxdepth: 1", f":caption: {caption}", "", *pages, "```", ""]
    designs = sorted(path.stem for path in (ROOT / "docs" / "design").glob("*.md"))
    return "\n".join(
        [*lines, "```{toctree}", ":hidden:", ":glob:", "", *(f"docs/design/{one}" for one in designs), "```", ""]
    )


def as_page(notebook: dict[str, Any]) -> str:
    """A notebook as a page: texts, code, and the outputs that it was stored with."""
    lines: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            continue
        language = "sql" if source.startswith("%%sql") else "python"
        lines += [f"```{language}", source, "```", ""]
        for output in cell["outputs"]:
            lines += [*_shown(output), ""]
    return "\n".join(lines)


def _shown(output: dict[str, Any]) -> list[str]:
    data = output.get("data", {})
    for kind in ("image/svg+xml", "text/html"):
        if kind in data:
            body = "".join(data[kind])
            return ["````{raw} html", f'<div class="output">{body}</div>', "````"]
    text = "".join(output.get("text") or data.get("text/plain", ""))
    return ["````text", text.rstrip("\n"), "````"] if text.strip() else []


def _write(folder: Path, pages: dict[str, str]) -> None:
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Build the site; the exit status of Sphinx."""
    from sphinx.cmd.build import build_main

    out = Path(arguments[0]) if arguments else ROOT / "build" / "site"
    with tempfile.TemporaryDirectory(prefix="headrace-site-") as folder:
        put_together(Path(folder))
        # Marked "no search for changes": everything is made anew. Warnings are errors, all of them are shown.
        return build_main(["-q", "-W", "--keep-going", "-E", "-b", "html", folder, str(out)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
