"""A program that is only to be shown: where it would run a job, it ends instead."""

from __future__ import annotations

import os

__all__ = ["INFO_VARIABLE", "ProgramShown", "is_only_shown"]

INFO_VARIABLE = "HEADRACE_INFO"
"""Environment variable: 1 has programs end where they would run their first job."""


class ProgramShown(SystemExit):
    """Ends a program in the place of its first job.

    Args:
        text: The job for people.
        plan: The job as JSON.
    """

    def __init__(self, text: str, plan: str) -> None:
        super().__init__(0)
        self.text = text
        self.plan = plan


def is_only_shown() -> bool:
    """Return whether programs of this process are only to be shown."""
    return os.environ.get(INFO_VARIABLE) == "1"
