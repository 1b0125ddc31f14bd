"""What tests of Spark share: how results are compared, and which Java processes there are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def java_children(root: int | None = None) -> list[int]:
    """Ids of the Java processes below a process; of this one by default. Those that have ended do not count."""
    parents: dict[int, int] = {}
    java: list[int] = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            head, _, rest = (directory / "stat").read_text().rpartition(") ")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        parents[int(directory.name)] = int(parent)
        if head.endswith("(java") and state != "Z":
            java.append(int(directory.name))
    top = os.getpid() if root is None else root
    return [pid for pid in java if _descends(pid, top, parents)]


def _descends(pid: int, top: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == top:
            return True
    return False


def canonical(rows: list[Any]) -> list[str]:
    """Records in an order of their own, floats rounded: partial sums are added up in any order."""
    return sorted(repr(rounded(row)) for row in rows)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}") + 0.0
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(rounded, value))
    return value
