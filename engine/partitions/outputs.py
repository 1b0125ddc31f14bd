"""The sinks of a plan, run by any executor: files become the result when everything is computed, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..plan.plan import Node, WriteFiles

__all__ = ["results_of"]


def results_of(sinks: Sequence[Node], run: Callable[[Node], Any]) -> dict[int, Any]:
    """Run all sinks of a plan.

    Args:
        sinks: The sinks.
        run: Computes what one gives: a table, a number, or the names of the parts of files, which are not yet public.

    Returns:
        The results by the sinks' ids.
    """
    results: dict[int, Any] = {}
    files = [sink for sink in sinks if isinstance(sink, WriteFiles)]
    for sink in files:
        sink.files.prepare(sink, sinks)
    try:
        for node in sinks:
            results[node.id] = run(node)
        for sink in files:
            results[sink.id] = sink.files.commit(sink, results[sink.id])
    except BaseException:
        for sink in files:
            sink.files.abort(sink)
        raise
    return results
