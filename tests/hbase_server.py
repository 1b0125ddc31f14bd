"""A real HBase for tests: ZooKeeper, master and region server in one process, and its Thrift server in another one, in
a temporary directory, on free ports of the loopback; may be killed and started again.

Its classes come from ``HBASE_JARS``, or from Maven's registry by ``mvn``, once, into a folder for caches. Skips the
test, with the reason, where there is neither, no Java 17, or no client.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from java_homes import java_home
from maven_jars import jars_of
from server_process import STOP_TIMEOUT_S, ServerProcess, need_client, the_one

VERSION = "2.6.1"

_EXCLUDED = """<exclusions><exclusion>
      <groupId>org.apache.hadoop</groupId><artifactId>hadoop-minikdc</artifactId>
    </exclusion></exclusions>"""
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>hbase</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>
""".format(
    "".join(
        f"<dependency><groupId>org.apache.hbase</groupId><artifactId>{name}</artifactId>"
        f"<version>{VERSION}</version>{_EXCLUDED}</dependency>"
        for name in ("hbase-server", "hbase-thrift")
    )
)

_PROGRAM = """import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptorBuilder;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.TableDescriptorBuilder;
import org.apache.hadoop.hbase.util.Bytes;

public class CutTable {
    public static void main(String[] arguments) throws Exception {
        TableDescriptorBuilder table = TableDescriptorBuilder.newBuilder(TableName.valueOf(arguments[0]));
        List<byte[]> keys = new ArrayList<>();
        boolean areKeys = false;
        for (int place = 1; place < arguments.length; place++) {
            if (arguments[place].equals("/")) areKeys = true;
            else if (areKeys) keys.add(Bytes.fromHex(arguments[place]));
            else table.setColumnFamily(ColumnFamilyDescriptorBuilder.of(arguments[place]));
        }
        try (Connection connection = ConnectionFactory.createConnection(HBaseConfiguration.create())) {
            connection.getAdmin().createTable(table.build(), keys.toArray(new byte[0][]));
        }
    }
}
"""

_OPENED = ("java.lang", "java.lang.reflect", "java.nio", "java.util", "java.util.concurrent", "java.io", "java.net")


class HbaseServer(ServerProcess):
    """One HBase, which keeps what it has answered when it is killed."""

    start_timeout_s = 300.0

    def __init__(self, java: Path, jars: Path, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()
        settings = {
            "hbase.cluster.distributed": "false",
            "hbase.rootdir": (directory / "root").as_uri(),
            "hbase.tmp.dir": str(directory / "tmp"),
            "hbase.wal.dir": (directory / "root").as_uri(),
            "hbase.unsafe.stream.capability.enforce": "false",
            "hbase.zookeeper.quorum": "127.0.0.1",
            "hbase.zookeeper.property.clientPort": free_port(),
            "hbase.zookeeper.property.dataDir": str(directory / "zookeeper"),
            "hbase.master.hostname": "localhost",
            "hbase.regionserver.hostname": "localhost",
            "hbase.master.ipc.address": "127.0.0.1",
            "hbase.regionserver.ipc.address": "127.0.0.1",
            "hbase.master.port": free_port(),
            "hbase.regionserver.port": free_port(),
            "hbase.master.info.port": -1,
            "hbase.regionserver.info.port": -1,
            "hbase.localcluster.assign.random.ports": "false",
            "hbase.regionserver.handler.count": 8,
            "hbase.master.wait.on.regionservers.mintostart": 1,
            "hbase.thrift.info.port": -1,
        }
        written = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
        )
        (directory / "hbase-site.xml").write_text(f"<configuration>{written}</configuration>")
        opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
        small = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={directory}", *opened]
        self._java = [str(java / "bin" / "java"), *small, "-cp", f"{directory}:{jars}/*"]
        self._thrift: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start both, and wait until tables can be listed."""
        from thriftpy2.thrift import TException

        self.launch([*self._java, "-Xmx384m", "org.apache.hadoop.hbase.master.HMaster", "start"], cwd=self._directory)
        thrift = [
            *self._java, "-Xmx192m", "org.apache.hadoop.hbase.thrift.ThriftServer", "start",
            "-b", "127.0.0.1", "-p", str(self.port), "--infoport", "-1",
        ]  # fmt: skip
        with open(self._log, "ab") as log:
            self._thrift = subprocess.Popen(thrift, stdout=log, stderr=log, cwd=self._directory)
        self.wait_until(self._makes_tables, TException, OSError)

    def _makes_tables(self) -> bool:
        name = self.new_table()
        with self.connected() as connection:
            connection.delete_table(name, disable=True)
        return True

    @contextlib.contextmanager
    def connected(self) -> Any:
        """A client of the tests' own."""
        import happybase

        connection = happybase.Connection("127.0.0.1", self.port, timeout=60_000)
        try:
            yield connection
        finally:
            connection.close()

    def new_table(self, *families: str, splits: Sequence[bytes] = ()) -> str:
        """A table that no other test has, cut at some row keys."""
        name = f"t{uuid.uuid4().hex[:12]}"
        if splits:  # its own client knows how
            program = self._directory / "CutTable.java"
            program.write_text(_PROGRAM)
            keys = [key.hex() for key in splits]
            done = subprocess.run(
                [*self._java, str(program), name, *families, "/", *keys], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr[-2_000:]
            return name
        with self.connected() as connection:
            connection.create_table(name, {family: {} for family in families or ("f",)})
        return name

    def rows(self, table: str) -> dict[bytes, dict[bytes, bytes]]:
        """All rows."""
        with self.connected() as connection:
            return dict(connection.table(table).scan())

    def kill(self) -> None:
        """Kill both with signal 9."""
        if self._thrift is not None:
            self._thrift.kill()
            self._thrift.wait(STOP_TIMEOUT_S)
            self._thrift = None
        super().kill()


def new_server(directory: Path) -> HbaseServer:
    """A server that is not started; skips the test if it cannot be."""
    need_client("happybase", "happybase")
    java = java_home(17, "HBase")
    home = os.environ.get("HBASE_JARS")
    jars = Path(home) if home else jars_of(_POM, f"HBase {VERSION}", f"hbase-{VERSION}")
    return HbaseServer(java, jars, directory)


@pytest.fixture(scope="session")
def hbase_server(request: pytest.FixtureRequest) -> HbaseServer:
    """One for all tests of a process; each has tables of its own."""
    return the_one("hbase", request, new_server)
