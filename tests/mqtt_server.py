"""A real broker of MQTT (Mosquitto) for tests, in a temporary directory, on a free loopback port; may be killed and
started again.

What is killed has lost what it had not written down, also what it had confirmed: Mosquitto writes its sessions when it
is ended in order (`end`), and otherwise now and then. Skips the test, with the reason, where there is no broker or no
client.
"""

from __future__ import annotations

import shutil
import signal
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from server_process import STOP_TIMEOUT_S, ServerProcess, need_client, the_one

TIMEOUT_S = 60


class MqttServer(ServerProcess):
    """One broker."""

    def __init__(self, program: str, directory: Path, **settings: Any) -> None:
        super().__init__(directory)
        self.port = free_port()
        lines = {
            "listener": f"{self.port} 127.0.0.1",
            "allow_anonymous": "true",
            "user": "root",
            "persistence": "true",
            "persistence_location": f"{directory}/",
            "max_queued_messages": 100_000,
            "sys_interval": 1,
            **settings,
        }
        configuration = directory / "mosquitto.conf"
        configuration.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        self._command = [program, "-c", str(configuration)]

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.launch(self._command)
        self.wait_until(lambda: socket.create_connection(("127.0.0.1", self.port)).close() is None, OSError)

    def end(self) -> None:
        """End it in order: it writes its sessions down."""
        assert self._process is not None
        self.signal(signal.SIGTERM)
        process, self._process = self._process, None
        process.wait(STOP_TIMEOUT_S)

    # ----------------------------------------------------------------------------------------- for the test itself
    def new_topic(self) -> str:
        """A topic that no other test has."""
        return f"topic-{uuid.uuid4().hex[:12]}"

    def connect(self, client_id: str = "", **options: Any) -> Any:
        """A client that is connected, whose thread runs; to be ended by ``disconnect``."""
        import paho.mqtt.client as paho

        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5)
        client.max_inflight_messages_set(20)  # what Mosquitto takes; it drops what is above, in silence
        client.connect("127.0.0.1", self.port, clean_start=options.pop("clean_start", True), **options)
        client.loop_start()
        return client

    def send(self, topic: str, bodies: Sequence[Any], first: int | None = None, qos: int = 1, **options: Any) -> None:
        """Send messages, and wait until all are confirmed; with numbers from the first on as user property ``id``."""
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        client, sent = self.connect(), []
        for number, body in enumerate(bodies):
            properties = None
            if first is not None:
                properties = Properties(PacketTypes.PUBLISH)
                properties.UserProperty = [("id", str(first + number))]
            sent.append(client.publish(topic, body, qos=qos, properties=properties, **options))
        for one in sent:
            one.wait_for_publish(TIMEOUT_S)
            assert one.is_published()
        client.disconnect()
        client.loop_stop()

    def begin(self, source: Any) -> None:
        """Have the sessions of a source begin: the broker keeps from now on what comes for it."""
        from headrace.connectors.mqtt.client import Asked, Broker, Connection
        from headrace.engine.connectors.contract import EnumeratorContext

        for split in source.create_enumerator(EnumeratorContext(1)).discover().splits:
            connection = Connection(Broker.of(self.url, None), Asked(split.payload["client_id"], True, 1_000))
            connection.subscribe(split.payload["filter"], 1, 1)
            connection.close()

    def listen(self, topic_filter: str) -> Listener:
        """Take messages from now on, in a session of its own that outlives a broker which is ended in order."""
        return Listener(self, topic_filter)


class Listener:
    """What a client of its own is given."""

    def __init__(self, server: MqttServer, topic_filter: str) -> None:
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        self.messages: list[Any] = []
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 1_000
        properties.ReceiveMaximum = 10_000
        self._server = server
        self._client = server.connect(f"listener-{uuid.uuid4().hex[:12]}", clean_start=False, properties=properties)
        self._client.on_message = lambda _client, _data, message: self.messages.append(message)
        granted: list[Any] = []
        self._client.on_subscribe = lambda _client, _data, _number, reasons, _properties: granted.extend(reasons)
        server.wait_until(self._client.is_connected)
        self._client.subscribe(topic_filter, qos=2)
        server.wait_until(lambda: granted)

    @property
    def bodies(self) -> list[bytes]:
        return [message.payload for message in self.messages]

    def wait_for(self, number: int) -> list[bytes]:
        """The bodies, when so many have come."""
        self._server.wait_until(lambda: len(self.messages) >= number)
        return self.bodies

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def program() -> str:
    """The broker's program; skips the test if there is none."""
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if found is None:
        pytest.skip("there is no broker of MQTT on this machine (Debian's mosquitto)")
    return found


@pytest.fixture(scope="session")
def mqtt_server(request: pytest.FixtureRequest) -> MqttServer:
    """One broker for all tests of a process; each has topics of its own."""
    need_client("paho", "paho-mqtt")
    found = program()
    return the_one("mqtt", request, lambda directory: MqttServer(found, directory))
