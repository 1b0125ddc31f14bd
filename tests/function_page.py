"""Writes `docs/guide/sql-functions.md`: ``python tests/function_page.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.sql.functions import catalogue, registry
from headrace.sql.functions.aggregates import AGGREGATES

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "sql-functions.md"

HEAD = """# Functions of SQL

<!-- Written by tests/function_page.py out of the functions themselves. -->

Functions and operators of Flink's SQL, with what they give here, and what is known to differ from Flink 2.3; those that
are missing stand at the end. Where the last column is empty, values, types and the treatment of NULL are Flink's; most
were compared with Flink itself.

These differ everywhere. Texts have one type, STRING, whether they are CHAR(n) or VARCHAR(n) in Flink. Types do not say
whether a value may be null. Names of functions are the same in small letters. What a function does not take is refused
while the statement is planned, with its place in the text. Where Flink's generated code gives -1 or an empty text for
a value that is missing from an array or map of literals, it is null here.

Regular expressions are RE2's: no look-around, no references back. Paths into JSON are `lax` or, if nothing is said,
`strict`, `$`, and `.name`, `['name']`, `[0]`, `[-1]`, `[*]` and `.*`. Where a strict path leads nowhere, or to null,
that is an error (`ON ERROR`), as a text that is no JSON; where a lax one does, it is empty (`ON EMPTY`).
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    return [
        "| how it is written | what it gives | what differs from Flink |",
        "|---|---|---|",
        *(f"| `{_cell(usage)}` | {_cell(meaning)} | {_cell(differs)} |" for usage, meaning, differs in rows),
        "",
    ]


def _rows(functions: Iterable[Any]) -> list[tuple[str, str, str]]:
    return sorted((one.usage, one.meaning, one.differs) for one in functions)


def page() -> str:
    """The page as it should be."""
    lines = [HEAD]
    sections: dict[str, list[tuple[str, str, str]]] = {title: list(rows) for title, rows in catalogue.SYNTAX.items()}
    for title, functions in registry.SECTIONS.items():
        sections.setdefault(title, []).extend(_rows(functions))
    sections["Aggregates"] = _rows(AGGREGATES.values())
    for title, rows in sections.items():
        lines += [f"## {title}", "", *_table(rows)]
    lines += ["## Not there", "", "| function | why |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(why)} |" for name, why in sorted(catalogue.ABSENT.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
