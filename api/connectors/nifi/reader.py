"""Reads output ports of NiFi: transactions stay open until a checkpoint covers their flow files.

NiFi gives up a flow file when its transaction is confirmed. That happens when a complete checkpoint covers all flow
files of the transaction; until then its time to live is begun anew, again and again. A transaction whose reader has
died is rolled back by NiFi, and its flow files come again, each with the same ``uuid``, by which it is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.engine.connectors.contract import Split
from headrace.engine.errors import SourceError

from ..messages.client_thread import AwayError
from ..messages.consuming import Consumer, ConsumingReader, Delivery
from ..messages.decoding import MessageDecoder, Metadata
from .site_to_site import FlowFile, NiFiAwayError, Place, Refused, Site, Transaction

__all__ = ["METADATA", "Message", "PortReader", "PortSettings"]

EMPTY_PAUSE_S = 0.2
"""How long to wait when a port has nothing."""

FULL_PAUSE_S = 0.02

Tag = tuple[int, int]
"""The number of the transaction, and of the flow file in it."""


@dataclass(frozen=True, slots=True)
class Message(Delivery[Tag]):
    """A flow file that was pulled."""

    split_id: str
    tag: Tag
    flow_file: FlowFile

    @property
    def place(self) -> str:
        return f"flow file {self.flow_file.attributes.get('uuid')!r}"


METADATA: Metadata = {
    "uuid": (pa.string(), lambda message: message.flow_file.attributes.get("uuid")),
    "filename": (pa.string(), lambda message: message.flow_file.attributes.get("filename")),
    "path": (pa.string(), lambda message: message.flow_file.attributes.get("path")),
    "attributes": (pa.map_(pa.string(), pa.string()), lambda message: list(message.flow_file.attributes.items())),
}


@dataclass(frozen=True)
class PortSettings:
    """How ports are read.

    Attributes:
        deduplicates: Whether flow files are known by their ``uuid``.
        prefetch: How many are pulled ahead of their confirmation, by port.
        wishes: How much of a transaction is wanted.
        remember_ms: How long ids are known.
        patience_s: How long NiFi may be away.
    """

    deduplicates: bool
    prefetch: int
    wishes: Mapping[str, int]
    remember_ms: int
    patience_s: float


class _Open:
    """A transaction whose flow files are not all acknowledged."""

    def __init__(self, transaction: Transaction, size: int) -> None:
        self.transaction = transaction
        self.left = set(range(size))


class _Port(Consumer[Tag]):
    """Pulls flow files of one port."""

    def __init__(self, place: Place, settings: PortSettings, name: str, split: Split) -> None:
        super().__init__(name, settings.prefetch, settings.patience_s)
        self._place = place
        self._settings = settings
        self._split_id, self._port = split.split_id, split.payload["port"]
        self._site: Site | None = None
        self._peers: list[Place] = []
        self._port_id = ""
        self._number = 0
        self._open: dict[int, _Open] = {}

    def connect(self) -> None:
        self._site = Site(self._place)
        try:
            self._port_id = self._site.port_id(self._port, "output-ports")
            peers = self._site.peers()
            # The next one in turn is the next one: that before may be why there is a new connection.
            self._peers = self._peers if set(self._peers) == set(peers) else peers
        except NiFiAwayError as error:
            raise AwayError(error.message) from error
        except Refused as error:
            raise SourceError(error.message) from error
        self.tell_connected(self._split_id)

    def work(self) -> None:
        try:
            self.settle_due()
            self._confirm()
            self._extend()
            if sum(len(one.left) for one in self._open.values()) >= self._settings.prefetch:
                self.pause(FULL_PAUSE_S)
            elif not self._pull():
                self.pause(EMPTY_PAUSE_S)
        except NiFiAwayError as error:
            raise AwayError(error.message) from error
        except Refused as error:
            raise SourceError(error.message) from error

    def while_waiting(self) -> None:
        with contextlib.suppress(NiFiAwayError, Refused):
            self._extend()

    def _pull(self) -> bool:
        """Pull a transaction of the next node; gives whether there was something."""
        assert self._site is not None
        peer = self._peers[0]
        self._peers = [*self._peers[1:], peer]
        transaction = self._site.begin(self._port_id, "output-ports", peer, self._settings.wishes)
        flow_files = transaction.receive()
        if not flow_files:
            return False
        self._number += 1
        self._open[self._number] = _Open(transaction, len(flow_files))
        for index, flow_file in enumerate(flow_files):
            self.give(Message(self._split_id, (self._number, index), flow_file))
        return True

    def _extend(self) -> None:
        """Have transactions live on; of one that is over all flow files come again."""
        for number, one in list(self._open.items()):
            if not one.transaction.extend_if_due():
                del self._open[number]

    def acknowledge_now(self, split_id: str, tags: list[Tag]) -> None:
        for number, index in tags:
            one = self._open.get(number)
            if one is not None:  # else it was over before: its flow files come again, and are known
                one.left.discard(index)

    def _confirm(self) -> None:
        """Confirm transactions all of whose flow files are acknowledged; tried again while NiFi is away."""
        for number, one in list(self._open.items()):
            if not one.left:
                # If it is over already, its flow files come again, or its confirmation has got there before.
                with contextlib.suppress(Refused):
                    one.transaction.confirm()
                del self._open[number]

    def disconnect(self) -> None:
        if self._site is None:
            return
        self._site = None
        with contextlib.suppress(NiFiAwayError, Refused):
            if self.is_stopping:
                self.settle_due()
                self._confirm()
                for one in self._open.values():
                    one.transaction.cancel()  # its flow files need not wait for the end of its time
        if self.is_stopping:
            self._open.clear()


class PortReader(ConsumingReader[Tag]):
    """Reads the ports of one subtask.

    Args:
        place: Where NiFi is.
        settings: How.
        decoder: Makes records of flow files.
    """

    def __init__(self, place: Place, settings: PortSettings, decoder: MessageDecoder[Message]) -> None:
        super().__init__(settings.remember_ms, settings.prefetch, decoder)
        self._place = place
        self._settings = settings

    def consumers_of(self, splits: Sequence[Split]) -> Mapping[str, _Port]:
        name = f"nifi {self._context.operator_name} {self._context.subtask + 1}"
        return {one.split_id: _Port(self._place, self._settings, f"{name} {one.split_id}", one) for one in splits}

    def id_of(self, message: Message) -> str | None:
        if not self._settings.deduplicates:
            return None
        found = message.flow_file.attributes.get("uuid")
        if found is None:
            text = "a flow file has no uuid, by which it would be known if it came again"
            raise SourceError(text, hint="read with deduplicate=False", split=message.split_id)
        return found
