"""``headrace rescale JOB --history``: how a job came to its parallelism, by whom and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.engine.protocol.views import JobView, RescaleView
    from headrace.state.identifiers import VertexId

__all__ = ["show_rescales"]


def show_rescales(view: JobView, *, as_json: bool) -> int:
    """Print a job's rescales, oldest first: for people, or with the keys of REST."""
    if as_json:
        rescales = [one.as_json() for one in view.rescales]
        print(json.dumps({"jid": view.job_id, "autoscaler": view.autoscaler, "rescales": rescales}))
        return 0
    names = {vertex.vertex_id: vertex.name for vertex in view.vertices}
    for one in view.rescales:
        print("\n".join(_lines(one, names)))
    print("no rescales" if not view.rescales else f"{len(view.rescales)} in all")
    print(f"autoscaler: {view.autoscaler or 'off'}")
    return 0


def _lines(one: RescaleView, names: Mapping[VertexId, str]) -> list[str]:
    at = datetime.fromtimestamp(one.at_ms / 1_000).astimezone()
    changes = ", ".join(f"{names.get(key, key)} {one.before[key]} -> {number}" for key, number in one.after.items())
    end = "under way" if one.ended_ms is None else f"done after {(one.ended_ms - one.at_ms) / 1_000:.1f} s"
    if one.is_advice:
        end = "only advised"
    elif one.error:
        end = f"came to nothing: {one.error}"
    why = [f"    {one.reason}"] if one.reason else []
    return [f"{at:%Y-%m-%d %H:%M:%S}  {one.trigger}: {changes or 'nothing'}; {end}", *why]
