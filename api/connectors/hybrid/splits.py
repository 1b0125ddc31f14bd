"""What the two halves of a hybrid source share: its chain, and splits and events that say to which source they belong.

A split of source i is called ``i:id`` and carries, beside its own payload, i and the end position of the source before,
from which a factory makes source i again wherever the split goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.engine.connectors.contract import Source, Split
from headrace.engine.errors import (
    CheckpointMismatchError,
    HeadraceError,
    ProgramError,
    UserFunctionError,
    raise_from_outside,
)
from headrace.state.checkpoints.manifest_schema import is_count

__all__ = ["AddressedEvent", "ChainedSource", "SourceSwitchContext", "source_at", "split_id_of", "unwrapped", "wrapped"]


@dataclass(frozen=True, slots=True)
class SourceSwitchContext:
    """What a factory of a source may know.

    Attributes:
        end_position: Where the source before has ended, as its enumerator has said: the `Discovery.state` of its last
            look (a `FileSource` says ``{"last_path": ...}``). JSON-able: tuples have become lists. None if it has said
            nothing.
        source_index: Which source is to be made, counted from 0.
    """

    end_position: Any
    source_index: int


@dataclass(frozen=True, slots=True)
class ChainedSource:
    """One source of a chain: itself, or what makes it. Whether it ends is known before."""

    source: Source | None
    factory: Callable[[SourceSwitchContext], Source] | None
    is_bounded: bool


@dataclass(frozen=True, slots=True)
class AddressedEvent:
    """A source event of one source of a chain, on its way between reader and enumerator.

    Attributes:
        source_index: Of which.
        end_position: Of the source before.
        event: What is sent.
    """

    source_index: int
    end_position: Any
    event: Any


def source_at(chain: Sequence[ChainedSource], index: int, end_position: Any) -> Source:
    """Return one source of a chain.

    Args:
        chain: It.
        index: Which.
        end_position: Of the source before.

    Raises:
        CheckpointMismatchError: If the chain is shorter.
        UserFunctionError: If the factory raises something.
        ProgramError: If what it gives is no source, or is not bounded as was said.
    """
    if index >= len(chain):
        message = f"the checkpoint has splits of source {index} of a hybrid source, which has {len(chain)} sources"
        raise CheckpointMismatchError(message)
    link = chain[index]
    if link.source is not None:
        return link.source
    assert link.factory is not None
    try:
        source = link.factory(SourceSwitchContext(end_position, index))
    except HeadraceError:
        raise
    except BaseException as error:
        raise_from_outside(error)
        message = f"the factory of source {index} of a hybrid source raised {error!r}"
        raise UserFunctionError(message, end_position=end_position) from error
    is_bounded = getattr(source, "is_bounded", None)
    if not hasattr(source, "create_reader") or is_bounded != link.is_bounded:
        made = repr(source) if is_bounded is None else f"a {type(source).__name__} with is_bounded={is_bounded}"
        message = f"source {index} of a hybrid source was to be one with is_bounded={link.is_bounded}; got {made}"
        raise ProgramError(message, end_position=end_position)
    return source


def split_id_of(index: int, inner_id: str) -> str:
    """Return what a split of one of the sources is called in the whole."""
    return f"{index}:{inner_id}"


def wrapped(split: Split, index: int, end_position: Any, *, is_bounded: bool | None = None) -> Split:
    """Return a source's split as one of the whole.

    Args:
        split: It.
        index: Of its source.
        end_position: Of the source before.
        is_bounded: Of its source, for discoveries.
    """
    return replace(
        split,
        split_id=split_id_of(index, split.split_id),
        payload={"source": index, "end_position": end_position, "payload": split.payload},
        origin=None if split.origin is None else split_id_of(index, split.origin),
        is_bounded=is_bounded if split.is_bounded is None else split.is_bounded,
    )


def unwrapped(split: Split) -> tuple[int, Any, Split]:
    """Return of which source a split is, the end position of the one before, and the split as that source knows it.

    Raises:
        CheckpointMismatchError: If it is no split of a hybrid source.
    """
    try:
        index, end_position, payload = (split.payload[key] for key in ("source", "end_position", "payload"))
    except (KeyError, TypeError):
        message = "the checkpoint has a split of a source that was not hybrid, and now is"
        raise CheckpointMismatchError(message, split=split.split_id) from None
    named, _, inner_id = split.split_id.partition(":")
    if not is_count(index) or named != str(index):
        message = f"the checkpoint has a split that cannot be one of source {index!r:.40} of a hybrid source"
        raise CheckpointMismatchError(message, split=split.split_id)
    return index, end_position, replace(split, split_id=inner_id, payload=payload)
