"""A process on a terminal of its own, whose keys are typed and whose screen is read."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

PATIENCE_S = 90

CTRL_C = "\x03"


def _takes_its_terminal() -> None:
    """Make it the one that Ctrl-C comes from; a suite in the background of a shell would hand an ignored one on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A command in it.

    Args:
        command: What runs.
        folder: Where.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, cwd=folder,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40", "PROMPT_TOOLKIT_NO_CPR": "1"},
            preexec_fn=_takes_its_terminal,
        )  # fmt: skip
        os.close(theirs)
        self.text = ""
        self.all_text = ""

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read on until the pattern has come, behind what was waited for before."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < deadline, self.all_text
            if select.select([self._ours], [], [], 0.2)[0]:
                try:
                    read = os.read(self._ours, 65_536).decode(errors="replace")
                except OSError:  # it has ended
                    assert re.search(pattern, self.text), self.all_text
                    continue
                shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read)
                self.text += shown
                self.all_text += shown
        self.text = self.text[found.end() :]
        return found

    def ended(self) -> int:
        """Read on until the process has ended; gives its exit status."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.all_text
            if select.select([self._ours], [], [], 0.2)[0]:
                try:
                    self.all_text += os.read(self._ours, 65_536).decode(errors="replace")
                except OSError:
                    return self.process.wait(PATIENCE_S)
        return self.process.returncode

    def interrupt(self) -> None:
        """As Ctrl-C does, also where the program reads keys itself."""
        self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
