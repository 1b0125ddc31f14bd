"""Family: behaviour against a real server on loopback, with the clock by hand."""

from __future__ import annotations

import select
import socket

import pytest

from headrace.connectors.socket import SocketTextSource
from headrace.engine.connectors.contract import ALL_SPLITS_FINISHED, NOTHING_NOW, Polled, SplitFinished
from headrace.engine.errors import ConfigurationError, SourceError


@pytest.fixture
def server():
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)
    yield listener
    listener.close()


def opened(reading, source, clock=None):
    run = reading(clock) if clock is not None else reading()
    reader = run.open(source)
    reader.add_splits(run.discover(source))
    return reader


def poll_until(reader, wanted, max_records=100):
    """Poll until ``wanted`` says yes to what came; a select stands for the engine's pause between polls."""
    for _ in range(1_000):
        polled = reader.poll(max_records)
        if wanted(polled):
            return polled
        connection = reader._socket
        if connection is not None:
            select.select([connection], [], [], 0.01)
    pytest.fail("nothing came")


def lines_until_end(reader):
    lines = []
    while True:
        polled = poll_until(reader, lambda p: p is not NOTHING_NOW, max_records=2)
        if isinstance(polled, SplitFinished):
            return lines
        lines.extend(polled.batch.rows)


def test_lines_come_whole_whatever_the_packets(reading, server):
    source = SocketTextSource(*server.getsockname())
    assert not source.is_bounded
    reader = opened(reading, source)
    assert reader.poll(10) is NOTHING_NOW
    connection, _ = server.accept()
    for packet in (b"on", b"e\ntwo\r\nthr", "ee\nvi\u00e9r".encode(), b"\n\nlast"):
        connection.sendall(packet)
        reader.poll(0)
    connection.close()
    assert lines_until_end(reader) == ["one", "two", "three", "vi\u00e9r", "", "last"]
    assert reader.poll(1) is ALL_SPLITS_FINISHED
    assert reader.snapshot() == []


def test_a_refused_connection_names_the_address(reading, server):
    host, port = server.getsockname()
    server.close()
    reader = opened(reading, SocketTextSource(host, port))
    with pytest.raises(SourceError, match=f"127.0.0.1:{port}.*[Rr]efused"):
        poll_until(reader, lambda polled: False)


def test_an_unknown_host_names_it(reading):
    reader = opened(reading, SocketTextSource("no-such-host.invalid", 9))
    with pytest.raises(SourceError, match=r"no-such-host\.invalid:9"):
        poll_until(reader, lambda polled: False)


def test_it_connects_again_as_often_as_allowed(reading, server, clock_class):
    clock = clock_class()
    source = SocketTextSource(*server.getsockname(), max_num_retries=1, retry_delay="1 s")
    reader = opened(reading, source, clock)
    reader.poll(1)
    first, _ = server.accept()
    first.sendall(b"a\n")
    assert poll_until(reader, lambda p: isinstance(p, Polled)).batch.rows == ["a"]
    first.close()
    while reader._socket is not None:
        assert reader.poll(1) is NOTHING_NOW
        select.select([], [], [], 0.001)
    assert reader.poll(1) is NOTHING_NOW
    assert reader._socket is None
    assert reader.next_poll_ms() == 1_000
    clock.now_ms = 1_000
    reader.poll(1)
    second, _ = server.accept()
    second.close()
    assert isinstance(poll_until(reader, lambda p: p is not NOTHING_NOW), SplitFinished)


def test_a_silent_host_is_given_up_after_the_timeout(reading, clock_class, monkeypatch):
    clock = clock_class()
    reader = opened(reading, SocketTextSource("127.0.0.1", 9, connect_timeout=300), clock)
    monkeypatch.setattr(socket.socket, "connect_ex", lambda self, address: 115)
    assert reader.poll(1) is NOTHING_NOW
    clock.now_ms = 299
    assert reader.poll(1) is NOTHING_NOW
    clock.now_ms = 300
    with pytest.raises(SourceError, match="no connection within 300 ms"):
        reader.poll(1)


def test_its_position_counts_lines_and_closing_lets_go(reading, server):
    reader = opened(reading, SocketTextSource(*server.getsockname()))
    reader.poll(1)
    connection, _ = server.accept()
    connection.sendall(b"a\nb\nc\n")
    poll_until(reader, lambda p: isinstance(p, Polled), max_records=2)
    assert reader.snapshot()[0].position == 2
    reader.close()
    connection.settimeout(10)
    assert connection.recv(1) == b""
    connection.close()


@pytest.mark.parametrize("arguments", [{"port": 0}, {"port": 70_000}, {"port": 1, "max_num_retries": -2}])
def test_illegal_arguments_are_refused(arguments):
    with pytest.raises(ConfigurationError):
        SocketTextSource("localhost", **arguments)
