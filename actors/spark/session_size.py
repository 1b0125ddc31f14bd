"""How large Spark is: what the program asks for, and what the cluster has room for."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.engine.errors import ConfigurationError, NoResourceAvailableError

__all__ = ["SessionSize", "SparkSettings", "free_by_node", "size_of_session"]

MB = 1 << 20

MIN_EXECUTOR_BYTES = 512 * MB
"""Spark refuses heaps below 450 MB (1.5 times what it reserves for itself)."""

MAX_EXECUTOR_BYTES_PER_CORE = 2048 * MB
"""What a task can use well; the rest is left to Python's side of each task, to Ray's objects and to others."""

HEAP_SHARE = 0.5
"""Of a node's free memory; as much again may be wanted by Python processes and off-heap buffers."""


@dataclass(frozen=True)
class SparkSettings:
    """How large Spark is, and how long it may take to come.

    Attributes:
        num_executors: 0 for one on each node that has free cores.
        executor_cores: Tasks that an executor runs at once; 0 for the free cores of its node.
        executor_memory_bytes: Heap of an executor; 0 for half of its node's free memory, at most 2 GiB per core.
        driver_memory_bytes: Heap of the driver's JVM, through which results are collected.
        start_timeout_ms: After which a start that has not succeeded is an error.
        local_iteration_bytes: An iteration whose inputs come to at most so much is run in the process of the program,
            until it has grown beyond it; 0 to run all supersteps on Spark.
        address: Of the Ray cluster; None as for streaming jobs: the connected one, a running one, else a new one.
        configs: More of Spark's own settings.
    """

    num_executors: int = 0
    executor_cores: int = 0
    executor_memory_bytes: int = 0
    driver_memory_bytes: int = 1024 * MB
    start_timeout_ms: int = 120_000
    local_iteration_bytes: int = 32 * MB
    address: str | None = None
    configs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("num_executors", "executor_cores", "executor_memory_bytes", "local_iteration_bytes"):
            if getattr(self, name) < 0:
                message = f"{name} must be 0 or more; got {getattr(self, name)}"
                raise ConfigurationError(message)
        for name in ("executor_memory_bytes", "driver_memory_bytes"):
            if 0 < getattr(self, name) < MIN_EXECUTOR_BYTES:
                message = f"{name} must be at least {MIN_EXECUTOR_BYTES} (512 MiB); got {getattr(self, name)}"
                raise ConfigurationError(message)
        if self.start_timeout_ms < 1:
            message = f"start_timeout_ms must be at least 1; got {self.start_timeout_ms}"
            raise ConfigurationError(message)


@dataclass(frozen=True)
class SessionSize:
    num_executors: int
    cores: int
    memory_bytes: int


def free_by_node() -> list[tuple[float, float]]:
    """Free cores and bytes of each living node."""
    import ray
    from ray._private.state import available_resources_per_node

    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    free = available_resources_per_node()
    return [(r.get("CPU", 0.0), r.get("memory", 0.0)) for node, r in free.items() if node in alive]


def size_of_session(settings: SparkSettings, free: list[tuple[float, float]]) -> SessionSize:
    """Return how many executors of which size fit into the free part of the cluster; all of one size, as Spark wants
    them.

    On a node with more than two free cores one is left to others: sources and sinks of streaming jobs, Ray's tasks.
    """
    cores = settings.executor_cores
    memory = settings.executor_memory_bytes
    least = cores or 1
    usable = [
        (cpus, room) for cpus, room in free if cpus >= least and room * HEAP_SHARE >= (memory or MIN_EXECUTOR_BYTES)
    ]
    if not usable:
        room_needed = (memory or MIN_EXECUTOR_BYTES) / HEAP_SHARE / MB
        wanted = f"{least} free core{'s' if least > 1 else ''} and {room_needed:.0f} MiB"
        there = ", ".join(f"{cpus:g} cores and {room / MB:.0f} MiB" for cpus, room in free) or "nothing"
        message = f"Spark needs {wanted} on one node for an executor; free in the cluster: {there}"
        raise NoResourceAvailableError(
            message, hint='stop other jobs, ask for smaller executors (executor_cores, executor_memory_bytes), or '
            'take executor="local"'
        )  # fmt: skip
    if not cores:
        smallest = int(min(cpus for cpus, _ in usable))
        cores = smallest - 1 if smallest > 2 else smallest
    per_node = [int(cpus // cores) for cpus, _ in usable]
    count = settings.num_executors or len(usable)
    if settings.num_executors and not settings.executor_cores:  # several on one node share its cores
        cores = max(1, min(cores, int(sum(cpus for cpus, _ in usable)) // settings.num_executors))
        per_node = [int(cpus // cores) for cpus, _ in usable]
    if count > sum(per_node):
        message = f"{count} executors of {cores} cores were asked for; the cluster has room for {sum(per_node)}"
        raise NoResourceAvailableError(message, hint="ask for fewer, or for smaller ones")
    if not memory:
        on_one_node = -(-count // len(usable))
        room = min(room for _, room in usable) * HEAP_SHARE / on_one_node
        memory = int(max(MIN_EXECUTOR_BYTES, min(room, cores * MAX_EXECUTOR_BYTES_PER_CORE)))
    return SessionSize(count, cores, memory)
