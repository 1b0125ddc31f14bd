"""Output ports of NiFi as a source: at least once; flow files that come again are known by their ``uuid``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.engine.connectors.contract import (
    Discovery,
    EnumeratorContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from headrace.engine.errors import ConfigurationError
from headrace.state.type_variables import OUT

from ...formats.messages import MessageFormat
from ..messages.arguments import columns_of, names_of, patience_s_of, remember_ms_of
from ..messages.decoding import MessageDecoder, OnError
from ..messages.tls import Tls
from .reader import METADATA, Message, PortReader, PortSettings
from .site_to_site import Place

__all__ = ["NiFiSource"]

LEAST_MEMORY_MS = 120_000
"""Four times the time to live of a transaction, by NiFi's default."""


class NiFiSource(Source[OUT]):
    """Pulls flow files of output ports by site-to-site over HTTP.

    Args:
        url: ``https://host:port/nifi``, of any node; the others are asked for.
        ports: Names or ids of output ports.
        value: How contents are decoded, as `JsonMessages`; see `headrace.formats.messages`. A flow file is a record.
        deduplicate: Whether a flow file that comes again is known by its ``uuid``, and not given twice.
        prefetch: How many flow files of a port are pulled ahead of the checkpoint that covers them.
        batch_count: How many flow files a transaction has at most.
        batch_bytes: How many bytes they have, about.
        remember: How long ids are known behind their checkpoint: longer than transactions live in NiFi
            (``nifi.remote.input.http.transaction.ttl``).
        metadata: Columns that are added to those of the value: ``uuid``, ``filename``, ``path``, ``attributes``. A
            mapping gives them other names.
        on_error: What becomes of a flow file that cannot be decoded: ``fail``; ``skip``, counted as
            ``num_records_skipped``; or ``dead-letter``, the side output of that name.
        tls: Whom to trust, and who asks; None trusts whom the system trusts.
        patience: How long NiFi may be away before the job fails: milliseconds or text.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    is_bounded = False

    def __init__(
        self,
        url: str,
        ports: str | Sequence[str],
        *,
        value: MessageFormat[OUT],
        deduplicate: bool = True,
        prefetch: int = 10_000,
        batch_count: int = 500,
        batch_bytes: int = 8 << 20,
        remember: int | str = "10 min",
        metadata: Sequence[str] | Mapping[str, str] = (),
        on_error: OnError = "fail",
        tls: Tls | None = None,
        patience: int | str = "1 min",
    ) -> None:
        self._ports = names_of("output ports", ports)
        for name, number in (("prefetch", prefetch), ("batch_count", batch_count), ("batch_bytes", batch_bytes)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                message = f"{name} must be 1 at least; got {number!r}"
                raise ConfigurationError(message)
        hint = "what NiFi rolls back comes again when its transaction's time is over"
        remember_ms = remember_ms_of(remember, LEAST_MEMORY_MS, hint)
        wishes = {"batch-count": batch_count, "batch-size": batch_bytes, "batch-duration": 1_000}
        self._place = Place.of(url, tls)
        self._settings = PortSettings(deduplicate, prefetch, wishes, remember_ms, patience_s_of(patience))
        self._decoder = MessageDecoder[Message](
            value, lambda one: one.flow_file.content, lambda one: one.place, METADATA, columns_of(metadata), on_error
        )

    def __repr__(self) -> str:
        return f"NiFiSource({', '.join(self._ports)})"

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records; None for rows of Python objects."""
        return self._decoder.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what says which ports there are."""
        return _Ports(self._ports)

    def create_reader(self) -> SourceReader:
        """Make a reader of some of them."""
        return PortReader(self._place, self._settings, self._decoder)


class _Ports:
    discovery_interval_ms: int | None = None

    def __init__(self, ports: Sequence[str]) -> None:
        self._ports = ports

    def discover(self) -> Discovery:
        """A port is a split: what it gives again must come to who knows what it gave."""
        return Discovery([Split(name, {"port": name}) for name in self._ports], is_final=True)
