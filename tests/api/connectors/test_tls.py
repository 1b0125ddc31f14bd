"""Connections with TLS against real certificates: whom to trust, by which name, and who asks.

Risks and families: a server that is somebody else's is talked to (names, authorities); an error that is waited out
though it will not pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from certificates import Certificate, new_certificate
from mqtt_server import MqttServer, program
from nifi_kit import NiFi
from raw_service import RawServer
from reading_kit import Reading
from server_process import need_client

from headrace.connectors.http import HttpPageSource, HttpSink, JsonMessages, Tls
from headrace.connectors.mqtt import MqttSink, MqttSource
from headrace.connectors.nifi import NiFiSink, NiFiSource
from headrace.engine.columns.records import Batch
from headrace.engine.errors import HeadraceError
from headrace.testing.sinks.harness import SinkTestHarness

Make = Callable[[Tls], Any]


@dataclass
class Served:
    """A server, and what is read of it or written to it with TLS."""

    source: Make
    sink: Make
    stop: Callable[[], None]


def http_with(server: Certificate, client: Certificate, directory: Any) -> Served:
    page = json.dumps([{"n": 1}]).encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page) + page
    served = RawServer(lambda _request: [answer], server.server_side(client))

    def source(tls: Tls) -> Any:
        return HttpPageSource(served.url, value=JsonMessages(), cursor="link", bounded=True, tls=tls)

    def sink(tls: Tls) -> Any:
        return HttpSink.at_least_once(served.url, value=JsonMessages(), tls=tls)

    return Served(source, sink, lambda: served.__exit__())


def nifi_with(server: Certificate, client: Certificate, directory: Any) -> Served:
    nifi = NiFi(tls=server.server_side(client))
    nifi.fill(['{"n": 1}'])

    def source(tls: Tls) -> Any:
        return NiFiSource(nifi.url, "out", value=JsonMessages(), tls=tls)

    def sink(tls: Tls) -> Any:
        return NiFiSink(nifi.url, "in", value=JsonMessages(), tls=tls)

    return Served(source, sink, nifi.stop)


def mqtt_with(server: Certificate, client: Certificate, directory: Any) -> Served:
    need_client("paho", "paho-mqtt")
    files = {"certfile": server.file, "keyfile": server.key_file, "cafile": client.file, "require_certificate": "true"}
    broker = MqttServer(program(), directory, **files)
    broker.start()
    url = broker.url.replace("mqtt://", "mqtts://")
    retained = MqttSink(url, "t", value=JsonMessages(), retain=True, tls=tls_of(server, client))
    try:
        written(retained)
    except BaseException:
        broker.stop()
        raise

    def source(tls: Tls) -> Any:
        return MqttSource(url, "t", value=JsonMessages(), client_id="c", tls=tls)

    def sink(tls: Tls) -> Any:
        return MqttSink(url, "t", value=JsonMessages(), tls=tls)

    return Served(source, sink, broker.stop)


def tls_of(server: Certificate, client: Certificate) -> Tls:
    return Tls(server.file, client.file, client.key_file)


def written(sink: Any) -> None:
    harness = SinkTestHarness(sink)
    harness.start()
    try:
        harness.write(Batch.of_rows([{"n": 1}]))
        harness.checkpoint(1)
    finally:
        harness.close()


def read(source: Any) -> list[Any]:
    with closing(Reading(source)) as reading:
        return reading.rows(1)


SERVERS = [
    http_with,
    nifi_with,
    pytest.param(mqtt_with, marks=pytest.mark.lane("mqtt")),
]


@pytest.mark.parametrize("serve", SERVERS, ids=lambda serve: serve.__name__)
def test_who_is_trusted_and_known_is_talked_to(serve, tmp_path):
    server, client = new_certificate(tmp_path, "server"), new_certificate(tmp_path, "client", names="DNS:client")
    served = serve(server, client, tmp_path)
    try:
        assert read(served.source(tls_of(server, client))) == [{"n": 1}]
        written(served.sink(tls_of(server, client)))
        for use, make in ((read, served.source), (written, served.sink)):
            for tls in (Tls(), Tls(client.file, client.file, client.key_file)):  # the system's, another one
                with pytest.raises(HeadraceError, match=r"not trusted: self.signed certificate"):
                    use(make(tls))
    finally:
        served.stop()


@pytest.mark.parametrize("serve", SERVERS, ids=lambda serve: serve.__name__)
def test_another_name_is_another_server(serve, tmp_path):
    client = new_certificate(tmp_path, "client")
    server = new_certificate(tmp_path, "server", names="DNS:elsewhere.example,IP:127.0.0.2")
    told = r"not trusted: .*127\.0\.0\.1"
    if serve is mqtt_with:  # which is written to first
        with pytest.raises(HeadraceError, match=told):
            serve(server, client, tmp_path)
        return
    served = serve(server, client, tmp_path)
    try:
        for use, make in ((read, served.source), (written, served.sink)):
            with pytest.raises(HeadraceError, match=told):
                use(make(tls_of(server, client)))
    finally:
        served.stop()
