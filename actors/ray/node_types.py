"""What Ray's autoscaler has, may launch and is launching: pictures of the cluster for the ResourceManager.

Ray does not tell programs which node types its autoscaler may launch. They stand in the file that the autoscaler reads,
on the head node: found by the autoscaler's own command line, or where ``ray up`` puts it. Where it is not to be found
(a program on another node, Kubernetes) only nodes that live are known, and TaskManagers are asked for that fit
anywhere.

What is being launched is told by both of Ray's autoscalers in their own form: the second one through the control
store, the first one as JSON in the key-value store. A Ray that was not asked to scale has the first one, too, which
then reports each node as a type of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from headrace.engine.kernel.cluster_shape import ClusterReport, NodeShape

__all__ = ["NodeType", "configured_types", "may_span_machines", "observe_ray", "types_in"]

BOOTSTRAP_FILE = "ray_bootstrap_config.yaml"
"""Where ``ray up`` puts the configuration on the head node: in the home directory."""

TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class NodeType:
    """A node type of the autoscaler's configuration; ``num_cpus`` is None if it does not say."""

    name: str
    num_cpus: float | None
    max_nodes: int


@dataclass(frozen=True, slots=True)
class _Status:
    """What an autoscaler says. ``scales`` is None if it says nothing."""

    scales: bool | None = None
    launching: tuple[tuple[str, int], ...] = ()
    failures: tuple[str, ...] = ()
    # The node type of each node, by its id or address.
    types: Mapping[str, str] | None = None


def configured_types() -> tuple[NodeType, ...]:
    """Return the node types that the connected cluster may launch; none if that cannot be found out here."""
    path = _config_path(ray.get_runtime_context().gcs_address)
    if path is None:
        return ()
    try:
        import yaml

        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, ImportError):
        return ()
    except Exception:  # of YAML, whose errors have no class that is there without it
        return ()
    return tuple(types_in(config)) if isinstance(config, dict) else ()


def _config_path(gcs_address: str) -> Path | None:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if f"--gcs-address={gcs_address}" in words:
            for word in words:
                if word.startswith("--autoscaling-config="):
                    return Path(word.partition("=")[2]).expanduser()
    path = Path.home() / BOOTSTRAP_FILE
    return path if path.is_file() else None


def types_in(config: Mapping[str, Any]) -> Iterator[NodeType]:
    """Give the node types of workers in a configuration, those with most cores first, within the bound on all nodes."""
    found = []
    left = int(config.get("max_workers") or 0)
    for name, kind in (config.get("available_node_types") or {}).items():
        if name != config.get("head_node_type"):
            cpus = (kind.get("resources") or {}).get("CPU")
            found.append(
                NodeType(str(name), None if cpus is None else float(cpus), int(kind.get("max_workers") or left))
            )
    for kind in sorted(found, key=lambda kind: -(kind.num_cpus or 0.0)):
        number = min(kind.max_nodes, left)
        left -= number
        if number > 0:
            yield NodeType(kind.name, kind.num_cpus, number)


def may_span_machines() -> bool:
    """Give whether the nodes of the connected cluster are on several machines, or may be once it has launched some."""
    machines = {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    return len(machines) > 1 or bool(configured_types())


def observe_ray(types: tuple[NodeType, ...]) -> ClusterReport:
    """Look at the connected cluster.

    Args:
        types: What it may launch; none if that is not known.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    status = _second_status() or _first_status(nodes)
    return report_of(nodes, status, types)


def report_of(nodes: Iterable[Mapping[str, Any]], status: _Status, types: tuple[NodeType, ...]) -> ClusterReport:
    """Put together what is known."""
    kinds = status.types or {}
    cpus_seen: dict[str, float] = {}
    others: Counter[float] = Counter()
    known = {kind.name for kind in types}
    for node in nodes:
        cpus = float(node["Resources"].get("CPU", 0.0))
        kind_name = kinds.get(node["NodeID"]) or kinds.get(node["NodeManagerAddress"]) or ""
        if kind_name in known:
            cpus_seen[kind_name] = cpus
        elif cpus > 0:
            others[cpus] += 1
    shapes = [NodeShape("", cpus, number) for cpus, number in sorted(others.items())]
    is_complete = bool(types)
    for kind in types:
        cpus_of_kind = cpus_seen.get(kind.name, kind.num_cpus)
        if cpus_of_kind is None:
            is_complete = False
        else:
            shapes.append(NodeShape(kind.name, cpus_of_kind, kind.max_nodes))
    scales = bool(types) or status.scales is not False  # what is not known is not refused
    return ClusterReport(tuple(shapes), scales, is_complete or not scales, status.launching, status.failures)


def _second_status() -> _Status | None:
    """What the autoscaler says that tells the control store; None if there is none."""
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply

    reply = GetClusterStatusReply()
    client = GcsClient(address=ray.get_runtime_context().gcs_address)
    reply.ParseFromString(client.get_cluster_status(timeout_s=TIMEOUT_S))
    state = reply.autoscaling_state
    if not state.autoscaler_state_version:
        return None
    kinds = {node.node_id.hex(): node.ray_node_type_name for node in reply.cluster_resource_state.node_states}
    launching: Counter[str] = Counter()
    for request in state.pending_instance_requests:
        launching[request.ray_node_type_name] += request.count
    for instance in state.pending_instances:
        launching[instance.ray_node_type_name] += 1
    failures = [f"{failed.ray_node_type_name}: {failed.reason}" for failed in state.failed_instance_requests]
    scales = bool(launching) or not all(_is_nodes_own(kind) for kind in kinds.values())
    return _Status(scales, tuple(sorted(launching.items())), tuple(failures), kinds)


def _first_status(nodes: Iterable[Mapping[str, Any]]) -> _Status:
    """What the other one says."""
    from ray.experimental.internal_kv import _internal_kv_get

    text = _internal_kv_get("__autoscaling_status")
    report = (json.loads(text).get("autoscaler_report") or {}) if text else {}
    kinds = {*(report.get("active_nodes") or ()), *(report.get("idle_nodes") or ())}
    if not kinds:
        return _Status()
    launching = Counter(report.get("pending_launches") or {})
    for _node, kind, *_ in report.get("pending_nodes") or ():
        launching[kind] += 1
    availabilities = (report.get("node_availability_summary") or {}).get("node_availabilities") or {}
    failures = [
        f"{name}: {(found.get('unavailable_node_information') or {}).get('description', 'not available')}"
        for name, found in availabilities.items()
        if not found.get("is_available", True)
    ]
    own = {f"node_{node['NodeID']}" for node in nodes}
    return _Status(
        not kinds <= own, tuple(sorted(launching.items())), tuple(failures), report.get("node_type_mapping") or {}
    )


def _is_nodes_own(kind: str) -> bool:
    """Whether a node type is one that was made up for a single node."""
    return not kind or kind.startswith("node_") or kind == "ray.head.default"
