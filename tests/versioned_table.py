"""A table of files with versions, as table formats have them: a commit names files that writers have left, all at once.

It is what a user would write with `headrace.GlobalCommitter`. `VersionedTable.dies` names points, each of which
fails, or ends the process, the first time that it is passed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import cloudpickle

from headrace import GlobalCommitter, PossibleLossError, SinkWriter

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots' processes do not find the tests' modules


class VersionedTable:
    def __init__(self, directory, dies=(), *, kills=False):
        self.directory = str(directory)
        self.dies = tuple(dies)
        self.kills = kills
        for name in ("data", "versions", "deaths"):
            Path(directory, name).mkdir(parents=True, exist_ok=True)

    def create_writer(self):
        return Writer(self)

    def create_global_committer(self):
        return Committer(self)

    def pass_point(self, point):
        if point in self.dies and not Path(self.directory, "deaths", point).exists():
            Path(self.directory, "deaths", point).touch()
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            message = f"dies at {point}"
            raise OSError(message)


class Writer(SinkWriter):
    def __init__(self, table):
        self.table = table
        self.directory = table.directory

    def open(self, context):
        self.name = f"{context.job}-{context.attempt}-{context.subtask}"
        self.rows = []

    def write(self, batch):
        self.rows += batch.rows

    def prepare(self, checkpoint_id):
        if not self.rows:
            return []
        name = f"{self.name}-{checkpoint_id}"
        with open(f"{self.directory}/data/{name}", "x") as file:
            file.write("\n".join(map(json.dumps, self.rows)))
        self.rows = []
        self.table.pass_point("prepared")
        return [name]


class Committer(GlobalCommitter):
    def __init__(self, table):
        self.table = table

    def commit(self, committable):
        directory = self.table.directory
        version = f"{directory}/versions/{committable.name}"
        self.table.pass_point("before")
        if not os.path.exists(version):
            missing = [name for name in committable.committables if not os.path.exists(f"{directory}/data/{name}")]
            if missing:
                message = f"prepared files are gone: possible loss: {missing}"
                raise PossibleLossError(message)
            with open(f"{version}.new", "w") as file:
                json.dump(committable.committables, file)
            self.table.pass_point("middle")
            os.rename(f"{version}.new", version)
        self.table.pass_point("after")


def versions_of(directory):
    """The rows of each version's files, in no order."""
    found = []
    for version in Path(directory, "versions").iterdir():
        if version.suffix != ".new":
            names = json.loads(version.read_text())
            lines = [line for name in names for line in Path(directory, "data", name).read_text().splitlines()]
            found.append([json.loads(line) for line in lines])
    return found


def rows_of(directory):
    return sorted(row for rows in versions_of(directory) for row in rows)
