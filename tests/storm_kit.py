"""Storm's programs of tests, and what they leave in folders."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace import JobClient
from headrace.storm import ShellBolt, ShellSpout

__all__ = ["acked", "bolt", "failed", "lines_spout", "number_of", "rows_in", "spout", "wait_until"]

DEADLINE_S = 60.0

PROGRAMS = Path(__file__).parent / "data" / "storm"


def bolt(script: str, *arguments: str, outputs: Any = ("word",)) -> ShellBolt:
    """One of the programs as a bolt."""
    return ShellBolt(sys.executable, script, *arguments, outputs=outputs, resources=PROGRAMS)


def spout(script: str, *arguments: str, outputs: Any = ("line",)) -> ShellSpout:
    """One of the programs as a spout."""
    return ShellSpout(sys.executable, script, *arguments, outputs=outputs, resources=PROGRAMS)


def lines_spout(folder: Path, lines: Sequence[str]) -> ShellSpout:
    """A spout that gives lines until they are acknowledged, whatever dies."""
    path = folder / "lines"
    path.write_text("".join(f"{line}\n" for line in lines))
    return spout("lines.py", str(path), str(folder / "told"))


def acked(folder: Path) -> Counter[int]:
    """The lines that the spout was told to be acknowledged."""
    return _told(folder, "acked")


def failed(folder: Path) -> Counter[int]:
    """The lines that the spout was told to have failed."""
    return _told(folder, "failed")


def _told(folder: Path, what: str) -> Counter[int]:
    texts = [path.read_text() for path in (folder / "told").glob(f"{what}-*")]
    # The last line may be half written.
    return Counter(int(line) for text in texts for line in text[: text.rfind("\n") + 1].split())


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """The rows in the files of a sink."""
    return [json.loads(line) for path in folder.glob("part-*") for line in path.read_text().splitlines()]


def wait_until(is_so: Callable[[], object], client: JobClient | None = None) -> None:
    """Wait for something, while a job goes well."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline
        if client is not None:
            view = client.view()
            assert view.state not in ("FAILED", "FINISHED", "CANCELED"), view.failures
        time.sleep(0.01)


def number_of(word: str) -> int:
    """The number in a word of a test."""
    return int(word[1:])
