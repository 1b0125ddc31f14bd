"""Lanes: the tests that need one server, which of them a run has, and a script that runs them.

A lane has the name of its server: ``tests/NAME_server.py`` starts it on free ports of the loopback, waits for its own
sign of readiness, stops it by its process id, and skips the tests with the reason where it cannot be had. A test is in
the lane if it takes a fixture of that module, or has the mark ``lane("NAME")``; it may be in several.

README's command runs the tests that need no other server than those of `IN_EVERY_RUN`, and ``pytest --lane NAME`` those
of one lane. ``.ci/run`` has three lanes in turn, and those that were changed since some commits, as far as it has time
for them; which ones it leaves out changes from turn to turn, and it names them:

    python tests/lanes.py                            # all of them; --campaign: with what takes longer
    python tests/lanes.py zookeeper kafka            # these
    python tests/lanes.py --turn 3 --since HEAD~20 --within 240   # as .ci/run; --list says only which
"""

from __future__ import annotations

import argparse
import difflib
import functools
import math
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent

IN_EVERY_RUN = frozenset({"kafka", "postgresql", "s3"})
"""Lanes of README's command; where their servers are not there, their tests are skipped."""

ALSO_OF = {
    "h2": (
        "api/connectors/sql/dialects.py",
        "api/connectors/sql/jdbc.py",
        "api/connectors/sql/postgresql.py",
        "api/connectors/sql/reading.py",
        "api/connectors/sql/rows.py",
    ),
    "hadoop": (
        "api/formats/containers/avro_files.py",
        "api/formats/containers/sequence_files.py",
        "api/formats/containers/writables.py",
    ),
    "azure": ("state/files/objects.py", "state/files/filesystem.py"),
    "gcs": ("state/files/objects.py", "state/files/filesystem.py"),
    "hudi": ("api/connectors/lake/reading.py",),
    "mariadb": (
        "api/connectors/sql/checks.py",
        "api/connectors/sql/connecting.py",
        "api/connectors/sql/database.py",
        "api/connectors/sql/dialects.py",
        "api/connectors/sql/rows.py",
    ),
    "registry": ("api/formats/avro_messages.py",),
    "hdfs": ("state/files/filesystem.py",),
    "s3": ("state/files/objects.py", "state/files/filesystem.py", "state/checkpoints/leases.py"),
    "zookeeper": ("actors/head.py", "state/checkpoints/leases.py"),
}
"""By lane, files of the product that belong to it although its name is not in their path."""

SOAKS = TESTS / "actors" / "test_server_soaks.py"
"""Campaigns of many lanes, which it knows by their names."""

TAIL_OF_A_FAILURE = 8_000
"""How many characters of the output of a lane that fails are shown."""


def all_lanes() -> list[str]:
    """The lanes that have a server, sorted."""
    return sorted(path.name.removesuffix("_server.py") for path in TESTS.glob("*_server.py"))


