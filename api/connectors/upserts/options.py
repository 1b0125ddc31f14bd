"""How records are brought to a service that is written by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.config import parse_duration_ms

__all__ = ["UpsertOptions"]


@dataclass(frozen=True)
class UpsertOptions:
    """How records are brought to a service.

    Attributes:
        batch_size: Most records of a request.
        batch_bytes: Most bytes of a request, about. One record may not have more.
        batch_interval: How long a record waits for others: milliseconds or text, as ``"1 s"``.
        request_timeout: How long an answer may take, as above; then the request is made again.
        patience: How long the service may take nothing before the job fails, as above.
        on_error: What becomes of a record that the service refuses for good: ``fail``; or ``skip``, counted as
            ``num_records_skipped``.
    """

    batch_size: int = 1_000
    batch_bytes: int = 5 << 20
    batch_interval: int | str = "1 s"
    request_timeout: int | str = "30 s"
    patience: int | str = "1 min"
    on_error: Literal["fail", "skip"] = "fail"

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "skip"):
            message = f"on_error must be fail or skip; got {self.on_error!r}"
            raise ConfigurationError(message)
        for name in ("batch_interval", "request_timeout", "patience"):
            parse_duration_ms(getattr(self, name))

    @property
    def patience_s(self) -> float:
        """The patience in seconds."""
        return parse_duration_ms(self.patience) / 1_000

    @property
    def request_timeout_s(self) -> float:
        """How long an answer may take, in seconds."""
        return parse_duration_ms(self.request_timeout) / 1_000
