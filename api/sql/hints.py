"""Hints of a SELECT, ``/*+ BROADCAST(r) */``: which there are, what they are about, and what they change.

A hint says how a join is to be made, not what it gives. Joins of two inputs are made in one way here, so one about
them is noted in the plan, and one that is not known is a mistake. MULTI_JOIN makes one join of several; those of lookup
joins say how a table is asked: `headrace.sql.lookup_hints`.

Source: Flink's documentation ("Hints"), ``JoinStrategy``, ``FlinkHints``.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from headrace.engine.errors import nearest

from .lookup_hints import is_lookup_hint
from .parsing.errors import SqlError, SqlText
from .scope import Scope

__all__ = ["hint_notes", "multi_joined"]

_MULTI = "MULTI_JOIN"
_JOINS = ("BROADCAST", "SHUFFLE_HASH", "SHUFFLE_MERGE", "NEST_LOOP", _MULTI)
_REFUSED = {
    "STATE_TTL": ("state has no time to live", "EXPLAIN says how it grows, and what would bound it"),
    "OPTIONS": ("the options of a table are those of its CREATE TABLE", "CREATE TABLE ... LIKE with other options"),
}


def hint_notes(tree: exp.Select, scope: Scope, text: SqlText) -> tuple[str, ...]:
    """Return what the plan is to say of the hints of a SELECT.

    Args:
        tree: The SELECT.
        scope: The columns of its FROM.
        text: Of the statement, for errors.

    Raises:
        SqlError: If there is no such hint, it cannot be followed and that would matter, or it names no table of FROM.
    """
    hint = tree.args.get("hint")
    found = () if hint is None else hint.expressions
    return tuple(_note(one, scope, text) for one in found if not is_lookup_hint(one))


def _note(hint: Any, scope: Scope, text: SqlText) -> str:
    name = str(hint.name).upper()
    with text.at(hint):
        if name in _REFUSED:
            why, instead = _REFUSED[name]
            message = f"hint {name} is not supported: {why}"
            raise SqlError(message, hint=instead)
        if name not in _JOINS:
            message = f"there is no hint {name}"
            known = (*_JOINS, "LOOKUP")
            raise SqlError(message, hint=nearest(name, known) or f"there are {', '.join(known)}")
        tables = list(dict.fromkeys(one.table for one in scope.columns if one.table is not None))
        named = [one.name for one in hint.expressions]
        unknown = [one for one in named if one not in tables]
        if unknown or not named:
            message = f"hint {name} names {f'{unknown[0]!r}, which is no table' if unknown else 'no table'} of FROM"
            raise SqlError(
                message, hint=nearest(unknown[0] if unknown else "", tables) or f"there are {', '.join(tables)}"
            )
    if name == _MULTI:
        return f"hint {name}({', '.join(named)}): on a stream joins of these by a common key are one"
    return f"hint {name}({', '.join(named)}) changes nothing: joins go by the hash of their keys"


def multi_joined(tree: exp.Select) -> frozenset[str]:
    """Return the tables of a SELECT that hints want to be joined by one operator; `hint_notes` checks them."""
    hint = tree.args.get("hint")
    found = () if hint is None else (one for one in hint.expressions if str(one.name).upper() == _MULTI)
    return frozenset(table.name for one in found for table in one.expressions)
