"""Keeps a program: starts it, and ends it with all that it has started as soon as the process that wanted it is gone.

Run as a script of its own, which imports nothing of Headrace: ``python program_keeper.py FD COMMAND ...``. The
process that wants the program holds the other end of the pipe FD alone: it closes when that process ends, however it
ends. The program has a process group of its own, which is killed as one. If the keeper itself is killed, the kernel
kills the program (on Linux).

Its status is that of the program; 128 and the signal's number if a signal has ended it, 127 if it cannot be started.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from typing import Any

CANNOT_START = 127
LOOK_S = 1.0
"""How often to look for a parent that is gone though its end of the pipe is not closed: it has forked."""

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Keep the program to its end."""
    life, command = int(sys.argv[1]), sys.argv[2:]
    parent = os.getppid()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _note)
    own = os.getpid()
    try:
        program = subprocess.Popen(command, start_new_session=True, preexec_fn=lambda: _die_with(own))  # one thread
    except OSError as error:
        print(f"cannot start {command[0]}: {error}", file=sys.stderr)  # noqa: T201 - it has no log
        return CANNOT_START
    _let_go_of_pipes()
    while program.poll() is None and not _is_over(life, woken, parent):
        pass
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, signal.SIGKILL)
    status = program.wait()
    return 128 - status if status < 0 else status


def _is_over(life: int, woken: int, parent: int) -> bool:
    """Wait a while; whether nobody wants the program any more."""
    ready, _, _ = select.select([life, woken], [], [], LOOK_S)
    if woken in ready and any(number != signal.SIGCHLD for number in os.read(woken, 4096)):
        return True
    return life in ready or os.getppid() != parent


def _note(_number: int, _frame: Any) -> None:
    """Do nothing: the pipe of wake-ups tells of the signal."""


def _let_go_of_pipes() -> None:
    """Let go of the program's pipes, which are its own: their reader must see when it closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)


def _die_with(keeper: int) -> None:
    """See, in the program's process before it is the program, that it dies with this one."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(CANNOT_START)


if __name__ == "__main__":
    sys.exit(main())
