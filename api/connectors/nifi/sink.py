"""Input ports of NiFi as a sink: at least once.

Flow files are sent in transactions as they come, and all are finished before a barrier passes. NiFi has nothing by
which it would know what it has already: a transaction whose last answer is lost is sent again, and so is what a failure
makes the job repeat.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import SinkWriter, WriterContext
from headrace.engine.errors import ConfigurationError, TypeMismatchError

from ...formats.messages import MessageFormat, require_format
from ..messages.arguments import patience_s_of
from ..messages.confirming import CONFIRM_TIMEOUT_S, ConfirmedSender, ConfirmedWriter
from ..messages.tls import Tls
from .site_to_site import FlowFile, NiFiAwayError, Place, Site

__all__ = ["NiFiSink"]

MOST_OF_A_TRANSACTION = 500
MOST_BYTES = 8 << 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0


class NiFiSink:
    """Pushes flow files to an input port by site-to-site over HTTP; a record is a flow file.

    Args:
        url: ``https://host:port/nifi``, of any node; the others are asked for, and get transactions in turn.
        port: Name or id of the input port.
        value: How records are contents, as `JsonMessages`; see `headrace.formats.messages`.
        attributes: Fields whose values, as texts, are attributes of the flow file: names of fields, or names of
            attributes and the fields that they come of.
        tls: Whom to trust, and who asks; None trusts whom the system trusts.
        patience: How long NiFi, or room behind the port, may be waited for: milliseconds or text.

    Guarantees: at least once.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        url: str,
        port: str,
        *,
        value: MessageFormat,
        attributes: Collection[str] | Mapping[str, str] = (),
        tls: Tls | None = None,
        patience: int | str = "1 min",
    ) -> None:
        require_format(value)
        if not isinstance(port, str) or not port:
            message = f"port must be the name or id of an input port; got {port!r}"
            raise ConfigurationError(message)
        self._place = Place.of(url, tls)
        self._port = port
        self._value = value
        self._attributes = dict(attributes) if isinstance(attributes, Mapping) else {one: one for one in attributes}
        self._patience_s = patience_s_of(patience)

    def __repr__(self) -> str:
        return f"NiFiSink({self._port})"

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return _PortWriter(self._place, self._port, self._value, self._attributes, self._patience_s)


class _Sender(ConfirmedSender):
    """Sends transactions from a thread of its own."""

    def __init__(self, place: Place, port: str, name: str, patience_s: float) -> None:
        # It is the thread that has patience; who waits for it has some more.
        super().__init__(f"input port {port!r} of NiFi at {place}", patience_s + CONFIRM_TIMEOUT_S)
        self._nifi = place
        self._port = port
        self._patience_s = patience_s
        self._to_send: queue.SimpleQueue[FlowFile | None] = queue.SimpleQueue()
        self._num_sent = 0
        self._is_stopped = threading.Event()
        self._peers: list[Place] = []
        self._port_id = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def hand_over(self, messages: Collection[FlowFile]) -> None:
        for one in messages:
            self._to_send.put(one)

    def close(self) -> None:
        self._is_stopped.set()
        self._to_send.put(None)
        self._thread.join(5.0)

    def _run(self) -> None:
        try:
            site = Site(self._nifi)
            self._patiently(lambda: self._find(site))
            self.ready()
            while (first := self._to_send.get()) is not None and not self._is_stopped.is_set():
                self._send_with(site, first)
        except Exception as error:  # told where the writer is
            self.fail(error)

    def _find(self, site: Site) -> None:
        self._port_id = site.port_id(self._port, "input-ports")
        self._peers = site.peers()

    def _send_with(self, site: Site, first: FlowFile) -> None:
        flow_files, size = [first], len(first.content)
        while len(flow_files) < MOST_OF_A_TRANSACTION and size < MOST_BYTES:
            try:
                more = self._to_send.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self._to_send.put(None)  # for who asks for more
                return
            flow_files.append(more)
            size += len(more.content)
        numbers = range(self._num_sent + 1, self._num_sent + 1 + len(flow_files))
        self._num_sent += len(flow_files)
        for number in numbers:
            self.sent(number)
        self._patiently(lambda: self._transact(site, flow_files))
        self.confirmed_up_to(numbers[-1])

    def _transact(self, site: Site, flow_files: list[FlowFile]) -> None:
        peer = self._peers[0]
        self._peers = [*self._peers[1:], peer]
        transaction = site.begin(self._port_id, "input-ports", peer, {})
        transaction.send(flow_files)
        if transaction.confirm():  # it has taken them, and wants no more for a moment
            self._is_stopped.wait(FIRST_PAUSE_S)

    def _patiently(self, call: Any) -> None:
        """Call until NiFi answers, for a while."""
        until, pause_s = time.monotonic() + self._patience_s, FIRST_PAUSE_S
        while True:
            try:
                call()
                return
            except NiFiAwayError:
                if time.monotonic() > until or self._is_stopped.is_set():
                    raise
            self._is_stopped.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class _PortWriter(ConfirmedWriter):
    def __init__(
        self, place: Place, port: str, value: MessageFormat, attributes: Mapping[str, str], patience_s: float
    ) -> None:
        super().__init__()
        self._place = place
        self._port = port
        self._value = value
        self._attributes = attributes
        self._patience_s = patience_s

    def messages_of(self, batch: Batch) -> list[FlowFile]:
        contents = self._value.encode(batch)
        if not self._attributes:
            return [FlowFile({}, content) for content in contents]
        columns = batch.columns
        missing = [name for name in self._attributes.values() if name not in columns.schema.names]
        if missing:
            message = f"the records have no field {missing[0]!r}; they have {columns.schema.names}"
            raise TypeMismatchError(message)
        values = {name: columns.column(field).to_pylist() for name, field in self._attributes.items()}
        return [
            FlowFile({name: str(of[index]) for name, of in values.items() if of[index] is not None}, content)
            for index, content in enumerate(contents)
        ]

    def connect(self, context: WriterContext) -> _Sender:
        name = f"nifi {context.operator_name} {context.subtask + 1}"
        return _Sender(self._place, self._port, name, self._patience_s)
