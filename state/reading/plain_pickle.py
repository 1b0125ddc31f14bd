"""Reads pickles as data: builds plain values, looks up no class, calls nothing that the pickle names.

Python's unpickler is a machine that its input drives: even with a list of harmless classes a crafted pickle can corrupt
memory (`numpy.dtype` has a state of its own), take 60 GiB (``bytearray(60 << 30)``, a memo of any size) or keep the
process busy for years. So this is another reader of the same format. It knows the opcodes that plain values consist
of, and a few recipes (`.pickle_recipes`). Everything is counted: opcodes, nesting, what the value weighs once parts
that it shares are counted wherever they stand, and the work of every step that may cost more than its opcode: a recipe
over a shared part copies it, a key that is a tuple is hashed and compared whole.

Source: Python's ``pickletools``, which describes the format; PEP 3154 (protocol 4), PEP 574 (protocol 5).
"""

from __future__ import annotations

import collections
import struct
import uuid
from collections.abc import Callable
from typing import Any

from .pickle_recipes import RECIPES, NotPlainError, Unfinished, numpy_type
from .read_limits import MAX_DEPTH
from .reading_costs import ReadingCosts

__all__ = ["NotPlainError", "read_plain_pickle"]

_FREE_WEIGHT = 1 << 16
_WEIGHT_PER_BYTE = 64
"""What a pickle may weigh: a unit per value and byte, shared parts wherever they stand."""

_MAX_NAME = 256


class _Mark:
    """The mark on the stack."""


_MARK = _Mark()


