"""How the tests of a run are dealt out to its processes: as pytest-xdist does it, in less time.

What `LoadGroupScheduling` does when a test has ended grows with the number of those that this process has had before.
One process has most of the tests of a run of all, as others wait for Ray and Spark; with nine thousand tests that is
some seconds of a core, which the tests want themselves. So work that is done is forgotten, and where a test stands is
looked up.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from xdist.scheduler import LoadGroupScheduling

__all__ = ["Dealing"]


class Dealing(LoadGroupScheduling):
    """Deals the same tests to the same processes, in the same order."""

    @cached_property
    def _places(self) -> dict[str, int]:
        """By its name, the place of a test among all that were collected; each process has the same ones."""
        return {name: place for place, name in enumerate(self.collection or ())}

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Note that a test has ended, and deal out another unit of work if its process has little left."""
        name = self.registered_collections[node][item_index]
        units, scope = self.assigned_work[node], self._split_scope(name)
        units[scope][name] = True
        if all(units[scope].values()):
            del units[scope]
        self._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        scope, unit = self.workqueue.popitem(last=False)
        self.assigned_work.setdefault(node, {})[scope] = unit
        node.send_runtest_some([self._places[name] for name, is_done in unit.items() if not is_done])
