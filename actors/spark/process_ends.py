"""How the processes of Spark end: the driver's JVM and RayDP's actors, in order or by force."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable

__all__ = ["in_own_thread", "kill_driver", "kill_master", "tear_down"]

_LOG = logging.getLogger("headrace.spark")

STOP_TIMEOUT_S = 15.0
"""How long JVMs and actors may take to end before they are killed."""

LOOK_AGAIN_S = 0.05


def tear_down() -> None:
    """Stop Spark, RayDP's actors and the driver's JVM; returns when they are gone, or were killed."""
    raydp = sys.modules.get("raydp")
    if raydp is None:
        return
    import pyspark

    context = pyspark.SparkContext._active_spark_context
    name = context.appName if context is not None else None
    actors = _actors(name)
    try:
        raydp.stop_spark()
    except Exception as error:
        # The cluster or a JVM has gone before: what remains is ended below, by force.
        _LOG.info("Spark could not be stopped in order, and is ended by force: %s", error)
        pyspark.SparkContext._active_spark_context = None
    kill_driver(STOP_TIMEOUT_S)
    _end_actors(actors)


def in_own_thread(work: Callable[[], None]) -> None:
    """Run something in a thread of its own: this one's line to the JVM may have been interrupted."""
    thread = threading.Thread(target=work, name="headrace-spark-stop")
    try:
        thread.start()
    except RuntimeError:  # the interpreter is past starting threads
        work()
        return
    thread.join()


def _actors(name: str | None) -> list[str]:
    """Names of RayDP's actors of this process's Ray job."""
    import ray

    if not ray.is_initialized():
        return []
    return [actor for actor in ray.util.list_named_actors() if _is_raydp(actor, name)]


def _is_raydp(actor: str, name: str | None) -> bool:
    return actor == "RAY_APP_MASTER" or actor.startswith("raydp-executor-") or actor == f"{name}_SPARK_MASTER"


def _end_actors(actors: list[str]) -> None:
    import ray

    if not ray.is_initialized():
        return
    kill_at = time.monotonic() + STOP_TIMEOUT_S / 3
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (left := set(actors) & set(ray.util.list_named_actors())) and time.monotonic() < deadline:
        if time.monotonic() > kill_at:
            for actor in left:
                with contextlib.suppress(ValueError):
                    ray.kill(ray.get_actor(actor), no_restart=True)
        time.sleep(LOOK_AGAIN_S)


def kill_master(name: str) -> None:
    import ray

    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(f"{name}_SPARK_MASTER"), no_restart=True)


def kill_driver(patience_s: float = 0.0) -> None:
    """End the driver's JVM, which PySpark keeps for the next context, with flags that may then be wrong."""
    import subprocess

    import pyspark

    gateway = pyspark.SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    if patience_s:
        with contextlib.suppress(Exception):  # it may be dead already
            gateway.shutdown()
        process.stdin.close()  # its end is what the JVM watches
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
        pyspark.SparkContext._gateway = None
        pyspark.SparkContext._jvm = None
    if process.poll() is None:
        process.kill()
        process.wait()
