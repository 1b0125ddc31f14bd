"""Digests of what a plan says: of its values, and of its expressions by what their columns are.

They are the same in every process and for every way to write the same, as savepoints hold what is made of them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ...columns.expressions import Expression

__all__ = ["digest_of", "expression_digest", "stable_text"]


def digest_of(*what: Any) -> str:
    """Return a digest of what is said by its ``repr``, the same in every process."""
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_TEXT = str(str)


def stable_text(value: Any, columns: Mapping[str, str]) -> Any:
    """Return what a value of a plan says, the same in every process: expressions by what their columns are."""
    if isinstance(value, Expression):
        return expression_digest(value.structure, columns)
    if isinstance(value, (str, int, float, bool, bytes, type(None))):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return tuple(stable_text(one, columns) for one in value)
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(repr(stable_text(one, columns)) for one in value))
    if isinstance(value, Mapping):
        return tuple((name, stable_text(one, columns)) for name, one in value.items())
    if isinstance(value, (pa.DataType, pa.Schema, pa.Scalar)):
        return str(value)
    if isinstance(value, functools.partial):
        return ("partial", stable_text(value.func, columns), stable_text(value.args, columns))
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (
            kind,
            *((one.name, stable_text(getattr(value, one.name), columns)) for one in dataclasses.fields(value)),
        )
    if hasattr(value, "__dict__"):
        return (kind, *((name, stable_text(one, columns)) for name, one in sorted(vars(value).items())))
    return (kind, _ADDRESS.sub("", repr(value)))


_EITHER_WAY = frozenset(("add", "multiply", "equal", "not_equal"))
_TURNED = {"greater": "less", "greater_equal": "less_equal"}


def expression_digest(structure: Any, columns: Mapping[str, str]) -> str:
    """Return what an expression's structure comes to: a digest of what its columns are, and of digests of its operands,
    in an order of their own where any is as good. So it is the same whether an operand is computed here or below.
    """
    if not isinstance(structure, tuple):
        return _ADDRESS.sub("", structure) if isinstance(structure, str) else repr(structure)
    if structure[:1] == ("lit",) or (len(structure) == 3 and structure[1] == _TEXT):
        return digest_of(structure)  # a text of the program, whatever it looks like
    if len(structure) == 2 and structure[0] == "col":
        return columns.get(structure[1], f"?{structure[1]}")
    if structure[:1] == ("alias",):
        return expression_digest(structure[2], columns)
    head = structure[0] if structure and isinstance(structure[0], str) else ""
    if head in ("and", "or"):
        return digest_of(head, sorted({expression_digest(one, columns) for one in _operands(structure)}))
    made = [expression_digest(one, columns) for one in structure]
    if head in _TURNED and len(made) == 4:
        made = [_TURNED[head], made[1], made[3], made[2]]
    elif head in _EITHER_WAY and len(made) == 4:
        made[2:] = sorted(made[2:])
    return digest_of(*made)


def _operands(structure: tuple[Any, ...]) -> list[Any]:
    """The operands of AND, or of OR, and of those among them that are the same."""
    found = []
    for one in structure[2:]:
        found += _operands(one) if isinstance(one, tuple) and one[:1] == structure[:1] else [one]
    return found
