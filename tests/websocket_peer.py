"""The server of ``websocket_service``, a process of its own: ``python tests/websocket_peer.py DIRECTORY PORT``.

An address is ``/KIND/NAME?options``: ``put`` takes records of a name, ``since``, ``subscribe`` and ``live`` give them,
``take`` keeps what it is sent, and ``hostile`` does what a server must not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import serve


class _Server:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rows: dict[str, list[Any]] = defaultdict(list)
        for file in directory.glob("*.rows"):
            text = file.read_bytes()
            size = text.rfind(b"\n") + 1  # what was being written when this server died was not confirmed
            os.truncate(file, size)
            self._rows[file.stem] = [json.loads(line) for line in text[:size].splitlines()]
        self._changed = asyncio.Condition()
        # How often a name was connected to.
        self._num_connections: Counter[str] = Counter()

    async def handle(self, connection: Any) -> None:
        """Serve a connection."""
        parts = urlsplit(connection.request.path)
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        _, kind, name = parts.path.split("/")
        await getattr(self, f"_{kind}")(connection, name, options)

    def refuse(self, connection: Any, request: Any) -> Any:
        """Answer with ``status`` in the place of a connection, the first ``times``."""
        parts = urlsplit(request.path)
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        name = parts.path.rpartition("/")[2]
        if "who" in options and request.headers.get("Authorization") != f"Bearer {options['who']}":
            return connection.respond(401, "who are you?\n")
        if "status" not in options:
            return None
        self._num_connections[name] += 1
        if self._num_connections[name] > int(options["times"]):
            return None
        answer = connection.respond(int(options["status"]), "not now\n")
        for header in ("Retry-After", "Location"):
            if header in options:
                answer.headers[header] = options[header]
        return answer

    async def _put(self, connection: Any, name: str, options: dict[str, str]) -> None:
        async for message in connection:
            rows = json.loads(message)
            if "at" in options:  # the number of the first of them: those that are there are not put again
                rows = rows[max(0, len(self._rows[name]) - int(options["at"])) :]
            with (self._directory / f"{name}.rows").open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            async with self._changed:
                self._rows[name] += rows
                self._changed.notify_all()
            await connection.send("kept")

    async def _since(self, connection: Any, name: str, options: dict[str, str]) -> None:
        """Those behind a number."""
        await self._give(connection, name, options, int(options.get("since", -1)) + 1)

    async def _subscribe(self, connection: Any, name: str, options: dict[str, str]) -> None:
        """Those behind a number that a message says, after an answer to it."""
        asked = json.loads(await connection.recv())
        await connection.send(json.dumps({"subscribed": asked["what"]}))
        await self._give(connection, name, options, int(asked.get("after", -1)) + 1)

    async def _live(self, connection: Any, name: str, options: dict[str, str]) -> None:
        """Those that come."""
        await self._give(connection, name, options, len(self._rows[name]))

    async def _give(self, connection: Any, name: str, options: dict[str, str], first: int) -> None:
        first -= "inclusive" in options and first > 0
        left = int(options.get("cut", 1 << 60))
        while True:
            for row in self._rows[name][first:]:
                if left == 0:
                    connection.transport.abort()
                    return
                body = json.dumps({"id": str(first) if "texts" in options else first, **row})
                await connection.send(body.encode() if "bytes" in options else body)
                first, left = first + 1, left - 1
            if "bounded" in options:
                return  # which is a normal end
            async with self._changed:
                if len(self._rows[name]) == first:
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), 0.2)
            if connection.close_code is not None:
                return

    async def _take(self, connection: Any, name: str, options: dict[str, str]) -> None:
        """Keep messages; with ``acknowledges`` answer each; behind each so manyth that is ``lost`` break off."""
        lost = int(options.get("lost", 1 << 60))
        num = 0
        async for message in connection:
            text = message if isinstance(message, str) else message.decode()
            number = json.loads(text)["number"] if "acknowledges" in options else 0
            if "full" in text:
                await connection.send(json.dumps({"ack": number, "error": "no room"}))
                continue
            with (self._directory / f"{name}.taken").open("a") as file:
                file.write(text + "\n")
            num += 1
            if num % lost == 0:
                connection.transport.abort()
                return
            if "acknowledges" in options:
                await connection.send("something else")
                await connection.send(json.dumps({"ack": number, "error": None}))

    async def _hostile(self, connection: Any, name: str, options: dict[str, str]) -> None:
        if "size" in options:
            await connection.send("x" * int(options["size"]))
        if "fragments" in options:
            await connection.send(iter(["x"] * int(options["fragments"])))
        if "broken" in options:
            connection.transport.write(b"\xff" * 64)
        if "says" in options:
            for text in options["says"].split("|"):
                await connection.send(text)
        if "code" in options:
            await connection.close(int(options["code"]), "because")
        await connection.wait_closed()


async def main(directory: Path, port: int) -> None:
    server = _Server(directory)
    async with serve(
        server.handle, "127.0.0.1", port, process_request=server.refuse, subprotocols=None, ping_interval=None
    ) as running:
        await running.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
