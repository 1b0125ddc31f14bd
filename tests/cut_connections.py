"""A proxy on the loopback that breaks connections between what a server has done and its saying so."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

__all__ = ["CutConnections"]


class CutConnections:
    """Passes bytes on between clients and a server, but for answers that it loses.

    Args:
        port: Of the server, on the loopback.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.num_lost = 0
        self._word: bytes | None = None
        self._every = 1
        self._num_asked = 0
        self._lock = threading.Lock()

    def loses_answers_to(self, word: bytes, every: int) -> None:
        """Of questions with a word in them, lose each so manyth answer, with its connection."""
        self._every, self._word = every, word

    def __enter__(self) -> CutConnections:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        loses = threading.Event()
        threading.Thread(target=self._answer, args=(client, server, loses), daemon=True).start()
        with contextlib.suppress(OSError):
            while asked := client.recv(1 << 16):
                with self._lock:
                    if self._word is not None and self._word in asked:
                        self._num_asked += 1
                        if self._num_asked % self._every == 0:
                            loses.set()
                server.sendall(asked)
        _close(client, server)

    def _answer(self, client: socket.socket, server: socket.socket, loses: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while answer := server.recv(1 << 16):
                if loses.is_set():
                    self.num_lost += 1
                    break
                client.sendall(answer)
        _close(client, server)


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
