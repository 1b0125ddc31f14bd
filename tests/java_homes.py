"""Java of at least some version, wherever it is: servers differ in what they need."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

import pytest
from zookeeper_server import java

_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)


def _version_of(home: Path) -> int:
    """The version of a folder with Java; 0 if it is none."""
    try:
        found = _VERSION.search((home / "release").read_text())
    except OSError:
        return 0
    return int(found[1]) if found is not None and (home / "bin" / "java").exists() else 0


def java_home(least: int, what: str) -> Path:
    """The folder with Java; skips the test if there is none of that version or later.

    Args:
        least: The version.
        what: Needs it, for the reason.
    """
    places = [os.environ.get("JAVA_HOME"), *sorted(glob.glob("/usr/lib/jvm/*"))]
    found = java()
    if found is not None:
        places.append(str(Path(found).resolve().parent.parent))
    for place in places:
        if place and _version_of(Path(place)) >= least:
            return Path(place)
    pytest.skip(f"there is no Java {least} to run {what}")


def java_for(what: str) -> str:
    """The program ``java``, of any version; skips the test if there is none."""
    found = java()
    if found is None:
        pytest.skip(f"there is no Java to run {what}")
    return found
