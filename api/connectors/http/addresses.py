"""What sources of HTTP have in common: addresses, each of which is a split, and who asks.

Source: Flink's ``Source``; FLIP-27.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.engine.connectors.contract import Discovery, EnumeratorContext, Source, Split, SplitEnumerator
from headrace.engine.errors import ConfigurationError
from headrace.state.type_variables import OUT
from headrace.state.values.durations import parse_duration_ms

from ..messages.tls import Tls
from .client import Endpoint

__all__ = ["AddressSource", "duration_s"]


class AddressSource(Source[OUT]):
    """Reads what addresses give. An address is a split, with one reader.

    Args:
        urls: One, or several, each once.
        schemes: What they may begin with, TLS last.
        headers: Sent along.
        tls: Whom to trust.
        timeout: How long the server may say nothing: milliseconds or text.
        max_bytes: How large an answer, a line or a message may be.
    """

    is_bounded = False

    def __init__(
        self,
        urls: str | Sequence[str],
        schemes: tuple[str, str],
        headers: Mapping[str, str] | None,
        tls: Tls | None,
        timeout: int | str,
        max_bytes: int,
    ) -> None:
        self._urls = (urls,) if isinstance(urls, str) else tuple(urls)
        if not self._urls or len(set(self._urls)) < len(self._urls):
            message = "a source reads addresses, each once, and one at least"
            raise ConfigurationError(message)
        if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 1:
            message = f"max_bytes must be 1 or more; got {max_bytes!r}"
            raise ConfigurationError(message)
        timeout_s = duration_s("timeout", timeout)
        for url in self._urls:
            endpoint = Endpoint(url, dict(headers or {}), tls, timeout_s, max_bytes)
            endpoint.check(*schemes)
        self._endpoint = endpoint

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._urls)})"

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what says which addresses there are."""
        return _Addresses(self._urls)


def duration_s(name: str, duration: Any, least_s: float = 0.001) -> float:
    """Return a duration in seconds.

    Raises:
        ConfigurationError: If it is none, or too short.
    """
    found = parse_duration_ms(duration) / 1_000
    if found < least_s:
        message = f"{name} must be {least_s:g} s at least; got {duration!r}"
        raise ConfigurationError(message)
    return found


class _Addresses:
    discovery_interval_ms: int | None = None

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls

    def discover(self) -> Discovery:
        """One split for each."""
        return Discovery([Split(url, {"url": url}) for url in self._urls], is_final=True)
