"""Which attributes the objects of a plain class have, as far as its code says.

No class lists them. What ``__init__`` and ``__new__`` set on the object is read from their code, with the methods that
these name, of the class and of its bases; and what stands in ``__slots__``. Names that are made up while the program
runs (``self.__dict__.update(...)``, ``setattr`` with a variable) are not known.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator

__all__ = ["LIBRARIES", "attributes_of"]

LIBRARIES = frozenset((*sys.stdlib_module_names, "numpy", "pyarrow", "pandas"))
"""Packages whose classes no program defines, or changes."""

_WITHOUT_STATE = frozenset(("abc", "typing", "collections.abc"))
"""Modules of bases that say what a class is for, and not what it consists of."""

_PICKLING = ("__reduce_ex__", "__reduce__", "__getstate__")
_SETTERS = frozenset(("__setattr__", "setattr"))


def attributes_of(definition: type) -> list[str] | None:
    """Return the names, sorted; None if it is not the attributes that decide which keys are equal.

    So it is where a class says itself how it is pickled, and where it is derived from one of Python's, as a text.
    """
    bases = [base for base in definition.__mro__[:-1] if base.__module__ not in _WITHOUT_STATE]
    if any(base.__module__.partition(".")[0] in LIBRARIES for base in bases):
        return None
    if any(getattr(definition, name, None) is not getattr(object, name, None) for name in _PICKLING):
        return None
    members = {name: member for base in reversed(bases) for name, member in vars(base).items()}
    found: set[str] = set()
    waiting: list[types.FunctionType] = []
    for base in bases:
        slots = vars(base).get("__slots__", ())
        found.update({slots} if isinstance(slots, str) else slots)
        waiting += [one for name in ("__new__", "__init__") if (one := _function(vars(base).get(name))) is not None]
    seen = set(waiting)
    while waiting:
        is_set, is_named = _names_in(waiting.pop().__code__)
        found |= is_set
        more = {one for name in is_named if (one := _function(members.get(name))) is not None}
        waiting += more - seen
        seen |= more
    return sorted(found - {"__dict__", "__weakref__"})


def _function(member: object) -> types.FunctionType | None:
    function = getattr(member, "__func__", member)
    return function if isinstance(function, types.FunctionType) else None


def _names_in(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Which attributes a method sets, and which others of the object it names."""
    is_set: set[str] = set()
    is_named: set[str] = set()
    has_setter = not _SETTERS.isdisjoint(code.co_names)
    own = _objects_of(code)
    before: dis.Instruction | None = None
    for one in _instructions(code):
        is_of_object = before is not None and _loads(before) in own
        if one.opname == "STORE_ATTR" and is_of_object:
            is_set.add(one.argval)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD") and is_of_object:
            is_named.add(one.argval)
        elif has_setter and one.opname == "LOAD_CONST" and isinstance(one.argval, str):
            # object.__setattr__(self, "name", value), or of super()
            is_set.update({one.argval} if is_of_object or _names_setter(before) else ())
        before = one
    return is_set, is_named


def _objects_of(code: types.CodeType) -> set[str]:
    """What the object is called: ``self``; in ``__new__`` all that is not an argument may be it."""
    if code.co_name == "__new__":
        return {*code.co_varnames[code.co_argcount + code.co_kwonlyargcount :], *code.co_cellvars}
    return set(code.co_varnames[:1])


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    return (one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG")


def _names_setter(one: dis.Instruction | None) -> bool:
    return one is not None and one.argval in _SETTERS


def _loads(one: dis.Instruction) -> str | None:
    """The variable whose value an instruction leaves on top; from Python 3.13 on some load two."""
    if "LOAD_FAST" not in one.opname and one.opname != "LOAD_DEREF":
        return None
    return one.argval[-1] if isinstance(one.argval, tuple) else one.argval
