"""LOOKUP hints of a SELECT: how the tables of its lookup joins are asked.

``/*+ LOOKUP('table' = 'rooms', 'async' = 'true', 'capacity' = '20') */``: options are texts under Flink's names.

Source: Flink's documentation ("Hints"), ``LookupJoinHintOptions``, ``FlinkHintStrategies``; FLIP-234.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from headrace.engine.errors import ConfigurationError, nearest
from headrace.engine.kernel.config import parse_duration_ms
from headrace.engine.plan.table_nodes import LookupWay

from .parsing.errors import SqlError, SqlText

__all__ = ["LookupHints", "is_lookup_hint"]

NAME = "LOOKUP"


def _word(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            message = f"it is {' or '.join(map(repr, words))}"
            raise ValueError(message)
        return text.lower()

    return parse


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        message = "it is a whole number, 1 or more"
        raise ValueError(message)
    return int(text)


def _duration(text: str) -> int:
    found = parse_duration_ms(text)
    if found < 1:
        message = "it is at least 1 ms"
        raise ValueError(message)
    return found


_OPTIONS: dict[str, Callable[[str], Any]] = {
    "table": str,
    "async": lambda text: _word("true", "false")(text) == "true",
    "output-mode": _word("ordered", "allow_unordered"),
    "capacity": _number,
    "timeout": _duration,
    "retry-predicate": _word("lookup_miss"),
    "retry-strategy": _word("fixed_delay"),
    "fixed-delay": _duration,
    "max-attempts": _number,
}
_OF_ASYNC = ("output-mode", "capacity", "timeout")
_OF_RETRY = ("retry-predicate", "retry-strategy", "fixed-delay", "max-attempts")


def is_lookup_hint(hint: Any) -> bool:
    """Whether a hint is one of these."""
    return str(hint.name).upper() == NAME


class LookupHints:
    """The LOOKUP hints of one SELECT.

    Args:
        tree: The SELECT.
        text: Of the statement, for errors.

    Raises:
        SqlError: If one has an option that there is not, or lacks some.
    """

    def __init__(self, tree: exp.Select, text: SqlText) -> None:
        self._text = text
        # By table: the hint, and what it says.
        self._ways: dict[str, tuple[Any, LookupWay]] = {}
        self._used: set[str] = set()
        hint = tree.args.get("hint")
        for one in () if hint is None else filter(is_lookup_hint, hint.expressions):
            with text.at(one):
                table, way = _said(one)
                if table in self._ways:
                    message = f"there are two hints {NAME} for table {table!r}"
                    raise SqlError(message)
                self._ways[table] = (one, way)

    def of(self, *names: str) -> LookupWay | None:
        """Return how a table is asked that goes by its alias, or by its name; None if nothing was said."""
        found = next((name for name in names if name in self._ways), None)
        if found is None:
            return None
        self._used.add(found)
        return self._ways[found][1]

    def require_used(self) -> None:
        """See that each hint is about a table that is looked up.

        Raises:
            SqlError: If one is not.
        """
        for table, (one, _) in self._ways.items():
            if table not in self._used:
                message = f"hint {NAME} names {table!r}, which is no table that is looked up here"
                hint = "it is the alias of a table with FOR SYSTEM_TIME AS OF the processing time, in the same SELECT"
                raise self._text.error(message, one, hint=hint)


def _said(hint: Any) -> tuple[str, LookupWay]:
    given: dict[str, Any] = {}
    for one in hint.expressions:
        if not isinstance(one, exp.EQ) or not all(_is_text(side) for side in (one.this, one.expression)):
            message = f"hint {NAME} takes options: 'table' = 'r', 'async' = 'true'"
            raise SqlError(message)
        key, value = one.this.this, one.expression.this
        if key not in _OPTIONS:
            message = f"hint {NAME} has no option {key!r}"
            raise SqlError(message, hint=nearest(key, list(_OPTIONS)) or f"its options are {', '.join(_OPTIONS)}")
        try:
            given[key] = _OPTIONS[key](value)
        except (ValueError, ConfigurationError) as error:
            message = f"option {key!r} of hint {NAME} cannot be {value!r}: {error}"
            raise SqlError(message) from error
    if "table" not in given:
        message = f"hint {NAME} needs the option 'table'"
        raise SqlError(message)
    _require_whole(given)
    retry = (given["max-attempts"], given["fixed-delay"]) if _OF_RETRY[0] in given else None
    mode = given.get("output-mode")
    way = LookupWay(
        is_async=given.get("async", False), is_ordered=None if mode is None else mode == "ordered",
        capacity=given.get("capacity"), timeout_ms=given.get("timeout"), retry=retry,
    )  # fmt: skip
    return given["table"], way


def _require_whole(given: dict[str, Any]) -> None:
    """See that options mean something together.

    Raises:
        SqlError: If not.
    """
    needless = [key for key in _OF_ASYNC if key in given]
    if needless and not given.get("async"):
        message = f"option {needless[0]!r} of hint {NAME} is one of asynchronous lookups"
        raise SqlError(message, hint="'async' = 'true'")
    missing = [key for key in _OF_RETRY if key not in given]
    if missing and len(missing) < len(_OF_RETRY):
        message = f"hint {NAME} needs the option {missing[0]!r}, too"
        raise SqlError(message, hint=f"a retry is said by {', '.join(_OF_RETRY)}")


def _is_text(tree: Any) -> bool:
    return isinstance(tree, exp.Literal) and tree.is_string
