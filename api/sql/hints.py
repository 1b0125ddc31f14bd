"""Hints of a SELECT, ``/*+ BROADCAST(r) */``: which there are, what they are about, and what they change.

A hint says how a join is to be made, not what it gives. Joins of two inputs are made in one way here, so one about them
is noted in the plan, and one that is not known is a mistake. MULTI_JOIN makes one join of several.
``STATE_TTL('r' = '1 d')`` says how long what is kept of a table lives that is not written: on either side of a join, or
in groups of one table's rows. ``LOOKUP('table' = 'rooms', 'async' = 'true', 'capacity' = '20')`` says how the table of
a lookup join is asked; its options are texts under Flink's names. ``OPTIONS('path' = 'x')`` stands behind the name of a
table and has it read, or written, with other options than those of CREATE TABLE, in this one place.

Source: Flink's documentation ("Hints"), ``JoinStrategy``, ``StateTtlHint``, ``LookupJoinHintOptions``,
``FlinkHintStrategies``; FLIP-234.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from headrace.engine.errors import ConfigurationError, nearest
from headrace.engine.plan.table_nodes import LookupWay
from headrace.state.values.durations import parse_duration_ms

from .parsing.errors import SqlError, SqlText
from .scope import Scope

__all__ = ["LookupHints", "StateTtls", "hint_notes", "multi_joined", "table_options"]

_MULTI = "MULTI_JOIN"
_JOINS = ("BROADCAST", "SHUFFLE_HASH", "SHUFFLE_MERGE", "NEST_LOOP", _MULTI)
_STATE_TTL = "STATE_TTL"
_LOOKUP = "LOOKUP"
_TABLE_OPTIONS = "OPTIONS"


class StateTtls:
    """What hints of a SELECT say of times to live.

    Args:
        tree: The SELECT.
        text: Of the statement, for errors.

    Raises:
        SqlError: If one is not ``'table' = 'duration'``.
    """

    def __init__(self, tree: exp.Select, text: SqlText) -> None:
        hint = tree.args.get("hint")
        self._by_table: dict[str, int] = {}
        self._used: set[str] = set()
        for one in [] if hint is None else hint.expressions:
            if str(one.name).upper() == _STATE_TTL:
                with text.at(hint):
                    # Of one hint the last entry of a table counts, of several hints the first.
                    self._by_table = {**dict(map(_entry, one.expressions)), **self._by_table}

    def of(self, scope: Scope) -> int | None:
        """Return how long what is kept of some rows lives, if they are those of one table; None if nothing says so."""
        tables = _tables_of(scope)
        ttl = self._by_table.get(tables[0]) if len(tables) == 1 else None
        if ttl is not None:
            self._used.add(tables[0])
        return ttl

    def notes(self) -> tuple[str, ...]:
        """Return what the plan is to say of those that nothing was kept for."""
        left = [one for one in self._by_table if one not in self._used]
        return tuple(
            f"hint {_STATE_TTL}({one!r}) changes nothing: it is of joins and groups of a table" for one in left
        )

    def require_known(self, scope: Scope) -> None:
        """See that the tables are there.

        Raises:
            SqlError: If one is not.
        """
        _require_tables(_STATE_TTL, list(self._by_table), scope)


def table_options(tree: Any, text: SqlText) -> dict[str, str]:
    """Return the options that a hint behind the name of a table says: ``bids /*+ OPTIONS('path' = 'x') */``.

    Args:
        tree: The table.
        text: Of the statement, for errors.

    Raises:
        SqlError: If there is another hint, or what it says is not ``'key' = 'value'``.
    """
    hint = tree.args.get("hint")
    options: dict[str, str] = {}
    for one in [] if hint is None else hint.expressions:
        with text.at(hint):
            if str(one.name).upper() != _TABLE_OPTIONS:
                message = f"hint {str(one.name).upper()} does not stand behind a table"
                raise SqlError(
                    message, hint=f"there is {_TABLE_OPTIONS}('key' = 'value', ...); others stand behind SELECT"
                )
            for pair in one.expressions:
                if not _is_pair(pair):
                    message = f"hint {_TABLE_OPTIONS} takes 'key' = 'value'; got {pair.sql()}"
                    raise SqlError(message, hint=f"{_TABLE_OPTIONS}('path' = '/elsewhere')")
                options[pair.this.name] = pair.expression.name
    return options


def _is_pair(tree: Any) -> bool:
    return isinstance(tree, exp.EQ) and all(isinstance(one, exp.Literal) for one in (tree.this, tree.expression))


def _entry(tree: Any) -> tuple[str, int]:
    """A table and how long, of ``'table' = '1 d'``."""
    if not _is_pair(tree):
        message = f"hint {_STATE_TTL} takes 'table' = 'duration'; got {tree.sql()}"
        raise SqlError(message, hint=f"{_STATE_TTL}('orders' = '1 d', 'shipments' = '12 h')")
    try:
        ttl = parse_duration_ms(tree.expression.name)
    except ConfigurationError as error:
        message = f"hint {_STATE_TTL}: {error.message}"
        raise SqlError(message) from error
    if ttl < 0:
        message = f"hint {_STATE_TTL}: a time to live is not negative; got {tree.expression.name!r}"
        raise SqlError(message)
    return tree.this.name, ttl


def hint_notes(tree: exp.Select, scope: Scope, text: SqlText) -> tuple[str, ...]:
    """Return what the plan is to say of the hints of a SELECT that are not about times to live.

    Args:
        tree: The SELECT.
        scope: The columns of its FROM.
        text: Of the statement, for errors.

    Raises:
        SqlError: If there is no such hint, it cannot be followed and that would matter, or it names no table of FROM.
    """
    hint = tree.args.get("hint")
    found = () if hint is None else hint.expressions
    others = [one for one in found if not _is_of_lookups(one) and str(one.name).upper() != _STATE_TTL]
    return tuple(_note(one, scope, text) for one in others)


def _note(hint: Any, scope: Scope, text: SqlText) -> str:
    name = str(hint.name).upper()
    with text.at(hint):
        if name == _TABLE_OPTIONS:
            message = f"hint {_TABLE_OPTIONS} stands behind the name of a table"
            raise SqlError(message, hint=f"FROM bids /*+ {_TABLE_OPTIONS}('path' = '/elsewhere') */ AS b")
        if name not in _JOINS:
            known = (*_JOINS, _STATE_TTL, _LOOKUP)
            message = f"there is no hint {name}"
            raise SqlError(message, hint=nearest(name, known) or f"there are {', '.join(known)}")
        named = [one.name for one in hint.expressions]
        _require_tables(name, named or [""], scope)
    if name == _MULTI:
        return f"hint {name}({', '.join(named)}): on a stream joins of these by a common key are one"
    return f"hint {name}({', '.join(named)}) changes nothing: joins go by the hash of their keys"


def _tables_of(scope: Scope) -> list[str]:
    return list(dict.fromkeys(one.table for one in scope.columns if one.table is not None))


def _require_tables(hint: str, named: list[str], scope: Scope) -> None:
    """See that tables are those of FROM.

    Raises:
        SqlError: If one is not; an empty name is none.
    """
    tables = _tables_of(scope)
    unknown = [one for one in named if one not in tables]
    if unknown:
        message = f"hint {hint} names {f'{unknown[0]!r}, which is no table' if unknown[0] else 'no table'} of FROM"
        raise SqlError(message, hint=nearest(unknown[0], tables) or f"there are {', '.join(tables)}")


def multi_joined(tree: exp.Select) -> frozenset[str]:
    """Return the tables of a SELECT that hints want to be joined by one operator; `hint_notes` checks them."""
    hint = tree.args.get("hint")
    found = () if hint is None else (one for one in hint.expressions if str(one.name).upper() == _MULTI)
    return frozenset(table.name for one in found for table in one.expressions)


# -- LOOKUP ------------------------------------------------------------------------------------------------------------


def _is_of_lookups(hint: Any) -> bool:
    return str(hint.name).upper() == _LOOKUP


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
        for one in () if hint is None else filter(_is_of_lookups, hint.expressions):
            with text.at(one):
                table, way = _said(one)
                if table in self._ways:
                    message = f"there are two hints {_LOOKUP} for table {table!r}"
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
                message = f"hint {_LOOKUP} names {table!r}, which is no table that is looked up here"
                hint = "it is the alias of a table with FOR SYSTEM_TIME AS OF the processing time, in the same SELECT"
                raise self._text.error(message, one, hint=hint)


def _said(hint: Any) -> tuple[str, LookupWay]:
    given: dict[str, Any] = {}
    for one in hint.expressions:
        if not isinstance(one, exp.EQ) or not all(_is_text(side) for side in (one.this, one.expression)):
            message = f"hint {_LOOKUP} takes options: 'table' = 'r', 'async' = 'true'"
            raise SqlError(message)
        key, value = one.this.this, one.expression.this
        if key not in _OPTIONS:
            message = f"hint {_LOOKUP} has no option {key!r}"
            raise SqlError(message, hint=nearest(key, list(_OPTIONS)) or f"its options are {', '.join(_OPTIONS)}")
        try:
            given[key] = _OPTIONS[key](value)
        except (ValueError, ConfigurationError) as error:
            message = f"option {key!r} of hint {_LOOKUP} cannot be {value!r}: {error}"
            raise SqlError(message) from error
    if "table" not in given:
        message = f"hint {_LOOKUP} needs the option 'table'"
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
        message = f"option {needless[0]!r} of hint {_LOOKUP} is one of asynchronous lookups"
        raise SqlError(message, hint="'async' = 'true'")
    missing = [key for key in _OF_RETRY if key not in given]
    if missing and len(missing) < len(_OF_RETRY):
        message = f"hint {_LOOKUP} needs the option {missing[0]!r}, too"
        raise SqlError(message, hint=f"a retry is said by {', '.join(_OF_RETRY)}")


def _is_text(tree: Any) -> bool:
    return isinstance(tree, exp.Literal) and tree.is_string
