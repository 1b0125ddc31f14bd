"""A source that plays a script, for tests of programs and of the engine: records, pauses, watermarks, failures.

Each script is one split. What a script does depends on nothing but the script, the clock and how often the job has been
deployed, so a run can be repeated, and a restart goes on where the checkpoint says. Splits are read side by side, turn
about, one run of records at a time; watermark alignment can hold back single ones.

Not for production: the scripts travel whole in the pickled source.

Source: bytewax's ``TestingSource`` with its ``EOF``, ``ABORT`` and ``PAUSE``; Flink's ``FromElementsSource`` of its
connector test kit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.engine.columns.records import Batch, Watermark
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Discovery,
    EnumeratorContext,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
    SplitEnumerator,
    SplitFinished,
)
from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.config import parse_duration_ms

__all__ = ["Fail", "Pause", "ScriptedSource", "Timed", "Watermark"]

LONG_MS = 60_000
"""How soon a reader looks again when nothing will come by itself."""

NEVER_MS = 2**62
"""End of a pause that has none."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A record with an event time of its own, epoch milliseconds; others in the same script have theirs as well."""

    value: Any
    timestamp_ms: int


@dataclass(frozen=True)
class Pause:
    """Nothing comes from this script for a while.

    Args:
        duration: As everywhere: milliseconds, a ``timedelta`` or a text; None for ever.
    """

    duration: Any = None

    def __post_init__(self) -> None:
        if self.duration is not None and parse_duration_ms(self.duration) < 0:
            message = f"a pause must not be negative; got {self.duration!r}"
            raise ConfigurationError(message)


@dataclass(frozen=True)
class Fail:
    """The reader raises an error here, in the first deployments of the job.

    Args:
        error: What is raised; picklable.
        deployments: In how many: with 1 the job fails here once and after its restart passes by, with 2 it fails here
            in its first two deployments, whatever ended the first. A new JobManager begins to count anew.
    """

    error: Exception
    deployments: int = 1


