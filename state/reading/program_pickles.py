"""Pickles of a user's program: code keeps the name of its file, and a class is filled once in each process.

cloudpickle writes functions and classes of the main program by value. A function is made anew by each reading, with the
globals that it uses. A class exists once per process; but a reading that finds it there already would fill it again
with what it was when it was written: its attributes are replaced, and its methods get globals of their own. On the
local system, and wherever a program is read by the process that wrote it, those are the user's own classes; elsewhere
they are those of tasks that run. So whatever may hold classes of a program is read here.

Since 3.1.3 cloudpickle writes no names of files: tracebacks would say ``<dynamic-code>`` and show no line of the
program. So whatever may hold functions of a program is written here.

Source: cloudpickle's class tracker, its ``_class_setstate`` and ``_code_reduce``.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import pickle
import re
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cloudpickle import cloudpickle

from .program_classes import (
    ProgramClasses,
    Shape,
    classes_in_use,
    is_same_shape,
    own_classes_in,
    shape_of,
    shape_of_attributes,
    shape_of_members,
)

__all__ = ["FOLDER_VARIABLE", "dump_program", "dump_program_classes", "load_program", "load_state"]

FOLDER_VARIABLE = "HEADRACE_PROGRAM_FOLDER"
"""Names the folder of a program whose modules are where it was submitted and nowhere else: they travel by value."""

FILLING = ("cloudpickle.cloudpickle", "_class_setstate")
"""The function by which cloudpickle fills a class; without its name a pickle defines none."""

DEFINES_A_CLASS = re.compile(re.escape(FILLING[1].encode()))


MAKING = {"_make_skeleton_class": 4, "_make_skeleton_enum": 5}
"""The functions by which cloudpickle begins a class, or finds it; and which argument is the id that it is known by."""

CLASS_NAMESPACE, ENUM_QUALNAME, ENUM_MODULE = 3, 2, 4
"""Places of arguments of these functions: with what a class begins; what an enum is called, and in which module."""

FILE_NAME = 10
"""The place of the file's name among the arguments that CPython builds a code object of."""


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    if make is types.CodeType:
        # A text of its own, as cloudpickle makes them: equal programs have equal pickles.
        arguments = (*arguments[:FILE_NAME], "".join(code.co_filename), *arguments[FILE_NAME + 1 :])
    return make, arguments


