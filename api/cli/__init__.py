"""The command ``headrace``. Start reading at `main`."""

from .main import main

__all__ = ["main"]
