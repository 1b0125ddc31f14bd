"""A server that speaks MongoDB's protocol, for tests: mongo-java-server on a file, in a process of its own, on a free
port of the loopback; may be killed and started again.

No registry has MongoDB itself. This one speaks as MongoDB 4.2 and has neither transactions nor members. It writes its
file before it answers, so that it keeps what it has confirmed. Its classes come from ``MONGODB_JARS``, or from Maven's
registry by ``mvn``, once, into a folder for caches. Skips the test, with the reason, where there is neither, no
Java, or no client.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from java_homes import java_home
from maven_jars import jars_of
from server_process import ServerProcess, need_client, the_one

VERSION = "1.47.0"

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>mongodb</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>de.bwaldvogel</groupId><artifactId>mongo-java-server-h2-backend</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""

_PROGRAM = """
import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import org.h2.mvstore.MVStore;

public class Program {
    public static void main(String[] places) throws Exception {
        MVStore store = new MVStore.Builder().fileName(places[0]).autoCommitDisabled().open();
        H2Backend backend = new H2Backend(store) {
            @Override
            public synchronized Document handleMessage(MongoMessage message) {
                Document answer = super.handleMessage(message);
                store.commit();
                return answer;
            }
        };
        new MongoServer(backend).bind("127.0.0.1", Integer.parseInt(places[1]));
    }
}
"""


class MongodbServer(ServerProcess):
    """One server, which keeps what it has answered when it is killed."""

    def __init__(self, java: Path, jars: Path, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()
        program = directory / "Program.java"
        program.write_text(_PROGRAM)
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
        self._command = [str(java / "bin" / "java"), *options, str(program), str(directory / "data"), str(self.port)]
        # A client of the tests' own; None before the first question, and behind a death.
        self._client: Any = None

    @property
    def uri(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers questions."""
        from pymongo.errors import PyMongoError

        if self._process is None:
            self.launch(self._command, cwd=self._directory)
            self.wait_until(lambda: self.client.admin.command("ping"), PyMongoError)

    @property
    def client(self) -> Any:
        """A client."""
        from pymongo import MongoClient

        if self._client is None:
            self._client = MongoClient(self.uri, serverSelectionTimeoutMS=2_000, uuidRepresentation="standard")
        return self._client

    def kill(self) -> None:
        """Kill it with signal 9."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        super().kill()

    def new_name(self) -> str:
        """A collection that no other test has, behind its database."""
        return f"tests.c{uuid.uuid4().hex[:12]}"

    def collection(self, name: str) -> Any:
        database, _, collection = name.partition(".")
        return self.client[database][collection]

    def put(self, name: str, documents: Sequence[dict[str, Any]]) -> None:
        """Insert documents."""
        self.collection(name).insert_many(documents)

    def documents(self, name: str) -> dict[Any, dict[str, Any]]:
        """All of them, by ``_id``, without numbers of sinks."""
        found = self.collection(name).find({}, {"_number": 0})
        return {_hashable(one["_id"]): one for one in found}


def _hashable(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, dict) else value


def new_server(directory: Path) -> MongodbServer:
    """A server that is not started; skips the test if it cannot be."""
    need_client("pymongo", "pymongo")
    from pymongo.common import MIN_SUPPORTED_WIRE_VERSION

    if MIN_SUPPORTED_WIRE_VERSION > 8:
        pytest.skip("the installed pymongo refuses servers that speak as MongoDB 4.2: pymongo<4.18 does not")
    java = java_home(17, "mongo-java-server")
    home = os.environ.get("MONGODB_JARS")
    jars = Path(home) if home else jars_of(_POM, f"mongo-java-server {VERSION}", f"mongodb-{VERSION}")
    return MongodbServer(java, jars, directory)


@pytest.fixture(scope="session")
def mongodb_server(request: pytest.FixtureRequest) -> MongodbServer:
    """One for all tests of a process; each has collections of its own."""
    return the_one("mongodb", request, new_server)
