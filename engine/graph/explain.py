"""What a program will do, for people and for tools: the job graph as text, the stream graph as JSON.

The text shows tasks as they will run (chains, exchanges, slots, which operators work on columns); the JSON shows
operators as they were written, in the form that Flink's plan visualizer reads. Both are functions of the graph alone.

Source: Flink's ``JSONGenerator`` (``getExecutionPlan``).
"""

from __future__ import annotations

import json
from typing import Any

from ..kernel.config import CheckpointingMode, JobSettings
from ..operators.row_types import DeclaredRows
from .chaining import num_slots
from .job_graph import JobEdge, JobGraph, JobVertex
from .stream_graph import StreamGraph

__all__ = ["delivery_lines", "explain_text", "plan_json"]


def explain_text(job_graph: JobGraph) -> str:
    """Describe a job graph, one block per task.

    Args:
        job_graph: The job.

    Returns:
        Lines for a terminal; the order of tasks is that of the program.
    """
    numbers = {vertex_id: number for number, vertex_id in enumerate(job_graph.vertices, 1)}
    tasks = _counted(len(job_graph.vertices), "task")
    subtasks = _counted(sum(vertex.parallelism for vertex in job_graph.vertices.values()), "subtask")
    lines = [
        f"job {job_graph.name!r}: {tasks}, {subtasks}, {_counted(num_slots(job_graph), 'slot')} needed",
        *_settings_lines(job_graph.settings, has_loop=job_graph.has_loop),
        *delivery_lines(job_graph),
    ]
    for vertex_id, vertex in job_graph.vertices.items():
        lines += ["", f"task {numbers[vertex_id]}: {vertex.name}", f"  {_placement(vertex)}"]
        lines += [f"  from task {numbers[edge.source]} by {_exchange(edge)}" for edge in job_graph.inputs_of(vertex_id)]
        lines += _loop_lines(job_graph, vertex)
        lines += _chain_lines(vertex)
    return "\n".join(lines) + "\n"


def plan_json(stream_graph: StreamGraph) -> str:
    """Describe a stream graph as JSON text.

    Returns:
        ``{"nodes": [{"id", "type", "pact", "contents", "parallelism", "predecessors": [{"id", "ship_strategy",
        "side"}]}]}`` and for each node ``uid``, ``max_parallelism``, ``slot_sharing_group`` and ``path``.
    """
    nodes: list[dict[str, Any]] = []
    for node in stream_graph.nodes.values():
        described: dict[str, Any] = {
            "id": node.node_id,
            "type": node.name,
            "pact": node.kind.value,
            "contents": node.description,
            "parallelism": node.parallelism,
            "max_parallelism": node.max_parallelism,
            "uid": node.uid,
            "slot_sharing_group": node.slot_sharing_group,
            "path": node.operator.face,
        }
        in_edges = stream_graph.in_edges(node.node_id)
        if in_edges:
            described["predecessors"] = [
                {
                    "id": edge.source,
                    "ship_strategy": edge.partitioner.name,
                    "side": "feedback" if edge.is_feedback else "first" if edge.input_index == 0 else "second",
                    **({} if edge.side_tag is None else {"side_output": edge.side_tag}),
                }
                for edge in in_edges
            ]
        nodes.append(described)
    return json.dumps({"nodes": nodes}, indent=2)


def _settings_lines(settings: JobSettings, *, has_loop: bool) -> list[str]:
    checkpoints = settings.checkpoints
    if checkpoints is None:
        taken = "none"
    elif checkpoints.only_last:
        taken = f"one when all input is processed, to {checkpoints.directory}"
    else:
        taken = f"every {checkpoints.interval_ms} ms, {checkpoints.mode.value}, to {checkpoints.directory}"
        if checkpoints.unaligned and has_loop:
            taken += "; aligned, for the job has a loop"
        elif checkpoints.unaligned:
            taken += f"; barriers overtake after {checkpoints.aligned_timeout_ms} ms"
    mode = ["mode: batch"] if settings.is_batch else []
    lines = [*mode, f"checkpoints: {taken}", f"restarts: {settings.restart_strategy().describe()}"]
    return lines if settings.restore_from is None else [*lines, f"restored from: {settings.restore_from}"]


def delivery_lines(job_graph: JobGraph) -> list[str]:
    """Return how often a record is in the output of each sink, whatever fails: a line for each sink."""
    sinks = [
        (chained.name, chained.operator.sink)
        for vertex in job_graph.vertices.values()
        for chained in vertex.chain
        if hasattr(chained.operator, "sink")
    ]
    return [f"delivery of {name}: {_delivery(sink, job_graph.settings)}" for name, sink in sinks]


def _delivery(sink: object, settings: JobSettings) -> str:
    checkpoints = settings.checkpoints
    if checkpoints is None:
        return "as long as nothing fails, for the job takes no checkpoints"
    commits = hasattr(sink, "create_committer") or hasattr(sink, "create_global_committer")
    if not commits or checkpoints.mode is not CheckpointingMode.EXACTLY_ONCE:
        return "at least once: after a restart records may come again"
    return f"exactly once, visible when {'the job ends' if checkpoints.only_last else 'a checkpoint is complete'}"


def _placement(vertex: JobVertex) -> str:
    parts = [
        f"parallelism {vertex.parallelism} of {vertex.max_parallelism}",
        f"slot sharing group {vertex.slot_sharing_group!r}",
    ]
    if vertex.co_location_group is not None:
        parts.append(f"co-location group {vertex.co_location_group!r}")
    return ", ".join(parts)


def _loop_lines(job_graph: JobGraph, vertex: JobVertex) -> list[str]:
    """Of a loop's head: why it starts a task, and whether its body is in the same one."""
    feedback = [edge for edge in job_graph.inputs_of(vertex.vertex_id) if edge.is_feedback]
    if not feedback:
        return []
    is_whole = all(edge.source == vertex.vertex_id for edge in feedback)
    where = "the whole body is chained to it" if is_whole else "its body goes on in other tasks"
    return [f"  head of a loop: never chained to what feeds it or closes it; {where}"]


def _exchange(edge: JobEdge) -> str:
    selector = getattr(edge.partitioner, "key_selector", None)
    text = edge.partitioner.name if selector is None else f"{edge.partitioner.name} of {selector!r}"
    text = text if edge.side_tag is None else f"{text}, side output {edge.side_tag!r}"
    if edge.is_feedback:
        return f"{text}, feedback"
    return text if edge.input_index == 0 else f"{text}, input {edge.input_index + 1}"


def _chain_lines(vertex: JobVertex) -> list[str]:
    depths: list[int] = []
    rows: list[tuple[str, str, str]] = []
    for chained in vertex.chain:
        if isinstance(chained.operator, DeclaredRows):
            assert chained.parent is not None
            depths.append(depths[chained.parent])
            declared = ", ".join(f"{field.name}: {field.type}" for field in chained.operator.schema)
            rows.append((f"{'  ' * depths[-1]}  : {declared}", "to columns", ""))
            continue
        depths.append(0 if chained.parent is None else depths[chained.parent] + 1)
        tag = "" if chained.side_tag is None else f"[{chained.side_tag}] "
        rows.append((f"{'  ' * depths[-1]}{tag}{chained.name}", chained.operator.face, f"uid {chained.uid}"))
    width = max(len(name) for name, _, _ in rows)
    return [f"    {name:<{width}}  {path:<10}  {uid}".rstrip() for name, path, uid in rows]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
