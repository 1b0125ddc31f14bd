"""Which nodes get no new TaskManagers for a while, since processes there have failed too often.

A node with bad memory, a full disk or a neighbour that eats its memory lets one process after another die, and a
cluster that starts the next one there again restarts its jobs for nothing. So failures are counted per node: once
``node_failures_until_blocked`` of them have come within ``node_block_ms``, the node is blocked for ``node_block_ms``.
What already runs there stays. Only what may be the node's fault is counted: the death of a process, or its silence;
never an error of a user's function, nor a death that was ordered.

A block is advice, not a promise: where no other node has room, a TaskManager on a bad node is better than none. Then
the block is lifted, and the counting begins anew.

Invariant: a node that is not blocked has failed less than ``node_failures_until_blocked`` times within
``node_block_ms``. Should the clock jump, failures and blocks are forgotten early, never kept for longer.

Source: Flink's FLIP-224, ``DefaultBlocklistTracker``; counted in time as ``FailureRateRestartBackoffTimeStrategy``.
"""

from __future__ import annotations

from collections import deque

from ..kernel.config import ClusterSettings

__all__ = ["Blocklist"]


class Blocklist:
    """Failures of nodes, and the blocks that follow.

    Args:
        settings: Says after how many failures, and for how long.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self._threshold = settings.node_failures_until_blocked
        self._window_ms = settings.node_block_ms
        # Times of each node's failures, oldest first (epoch ms).
        self._failures: dict[str, deque[int]] = {}
        # Since when each node is blocked.
        self._blocked_since: dict[str, int] = {}

    def fail(self, node: str, now_ms: int) -> int:
        """Count a failure.

        Args:
            node: Where; ``""`` if that is not known: then nothing is counted.
            now_ms: The time.

        Returns:
            How many failures have led to a block just now; 0 if there is no new one.
        """
        if not self._threshold or not node or node in self.blocked(now_ms):
            return 0
        failures = self._failures.setdefault(node, deque(maxlen=self._threshold))
        while failures and not self._is_recent(failures[0], now_ms):
            failures.popleft()
        failures.append(now_ms)
        if len(failures) < self._threshold:
            return 0
        del self._failures[node]
        self._blocked_since[node] = now_ms
        return self._threshold

    def blocked(self, now_ms: int) -> tuple[str, ...]:
        """Return the nodes that are blocked, in the order in which they were."""
        for node in [node for node, since in self._blocked_since.items() if not self._is_recent(since, now_ms)]:
            del self._blocked_since[node]
        return tuple(self._blocked_since)

    def lift(self, node: str, now_ms: int) -> bool:
        """End a block before its time; gives whether there was one."""
        if node not in self.blocked(now_ms):
            return False
        del self._blocked_since[node]
        return True

    def _is_recent(self, at_ms: int, now_ms: int) -> bool:
        return 0 <= now_ms - at_ms < self._window_ms
