"""Which windows a key has where windows merge, and under which namespace the content of each is.

Contents do not move whenever a session grows: a window keeps the namespace of the first of the windows that it was
merged from, its *state window*, and only the contents of the others are brought there. The map from windows to state
windows is keyed state of its own.

Invariant: the windows of a key are pairwise distinct, so are their state windows; a state window is the earliest of the
windows that have become its window.

Source: Flink's ``MergingWindowSet``. Where a new window equals an existing one, Flink makes it its own state window and
so loses what an older state window holds (possible with dynamic gaps); here the existing state window stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.state.keyed.contract import KeyedStateBackend
from headrace.state.keyed.kinds import StateDescriptor

from .assigners import MergingWindowAssigner
from .windows import Span, TimeWindow

__all__ = ["MergingWindows"]

OnMerge = Callable[[TimeWindow, list[TimeWindow], Span, list[Span]], None]
"""Told of a merge: the result, the windows that are no more, the result's state window, the others'."""


class _Merges:
    """The callback of ``merge_windows``: keeps what it is told."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: list[tuple[TimeWindow, list[TimeWindow]]] = []

    def merge(self, to_be_merged: Iterable[TimeWindow], merge_result: TimeWindow) -> None:
        self.groups.append((merge_result, sorted(set(to_be_merged))))


class MergingWindows:
    """The windows of every key.

    Args:
        keyed_state: Where they are kept.
        assigner: Says which merge.
    """

    def __init__(self, keyed_state: KeyedStateBackend, assigner: MergingWindowAssigner) -> None:
        # Key -> [(start, end, start of the state window, end of it)].
        self._windows = keyed_state.table(StateDescriptor("merging-windows")).namespace(None)
        self._merge_windows = assigner.merge_windows

    def add(self, key: Any, window: TimeWindow, on_merge: OnMerge) -> tuple[TimeWindow, Span]:
        """Add a record's window, which may make windows merge.

        Args:
            key: The key.
            window: The window of the record.
            on_merge: Called for each merge that changes what windows there are, before this returns.

        Returns:
            The window that the record is in now, and its state window.
        """
        known = self._windows.get(key)
        if known is None:
            self._windows[key] = [(*window, *window)]
            return window, window
        state_of = {TimeWindow(start, end): (first, last) for start, end, first, last in known}
        merges = _Merges()
        self._merge_windows([*state_of, window], merges)
        result = window
        for merged, group in merges.groups:
            if window in group:
                result = merged
            gone = [one for one in group if one in state_of]
            states = [state_of.pop(one) for one in gone]
            # A group of the new window and one that holds it all changes nothing but the map's order.
            state_of[merged] = states[0] if states else (merged.start, merged.end)
            if gone and gone != [merged]:
                on_merge(merged, [one for one in gone if one != merged], states[0], states[1:])
        state = state_of.setdefault(result, (result.start, result.end))
        entries = [(*one, *its_state) for one, its_state in state_of.items()]
        if entries != known:
            self._windows[key] = entries
        return result, state

    def state_of(self, key: Any, span: Span) -> Span | None:
        """Return the state window of a window; None if the key has no such window."""
        for start, end, first, last in self._windows.get(key, ()):
            if (start, end) == span:
                return first, last
        return None

    def retire(self, key: Any, span: Span) -> None:
        """Forget a window of a key, if it is there."""
        others = [entry for entry in self._windows.get(key, ()) if entry[:2] != span]
        if others:
            self._windows[key] = others
        else:
            self._windows.pop(key, None)
