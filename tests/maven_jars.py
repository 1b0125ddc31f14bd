"""Jars of servers from Maven's registry: fetched once, into a folder for caches."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

FETCH_TIMEOUT_S = 600


def jars_of(pom: str, name: str, folder: str) -> Path:
    """The folder with what a POM depends on.

    Skips the test if the jars are not there and cannot be had.

    Args:
        pom: The project whose dependencies they are.
        name: The server's, with its version, for the reason.
        folder: The cache's, with the version, too.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-tests" / folder
    if cache.is_dir():
        return cache
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(f"there is no {name}, and no Maven to fetch it")
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as project:
        (Path(project) / "pom.xml").write_text(pom)
        command = [
            maven,
            "-q",
            "-B",
            "dependency:copy-dependencies",
            "-DoutputDirectory=libs",
            "-DincludeScope=runtime",
        ]
        try:
            subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=FETCH_TIMEOUT_S, text=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"{name} could not be fetched: {str(error.stdout or error)[-500:]}")
        with contextlib.suppress(OSError):  # another process was faster
            (Path(project) / "libs").rename(cache)
    return cache
