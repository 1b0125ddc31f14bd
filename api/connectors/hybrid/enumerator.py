"""Finds the splits of several sources, of each when the one before has been read to its end.

How far it has come is its `Discovery.state`: for each source begun so far what its own enumerator has said, whether
that has found all, and the end position of the source before. So a switch is a step like any other look: the new
source's first splits and the word that it has begun reach the assignment, and with it checkpoints, at once.

A bounded source is over when its enumerator will find nothing more and all readers have read what there was; its last
``state`` is its end position then. Its enumerator still hears of events, as readers that were set back may read its
last splits once more.

Source: Flink's ``HybridSourceSplitEnumerator``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.connectors.contract import Discovery, EnumeratorContext, SourceEvent, SplitEnumerator
from headrace.engine.connectors.source_protocols import EnumeratorProgress, check_source
from headrace.engine.errors import CheckpointMismatchError, InternalError, ProgramError, SourceError

from .splits import AddressedEvent, ChainedSource, source_at, wrapped

__all__ = ["HybridEnumerator"]


@dataclass(slots=True)
class _Begun:
    """A source that has begun.

    Attributes:
        end_position: Of the source before; None for the first.
        state: What its enumerator has said last.
        is_final: Whether that will find nothing more.
        has_found: Whether that has found any split.
    """

    end_position: Any = None
    state: Any = None
    is_final: bool = False
    has_found: bool = False


class HybridEnumerator:
    """The enumerator of a chain of sources.

    Args:
        chain: The sources.
        checkpointing: Whether checkpoints are taken, for the enumerators of the sources.
    """

    def __init__(self, chain: Sequence[ChainedSource], *, checkpointing: bool = True) -> None:
        self._chain = chain
        self._checkpointing = checkpointing
        # Enumerators made so far, by source and end position (as JSON) of the one before.
        self._enumerators: dict[tuple[int, str], SplitEnumerator] = {}
        # How often the present source wants to be looked at again; None if it does not.
        self.discovery_interval_ms: int | None = None

    def discover(self) -> Discovery:
        """Look for the first time."""
        return self.discover_from(EnumeratorProgress(None, is_exhausted=False, parallelism=1))

    def discover_from(self, progress: EnumeratorProgress) -> Discovery:
        """Look for splits of the present source, or of the next one if the present one is over.

        Raises:
            CheckpointMismatchError: If the checkpoint is not one of this chain.
            ProgramError: If an end position cannot be stored, or a factory gives something else than it should.
            UserFunctionError: If a factory raises something.
        """
        begun = self._begun(progress)
        if begun[-1].is_final and not progress.is_exhausted:
            return self._said(begun, Discovery([], is_final=False, is_repeatable=True))
        if begun[-1].is_final and len(begun) < len(self._chain):
            begun.append(_Begun(_as_stored(begun[-1].state, len(begun) - 1)))
            progress = dataclasses.replace(progress, is_exhausted=False)  # that was said of the one before
        index = len(begun) - 1
        enumerator = self._enumerator(index, begun[index], progress)
        discover_from = getattr(enumerator, "discover_from", None)
        if discover_from is None:
            discovery = enumerator.discover()
        else:
            one = begun[index]
            discovery = discover_from(dataclasses.replace(progress, state=one.state, has_found=one.has_found))
        return self._taken(begun, index, discovery)

    def handle_source_event(self, subtask: int, event: Any, progress: EnumeratorProgress) -> Discovery:
        """Hand an event of a reader to the enumerator of its source.

        Raises:
            ProgramError: If that does not listen.
        """
        begun = self._begun(progress)
        if not isinstance(event, AddressedEvent) or event.source_index >= len(begun):
            message = f"an event of a source that has not begun: {event!r}"
            raise InternalError(message)
        index = event.source_index
        enumerator = self._enumerator(index, begun[index], progress)
        handle = getattr(enumerator, "handle_source_event", None)
        if handle is None:
            message = (
                f"a reader of source {index} of a hybrid source sends events, and {type(enumerator).__name__} "
                "has no handle_source_event"
            )
            raise ProgramError(message)
        is_exhausted = progress.is_exhausted or index < len(begun) - 1
        one = begun[index]
        own = dataclasses.replace(progress, state=one.state, is_exhausted=is_exhausted, has_found=one.has_found)
        return self._taken(begun, index, handle(subtask, event.event, own))

    def _taken(self, begun: list[_Begun], index: int, discovery: Any) -> Discovery:
        """What one of the enumerators has said, as said by the whole."""
        if not isinstance(discovery, Discovery):
            message = f"an enumerator gives a Discovery; got {type(discovery).__name__}"
            raise SourceError(message, source=index)
        one = begun[index]
        one.state, one.is_final = discovery.state, one.is_final or discovery.is_final
        one.has_found |= bool(discovery.splits)
        is_bounded = self._chain[index].is_bounded
        splits = [wrapped(split, index, one.end_position, is_bounded=is_bounded) for split in discovery.splits]
        events = tuple(
            SourceEvent(AddressedEvent(index, one.end_position, sent.event), sent.subtask) for sent in discovery.events
        )
        return self._said(begun, dataclasses.replace(discovery, splits=splits, events=events))

    def _said(self, begun: list[_Begun], discovery: Discovery) -> Discovery:
        """A discovery with how far the whole has come."""
        present = begun[-1]
        is_last = len(begun) == len(self._chain)
        enumerator = self._enumerators.get(_key(len(begun) - 1, present))
        interval_ms = None if enumerator is None else enumerator.discovery_interval_ms
        self.discovery_interval_ms = None if present.is_final else interval_ms
        return dataclasses.replace(
            discovery,
            is_final=present.is_final and is_last,
            state={"sources": [dataclasses.asdict(one) for one in begun]},
            continues=discovery.continues or (present.is_final and not is_last),
        )

    def _enumerator(self, index: int, begun: _Begun, progress: EnumeratorProgress) -> SplitEnumerator:
        key = _key(index, begun)
        if key not in self._enumerators:
            source = source_at(self._chain, index, begun.end_position)
            check_source(source, f"source {index} of a hybrid source")
            self._enumerators[key] = source.create_enumerator(
                EnumeratorContext(progress.parallelism, self._checkpointing)
            )
        return self._enumerators[key]

    def _begun(self, progress: EnumeratorProgress) -> list[_Begun]:
        """The sources that have begun, the present one last."""
        if progress.state is None:
            if progress.has_found:
                message = "the checkpoint is of a source that was not hybrid, and now is"
                hint = "give the hybrid source a uid of its own"
                raise CheckpointMismatchError(message, hint=hint)
            return [_Begun()]
        try:
            begun = [
                _Begun(one["end_position"], one["state"], one["is_final"], one["has_found"])
                for one in progress.state["sources"]
            ]
        except (KeyError, TypeError) as error:
            message = f"the checkpoint's part for a hybrid source cannot be read: {error!r}"
            raise CheckpointMismatchError(message) from error
        if not 0 < len(begun) <= len(self._chain):
            message = (
                f"the checkpoint is of a hybrid source with at least {len(begun)} sources; {len(self._chain)} given"
            )
            raise CheckpointMismatchError(message)
        return begun


def _key(index: int, begun: _Begun) -> tuple[int, str]:
    return index, json.dumps(begun.end_position, sort_keys=True)


def _as_stored(end_position: Any, index: int) -> Any:
    """An end position as it will come out of a checkpoint, so that a factory sees the same before and after one."""
    try:
        return json.loads(json.dumps(end_position))
    except (TypeError, ValueError) as error:
        message = f"the end position of source {index} of a hybrid source must be JSON-able: {error}"
        raise ProgramError(message, end_position=repr(end_position)) from error