class ScriptedSource:
    """Plays scripts.

    Args:
        scripts: One per split; each an iterable of records, `Timed` records, `Pause`, `Fail` and `Watermark`. A
            watermark stands behind the records before it and counts beside those of the watermark strategy; with
            ``WatermarkStrategy.no_watermarks()`` it is the only one.
        is_bounded: Whether the source ends with its scripts; else it stays quiet for ever behind them.
        batch_size: Records given at once at most.

    Raises:
        ConfigurationError: If there is no script, if some records of a script are timed and others are not, or if the
            batch size is below 1.
    """

    def __init__(self, *scripts: Iterable[Any], is_bounded: bool = True, batch_size: int = 65_536) -> None:
        if not scripts:
            message = "a scripted source needs a script"
            raise ConfigurationError(message)
        if batch_size < 1:
            message = f"batch_size must be at least 1; got {batch_size}"
            raise ConfigurationError(message)
        self.is_bounded = is_bounded
        self._scripts = tuple(tuple(script) for script in scripts)
        self._batch_size = batch_size
        for index, script in enumerate(self._scripts):
            if len({isinstance(step, Timed) for step in script if _is_record(step)}) > 1:
                message = f"all records of a script must be timed, or none; script {index} has both"
                raise ConfigurationError(message)

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return one split per script."""
        return _ScriptEnumerator(len(self._scripts))

    def create_reader(self) -> SourceReader:
        """Make a reader of some of the scripts."""
        return _ScriptReader(self._scripts, self._batch_size, is_bounded=self.is_bounded)


def _is_record(step: Any) -> bool:
    return not isinstance(step, (Pause, Fail, Watermark))


class _ScriptEnumerator:
    discovery_interval_ms: int | None = None

    def __init__(self, num_scripts: int) -> None:
        self._num_scripts = num_scripts

    def discover(self) -> Discovery:
        splits = [Split(f"script-{index}", {"index": index}) for index in range(self._num_scripts)]
        return Discovery(splits, is_final=True)


class _Playing:
    """One script and the step it has come to."""

    __slots__ = ("position", "resume_ms", "script", "split")

    def __init__(self, split: Split, script: tuple[Any, ...]) -> None:
        self.split = split
        self.script = script
        self.position: int = split.position or 0
        # End of the pause that the script is in; None if it is in none.
        self.resume_ms: int | None = None


class _ScriptReader:
    def __init__(self, scripts: tuple[tuple[Any, ...], ...], batch_size: int, *, is_bounded: bool) -> None:
        self._scripts = scripts
        self._batch_size = batch_size
        self._is_bounded = is_bounded
        self._playing: list[_Playing] = []
        self._next = 0
        # Splits held back by watermark alignment.
        self._paused: frozenset[str] = frozenset()

    def open(self, context: ReaderContext) -> None:
        self._now_ms: Callable[[], int] = context.now_ms
        self._deployment = int(context.attempt.rsplit(".", 1)[1])
        self._share = -(-len(self._scripts) // context.parallelism)

    @property
    def wants_split(self) -> bool:
        return len(self._playing) < self._share

    def add_splits(self, splits: list[Split]) -> None:
        self._playing.extend(_Playing(split, self._scripts[split.payload["index"]]) for split in splits)

    def pause_splits(self, split_ids: frozenset[str]) -> None:
        self._paused = split_ids

    def poll(self, max_records: int) -> Any:
        if not self._playing:
            return ALL_SPLITS_FINISHED
        for _ in range(len(self._playing)):
            self._next %= len(self._playing)
            playing = self._playing[self._next]
            if playing.split.split_id not in self._paused:
                polled = self._play(playing, min(max_records, self._batch_size))
                if isinstance(polled, SplitFinished):
                    del self._playing[self._next]
                    return polled
                if polled is not None:
                    self._next += 1
                    return polled
            self._next += 1
        return NOTHING_NOW

    def _play(self, playing: _Playing, max_records: int) -> Polled | SplitFinished | None:
        """The script's next batch; None in a pause, or behind its end."""
        script, now_ms = playing.script, self._now_ms()
        while playing.position < len(script):
            step = script[playing.position]
            if isinstance(step, Pause):
                if playing.resume_ms is None:
                    playing.resume_ms = NEVER_MS
                    if step.duration is not None:
                        playing.resume_ms = now_ms + parse_duration_ms(step.duration)
                if now_ms < playing.resume_ms:
                    return None
                playing.resume_ms = None
                playing.position += 1
            elif isinstance(step, Fail):
                if self._deployment < step.deployments:
                    raise step.error
                playing.position += 1
            else:
                return self._batch(playing, max_records)
        return SplitFinished(playing.split.split_id) if self._is_bounded else None

    def _batch(self, playing: _Playing, max_records: int) -> Polled:
        """Records up to the next step that is none, with the watermark right behind them."""
        script, start = playing.script, playing.position
        end = start
        while end < len(script) and end - start < max_records and _is_record(script[end]):
            end += 1
        steps = script[start:end]
        watermark_ms: int | None = None
        while end < len(script) and isinstance(script[end], Watermark):
            watermark_ms = max(script[end].timestamp_ms, watermark_ms or script[end].timestamp_ms)
            end += 1
        playing.position = end
        timestamps = None
        if steps and isinstance(steps[0], Timed):
            timestamps = np.array([step.timestamp_ms for step in steps], dtype=np.int64)
            steps = tuple(step.value for step in steps)
        return Polled(playing.split.split_id, Batch.of_rows(list(steps), timestamps), watermark_ms)

    def next_poll_ms(self) -> int | None:
        """The end of the next pause, or some time if nothing will ever come by itself."""
        paused = self._paused
        ends = [p.resume_ms for p in self._playing if p.resume_ms is not None and p.split.split_id not in paused]
        return min([*ends, self._now_ms() + LONG_MS])

    def snapshot(self) -> list[Split]:
        return [Split(p.split.split_id, p.split.payload, p.position) for p in self._playing]

    def close(self) -> None:
        self._playing = []
