"""A real RabbitMQ server with streams for tests, in a temporary directory, on free ports of the loopback; may be killed
and started again.

It has an ``epmd`` of its own, which Erlang's nodes look for, so that none is left behind. Skips the test, with the
reason, where there is no server or no client.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from server_process import STOP_TIMEOUT_S, ServerProcess, need_client, the_one

READY = b"Server startup complete"

KEEPER_OF_STREAMS = b"rabbit_stream_coordinator"

MARKER = b"end-of-what-is-there-"
"""What a reader of a stream knows its end by."""

PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""Debian's, below the one in the path, which changes the user."""


class RabbitmqServer(ServerProcess):
    """One node."""

    def __init__(self, program: str, directory: Path) -> None:
        super().__init__(directory)
        self.port, self.stream_port, epmd_port = free_port(), free_port(), free_port()
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "stream.listeners.tcp.1": f"127.0.0.1:{self.stream_port}",
            "stream.advertised_host": "127.0.0.1",
            "stream.advertised_port": self.stream_port,
            "log.file.level": "info",
            "vm_memory_high_watermark.absolute": "1GB",
            "disk_free_limit.absolute": "50MB",
        }
        (directory / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        (directory / "plugins").write_text("[rabbitmq_stream].")
        self._node_log = directory / "node.log"
        self._environment = {
            **os.environ,
            "HOME": str(directory),  # for the cookie
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"headrace-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "no-such-file"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory),
            "RABBITMQ_LOGS": str(self._node_log),
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the node, whose id we have then
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }
        self._program = program
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    @property
    def stream_url(self) -> str:
        return f"rabbitmq-stream://127.0.0.1:{self.stream_port}"

    def start(self) -> None:
        """Start it, and wait until it says that it is ready, streams and all."""
        if self._epmd is None:
            self._epmd = subprocess.Popen(
                ["epmd"], env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        said = self._node_log.stat().st_size if self._node_log.exists() else 0
        self.launch([self._program], env=self._environment)
        self.wait_until(lambda: READY in self._node_log.read_bytes()[said:], FileNotFoundError)
        socket.create_connection(("127.0.0.1", self.stream_port)).close()
        self._make_first_stream()

    def _make_first_stream(self) -> None:
        """Have the server begin to keep streams, and wait until it would know that again if it were killed.

        Who keeps all streams is made with the first of them, and its name written a second later: a server that is
        killed before has no stream any more, for ever (RabbitMQ 3.10.8).
        """
        (names,) = self._directory.glob("data/*/coordination/*/names.dets")
        if KEEPER_OF_STREAMS in names.read_bytes():
            return
        self.new_stream()
        self.wait_until(lambda: KEEPER_OF_STREAMS in names.read_bytes())

    def tail(self) -> str:
        node_log = self._node_log.read_text(errors="replace") if self._node_log.exists() else ""
        return super().tail() + node_log[-2_000:]

    def stop(self) -> None:
        """Kill it, and what it has been started with."""
        super().stop()
        epmd, self._epmd = self._epmd, None
        if epmd is not None:
            epmd.kill()
            epmd.wait(STOP_TIMEOUT_S)

    # ----------------------------------------------------------------------------------------- for the test itself
    def connect(self) -> Any:
        """A connection of the client of queues."""
        import pika

        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port))

    def new_queue(self) -> str:
        """Make a durable queue; gives its name."""
        return self._declare(f"queue-{uuid.uuid4().hex[:12]}", {})

    def new_stream(self, **arguments: Any) -> str:
        """Make a stream; gives its name."""
        given = {"x-queue-type": "stream", **{key.replace("_", "-"): value for key, value in arguments.items()}}
        return self._declare(f"stream-{uuid.uuid4().hex[:12]}", given)

    def make_again(self, stream: str) -> None:
        """Delete a stream and make an empty one of its name."""
        with self.connect() as connection:
            connection.channel().queue_delete(stream)
        self._declare(stream, {"x-queue-type": "stream"})

    def _declare(self, name: str, arguments: dict[str, Any]) -> str:
        """Make a queue that is known again if the server is killed at once.

        RabbitMQ 3.10 writes what it is about to do at once, and that it is done with what follows, or within two
        seconds; what is not done is undone after a kill. So something follows.
        """
        with self.connect() as connection:
            channel, behind = connection.channel(), f"behind-{name}"
            channel.queue_declare(name, durable=True, arguments=arguments)
            channel.queue_declare(behind, durable=True)
            channel.queue_delete(behind)
        return name

    def send(self, queue: str, values: list[Any], first: int | None = 0, **properties: Any) -> None:
        """Send messages to a queue or a stream; their correlation ids are numbers from the first on.

        The server drops what is sent so to a stream that is not up yet, as after its start: `publish` waits for it.
        """
        import pika

        with self.connect() as connection:
            channel = connection.channel()
            channel.tx_select()
            for number, value in enumerate(values):
                own = properties if first is None else {"correlation_id": str(first + number), **properties}
                channel.basic_publish("", queue, value, pika.BasicProperties(delivery_mode=2, **own))
            channel.tx_commit()

    def publish(self, stream: str, values: list[str]) -> None:
        """Send messages to a stream until the server has confirmed them.

        After the server's start a stream is at first not up, then may move while it is written to. The server knows a
        publisher's numbers again, so what is sent once more is in the stream once.
        """
        from headrace.connectors.rabbitmq.protocol.address import STREAM_PORT, Address
        from headrace.connectors.rabbitmq.protocol.amqp10 import message_of
        from headrace.connectors.rabbitmq.protocol.stream_client import (
            StreamConnection,
            StreamRefusedError,
            StreamsAwayError,
        )

        publisher = uuid.uuid4().hex

        def is_confirmed() -> bool:
            with contextlib.closing(StreamConnection(address)) as connection:
                connection.publish(publisher, stream, 1, [message_of(value.encode()) for value in values])
            return True

        address = Address.of(self.stream_url, "rabbitmq-stream", STREAM_PORT)
        self.wait_until(is_confirmed, StreamRefusedError, StreamsAwayError)

    def left(self, queue: str) -> list[bytes]:
        """Take all messages out of a queue."""
        with self.connect() as connection:
            channel, found = connection.channel(), []
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(got[2])
            return found

    def streamed(self, stream: str) -> list[bytes]:
        """What RabbitMQ's own client of streams reads from beginning to end."""
        import asyncio

        import rstream

        async def read() -> list[bytes]:
            found: list[bytes] = []
            consumer = rstream.Consumer("127.0.0.1", port=self.stream_port, username="guest", password="guest")
            await consumer.start()
            marker = MARKER + uuid.uuid4().hex.encode()
            self.send(stream, [marker], first=None)
            done = asyncio.Event()

            def take(message: Any, _context: Any) -> None:
                body = b"".join(map(bytes, message.body)) if isinstance(message.body, list) else bytes(message.body)
                if body == marker:
                    done.set()
                elif not body.startswith(MARKER):
                    found.append(body)

            offset = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None)
            await consumer.subscribe(stream, take, offset_specification=offset, decoder=rstream.amqp_decoder)
            await asyncio.wait_for(done.wait(), 60)
            await consumer.close()
            return found

        return asyncio.run(read())


def program() -> str:
    """The server's program; skips the test if there is none."""
    if not Path(PROGRAM).exists() or shutil.which("epmd") is None:
        pytest.skip("there is no RabbitMQ on this machine (Debian's rabbitmq-server)")
    return PROGRAM


@pytest.fixture(scope="session")
def rabbitmq_server(request: pytest.FixtureRequest) -> RabbitmqServer:
    """One server for all tests of a process; each has queues and streams of its own."""
    need_client("pika", "pika")
    need_client("rstream", "rstream")
    found = program()
    return the_one("rabbitmq", request, lambda directory: RabbitmqServer(found, directory))
