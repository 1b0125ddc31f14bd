"""The exception tree, re-exported where most of the engine looks for it; it is drawn in ``headrace.state.errors``."""

from __future__ import annotations

from headrace.state.errors import *  # noqa: F403
from headrace.state.errors import __all__ as __all__
