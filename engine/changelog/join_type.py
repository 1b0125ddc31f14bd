"""Kinds of joins over changes, and what follows for what is kept."""

from __future__ import annotations

from enum import Enum

__all__ = ["JoinType"]


class JoinType(Enum):
    """Which rows a join gives. Source: Flink's ``FlinkJoinType``."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"

    @property
    def preserves(self) -> tuple[bool, bool]:
        """Whether rows of the left and of the right side go out with nulls if nothing matches them."""
        return (self in (JoinType.LEFT, JoinType.FULL), self in (JoinType.RIGHT, JoinType.FULL))

    @property
    def gives_left_rows(self) -> bool:
        """Whether rows of the left side go out as they are, and those of the right side not at all."""
        return self in (JoinType.SEMI, JoinType.ANTI)

    @property
    def counts_matches(self) -> tuple[bool, bool]:
        """Whether it is kept how many rows match a row, of both sides."""
        return (self.preserves[0] or self.gives_left_rows, self.preserves[1])
