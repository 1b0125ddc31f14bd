"""What a user's object may want beside being called, and who must give it or say no.

A function may have ``open`` and ``close`` (with the runtime context), state of its subtask (`CheckpointedFunction`) and
a wish to hear of checkpoints (`CheckpointListener`). Wherever a program may hand over an object, one of two things is
true, so that nothing it wants is passed over in silence:

* The object is *driven*: an operator holds it as a `UserFunction` (or as a reader or writer, by
  `headrace.engine.functions.checkpointed.attach`), which gives it all of that. An object of ours around one of the
  user's is a `FunctionWrapper`, or another `Wrapper` around a reader or writer: what it wraps is driven as if it stood
  there itself.
* The object is only *called*: a key selector, a partitioner, a trigger. Then `refuse_life` says so when the graph is
  built.
"""

from __future__ import annotations

import functools
from typing import Any

from ..errors import ProgramError
from .checkpointed import CheckpointedFunction, CheckpointListener, refuse_halves
from .contract import Function

__all__ = ["refuse_life"]


def refuse_life(thing: Any, what: str, hint: str | None = None) -> None:
    """See that an object which will only be called wants nothing more.

    Args:
        thing: The user's.
        what: What it is for, for the error.
        hint: What to do instead.

    Raises:
        ProgramError: If it has state or half of what that takes, hears of checkpoints or is a function object that
            wants to be opened or closed.
    """
    if isinstance(thing, functools.partial):
        thing = thing.func
    thing = getattr(thing, "__self__", thing)
    refuse_halves(thing)
    wanted = ""
    if isinstance(thing, CheckpointedFunction):
        wanted = "snapshot_state"
    elif isinstance(thing, CheckpointListener):
        wanted = "notify_checkpoint_complete"
    elif isinstance(thing, Function):
        for name in ("open", "close"):
            if getattr(type(thing), name) is not getattr(Function, name):
                wanted = name
    if wanted:
        message = f"{what} is only called, so {type(thing).__name__}.{wanted} would never be"
        raise ProgramError(message, hint=hint or "do it in a function that has a life, such as a ProcessFunction")
