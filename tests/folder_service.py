"""A service that is a folder: each request leaves a file of what was accepted, and some turn a part away.

A request may end its process, once, before or behind its effect: see `FolderSink.dies`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path

import cloudpickle

from headrace import AsyncSink, AsyncSinkWriter

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots' processes do not find the tests' modules


class FolderSink(AsyncSink):
    def __init__(self, folder, dies=(), *, kills=False, **bounds):
        super().__init__(**{"max_batch_size": 20, "max_buffered_requests": 100, "max_time_in_buffer_ms": 50, **bounds})
        self.folder = str(folder)
        self.dies = dies
        self.kills = kills
        for name in ("accepted", "deaths"):
            Path(folder, name).mkdir(parents=True, exist_ok=True)

    def create_writer(self):
        return FolderWriter(self)


class FolderWriter(AsyncSinkWriter):
    def __init__(self, sink):
        self.sink = sink
        self.num_calls = 0

    async def submit_request_entries(self, request_entries):
        self.num_calls += 1
        await asyncio.sleep(0.002)
        num_accepted = len(request_entries) if self.num_calls % 3 else len(request_entries) // 2
        if self.num_calls > 5:
            self.pass_point("before")
        self.accept(request_entries[:num_accepted])
        if self.num_calls > 5:
            self.pass_point("after")
        return request_entries[num_accepted:]

    def accept(self, entries):
        Path(self.sink.folder, "accepted", uuid.uuid4().hex).write_text(json.dumps(entries))

    def pass_point(self, point):
        mark = Path(self.sink.folder, "deaths", point)
        if point in self.sink.dies and not mark.exists():
            mark.touch()
            if self.sink.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            message = f"dies {point} its effect"
            raise OSError(message)


PATIENCE_S = 60
"""A request that waits for longer is of a test that has ended."""


class SilentSink(AsyncSink):
    """Waits with every request until the folder has a file ``answers``."""

    def __init__(self, folder, **bounds):
        super().__init__(**bounds)
        self.answers = f"{folder}/answers"

    def create_writer(self):
        return SilentWriter(self.answers)


class SilentWriter(AsyncSinkWriter):
    def __init__(self, answers):
        self.answers = answers

    def submit_request_entries(self, _request_entries):
        until = time.monotonic() + PATIENCE_S
        while not os.path.exists(self.answers):
            if time.monotonic() > until:
                message = f"nobody has made {self.answers} within {PATIENCE_S} s"
                raise TimeoutError(message)
            time.sleep(0.005)


def accepted(folder):
    """Everything that was accepted, as often as it was."""
    return [row for path in Path(folder, "accepted").iterdir() for row in json.loads(path.read_text())]
