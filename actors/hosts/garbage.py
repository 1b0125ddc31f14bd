"""How often a host's process looks for garbage: objects that hold each other in a circle, which no count frees.

Python looks at all young objects whenever 700 more containers have been made than freed. Records are containers that
are freed by their counts, so it looks at each of a batch for nothing. On the row path that takes a tenth to a quarter
of a host's processor time. Here the threshold follows what is found:

* As long as next to nothing is found it doubles, `MOST_DOUBLINGS` times at most.
* Where much is found it is halved as often as that is too much, down to Python's own. So no more garbage waits than
  Python would let gather by itself, but for what is made between two looks where there was none before.
* A look comes each `LOOK_MS` in any case, also within a turn that is long: functions that begin to leave garbage behind
  are noticed then. It is one collection by Python's own threshold and rules, by which older objects are looked at, too.

Thresholds that somebody else has set, such as a user's function, stay as they are from then on.

Guarantees: only how often Python looks is changed, never what it finds.

Source: CPython's ``Modules/gcmodule.c``; the module ``gc``.
"""

from __future__ import annotations

import contextlib
import gc

__all__ = ["LOOK_MS", "SparingCollector"]

MOST_DOUBLINGS = 8
"""From 700 to 179,200: somewhat more than what a step makes of a batch of the largest size, with what waits in
channels. All thresholds set here are Python's own, doubled so often: any other one is somebody else's.
"""

MUCH_GARBAGE = 100
"""Objects that a collection may find before the next one comes earlier."""

LOOK_MS = 1_000
"""Time between two looks."""


class SparingCollector:
    """Sets Python's thresholds for this process, from `start` to `stop`. There is one in a process."""

    def __init__(self) -> None:
        # Python's own thresholds of the three generations.
        self._own = gc.get_threshold()
        # That of the youngest is to be doubled so often, outside of looks.
        self._num_doublings = 0
        # When it looked last, in milliseconds of its owner's clock; None before the first time.
        self._looked_ms: int | None = None

    def start(self) -> None:
        """Begin; does nothing where Python does not look at all."""
        if gc.isenabled() and self._own[0]:
            gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Give Python its own thresholds back, unless somebody else has set some."""
        self.look()
        self._give_up()

    def turn(self, now_ms: int) -> None:
        """Look, if it is time to; called once in each turn of the host."""
        if self._looked_ms is None:
            self._looked_ms = now_ms
        elif now_ms - self._looked_ms >= LOOK_MS:
            self._looked_ms = now_ms
            self.look()

    def look(self) -> None:
        """Have Python collect as soon as its own threshold is reached; from any thread."""
        self._apply(0)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Choose the next threshold by what a collection has found; called by Python, in any thread."""
        if phase != "stop":
            return
        found, num_doublings = info["collected"] + info["uncollectable"], self._num_doublings
        if found <= MUCH_GARBAGE:
            num_doublings += 1
        while found > MUCH_GARBAGE:
            found, num_doublings = found // 2, num_doublings - 1
        self._num_doublings = min(max(num_doublings, 0), MOST_DOUBLINGS)
        self._apply(self._num_doublings)

    def _apply(self, num_doublings: int) -> None:
        if self._on_collection not in gc.callbacks:
            return
        own, *older = self._own
        found, *found_older = gc.get_threshold()
        is_ours = found_older == older and any(found == own << times for times in range(MOST_DOUBLINGS + 1))
        if is_ours:
            gc.set_threshold(own << num_doublings, *older)
        else:
            self._give_up()

    def _give_up(self) -> None:
        with contextlib.suppress(ValueError):  # it has not begun
            gc.callbacks.remove(self._on_collection)
