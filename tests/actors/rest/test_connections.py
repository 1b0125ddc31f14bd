"""Connections without a request end by themselves. Risk: without a token somebody takes all that there is room for."""

import socket

import pytest

from headrace.actors.rest import connections
from headrace.actors.rest.security import fresh_tokens
from headrace.actors.rest.server import RestServer
from headrace.engine.kernel.rest_settings import RestSettings

PATIENCE_S = 10


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.05)
    server = RestServer(None, RestSettings(bind_port="0"), fresh_tokens())
    yield int(server.start().rpartition(":")[2])
    server.close()


def head(port, end="\r\n"):
    return f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{end}".encode()


@pytest.mark.parametrize("begin", ["nothing", "a part of a head", "a request, and a part of another"])
def test_who_does_not_ask_is_not_waited_for(port, begin):
    part = head(port, end="X-Slow: ")
    said = {"nothing": b"", "a part of a head": part, "a request, and a part of another": head(port) + part}[begin]
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        connection.sendall(said)
        got = b""
        while content := connection.recv(1 << 16):  # until the server closes it; nobody waits longer than PATIENCE_S
            got += content
    assert got.startswith(b"HTTP/1.1 200" if begin.startswith("a request") else b"")
    assert bool(got) == begin.startswith("a request")
