"""Reading what cloudpickle wrote of a user's program: a class is filled once in each process, and never again.

cloudpickle writes functions and classes of the main program by value. A function is made anew by each reading, with the
globals that it uses. Of a class there is one per process; but a reading that finds it there already would fill it again
with what it was when it was written: its attributes are replaced, and its methods get globals of their own. On the
local system, and wherever a program is read by the process that wrote it, those are the user's own classes; elsewhere
they are those of tasks that run. So whatever may hold classes of a program is read here.

Source: cloudpickle's class tracker and its ``_class_setstate``.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["load_program"]

FILLING = ("cloudpickle.cloudpickle", "_class_setstate")
"""The function by which cloudpickle fills a class; without its name a pickle defines none."""

DEFINES_A_CLASS = re.compile(re.escape(FILLING[1].encode()))


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return _filling_once(found) if (module, name) == FILLING else found


def _filling_once(fill: Callable[[type, Any], type]) -> Callable[[type, Any], type]:
    def fill_once(definition: type, content: tuple[dict[str, Any], Any]) -> type:
        # One that was only begun, by cloudpickle's class tracker, has next to nothing of its own.
        return definition if content[0].keys() <= vars(definition).keys() else fill(definition, content)

    return fill_once


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
    return _Reader(io.BytesIO(data), buffers=buffers).load()
