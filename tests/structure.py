"""Prints how the product is laid out: files and lines of each folder, imports between them, floors, circles.

``python tests/structure.py`` looks at the working tree, ``python tests/structure.py COMMIT ...`` at commits: a table
for each. An *arrow* is a module that imports another one of ours, for types and inside functions, too. *Floors* are the
modules of the longest way along arrows, where modules that reach each other count as one. A *circle* is such a group.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOP_FOLDERS = ("api", "actors", "engine", "state")


def main(commits: list[str]) -> None:
    for commit in commits or [""]:
        print(f"\n{commit or 'working tree'}\n")
        print(described(sources_of(commit) if commit else sources_on_disk()))


def sources_on_disk() -> dict[str, str]:
    """The text of each module, by its path."""
    paths = (path for top in TOP_FOLDERS for path in (ROOT / top).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def sources_of(commit: str) -> dict[str, str]:
    """The same at a commit."""
    listed = _git("ls-tree", "-r", "--name-only", commit, *TOP_FOLDERS).decode().splitlines()
    paths = [path for path in listed if path.endswith(".py")]
    answer = _git("cat-file", "--batch", text="".join(f"{commit}:{path}\n" for path in paths).encode())
    sources = {}
    for path in paths:
        head, _, answer = answer.partition(b"\n")
        size = int(head.split()[2])
        sources[path], answer = answer[:size].decode(), answer[size + 1 :]
    return sources


def _git(*words: str, text: bytes = b"") -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], input=text, capture_output=True, check=True).stdout


def dotted(path: str) -> tuple[str, ...]:
    """The name of a module, in parts."""
    parts = path.removesuffix(".py").split("/")
    parts = parts[1:] if parts[0] == "api" else parts
    return ("headrace", *(part for part in parts if part != "__init__"))


def arrows_of(sources: dict[str, str]) -> dict[str, set[str]]:
    """The modules that each module imports."""
    by_name = {dotted(path): path for path in sources}
    return {path: _imported(path, ast.parse(text), by_name) - {path} for path, text in sources.items()}


def _imported(path: str, tree: ast.AST, by_name: dict[tuple[str, ...], str]) -> set[str]:
    own = dotted(path) if path.endswith("__init__.py") else dotted(path)[:-1]
    found = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = own[: len(own) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            inner = [(*module, alias.name) for alias in node.names]
            names = [name if name in by_name else module for name in inner]
        found |= {by_name[name] for name in names if name in by_name}
    return found


def circles_of(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules, those that import none of the others first; in each of them, all reach each other (Tarjan)."""
    number, low, waiting, groups = {}, {}, [], []

    def visit(one: str) -> None:
        number[one] = low[one] = len(number)
        waiting.append(one)
        for other in sorted(arrows[one]):
            if other not in number:
                visit(other)
            if other in waiting:
                low[one] = min(low[one], low[other])
        if low[one] == number[one]:
            at = waiting.index(one)
            groups.append(waiting[at:])
            del waiting[at:]

    sys.setrecursionlimit(10_000)
    for one in sorted(arrows):
        if one not in number:
            visit(one)
    return groups


def floors_of(arrows: dict[str, set[str]], groups: list[list[str]]) -> int:
    """How many groups the longest way along arrows has."""
    floor: dict[str, int] = {}
    for group in groups:
        below = {other for one in group for other in arrows[one]} - set(group)
        height = 1 + max((floor[other] for other in below), default=0)
        floor |= dict.fromkeys(group, height)
    return max(floor.values())


def described(sources: dict[str, str]) -> str:
    """A table in Markdown, and what is true of the whole."""
    arrows = arrows_of(sources)
    groups = circles_of(arrows)
    circles = [group for group in groups if len(group) > 1]
    folders = {path: path.rpartition("/")[0] for path in sources}
    files, lines = Counter(folders.values()), Counter[str]()
    within, out, into = Counter[str](), Counter[str](), Counter[str]()
    for path, text in sources.items():
        lines[folders[path]] += len(text.splitlines())
        for other in arrows[path]:
            is_within = folders[path] == folders[other]
            within[folders[path]] += is_within
            out[folders[path]] += not is_within
            into[folders[other]] += not is_within
    rows = ["| folder | files | lines | arrows within | out | in |", "|---|---:|---:|---:|---:|---:|"]
    rows += [
        f"| `{one}/` | {files[one]} | {lines[one]:,} | {within[one]} | {out[one]} | {into[one]} |"
        for one in sorted(files)
    ]
    longest = sorted((-len(text.splitlines()), path) for path, text in sources.items())[:3]
    of_circles = ", ".join(str(len(group)) for group in sorted(circles, key=len, reverse=True))
    rows += [
        "",
        f"{len(sources)} files, {sum(lines.values()):,} lines; {len(files)} folders, {max(files.values())} files in "
        "the fullest.",
        f"{sum(map(len, arrows.values())):,} arrows, {sum(within.values()):,} of them within a folder; "
        f"{floors_of(arrows, groups)} floors; {len(circles)} circles, of {of_circles or 'no'} modules.",
        "The longest files: " + ", ".join(f"`{path}` {-length}" for length, path in longest) + ".",
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
