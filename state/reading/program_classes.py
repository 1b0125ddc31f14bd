"""The classes of a program, by the names that stored state has them under.

State of an object is a pickle, and that names the object's class or brings its definition along. In another run of the
program, maybe of a changed one, the class that is meant is the program's own of that name: an object of any other class
is equal to none of the program's, so keys would not be found. A job therefore says which classes it consists of, and
what restores its state reads within `ProgramClasses.in_use`.

A class is the same in another run if its *shape* is: the fields of a dataclass or named tuple in their order, the names
and values of an enum's members (new ones may have come), the attributes that the code of another class sets
(`headrace.state.reading.own_attributes`). Of classes that are none of these only the name is known.

A class is called by its full name, ``Shop.Order`` or ``program.<locals>.Order``, in all processes. Before, pickles
left out all but the last part, so checkpoints may have that alone; and a class may have moved. It is therefore looked
for by its last part, too.

Several classes may share a module and a name (two that one function has made). Within a run cloudpickle tells them
apart by the ids that it gives them; in another run nobody can.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from cloudpickle import cloudpickle

from .own_attributes import LIBRARIES, attributes_of

__all__ = [
    "ProgramClasses",
    "Shape",
    "class_by_name",
    "class_id",
    "classes_in_use",
    "is_same_shape",
    "own_classes_in",
    "shape_of",
    "shape_of_attributes",
    "shape_of_members",
    "shape_text",
]

Shape = Any
"""JSON: ``["fields", [...]]``, of a named tuple ``["tuple", [...]]``, of an enum ``["members", {name: value}, type]``,
where the type is the one that its members also are, as ``int``; of other classes ``["attributes", [...]]``; None where
nothing is known."""

_IN_USE: ContextVar[ProgramClasses | None] = ContextVar("classes of the program", default=None)

_PLAIN_MEMBERS = (int, str, bytes, float, tuple, type(None))


def class_id(definition: type) -> str | None:
    """Return what cloudpickle knows a class by that goes by value, the same in all processes of a run; None for
    others.
    """
    known: str | None = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(definition)
    return known


class ProgramClasses:
    """The classes of one job that its processes get by value; read when the first one is asked for.

    Args:
        load: Gives them.
    """

    def __init__(self, load: Callable[[], Iterable[type]]) -> None:
        self._load = load
        self._by_name: dict[tuple[str, str], list[type]] | None = None

    def find(self, module: str, name: str) -> type | None:
        """Return the class of that full name, else the one whose name has the same last part; None if there are
        several.
        """
        found = self.all_of(module, name)
        if len(found) > 1 and "." in name:
            found = [one for one in found if one.__qualname__ == name]
        return found[0] if len(found) == 1 else None

    def all_of(self, module: str, name: str) -> Sequence[type]:
        """Return all classes whose name has the same last part."""
        if self._by_name is None:
            self._by_name = {}
            for each in _without_forerunners(dict.fromkeys(self._load())):
                self._by_name.setdefault((each.__module__, each.__name__), []).append(each)
        return self._by_name.get((module, name.rpartition(".")[2]), ())

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Have state that is read meanwhile, by this thread, consist of these classes."""
        before = _IN_USE.set(self)
        try:
            yield
        finally:
            _IN_USE.reset(before)


def _without_forerunners(classes: Iterable[type]) -> list[type]:
    """Classes without those that ``dataclass(slots=True)`` has made others of: only these have objects.

    The first one is known to the methods of the other, and so goes with it.
    """
    remade = {id(fields) for one in classes if "__slots__" in vars(one) and (fields := _fields_of(one)) is not None}
    return [one for one in classes if "__slots__" in vars(one) or id(_fields_of(one)) not in remade]


def _fields_of(definition: type) -> Any:
    return vars(definition).get("__dataclass_fields__")


def classes_in_use() -> ProgramClasses | None:
    """Return those of the job whose state is being read; None if nobody has said."""
    return _IN_USE.get()


