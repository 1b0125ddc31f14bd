"""What one aggregate keeps of all groups of a stream of changes: the contract, and the records that it is given.

Most aggregates *fold* a batch to what it comes to, a row for each group, which is *merged*, maybe somewhere else: those
that `headrace.engine.changelog.local_aggregate.why_in_one_phase` lets through.

Source: Flink's ``AggsHandleFunction``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.state.errors import InternalError

from ...tables import table_loops
from ...tables.columns import Integers, Truths

__all__ = ["Accumulator", "FoldedAccumulator", "Touched", "Unknown", "folded", "unknown_in"]


class Touched:
    """The groups that a batch touches.

    Attributes:
        groups: Their codes.
        local: For each record, the place of its group among them.
        signs: 1 for each record that is added, -1 for each that is taken away; None if all are added.
        codes: For each record, the code of its group.
    """

    def __init__(self, groups: Integers, local: Integers, signs: Integers | None) -> None:
        self.groups = groups
        self.local = local
        self.signs = signs

    @property
    def codes(self) -> Integers:
        return self.groups[self.local]

    def taken(self, rows: Integers) -> Touched:
        """Return the same groups, of some of the records."""
        return Touched(self.groups, self.local[rows], None if self.signs is None else self.signs[rows])

    @property
    def all_signs(self) -> Integers:
        return np.ones(len(self.local), np.int64) if self.signs is None else self.signs

    def once_each(self) -> Touched:
        """Return the same groups, with one record for each of them."""
        return Touched(self.groups, np.arange(len(self.groups)), None)


class Unknown(NamedTuple):
    """Records that take away what is not there, as it has expired.

    Attributes:
        is_ignored: Which records.
        is_emptied: By touched group, whether it has lost its last record: it is begun anew then.
        is_lasting: Which records count, as their group has not lost its last one behind them.
    """

    is_ignored: Truths
    is_emptied: Truths
    is_lasting: Truths


def unknown_in(counts: Integers, local: Integers, signs: Integers) -> Unknown | None:
    """Look for records that take away more than there is; None if no group comes to nothing on the way.

    Args:
        counts: How many records each touched group has.
        local: For each record, the place of its group.
        signs: 1 for each record that is added, -1 for each that is taken away, 0 for one that is not counted.
    """
    emptied, is_ignored = np.full(len(counts), -1, np.int64), np.zeros(len(local), np.uint8)
    num_ignored = table_loops.count_to_none(local, signs, counts.copy(), emptied, is_ignored)
    if not num_ignored and (emptied < 0).all():
        return None
    ignored = is_ignored.view(np.bool_)
    return Unknown(ignored, emptied >= 0, ~ignored & (np.arange(len(local)) > emptied[local]))


class Accumulator(ABC):
    """One aggregate of all groups."""

    fields: list[pa.Field]
    """The columns that it keeps in the log of groups; their names are those of parts."""

    @abstractmethod
    def add(self, batch: pa.RecordBatch, touched: Touched) -> None:
        """Add records, and take others away."""

    @abstractmethod
    def results(self, groups: Integers) -> pa.Array:
        """Return the results of groups."""

    @abstractmethod
    def state(self, groups: Integers) -> list[pa.Array]:
        """Return what is kept of groups, by ``fields``."""

    @abstractmethod
    def put(self, groups: Integers, state: Sequence[pa.Array]) -> None:
        """Set what is kept of groups."""

    def completed(self, state: Sequence[pa.Array], records: pa.Array) -> list[pa.Array]:
        """Return what was kept of groups, null where the aggregate was not part of the query then: made of what there
        is.

        Args:
            state: By ``fields``.
            records: How many records each group has.
        """
        return list(state)

    def reset(self, groups: Integers) -> None:  # noqa: B027 - what is computed of counts of values has nothing
        """Begin groups anew whose last record is gone."""

    def counted(self, batch: pa.RecordBatch) -> Truths | None:
        """Return which records have a value that is counted (see `counts`); None for all."""
        return None

    def counts(self, groups: Integers) -> Integers | None:
        """Return how many values groups have; None if it is not known by a number."""
        return None

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """How many bytes it holds."""


class FoldedAccumulator(Accumulator):
    """One whose batches are folded before they are merged: here, or in a phase in front of it."""

    @property
    def parts(self) -> list[pa.Field]:
        """The columns that a batch is folded to."""
        return self.fields

    def add(self, batch: pa.RecordBatch, touched: Touched) -> None:
        self.merge(self.fold(batch, touched), touched.once_each())

    @abstractmethod
    def fold(self, batch: pa.RecordBatch, touched: Touched) -> list[pa.Array]:
        """Return what records alone come to, by ``parts``: a row for each group. Nothing that is kept is read or
        changed.
        """

    @abstractmethod
    def merge(self, parts: Sequence[pa.Array], touched: Touched) -> None:
        """Add what batches came to.

        Args:
            parts: By ``parts``.
            touched: Whose its rows are; a group may have several.
        """


def folded(accumulator: Accumulator) -> FoldedAccumulator:
    """Return an accumulator whose batches can be folded.

    Raises:
        InternalError: If they cannot: such an aggregate has one phase.
    """
    if not isinstance(accumulator, FoldedAccumulator):
        message = f"{type(accumulator).__name__} takes records, and no partial results"
        raise InternalError(message)
    return accumulator
