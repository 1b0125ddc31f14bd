"""Options of tables about how a server is talked to, the same for all that have them."""

from __future__ import annotations

from typing import Any

from ...connectors.messages.tls import Tls
from ..connectors.contract import Options

__all__ = ["given", "tls_of"]


def tls_of(options: Options) -> Tls | None:
    """Return whom to trust, and who asks; None where no option says it."""
    files = [options.take(f"tls.{name}") for name in ("ca-file", "certificate-file", "key-file", "key-password")]
    return Tls(*files) if any(files) else None


def given(**options: Any) -> dict[str, Any]:
    """Return those options that are set, as arguments."""
    return {name: value for name, value in options.items() if value is not None}
