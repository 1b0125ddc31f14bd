"""A disk that is full, for one process; and which files a process holds open, those without a name among them."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["a_disk_that_takes", "open_files"]


@contextmanager
def a_disk_that_takes(num_bytes: int) -> Iterator[None]:
    """Have files of this process refuse what is beyond a size, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def open_files(pid: int | str) -> list[str]:
    """What the file descriptors of a process lead to."""
    folder = f"/proc/{pid}/fd"
    links = []
    for name in os.listdir(folder):
        try:
            links.append(os.readlink(f"{folder}/{name}"))
        except OSError:
            continue
    return links
