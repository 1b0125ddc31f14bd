"""The way of somebody new, as `docs/guide/first-steps.md` tells it: each step with its commands and clicks counted.

    python tests/first_steps.py [--fresh] [--pictures DIRECTORY]

Runs the page's own program on Ray by ``headrace run``, and steers it with the dashboard in Chromium. ``--fresh`` does
all of it in a new environment that has nothing but a wheel of this tree, after the demo.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dashboard_kit import DESKTOP, Watched, browser, until

from headrace.rest.client import RestClient

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guide" / "first-steps.md"
MOST_CLICKS = 3
"""Of a step, which may be one command instead."""

STARTING_S = 180
"""Patience with what starts processes."""


class Steps:
    """Counts what a step takes; a step that takes too much is an error.

    Args:
        binaries: Where the commands are.
        directory: Where they are run.
    """

    def __init__(self, binaries: Path, directory: Path) -> None:
        self.taken: list[tuple[str, int, int]] = []
        self._binaries = binaries
        self._directory = directory
        self._clicks = self._commands = 0
        # Nobody else's Ray, and no cluster of somebody else's on this machine.
        self._environment = {**os.environ, "XDG_RUNTIME_DIR": str(directory)}
        # A machine that is full takes its time to start processes.
        self._environment["HEADRACE_SLOT_REQUEST_TIMEOUT"] = "2 min"
        self._environment.pop("RAY_ADDRESS", None)

    def run(self, *arguments: str) -> str:
        """One command; gives what it prints."""
        self._commands += 1
        done = subprocess.run(
            [self._binaries / arguments[0], *arguments[1:]],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[Path]:
        """One command, which goes on until it is interrupted as by Ctrl-C; gives the file that has what it prints."""
        self._commands += 1
        log = self._directory / "run.log"
        with log.open("wb") as output:
            started = subprocess.Popen(
                [self._binaries / arguments[0], *arguments[1:]],
                cwd=self._directory,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield log
        finally:
            started.send_signal(signal.SIGINT)
            started.wait(60)

    def click(self, page: Any, selector: str) -> None:
        self._clicks += 1
        page.click(selector)

    def done(self, what: str) -> None:
        """A step is done."""
        clicks, commands = self._clicks, self._commands
        self._clicks = self._commands = 0
        assert (commands <= 1 and clicks == 0) or (commands == 0 and clicks <= MOST_CLICKS), f"{what} takes too much"
        self.taken.append((what, commands, clicks))
        print(f"{what}: " + (f"{commands} command" if commands else f"{clicks} clicks"), flush=True)


def take(binaries: Path, directory: Path, pictures: Path | None = None, *, with_demo: bool = False) -> Steps:
    """Take all steps behind the install, and check what each has come to."""
    steps = Steps(binaries, directory)
    program = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert program is not None
    (directory / "orders.py").write_text(program[1], encoding="utf-8")
    if with_demo:
        assert "they equal a direct computation" in steps.run("headrace", "demo", "--speed", "max")
        steps.done("demo")
    with steps.running("headrace", "run", "orders.py") as log:
        address = until(lambda: _address(log), "REST does not say where it is", STARTING_S)
        steps.done("run the job")
        said = steps.run("headrace", "dashboard", "--no-browser")
        assert address in said
        token = re.search(r"token: (\S+)", said)
        assert token is not None
        steps.done("open the dashboard")
        with browser() as chromium:
            page = chromium.new_context(viewport=DESKTOP).new_page()
            watched = Watched(page, address)
            _steer(steps, page, address, token[1], directory, pictures)
            assert (watched.complaints, watched.foreign) == ([], [])
    return steps


def _steer(steps: Steps, page: Any, address: str, token: str, directory: Path, pictures: Path | None) -> None:
    def picture(name: str) -> None:
        if pictures is not None:
            page.screenshot(path=pictures / f"first-steps-{name}.png")

    page.set_default_timeout(1_000 * STARTING_S)
    page.goto(f"{address}/")
    page.fill("#token", token)
    steps.click(page, "button.primary")
    page.wait_for_selector("#running tbody tr")
    steps.click(page, "#running tbody a")
    hint = page.wait_for_selector("[data-hint=bottleneck]")
    assert "check payment" in hint.inner_text()
    page.mouse.move(0, 0)
    picture("bottleneck")
    steps.done("find the slow operator")

    steps.click(page, "[data-action=savepoint]")
    page.fill("dialog input", str(directory / "savepoints"))
    steps.click(page, "dialog button.primary")
    page.wait_for_selector("dialog .notice.good code")
    assert Path(page.inner_text("dialog .notice.good code")).is_dir()
    picture("savepoint")
    steps.done("take a savepoint")
    page.click("dialog .buttons button")

    steps.click(page, "[data-action=rescale]")
    page.fill("dialog input[type=number]", "4")
    steps.click(page, "dialog button.primary")
    page.wait_for_selector("dialog .notice.good, dialog .notice.bad")
    assert page.query_selector("dialog .notice.bad") is None, page.inner_text("dialog")
    steps.done("rescale")
    page.click("dialog .buttons button")
    rest = RestClient(address, token)
    (job,) = rest.get("/jobs")["jobs"]
    until(lambda: rest.job_status(job["id"]) == "RUNNING", "it does not run again", STARTING_S)
    assert {vertex["parallelism"] for vertex in rest.job(job["id"])["vertices"]} == {4}
    if pictures is not None:
        page.wait_for_timeout(15_000)  # its rates are those of the time behind the restart
    picture("rescaled")


def _address(log: Path) -> str | None:
    found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text(encoding="utf-8"))
    return None if found is None else found[0]


def fresh(directory: Path) -> Path:
    """Install a wheel of this tree into an environment of its own; gives where its commands are."""
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "--wheel-dir", directory, str(ROOT)], check=True)
    subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
    (wheel,) = directory.glob("headrace-*.whl")
    began_s = time.monotonic()
    subprocess.run([directory / "venv" / "bin" / "pip", "install", "-q", wheel], check=True)
    print(f"install: 1 command, {time.monotonic() - began_s:.0f} s")
    return directory / "venv" / "bin"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        binaries = fresh(directory) if options.fresh else Path(sysconfig.get_path("scripts"))
        take(binaries, directory, options.pictures, with_demo=options.fresh)


if __name__ == "__main__":
    main()