class _Name:
    """Something that the pickle names; only a recipe makes a value of it."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def read_plain_pickle(data: bytes, nested: Callable[[bytes], Any]) -> Any:
    """Build the plain value that a pickle holds.

    Args:
        data: The pickle.
        nested: What becomes of a pickle in it that was put there as such.

    Raises:
        NotPlainError: If it holds anything else, is damaged, or goes beyond the limits.
    """
    try:
        reader = _Reader(data, nested)
        value = reader.read()
        _weigh(value, reader.allowed)
        return value
    except NotPlainError:
        raise
    except _FAILURES as error:
        message = f"a pickle that is no plain value: {error!r:.200}"
        raise NotPlainError(message) from error


_FAILURES = (
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    OverflowError,
    ArithmeticError,
    AttributeError,
    struct.error,
    RecursionError,
    MemoryError,
)


def _weigh(value: Any, allowed: int) -> int:
    """What a value weighs, shared parts wherever they stand: no more than allowed, and not nested too deep."""
    level, weight = [value], 0
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            kind = type(item)
            weight += 1
            if kind in (list, tuple, set, frozenset):
                weight += len(item)
                if weight <= allowed:
                    inner.extend(item)
            elif kind in (dict, collections.OrderedDict):
                weight += 2 * len(item)
                if weight <= allowed:
                    inner.extend(item)
                    inner.extend(item.values())
            elif kind in (str, bytes, bytearray):
                weight += len(item)
            elif kind is int:
                weight += item.bit_length() >> 3
            elif kind in (_Name, Unfinished, _Mark):
                message = "a pickle whose value was not finished"
                raise NotPlainError(message)
            if weight > allowed:
                message = f"a pickle whose value weighs more than {allowed:,}"
                raise NotPlainError(message)
        if not inner:
            return weight
        level = inner
    message = f"a pickle whose value is nested more than {MAX_DEPTH} deep"
    raise NotPlainError(message)


class _Reader:
    """The machine.

    Args:
        data: The pickle.
        nested: What becomes of a pickle in it.

    Attributes:
        allowed: What its value may weigh.
        costs: What its steps may cost.
    """

    def __init__(self, data: bytes, nested: Callable[[bytes], Any]) -> None:
        self._data = data
        self._nested = nested
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._nested_bytes = 0
        self.allowed = _FREE_WEIGHT + _WEIGHT_PER_BYTE * len(data)
        self.costs = ReadingCosts(len(data), self.allowed)

    def read(self) -> Any:
        data, stack = self._data, self._stack
        while True:
            code = data[self._at]
            self._at += 1
            if code == 0x2E:  # STOP
                if len(stack) != 1 or self._at != len(data):
                    message = f"a pickle ends at byte {self._at} of {len(data)}, with {len(stack)} values"
                    raise NotPlainError(message)
                return self._finished(stack[0])
            operation = _OPERATIONS.get(code)
            if operation is None:
                message = f"opcode {code:#x} at byte {self._at - 1} of a pickle"
                raise NotPlainError(message)
            operation(self)

    # ---------------------------------------------------------------------------------------------- bytes of the pickle
    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            message = f"{size} bytes are claimed at byte {self._at} of a pickle of {len(self._data)}"
            raise NotPlainError(message)
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> bytes:
        end = self._data.index(b"\n", self._at)
        line = self._data[self._at : end]
        self._at = end + 1
        return line

    # -------------------------------------------------------------------------------------------------------- the stack
    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            message = "a mark where a value must be"
            raise NotPlainError(message)
        return self._finished(value)

    def pop_raw(self) -> Any:
        return self._stack.pop()

    def pop_to_mark(self) -> list[Any]:
        stack = self._stack
        start = len(stack) - 1
        while stack[start] is not _MARK:
            start -= 1
            if start < 0:
                message = "a mark is missing"
                raise NotPlainError(message)
        values = [self._finished(value) for value in stack[start + 1 :]]
        del stack[start:]
        return values

    def top(self, *kinds: type) -> Any:
        value = self._stack[-1]
        if type(value) not in kinds:
            message = f"a {type(value).__name__} where another value must be"
            raise NotPlainError(message)
        return value

    @staticmethod
    def _finished(value: Any) -> Any:
        if type(value) is not Unfinished:
            return value
        if not value.is_done:
            message = f"a {value.kind} that was not finished"
            raise NotPlainError(message)
        return value if value.kind == "dtype" else value.value

    # --------------------------------------------------------------------------------------------------------- the memo
    def memoize(self, number: int) -> None:
        value = self._stack[-1]
        if number > len(self._data) or value is _MARK:
            message = f"slot {number} of the memo of a pickle of {len(self._data)} bytes"
            raise NotPlainError(message)
        self._memo[number] = value
        if type(value) is Unfinished:
            value.slots.append(number)

    def check_frame(self, size: int) -> None:
        if size > len(self._data) - self._at:
            message = f"a frame of {size} bytes at byte {self._at} of a pickle of {len(self._data)}"
            raise NotPlainError(message)

    def memoize_next(self) -> None:
        self.memoize(len(self._memo))

    def recall(self, number: int) -> None:
        self._stack.append(self._memo[number])

    # ---------------------------------------------------------------------------------------------------------- values
    def push_frozen(self, value: Any) -> None:
        """Push a tuple or a frozen set, whose hash takes as long as it weighs."""
        self.costs.know(value, self.costs.weight_of_parts(value))
        self._stack.append(value)

    def set_items(self, pairs: list[Any]) -> None:
        target = self.top(dict, collections.OrderedDict)
        if len(pairs) % 2:
            message = "a key without a value"
            raise NotPlainError(message)
        keys = pairs[::2]
        self.costs.check_keys(keys, target)
        target.update(zip(keys, pairs[1::2], strict=True))

    # --------------------------------------------------------------------------------------------------------- recipes
    def push_name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            message = "a name that is no text"
            raise NotPlainError(message)
        if len(module) + len(name) > _MAX_NAME:
            message = f"a name of {len(module) + len(name)} characters"
            raise NotPlainError(message)
        self._stack.append(_Name(f"{module}.{name}"))

    def reduce(self) -> None:
        arguments, name = self.pop_raw(), self.pop_raw()
        if type(name) is not _Name or type(arguments) is not tuple:
            message = "a call of something that has no name"
            raise NotPlainError(message)
        recipe = RECIPES.get(name.text)
        if recipe is None:
            message = f"{name.text:.80} is not plain"
            raise NotPlainError(message)
        self.costs.spend(len(arguments) + sum(len(part) for part in arguments if type(part) in (str, bytes, list)))
        value = recipe(self, *arguments)
        if type(value) in (tuple, frozenset):
            weight = _weigh(value, self.allowed)
            self.costs.spend(weight)
            self.costs.know(value, weight)
        self._stack.append(value)

    def open(self, data: bytes) -> Any:
        """Open a pickle in this one."""
        self._nested_bytes += len(data)
        if self._nested_bytes > len(self._data):
            message = "a pickle that opens the same one again and again"
            raise NotPlainError(message)
        return self._nested(data)

    def new(self) -> None:
        """NEWOBJ: a UUID is made so, and built afterwards."""
        arguments, name = self.pop_raw(), self.pop_raw()
        if type(name) is not _Name or name.text != "uuid.UUID" or arguments != ():
            message = "an object of a class that is not plain"
            raise NotPlainError(message)
        self._stack.append(Unfinished("UUID"))

    def build(self) -> None:
        """BUILD: the second step of a UUID or of a type of numpy, by recipe."""
        state, target = self.pop(), self._stack[-1]
        if type(target) is not Unfinished or target.is_done:
            message = "an object with a state of its own"
            raise NotPlainError(message)
        if target.kind == "UUID":
            if type(state) is not dict or not set(state) <= {"int", "is_safe"} or type(state.get("int")) is not int:
                message = "a UUID with a state that is none"
                raise NotPlainError(message)
            target.value = uuid.UUID(int=state["int"])
        else:
            target.value = numpy_type(target.value, state)
        target.is_done = True
        if target.kind == "UUID":
            self._stack[-1] = target.value
            for number in target.slots:
                self._memo[number] = target.value


def _tuple_of(size: int) -> Callable[[_Reader], None]:
    def operation(reader: _Reader) -> None:
        values = [reader.pop() for _ in range(size)]
        reader.push_frozen(tuple(reversed(values)))

    return operation


def _constant(value: Any) -> Callable[[_Reader], None]:
    return lambda reader: reader.push(value)


def _fresh(kind: type) -> Callable[[_Reader], None]:
    return lambda reader: reader.push(kind())


def _text(size: int) -> Callable[[_Reader], None]:
    return lambda reader: reader.push(reader.take(reader.number(size)).decode("utf-8", "surrogatepass"))


def _bytes(size: int) -> Callable[[_Reader], None]:
    return lambda reader: reader.push(reader.take(reader.number(size)))


def _integer(size: int) -> Callable[[_Reader], None]:
    return lambda reader: reader.push(int.from_bytes(reader.take(reader.number(size)), "little", signed=True))


def _protocol(reader: _Reader) -> None:
    version = reader.number(1)
    if version > 5:
        message = f"a pickle of protocol {version}"
        raise NotPlainError(message)


def _append(reader: _Reader) -> None:
    value = reader.pop()
    reader.top(list).append(value)


def _appends(reader: _Reader) -> None:
    values = reader.pop_to_mark()
    reader.top(list).extend(values)


def _set_item(reader: _Reader) -> None:
    value, key = reader.pop(), reader.pop()
    reader.set_items([key, value])


def _set_items(reader: _Reader) -> None:
    pairs = reader.pop_to_mark()
    reader.set_items(pairs)


def _add_items(reader: _Reader) -> None:
    items = reader.pop_to_mark()
    target = reader.top(set)
    reader.costs.check_keys(items, target)
    target.update(items)


def _freeze(reader: _Reader) -> None:
    items = reader.pop_to_mark()
    reader.costs.check_keys(items)
    reader.push_frozen(frozenset(items))


def _stack_global(reader: _Reader) -> None:
    name, module = reader.pop(), reader.pop()
    reader.push_name(module, name)


def _global(reader: _Reader) -> None:
    module, name = reader.line(), reader.line()
    reader.push_name(module.decode("ascii"), name.decode("ascii"))


_OPERATIONS: dict[int, Callable[[_Reader], None]] = {
    ord("("): _constant(_MARK),
    ord(")"): _constant(()),
    ord("N"): _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    ord("]"): _fresh(list),
    ord("}"): _fresh(dict),
    0x8F: _fresh(set),
    ord("K"): lambda reader: reader.push(reader.number(1)),
    ord("M"): lambda reader: reader.push(reader.number(2)),
    ord("J"): lambda reader: reader.push(int.from_bytes(reader.take(4), "little", signed=True)),
    0x8A: _integer(1),
    0x8B: _integer(4),
    ord("G"): lambda reader: reader.push(struct.unpack(">d", reader.take(8))[0]),
    0x8C: _text(1),
    ord("X"): _text(4),
    0x8D: _text(8),
    ord("C"): _bytes(1),
    ord("B"): _bytes(4),
    0x8E: _bytes(8),
    0x96: lambda reader: reader.push(bytearray(reader.take(reader.number(8)))),
    0x80: _protocol,
    0x95: lambda reader: reader.check_frame(reader.number(8)),
    0x94: lambda reader: reader.memoize_next(),
    ord("q"): lambda reader: reader.memoize(reader.number(1)),
    ord("r"): lambda reader: reader.memoize(reader.number(4)),
    ord("h"): lambda reader: reader.recall(reader.number(1)),
    ord("j"): lambda reader: reader.recall(reader.number(4)),
    ord("t"): lambda reader: reader.push_frozen(tuple(reader.pop_to_mark())),
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _set_item,
    ord("u"): _set_items,
    0x90: _add_items,
    0x91: _freeze,
    0x93: _stack_global,
    ord("c"): _global,
    ord("R"): lambda reader: reader.reduce(),
    0x81: lambda reader: reader.new(),
    ord("b"): lambda reader: reader.build(),
}
"""The opcodes that plain values are written with, by protocols 3 to 5."""
