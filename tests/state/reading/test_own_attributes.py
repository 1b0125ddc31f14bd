"""What is known of the attributes of classes that declare none."""

from __future__ import annotations

import uuid
from typing import Generic, TypeVar

import pytest

from headrace.state.reading.own_attributes import attributes_of
from headrace.state.reading.program_classes import is_same_shape, shape_of

T = TypeVar("T")


class Plain(Generic[T]):
    kind = "a constant of the class"

    def __init__(self, number, place):
        self.number: int = number
        self.first = self.second = place
        other = Other()
        other.not_own = number
        (self.third, other.neither), self.__hidden = (1, 2), 3

    def later(self):
        self.cached = 1


class Other:
    pass


class Derived(Plain):
    __slots__ = "slot"

    def __init__(self, *args, code=0):
        super().__init__(*args)
        self._set_rest(code)
        if code:
            for self.counter in range(code):
                keep = lambda: self
                keep()

    def _set_rest(self, code):
        self._deeper()
        self.code = code

    def _deeper(self):
        self.depth = 1


class Immutable:
    def __new__(cls, number):
        made = object.__new__(cls)
        made.by_new = number
        object.__setattr__(made, "by_object", 1)
        return made

    def __init__(self, number):
        object.__setattr__(self, "by_setattr", number)
        super().__setattr__("by_super", number)
        setattr(self, "by_function", "a value")  # noqa: B010


class Text(str):
    def __init__(self, text):
        self.length = len(text)


class Id(uuid.UUID):
    pass


class Pickled:
    def __init__(self):
        self.number = 1

    def __getstate__(self):
        return 1


PLAIN = ["_Plain__hidden", "first", "number", "second", "third"]


@pytest.mark.parametrize(
    ("definition", "names"),
    [
        (Other, []),
        (Plain, PLAIN),
        (Derived, sorted([*PLAIN, "slot", "code", "counter", "depth"])),
        (Immutable, ["by_function", "by_new", "by_object", "by_setattr", "by_super"]),
    ],
)
def test_attributes_are_those_that_the_making_of_an_object_sets(definition, names):
    assert attributes_of(definition) == names


@pytest.mark.parametrize("definition", [Text, Id, Pickled])
def test_attributes_are_not_told_where_they_do_not_decide(definition):
    assert attributes_of(definition) is None


def test_many_names_are_all_found():
    lines = "\n".join(f"        self.name_{n} = {n}" for n in range(600))
    names = {"__name__": __name__}
    exec(f"class Large:\n    def __init__(self):\n{lines}", names)
    assert len(attributes_of(names["Large"])) == 600


def test_a_checkpoint_without_attributes_is_taken():
    assert is_same_shape(None, shape_of(Plain))
    assert not is_same_shape(shape_of(Plain), None)
    assert not is_same_shape(shape_of(Plain), shape_of(Derived))