def known(name: str) -> str:
    """The name; an error if it is none of a lane."""
    names = all_lanes()
    if name not in names:
        nearest = difflib.get_close_matches(name, names, 1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else f": {', '.join(names)}"
        message = f"there is no lane {name!r}, as tests/{name}_server.py is missing{hint}"
        raise pytest.UsageError(message)
    return name


# ------------------------------------------------------------------------------------------ what tests/conftest.py asks
def lanes_of(item: pytest.Item) -> set[str]:
    """The lanes that a test is in: those of its marks, and of the servers that its fixtures come from."""
    marked = {known(mark.args[0]) for mark in item.iter_markers("lane")}
    fixtures = getattr(item, "_fixtureinfo", None)
    for name in fixtures.names_closure if fixtures else ():
        for definition in fixtures.name2fixturedefs.get(name, ()):
            module = definition.func.__module__.rpartition(".")[2]
            if module.endswith("_server") and (TESTS / f"{module}.py").exists():
                marked.add(module.removesuffix("_server"))
    return marked


def is_in_this_run(lanes: set[str], lane: str | None) -> bool:
    """Whether a test of these lanes is in a run of that lane; of None, if no lane was asked for."""
    return lanes <= IN_EVERY_RUN if lane is None else lane in lanes


# ------------------------------------------------------------------------------------------------- what the script does
@functools.cache
def modules_of(lane: str) -> list[Path]:
    """The test modules of a lane, and folders of them whose ``conftest.py`` knows its server."""
    named = re.compile(rf"""\b{lane}_server\b|\blane\(["']{lane}["']\)""")
    found = [path for path in sorted(TESTS.rglob("*.py")) if named.search(path.read_text(encoding="utf-8"))]
    tests = [path for path in found if path.name.startswith("test_")]
    return [*tests, *(path.parent for path in found if path.name == "conftest.py")]


def changed_lanes(paths: Iterable[str]) -> set[str]:
    """The lanes that changed files belong to: by its name in the path of a file, as a test of it, or by `ALSO_OF`."""
    changed = set(paths)
    lanes = set()
    for lane in all_lanes():
        files = {*ALSO_OF.get(lane, ()), *(str(path.relative_to(ROOT)) for path in modules_of(lane))}
        if changed & files or any(lane in path for path in changed if path.endswith(".py")):
            lanes.add(lane)
    return lanes


def in_turn(names: list[str], number: int, turn: int) -> list[str]:
    """The ``number`` lanes whose turn it is; each comes within as many turns as there are lanes."""
    return [names[(turn * number + i) % len(names)] for i in range(min(number, len(names)))]


def git(*command: str) -> str | None:
    """What git prints; None if it cannot say."""
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def chosen(number: int, since: str | None) -> list[str]:
    """Lanes in turn, by the number of commits, then those that have changed; of those that are not in every run."""
    others = [lane for lane in all_lanes() if lane not in IN_EVERY_RUN]
    turn = int(git("rev-list", "--count", "HEAD") or 0)
    lanes = in_turn(others, number, turn)
    print(f"turn {turn}: {', '.join(lanes)}")
    if since is not None:
        paths = git("diff", "--name-only", since, "HEAD")
        if paths is None:
            print(f"changed since {since}: unknown, there is no such commit here")
        else:
            changed = sorted(changed_lanes(paths.splitlines()) - IN_EVERY_RUN)
            print(f"changed since {since}: {', '.join(changed) or 'none'}")
            first = turn % max(len(changed), 1)
            lanes += [lane for lane in changed[first:] + changed[:first] if lane not in lanes]
    return lanes


def run_lane(lane: str, with_campaigns: bool) -> bool:
    """Run a lane, print what came of it, and say whether all that was run is well."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--lane", lane, f"--junitxml={report}"]
        modules = [*modules_of(lane), *([SOAKS] if with_campaigns else [])]
        command += ["-m", "" if with_campaigns else "not campaign", *map(str, modules)]
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    results = Counter(outcome_of(case) for case in cases)
    counts = ", ".join(f"{results[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
    print(f"{lane}: {counts} ({time.monotonic() - began:.0f} s)")
    reasons = Counter(skip.get("message", "") for case in cases for skip in case.iter("skipped"))
    for reason, number in reasons.most_common():
        print(f"  skipped {number}: {reason}")
    is_well = done.returncode == 0 and bool(cases)
    if not is_well:
        print(done.stdout[-TAIL_OF_A_FAILURE:])
    return is_well


def outcome_of(case: ElementTree.Element) -> str:
    """What came of a test."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run tests that need servers, lane by lane.")
    parser.add_argument("lanes", nargs="*", metavar="LANE", help=f"{', '.join(all_lanes())}; all unless said")
    parser.add_argument("--turn", type=int, metavar="N", help="N lanes in turn, by the number of commits")
    parser.add_argument("--since", metavar="COMMIT", help="with --turn: also lanes that have changed since then")
    parser.add_argument("--within", type=float, metavar="SECONDS", default=math.inf, help="begin no lane after so many")
    parser.add_argument("--campaign", action="store_true", help="with their campaigns")
    parser.add_argument("--list", action="store_true", help="only print which")
    arguments = parser.parse_args()
    try:
        lanes = [known(lane) for lane in arguments.lanes] or all_lanes()
    except pytest.UsageError as error:
        parser.error(str(error))
    if arguments.turn is not None:
        lanes = chosen(arguments.turn, arguments.since)
    if arguments.list:
        print("\n".join(lanes))
        return 0
    return run_lanes(lanes, arguments.campaign, arguments.within)


def run_lanes(lanes: list[str], with_campaigns: bool, within_s: float) -> bool:
    """Run lanes until so many seconds are over, and name those that are left out; whether one failed."""
    began, failed, left_out = time.monotonic(), [], []
    for lane in lanes:
        if time.monotonic() - began > within_s:
            left_out.append(lane)
        elif not run_lane(lane, with_campaigns):
            failed.append(lane)
    if left_out:
        print(f"left out, as {within_s:.0f} s are over: {', '.join(left_out)}")
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
