"""A server of tests that answers a connection with bytes, whatever they are."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["RawServer"]

Answers = Callable[[bytes], Iterable[bytes]]
"""From a request, to the end of its headers, to what is sent; then the connection is closed."""


class RawServer:
    """Serves one request a connection, on a free port of the loopback.

    Args:
        answers: Gives what is sent.
        tls: Of the server's side; None for none.
    """

    def __init__(self, answers: Answers, tls: Any = None) -> None:
        self.requests: list[bytes] = []
        self._answers = answers
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}/x"

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # it is closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                with connection:
                    request = b""
                    while b"\r\n\r\n" not in request:
                        piece = connection.recv(1 << 16)
                        if not piece:
                            return
                        request += piece
                    self.requests.append(request)
                    for piece in self._answers(request):
                        connection.sendall(piece)
            except OSError:  # the client has had enough
                return

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *_error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
