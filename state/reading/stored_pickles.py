"""Pickles of state: the last resort for values of no plain type. Building one runs whatever its writer wants.

Only the slot that owns a state builds what is pickled in it, and code that asks for it by name (``allow_pickle=True``).
All others have `headrace.state.open.values.open_pickle`.
"""

from __future__ import annotations

import pickle
from typing import Any

from ..errors import CheckpointMismatchError, TypeMismatchError
from .program_pickles import dump_program, load_state

__all__ = ["pickle_value", "unpickle_value"]


def pickle_value(value: Any) -> bytes:
    """Pickle a value of state: by reference where that works; classes of a notebook or script go by value, as they came
    here.

    Raises:
        TypeMismatchError: If it cannot be pickled.
    """
    try:
        return pickle.dumps(value, protocol=4)
    except RecursionError as error:
        message = f"a value of type {type(value).__qualname__} cannot be stored in a checkpoint: it is nested too deep"
        raise TypeMismatchError(message, hint="keep references by name or number instead of objects") from error
    except (pickle.PicklingError, AttributeError, TypeError):
        try:
            return dump_program(value, protocol=4)
        except Exception as error:
            message = f"a value of type {type(value).__qualname__} cannot be stored in a checkpoint: {error!r}"
            raise TypeMismatchError(message, hint="state must hold values that can be pickled") from error


def unpickle_value(data: bytes) -> Any:
    """Return the value that `pickle_value` wrote.

    Raises:
        CheckpointMismatchError: If it cannot be built, e.g. because its class is gone.
    """
    try:
        return load_state(data)
    except Exception as error:
        message = f"a pickled value of the checkpoint cannot be built: {error!r}"
        raise CheckpointMismatchError(
            message, hint="keep the classes of stored values importable under their old names"
        ) from error
