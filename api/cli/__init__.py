"""The command `headrace`: `main` has the words, and a module for each group of commands beside it.

The commands of SQL have a room, `sql`.

May import: all of `headrace`; actors in `main` and `cluster`, inside functions. Start reading at `main`.
"""

from .main import main

__all__ = ["main"]
