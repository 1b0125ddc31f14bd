"""A job with keyed state into files and a table, which fails once, and whose checkpoints are struck before it restarts.

Nothing is published while a job prepares its restart, so what is struck is what the job would have gone back to.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from headrace import (
    DamagedCheckpointPolicy,
    JobFailedError,
    KeyedProcessFunction,
    ListStateDescriptor,
    RestartStrategies,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from headrace.connectors.files import FileSink
from headrace.connectors.scripted import Pause, ScriptedSource
from headrace.connectors.sql import SqlSink
from headrace.engine.job.phases import preparing

KEYS = 5
NUM_RECORDS = 300


class Running(KeyedProcessFunction):
    """Counts and adds up what it has seen of a key, so that rows show any state that is not what it was."""

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))
        self.seen = context.get_list_state(ListStateDescriptor("seen", int))

    def process_element(self, value: int, context: Any) -> Any:
        self.count.update(self.count.value() + 1)
        self.seen.add(value)
        yield {"k": value % KEYS, "n": self.count.value(), "v": value, "s": sum(self.seen.get())}


def expected() -> Counter[Any]:
    """What the job must put out."""
    count: Counter[int] = Counter()
    total: Counter[int] = Counter()
    rows: Counter[Any] = Counter()
    for value in range(NUM_RECORDS):
        key = value % KEYS
        count[key] += 1
        total[key] += value
        rows[key, count[key], value, total[key]] += 1
    return rows


@dataclass
class End:
    """How a run ended: the error's text if it failed, its history, and what its sinks show."""

    failure: str | None
    history: list[str]
    files: Counter[Any]
    table: Counter[Any]


def run(
    folder: Path,
    strike: Callable[[Path], Any],
    *,
    fails: bool = True,
    backend: str = "heap",
    parallelism: int = 1,
    num_retained: int = 3,
    policy: DamagedCheckpointPolicy = DamagedCheckpointPolicy.FAIL,
    into_files: bool = True,
    into_table: bool = True,
) -> End:
    """Run the job; ``strike`` gets its folder of checkpoints when it has failed and is about to go back to one.

    It fails when it has completed some checkpoints, unless ``fails`` is False.
    """
    flag, database = folder / "failed", folder / "table.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE t (k INTEGER, n INTEGER, v INTEGER, s INTEGER)")
    prepare = preparing.prepare_job
    struck: list[Any] = []

    def prepare_struck(*arguments: Any, **options: Any) -> Any:
        if flag.exists() and not struck:
            [root] = (folder / "checkpoints").iterdir()
            struck.append(strike(root))
        return prepare(*arguments, **options)

    def fail_once(value: int) -> int:
        if fails and value % 5 == 2 and not flag.exists() and (value == NUM_RECORDS - 3 or has_several(folder)):
            flag.touch()
            message = "fails once"
            raise ValueError(message)
        return value

    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism)
    env.set_state_backend(backend)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(6, 1))
    env.enable_checkpointing(5, directory=folder / "checkpoints")
    config = env.get_checkpoint_config()
    config.set_max_retained_checkpoints(num_retained).set_damaged_checkpoint_policy(policy)
    script: list[Any] = []
    for first in range(0, NUM_RECORDS, 5):
        script += [*range(first, first + 5), Pause(8)]
    stream = env.from_source(ScriptedSource(script), None, "numbers").map(fail_once)
    rows = stream.key_by(lambda value: value % KEYS).process(Running())
    if into_files:
        rows.sink_to(FileSink.json_lines(folder / "out")).name("into files")
    if into_table:
        url, columns = f"sqlite:///{database}", ["k", "n", "v", "s"]
        rows.sink_to(SqlSink.exactly_once(url, "t", sink_id="one", columns=columns)).name("into table")
    views: list[Any] = []
    env.set_progress_listener(views.append)
    failure = None
    patches = mock.patch.object(preparing, "LOOK_AGAIN_MS", 1)
    with env, patches, mock.patch.object(preparing, "prepare_job", prepare_struck):
        try:
            env.execute("struck")
        except JobFailedError as error:
            failure = str(error)
    assert struck, "the job went back to no checkpoint"
    lines = [line for path in (folder / "out").glob("part-*") for line in path.read_text().splitlines()]
    with contextlib.closing(sqlite3.connect(database)) as connection:
        table = Counter(connection.execute("SELECT k, n, v, s FROM t").fetchall())
    return End(
        failure,
        [text for _, text in views[-1].history],
        Counter(tuple(json.loads(line)[name] for name in ("k", "n", "v", "s")) for line in lines),
        table,
    )


def has_several(folder: Path) -> bool:
    """Whether a job has completed several checkpoints, and retains as many as it is to."""
    return any(number_of(path) >= 3 for path in (folder / "checkpoints").glob("*/manifests/chk-*.json"))


def number_of(manifest: Path) -> int:
    """The checkpoint that a manifest is of."""
    return int(manifest.stem.removeprefix("chk-"))


def newest_manifest(root: Path) -> Path:
    """The manifest of the newest complete checkpoint in a job's folder."""
    return max((root / "manifests").iterdir(), key=number_of)


def flip(path: Path, at: float = 0.5) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1
    path.write_bytes(bytes(data))
