"""What a checkpoint says of the classes that its keys are of, and whether the program still has them.

A key of an own class is found again if the program's class is the same one: of the same module and name, and of the
same shape (`headrace.state.reading.program_classes`). Otherwise it is equal to no key of the program, and its state
would lie there for ever while the key began anew; so the restore is refused. Named tuples are equal to any tuple of the
same values: of them only the fields must be the same, if the class is still there.

If the class is there under another full name, its keys are hashed anew and may go to other subtasks: a name is part of
the hash of a key.

A *note* is JSON: ``{"module": ..., "name": ..., "shape": ...}``; of a class that goes by value also ``"id"``, which
tells those of one name apart when a job goes on after a failure.

Source: Flink's ``TypeSerializerSchemaCompatibility`` of key serializers, which must not change at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import CheckpointMismatchError
from ..reading.program_classes import (
    Shape,
    class_by_name,
    class_id,
    classes_in_use,
    is_same_shape,
    own_classes_in,
    shape_of,
    shape_text,
)

__all__ = [
    "KEY_CLASSES",
    "check_key_classes",
    "check_noted_classes",
    "has_renamed_classes",
    "has_shared_names",
    "merged_notes",
    "notes_of",
    "renamed_notes",
]

KEY_CLASSES = "key_classes"
"""The fact of a state that holds its notes; absent where all keys are plain."""

Notes = list[dict[str, Any]]


def notes_of(classes: Iterable[type]) -> Notes:
    """Return the notes of some classes, in the order of their names."""
    notes = []
    for one in classes:
        note = {"module": one.__module__, "name": one.__qualname__, "shape": shape_of(one)}
        known = class_id(one)
        notes.append(note if known is None else {**note, "id": known})
    return sorted(notes, key=lambda note: (note["module"], note["name"], note.get("id", "")))


def merged_notes(*several: Notes | None) -> Notes:
    """Return notes of several parts of one state; of those about one name the later part's."""
    merged: dict[tuple[str, str], Notes] = {}
    for notes in several:
        part: dict[tuple[str, str], Notes] = {}
        for note in notes or ():
            part.setdefault((note["module"], note["name"]), []).append(note)
        merged |= part
    return [note for name in sorted(merged) for note in merged[name]]


def check_noted_classes(facts: Mapping[str, Any]) -> None:
    """See that the program has the classes of a state's keys, as the checkpoint notes them.

    Called where the program's classes are known (`headrace.state.reading.program_classes.ProgramClasses.in_use`);
    elsewhere it checks nothing.

    Raises:
        CheckpointMismatchError: If not.
        KeyError, TypeError: If the notes are none.
    """
    if classes_in_use() is None:
        return
    for note in facts.get(KEY_CLASSES) or ():
        module, name, shape = str(note["module"]), str(note["name"]), note["shape"]
        own = class_by_name(module, name)
        if own is None:
            if not _is_tuple(shape) and not _is_one_of_several(module, name, note.get("id")):
                raise _absent(module, name)
        elif not is_same_shape(shape, shape_of(own)):
            raise _changed(module, name, shape, own)


def has_shared_names(facts: Mapping[str, Any]) -> bool:
    """Return whether a state's keys are of classes whose names the program, as far as it is known, has several of."""
    classes, notes = classes_in_use(), facts.get(KEY_CLASSES) or ()
    return classes is not None and any(len(classes.all_of(note["module"], note["name"])) > 1 for note in notes)


def has_renamed_classes(facts: Mapping[str, Any]) -> bool:
    """Return whether a state's keys were hashed by other names of their classes than these have in the program.

    A class may have moved; and earlier versions called a nested one by the last part of its name alone, wherever it was
    made from a program's pickle. Such keys belong to other key groups now.
    """
    try:
        return any(one.__qualname__ != note["name"] for note, one in _own_classes_of(facts.get(KEY_CLASSES) or ()))
    except (KeyError, TypeError, AttributeError):
        return False  # they are no notes: what restores the state says so


def renamed_notes(notes: Iterable[dict[str, Any]]) -> Notes:
    """Return notes with the names that the classes have in the program."""
    notes = list(notes)
    names = {id(note): one.__qualname__ for note, one in _own_classes_of(notes)}
    return merged_notes([{**note, "name": names.get(id(note), note["name"])} for note in notes])


def _own_classes_of(notes: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], type]]:
    """The program's classes that notes are about, as far as names are part of hashes: tuples go by their values."""
    if classes_in_use() is None:
        return
    for note in notes:
        own = class_by_name(str(note["module"]), str(note["name"]))
        if own is not None and not issubclass(own, tuple):
            yield note, own


def check_key_classes(keys: Iterable[Any]) -> None:
    """See that keys that were restored are of the program's classes; as `check_noted_classes`.

    Raises:
        CheckpointMismatchError: If not.
    """
    if classes_in_use() is None:
        return
    for one in own_classes_in(keys):
        own = class_by_name(one.__module__, one.__qualname__)
        if own is one or issubclass(one, tuple):
            continue
        if own is None and _is_one_of_several(one.__module__, one.__qualname__, class_id(one)):
            continue
        if own is None:
            raise _absent(one.__module__, one.__qualname__)
        raise _changed(one.__module__, one.__qualname__, shape_of(one), own)


def _is_one_of_several(module: str, name: str, known: str | None) -> bool:
    """Whether a class is one of several of the program's that share a name; they are told apart within a run only."""
    classes = classes_in_use()
    if classes is None or known is None:
        return False
    return any(class_id(one) == known for one in classes.all_of(module, name))


def _is_tuple(shape: Shape) -> bool:
    return bool(shape) and shape[0] == "tuple"


_HINT = (
    "keep the class as it was while its keys live; or give the operator a new uid and start with "
    "allow_non_restored_state=True, which lets its state go"
)


def _absent(module: str, name: str) -> CheckpointMismatchError:
    message = f"keys of the checkpoint are of class {module}.{name}, which the program does not have"
    classes = classes_in_use()
    if classes is not None and len(classes.all_of(module, name)) > 1:
        message = f"keys of the checkpoint are of class {module}.{name}, and the program has several of that name"
    return CheckpointMismatchError(message, hint=_HINT)


def _changed(module: str, name: str, shape: Shape, own: type) -> CheckpointMismatchError:
    there, here = shape_text(shape), shape_text(shape_of(own))
    message = f"keys of the checkpoint are of class {module}.{name} with {there}; the program's class has {here}"
    return CheckpointMismatchError(message, hint=_HINT)
