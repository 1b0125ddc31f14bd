"""Several sources one after another as one: history from files, then what happens now from a log.

All but the last source are bounded. The next one begins when every split of the one before has been read to its end,
by all readers. Where it begins may depend on where that one ended: instead of a source the chain may have a factory,
which is called at the switch with the end position that the finished enumerator has left (`SourceSwitchContext`).

The factory is called wherever the source is needed: where splits are found, where they are read, and again after every
failure. So what it gives must depend on its context alone, and that context is data: it travels in the splits and in
checkpoints, which is why a restored job goes on with the very source that it had, under any leader.

Splits are named ``0:...``, ``1:...`` by their source; `headrace.connectors.hybrid.enumerator` finds them and decides to
switch, `headrace.connectors.hybrid.reader` reads them in order.

Source: Flink's ``HybridSource``, ``SourceSwitchContext``; FLIP-150.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from headrace.engine.connectors.contract import EnumeratorContext, Source, SourceReader, SplitEnumerator
from headrace.engine.connectors.source_protocols import check_source
from headrace.engine.errors import ConfigurationError
from headrace.engine.functions.life import refuse_life
from headrace.state.type_variables import OUT

from ...arguments.known_columns import columns_of_source
from .enumerator import HybridEnumerator
from .reader import HybridReader
from .splits import ChainedSource, SourceSwitchContext

__all__ = ["HybridSource", "HybridSourceBuilder", "SourceSwitchContext"]

_Record = TypeVar("_Record")


class HybridSource(Source[OUT]):
    """Reads several sources one after another. Made by `builder`.

    Event time goes on over a switch: the end of a source is not the end of event time, and readers that wait for the
    switch hold their watermark, unless the strategy has an idleness and the whole is unbounded.

    Guarantees:
        Exactly once, as its sources are, also if processes die in the middle of a switch.
    """

    def __init__(self, chain: Sequence[ChainedSource]) -> None:
        self._chain = tuple(chain)
        self.is_bounded = self._chain[-1].is_bounded

    @staticmethod
    def builder(first_source: Source[_Record]) -> HybridSourceBuilder[_Record]:
        """Begin a chain.

        Args:
            first_source: What is read first; bounded, unless it stays the only one.
        """
        return HybridSourceBuilder().add_source(first_source)

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records, if all sources are known to have the same."""
        if any(link.source is None for link in self._chain):
            return None
        known = [columns_of_source(link.source) for link in self._chain]
        first = known[0]
        return first if first is not None and all(one is not None and one.equals(first) for one in known) else None

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Make what finds the splits of all, one source after another."""
        return HybridEnumerator(self._chain, checkpointing=context.checkpointing)

    def create_reader(self) -> SourceReader:
        """Make what reads them, one source after another."""
        return HybridReader(self._chain)


@dataclass(frozen=True, slots=True)
class HybridSourceBuilder(Generic[OUT]):
    """A chain of sources in the making; each call gives a new one."""

    _chain: tuple[ChainedSource, ...] = ()

    def add_source(
        self, source: Source[_Record] | Callable[[SourceSwitchContext], Source[_Record]], is_bounded: bool | None = None
    ) -> HybridSourceBuilder[OUT | _Record]:
        """Read another source behind those so far.

        Args:
            source: It, or a factory of it, which is called with a `SourceSwitchContext` and gives equal sources for
                equal contexts.
            is_bounded: Of a factory: whether the source that it will give ends.

        Raises:
            ConfigurationError: If the source before does not end, ``is_bounded`` is missing for a factory or
                contradicts a source, or ``source`` is neither.
            ProgramError: If the source, its reader or its enumerator could not be called as they will be.
        """
        index = len(self._chain)
        if self._chain and not self._chain[-1].is_bounded:
            message = f"source {index} of a hybrid source would never begin: source {index - 1} does not end"
            raise ConfigurationError(message)
        if hasattr(source, "create_reader"):
            link = _link_of(source, is_bounded, index)
        elif not callable(source) or index == 0:
            what = "a source" if index == 0 else "a source or a factory of one"
            message = f"source {index} of a hybrid source must be {what}; got {source!r}"
            raise ConfigurationError(message)
        elif not isinstance(is_bounded, bool):
            message = f"is_bounded must say whether source {index}, which a factory makes, ends; got {is_bounded!r}"
            raise ConfigurationError(message)
        else:
            refuse_life(source, "a factory of sources")
            link = ChainedSource(None, source, is_bounded)
        return HybridSourceBuilder((*self._chain, link))

    def build(self) -> HybridSource[OUT]:
        """Make the source."""
        return HybridSource(self._chain)


def _link_of(source: Any, is_bounded: bool | None, index: int) -> ChainedSource:
    name = f"source {index} of a hybrid source"
    refuse_life(source, "a source", "its reader may have state and hear of checkpoints")
    check_source(source, name)
    if is_bounded is not None and is_bounded != source.is_bounded:
        message = f"{name} says is_bounded={source.is_bounded} itself; got is_bounded={is_bounded}"
        raise ConfigurationError(message)
    return ChainedSource(source, None, source.is_bounded)