def class_by_name(module: str, name: str) -> type | None:
    """Return the program's class of that name: its own one, else that of a module; None if there is neither."""
    classes = _IN_USE.get()
    found: Any = None if classes is None else classes.find(module, name)
    if found is None:
        try:
            found = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except Exception:
            return None
    return found if isinstance(found, type) else None


def shape_of(definition: type) -> Shape:
    """Return what must be the same for objects of two classes to be compared; fields may be inherited."""
    if issubclass(definition, enum.Enum):
        return shape_of_members({member.name: member.value for member in definition}, (definition,))
    shapes = (shape_of_attributes(vars(base)) for base in definition.__mro__)
    declared = next((shape for shape in shapes if shape is not None), None)
    if declared is not None:
        return declared
    attributes = attributes_of(definition)
    return None if attributes is None else ["attributes", attributes]


def shape_of_members(members: Mapping[str, Any], bases: Iterable[type]) -> Shape:
    """Return the shape of an enum, by its members and what it is derived from."""
    values = {n: repr(v) if isinstance(v, _PLAIN_MEMBERS) else "" for n, v in members.items()}
    types = [getattr(base, "_member_type_", object).__name__ for base in bases if issubclass(base, enum.Enum)]
    return ["members", values, types[-1]]


def shape_of_attributes(attributes: Mapping[str, Any]) -> Shape:
    """Return the shape of a class that is no enum, by what stands in it; None where that does not declare any."""
    fields = attributes.get("__dataclass_fields__")
    if isinstance(fields, dict):
        return ["fields", list(fields)]
    names = attributes.get("_fields")
    return ["tuple", list(names)] if isinstance(names, tuple) and "_make" in attributes else None


def is_same_shape(stored: Shape, own: Shape) -> bool:
    """Return whether objects of the class that was stored are such of the program's own."""
    if not stored and own and own[0] == "attributes":
        return True  # earlier versions did not note them
    if not stored or not own or stored[0] != own[0] or stored[0] != "members":
        return bool(stored == own)
    return bool(stored[1].items() <= own[1].items() and stored[2:] == own[2:])


def shape_text(shape: Shape) -> str:
    """Return a shape for people."""
    if not shape:
        return "nothing that is known of it"
    if shape[0] == "members":
        kind = "" if shape[2] == "object" else f" of type {shape[2]}"
        return f"the members{kind} " + ", ".join(f"{n} = {v}" if v else n for n, v in shape[1].items())
    kind = "attributes" if shape[0] == "attributes" else "fields"
    return f"the {kind} " + (", ".join(shape[1]) or "()")


def own_classes_in(values: Iterable[Any]) -> set[type]:
    """Return the classes, but those of Python and of the libraries that state is made of, that values consist of.

    Looked into are containers, dataclasses and what other objects have as attributes.
    """
    found: set[type] = set()
    seen: set[int] = set()
    level, depth = list(values), 0
    while level:
        kinds = set(map(type, level))
        parts: list[Any] = []
        for kind in kinds - _LEAVES:
            some = level if len(kinds) == 1 else [value for value in level if type(value) is kind]
            if kind.__module__.partition(".")[0] not in LIBRARIES:
                found.add(kind)
            if depth > _FREE_LEVELS:  # a part may stand in many places, or contain itself
                some = [value for value in some if id(value) not in seen]
                seen.update(map(id, some))
            parts += _parts_of(kind, some)
        level, depth = parts, depth + 1
    return found


_FREE_LEVELS = 4
_LEAVES = frozenset((int, str, bytes, float, bool, type(None)))


def _parts_of(kind: type, values: Iterable[Any]) -> Iterator[Any]:
    if issubclass(kind, (tuple, list, set, frozenset)):
        for value in values:
            yield from value
    elif issubclass(kind, dict):
        for value in values:
            yield from value
            yield from value.values()
    elif issubclass(kind, (enum.Enum, type)):
        return
    elif dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        for value in values:
            yield from (getattr(value, name, None) for name in names)
    elif kind.__module__.partition(".")[0] not in LIBRARIES:
        for value in values:
            yield from getattr(value, "__dict__", {}).values()
