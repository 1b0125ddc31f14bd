"""Names of which there are few: enums that are their text wherever they are shown or stored."""

from __future__ import annotations

from enum import Enum

__all__ = ["TextEnum"]


class TextEnum(str, Enum):
    """Prints, formats, compares and hashes as its value, and is that in JSON: so what is stored or shown is a text."""

    __hash__ = str.__hash__

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)
