"""Hints of a SELECT, ``/*+ BROADCAST(r) */``: which there are, what they are about, and what they change.

A hint says how a join is to be made, not what it gives. Joins of two inputs are made in one way here, so one about
them is noted in the plan, and one that is not known is a mistake. MULTI_JOIN makes one join of several; those of lookup
joins say how a table is asked: `headrace.sql.lookup_hints`. ``STATE_TTL('r' = '1 d')`` says how long what is kept of a
table lives that is not written: on either side of a join, or in groups of one table's rows.

Source: Flink's documentation ("Hints"), ``JoinStrategy``, ``StateTtlHint``, ``FlinkHints``.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from headrace.engine.errors import ConfigurationError, nearest
from headrace.state.values.durations import parse_duration_ms

from .lookup_hints import is_lookup_hint
from .parsing.errors import SqlError, SqlText
from .scope import Scope

__all__ = ["StateTtls", "hint_notes", "multi_joined"]

_MULTI = "MULTI_JOIN"
_JOINS = ("BROADCAST", "SHUFFLE_HASH", "SHUFFLE_MERGE", "NEST_LOOP", _MULTI)
_STATE_TTL = "STATE_TTL"
_REFUSED = {
    "OPTIONS": ("the options of a table are those of its CREATE TABLE", "CREATE TABLE ... LIKE with other options"),
}


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
        """How long what is kept of some rows lives, if they are those of one table; None if nothing says so."""
        tables = _tables_of(scope)
        ttl = self._by_table.get(tables[0]) if len(tables) == 1 else None
        if ttl is not None:
            self._used.add(tables[0])
        return ttl

    def notes(self) -> tuple[str, ...]:
        """What the plan is to say of those that nothing was kept for."""
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


def _entry(tree: Any) -> tuple[str, int]:
    """A table and how long, of ``'table' = '1 d'``."""
    if not (isinstance(tree, exp.EQ) and all(isinstance(one, exp.Literal) for one in (tree.this, tree.expression))):
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
    others = [one for one in found if not is_lookup_hint(one) and str(one.name).upper() != _STATE_TTL]
    return tuple(_note(one, scope, text) for one in others)


def _note(hint: Any, scope: Scope, text: SqlText) -> str:
    name = str(hint.name).upper()
    with text.at(hint):
        if name in _REFUSED:
            why, instead = _REFUSED[name]
            message = f"hint {name} is not supported: {why}"
            raise SqlError(message, hint=instead)
        if name not in _JOINS:
            known = (*_JOINS, _STATE_TTL, "LOOKUP")
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