class _Writer(cloudpickle.Pickler):
    dispatch_table = ChainMap({types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)

    def reducer_override(self, obj: Any) -> Any:
        """Of a class cloudpickle leaves out where it was defined: part of its name, by which keys are hashed."""
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and reduced[0] is cloudpickle._make_skeleton_class:
            namespace = reduced[1][CLASS_NAMESPACE]
            namespace["__qualname__"] = "".join(obj.__qualname__)
        return reduced


class _Gatherer(_Writer):
    """Remembers which classes it writes by value."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.classes: list[type] = []

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and getattr(reduced[0], "__name__", "") in MAKING:
            self.classes.append(obj)
        return reduced


class _Reader(pickle.Unpickler):
    def __init__(self, data: Any, buffers: Iterable[Any]) -> None:
        super().__init__(data, buffers=buffers)
        # Classes that this reading has begun.
        self._begun: set[type] = set()

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if (module, name) == FILLING:
            return functools.partial(self._fill_once, found)
        if module == FILLING[0] and name in MAKING:
            return functools.partial(self._make, found, MAKING[name])
        return found

    def _make(self, make: Callable[..., type], place: int, *arguments: Any) -> type:
        is_known = arguments[place] in cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
        definition = make(*arguments)
        if not is_known:
            self._begun.add(definition)
        return definition

    def _fill_once(
        self, fill: Callable[[type, Any], type], definition: type, content: tuple[dict[str, Any], Any]
    ) -> type:
        # One that another reading has begun, and not filled, has next to nothing of its own.
        is_whole = definition not in self._begun and content[0].keys() <= vars(definition).keys()
        if not is_whole:
            return fill(definition, content)
        # An abstract class does not hold those registered with it: they may be gone and have been made anew.
        for registered in content[0].get("_abc_impl", ()):
            definition.register(registered)  # type: ignore[attr-defined]
        return definition


class _StateReader(_Reader):
    """Takes the program's own classes where the state's are defined or named."""

    def __init__(self, data: Any, classes: ProgramClasses) -> None:
        super().__init__(data, ())
        self._classes = classes
        # Classes that were taken for what the state defines, with the shape that is known of that already.
        self._taken: dict[type, Shape] = {}
        # Those of another shape than what the state defines.
        self.misfits: set[type] = set()

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__":
            own = self._classes.find(module, name)
            if own is not None:
                return own
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            own = self._classes.find(module, name)
            if own is None:
                raise
            return own

    def _make(self, make: Callable[..., type], place: int, *arguments: Any) -> type:
        is_enum = make.__name__ == "_make_skeleton_enum"
        if is_enum:
            module, name = arguments[ENUM_MODULE], arguments[ENUM_QUALNAME]
        else:  # earlier versions have left its full name out
            begun = arguments[CLASS_NAMESPACE]
            module, name = begun.get("__module__", ""), begun.get("__qualname__", arguments[1])
        own = self._classes.find(module, name)
        if own is None:
            return super()._make(make, place, *arguments)
        self._taken[own] = shape_of_members(arguments[3], arguments[0]) if is_enum else None
        return own

    def _fill_once(
        self, fill: Callable[[type, Any], type], definition: type, content: tuple[dict[str, Any], Any]
    ) -> type:
        if definition not in self._taken:
            return super()._fill_once(fill, definition, content)
        members = self._taken[definition]
        stored = members or shape_of_attributes(content[0])
        own = (
            shape_of(definition) if members else shape_of_attributes(vars(definition))
        )  # bases have pickles of their own
        if not is_same_shape(stored, own):
            self.misfits.add(definition)
        return definition


def _register_own_modules() -> None:
    """Have functions and classes of modules in the program's own folder written by value, as those of ``__main__``.

    Those of a script are named by its content; cells of a notebook may define a class again, and are left alone.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    if main is not None and script and not folder and "IPython" not in sys.modules:
        digest = _digest_of_script(script)
        if digest:
            _name_classes(main, digest)
    if not folder:
        return
    known = cloudpickle.list_registry_pickle_by_value()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and file.startswith(folder.rstrip(os.sep) + os.sep):
            if name != "__main__" and name not in known:
                cloudpickle.register_pickle_by_value(module)
            _name_classes(module, _digest(folder))


def _name_classes(module: types.ModuleType, digest: str) -> None:
    """Give the classes of a module ids that every run of the same program gives them.

    cloudpickle makes up an id for a class that it writes by value, and a process has one class of an id. By one that is
    made up in each run, keys of state from a savepoint would be of another class than those of records, and be equal to
    none of them.
    """
    for definition in list(vars(module).values()):
        if isinstance(definition, type) and definition.__module__ == module.__name__:
            name = f"{digest}:{definition.__module__}.{definition.__qualname__}"
            is_known = name in cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID  # another one that was called so before
            if not is_known and definition not in cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS:
                cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[definition] = name
                cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[name] = definition


@functools.cache
def _digest_of_script(file: str) -> str:
    """Of a program's one file, as it is when it first writes something; empty if it cannot be read."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""


@functools.cache
def _digest(folder: str) -> str:
    """Of all Python files of a program; as they are when it first writes something."""
    digest = hashlib.sha256()
    for file in sorted(Path(folder).rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder).as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()


def dump_program(
    value: Any, protocol: int | None = None, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None
) -> bytes:
    """Pickle what may hold functions and classes of a user's main program.

    Args:
        value: What is written.
        protocol: Pickle's; None for its latest.
        buffer_callback: Takes the out-of-band buffers, with protocol 5.

    Raises:
        BaseException: Whatever an object raises that cannot be pickled.
    """
    _register_own_modules()
    with io.BytesIO() as stream:
        _Writer(stream, protocol=protocol, buffer_callback=buffer_callback).dump(value)
        return stream.getvalue()


def load_program(data: Any, buffers: Iterable[Any] = ()) -> Any:
    """Read a pickle that may hold functions and classes of a user's main program. Runs whatever its writer wants.

    Args:
        data: The pickle: bytes, or something that has them.
        buffers: Its out-of-band buffers.

    Raises:
        BaseException: Whatever an object raises that cannot be built.
    """
    if DEFINES_A_CLASS.search(data) is None:  # nearly all; and large ones are not copied
        return pickle.loads(data, buffers=buffers)
    return _Reader(io.BytesIO(data), buffers).load()


def dump_program_classes(parts: Iterable[Any]) -> tuple[list[bytes], list[type], bytes]:
    """Pickle the parts of a program, and the classes that go with them by value.

    Returns:
        The pickle of each part; the classes; and their pickle, which `ProgramClasses` are read from elsewhere.

    Raises:
        BaseException: Whatever an object raises that cannot be pickled.
    """
    _register_own_modules()
    pickles, classes = [], []
    for part in parts:
        with io.BytesIO() as stream:
            writer = _Gatherer(stream)
            writer.dump(part)
            pickles.append(stream.getvalue())
            classes += writer.classes
    classes = list(dict.fromkeys(classes))
    return pickles, classes, dump_program(classes)


def load_state(data: bytes) -> Any:
    """Read a pickle of state. Runs whatever its writer wants.

    Within `ProgramClasses.in_use` it consists of the program's own classes where they are of the same shape as those
    that it was written with; else of these, whose objects are equal to none of the program's.

    Raises:
        BaseException: Whatever an object raises that cannot be built.
    """
    classes = classes_in_use()
    if classes is None:
        return load_program(data)
    try:
        if DEFINES_A_CLASS.search(data) is None and b"__main__" not in data:  # nearly all
            return pickle.loads(data)
    except (ImportError, AttributeError):
        pass  # a class that the program brings by value
    reader = _StateReader(io.BytesIO(data), classes)
    value = reader.load()
    if reader.misfits:
        bases = {base for kind in own_classes_in((value,)) for base in kind.__mro__}
        if not reader.misfits.isdisjoint(bases):
            return load_program(data)
    return value
