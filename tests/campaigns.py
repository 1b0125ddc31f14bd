"""What a test does in every run, and what it leaves to campaigns.

A newcomer waits for ``pytest -n 2``, so a test of many seeds runs some of them there. The others carry the mark
``campaign``, which is deselected unless asked for: ``pytest -n 2 -m campaign``, as ``.ci/run`` does. Properties have
the Hypothesis profile ``campaign`` for more examples: ``--hypothesis-profile=campaign``.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

__all__ = ["PROFILE", "SHARE_OF_EXAMPLES", "blocks", "campaign", "examples"]

PROFILE = "campaign"
"""The Hypothesis profile in which properties see all of their examples."""

SHARE_OF_EXAMPLES = 4
"""One in so many is seen in every run."""


def campaign(*values: Any) -> Any:
    """One parameter set of a test, for campaigns only."""
    return pytest.param(*values, marks=pytest.mark.campaign)


def blocks(in_every_run: int, in_all: int) -> list[Any]:
    """Numbers of the blocks of seeds of a test: 0 to ``in_all - 1``, those from ``in_every_run`` on for campaigns."""
    return [*range(in_every_run), *(campaign(block) for block in range(in_every_run, in_all))]


def examples(number: int) -> int:
    """How many examples of a property to look for: all in the profile `PROFILE`, else one in `SHARE_OF_EXAMPLES`."""
    return number if settings.get_current_profile_name() == PROFILE else max(5, number // SHARE_OF_EXAMPLES)
