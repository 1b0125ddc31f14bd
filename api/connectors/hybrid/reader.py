"""Reads the splits of several sources in the order of the sources, each with a reader of its own.

A reader of a source is made with the first split, or event, of that source. Splits of a later source wait until those
of earlier ones are finished: that happens where a reader was set back to a checkpoint from before the switch while the
others had gone on. What waits is in the snapshot like everything else.

When a later source begins, the reader of the one before is closed; if it hears of checkpoints, only once a checkpoint
that was taken after its last record is complete.

Invariant: every split that was given is in exactly one reader that is open, waits, or was said to have finished.

Source: Flink's ``HybridSourceReader``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
    SplitFinished,
)
from headrace.engine.connectors.source_protocols import check_reader
from headrace.engine.errors import InternalError, ProgramError
from headrace.engine.functions.checkpointed import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
)

from .splits import (
    AddressedEvent,
    ChainedSource,
    source_at,
    split_id_of,
    unwrapped,
    wrapped,
)

__all__ = ["HybridReader"]


@dataclasses.dataclass(slots=True)
class _OpenSource:
    """A source that is being read.

    Attributes:
        index: Which.
        end_position: Of the source before.
        reader: Its reader, open.
        split_ids: Its splits that are not finished, as the source calls them.
        is_over: Whether a later one has begun.
        held_by: The first checkpoint that was taken since.
    """

    index: int
    end_position: Any
    reader: SourceReader
    split_ids: set[str] = dataclasses.field(default_factory=set)
    is_over: bool = False
    held_by: int | None = None


class HybridReader(SourceReader):
    """The reader of a chain of sources.

    Args:
        chain: The sources.
    """

    def __init__(self, chain: Sequence[ChainedSource]) -> None:
        self._chain = chain
        # By index of their source: readers that are open, and splits that wait for earlier sources, as they were given.
        self._open: dict[int, _OpenSource] = {}
        self._waiting: dict[int, list[Split]] = {}
        # Splits that watermark alignment holds back.
        self._paused: frozenset[str] = frozenset()
        self._state_context: FunctionInitializationContext | None = None

    # -------------------------------------------------------------------------------------------------------- lifecycle
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Do nothing: state of the sources' readers is declared when they are made."""
        self._state_context = context

    def open(self, context: ReaderContext) -> None:
        """Keep what the sources' readers are opened with."""
        self._context = context

    def close(self) -> None:
        """Close all readers."""
        while self._open:
            self._open.popitem()[1].reader.close()

    def _opened(self, index: int, end_position: Any) -> _OpenSource:
        """A source's reader, made if there is none."""
        source = self._open.get(index)
        if source is None:
            reader = source_at(self._chain, index, end_position).create_reader()
            check_reader(reader, self._context.operator_name)
            if isinstance(reader, CheckpointedFunction):
                assert self._state_context is not None
                reader.initialize_state(self._state_context.for_part(f"source-{index}."))
            send = functools.partial(self._send_source_event, index, end_position)
            reader.open(dataclasses.replace(self._context, send_source_event=send))
            source = self._open[index] = _OpenSource(index, end_position, reader)
        elif source.end_position != end_position:
            message = f"source {index} of a hybrid source begins in two ways: {source.end_position!r}, {end_position!r}"
            raise InternalError(message)
        return source

    # ----------------------------------------------------------------------------------------------------------- splits
    def add_splits(self, splits: list[Split]) -> None:
        """Take over splits of any of the sources."""
        for split in splits:
            self._waiting.setdefault(unwrapped(split)[0], []).append(split)
        self._go_on()

    def _go_on(self) -> None:
        """Give the earliest source that has splits those that wait for it; let go of those before."""
        present = min((*self._waiting, *(source.index for source in self._with_splits())), default=None)
        if present is None:
            return
        waiting = self._waiting.pop(present, [])
        if waiting:
            parts = [unwrapped(split) for split in waiting]
            source = self._opened(present, parts[0][1])
            source.split_ids.update(split.split_id for _, _, split in parts)
            source.reader.add_splits([split for _, _, split in parts])
        for source in list(self._open.values()):
            source.is_over = source.index < present
            source.held_by = source.held_by if source.is_over else None
            if source.is_over and not isinstance(source.reader, CheckpointListener):
                self._let_go(source)

    def _let_go(self, source: _OpenSource) -> None:
        del self._open[source.index]
        source.reader.close()

    def _with_splits(self) -> Iterable[_OpenSource]:
        return (source for source in self._open.values() if source.split_ids)

    def _present(self) -> _OpenSource | None:
        return min(self._with_splits(), key=lambda source: source.index, default=None)

    @property
    def wants_split(self) -> bool:
        """Whether the present source's reader would read another one at once; not if splits wait for it to end."""
        present = self._present()
        return present is not None and not self._waiting and bool(getattr(present.reader, "wants_split", False))

    def pause_splits(self, split_ids: frozenset[str]) -> None:
        """Leave out these; a source whose reader cannot leave out single ones is left out when it has no other."""
        self._paused = split_ids
        for source in self._open.values():
            pause = getattr(source.reader, "pause_splits", None)
            if pause is not None:
                pause(frozenset(one for one in source.split_ids if split_id_of(source.index, one) in split_ids))

    def _is_held(self, source: _OpenSource) -> bool:
        return all(split_id_of(source.index, one) in self._paused for one in source.split_ids)

    # ---------------------------------------------------------------------------------------------------------- reading
    def poll(self, max_records: int) -> Any:
        """Return the next records of the present source."""
        source = self._present()
        if source is None:
            return ALL_SPLITS_FINISHED
        if self._is_held(source):
            return NOTHING_NOW
        polled: Any = source.reader.poll(max_records)
        if polled is NOTHING_NOW:
            return polled
        if polled is ALL_SPLITS_FINISHED:
            polled = [SplitFinished(split_id) for split_id in sorted(source.split_ids)]
        told = [self._told(source, part) for part in (polled if isinstance(polled, list) else [polled])]
        if not source.split_ids:
            self._go_on()
        return told

    def _told(self, source: _OpenSource, part: Any) -> Any:
        """A part of what a source's reader gave, as given by the whole."""
        if isinstance(part, Polled):
            return dataclasses.replace(part, split_id=split_id_of(source.index, part.split_id))
        if isinstance(part, SplitFinished):
            source.split_ids.remove(part.split_id)
            return SplitFinished(split_id_of(source.index, part.split_id))
        return part

    def next_poll_ms(self) -> int | None:
        """Return when the present source's reader wants to be asked again."""
        source = self._present()
        return None if source is None or self._is_held(source) else source.reader.next_poll_ms()

    # ------------------------------------------------------------------------------------------------------ checkpoints
    def snapshot(self) -> list[Split]:
        """Return the unfinished splits of all sources."""
        return self._snapshot(lambda reader: reader.snapshot())

    def snapshot_for(self, checkpoint_id: int) -> list[Split]:
        """Return the unfinished splits of all sources; readers that want to know are told for which checkpoint."""
        for source in self._open.values():
            if source.is_over and source.held_by is None:
                source.held_by = checkpoint_id

        def take(reader: SourceReader) -> list[Split]:
            snapshot_for: Callable[[int], list[Split]] | None = getattr(reader, "snapshot_for", None)
            return reader.snapshot() if snapshot_for is None else snapshot_for(checkpoint_id)

        return self._snapshot(take)

    def _snapshot(self, take: Callable[[SourceReader], list[Split]]) -> list[Split]:
        splits = [split for waiting in self._waiting.values() for split in waiting]
        for source in self._open.values():
            splits += [wrapped(split, source.index, source.end_position) for split in take(source.reader)]
        return splits

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Ask the readers that have state of their own."""
        for source in self._open.values():
            if isinstance(source.reader, CheckpointedFunction):
                source.reader.snapshot_state(context)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the readers that want to know; those that are over have heard enough then."""
        for source in list(self._open.values()):
            if isinstance(source.reader, CheckpointListener):
                source.reader.notify_checkpoint_complete(checkpoint_id)
                if source.is_over and source.held_by is not None and source.held_by <= checkpoint_id:
                    self._let_go(source)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell the readers that want to know."""
        for source in self._open.values():
            tell = getattr(source.reader, "notify_checkpoint_aborted", None)
            if tell is not None:
                tell(checkpoint_id)

    # ----------------------------------------------------------------------------------------------------------- events
    def handle_source_event(self, event: Any) -> None:
        """Hand an event of an enumerator to the reader of its source.

        Raises:
            ProgramError: If that does not listen.
        """
        reader = self._opened(event.source_index, event.end_position).reader
        handle = getattr(reader, "handle_source_event", None)
        if handle is None:
            message = f"the enumerator sends events, and {type(reader).__name__} has no handle_source_event"
            raise ProgramError(message)
        handle(event.event)

    def _send_source_event(self, index: int, end_position: Any, event: Any) -> None:
        self._context.send_source_event(AddressedEvent(index, end_position, event))
