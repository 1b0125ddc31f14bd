"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]

_random = random.SystemRandom()


def free_port() -> int:
    """A free port of the loopback that stays free until a server takes it.

    It lies between those that Ray gives its workers and those that systems give to connections: whatever else goes on
    in the meantime, other tests' connections among it, does not take it.
    """
    while True:
        port = _random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
