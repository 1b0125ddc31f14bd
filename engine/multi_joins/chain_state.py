"""What a batch of an input comes to for one chain of joins, over rows that are kept for it and maybe for others.

A *line* is a row of each input that has been joined so far, by its number in its store; -1 stands for nulls, and where
the batch's own input is, for a row of the batch. The lines of a key are those of the first input, with the rows that
match in the second, and so on (`ChainState._joined`).

A batch of an input changes the result in three steps. The *lines before* it are those of the inputs before its own, of
the keys of the batch: they have not changed. Each row of the batch that matches one comes or goes with it; of a left
join a line that gets its first match loses its nulls, and one that loses its last match gets them; of semi and anti
joins it comes or goes. How many matches a line has is counted in the store, so nothing of lines is kept. What has come
and gone is then joined with the inputs behind, which have not changed either.

Lines are made for all keys of a batch at once; columns are made of them at the end, for so many at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..changelog.changes import adds
from ..columns.conditions import where_true
from ..columns.records import MAX_BATCH_ROWS, Batch, RowKind, RowKinds
from ..tables.columns import Integers, Truths
from ..tables.keyed_records import pairs_of
from ..tables.row_store import RowStore
from .join_step import JoinChain, JoinStep

__all__ = ["Arrived", "ChainState", "Pending"]


class Arrived(NamedTuple):
    """A batch.

    Attributes:
        batch: The records.
        codes: Of their keys; -1 for those that match nothing.
        signs: -1 for those that are taken back; None if none is.
        kinds: What each record does.
        touched: The codes that occur.
        local: For each record the place of its own among them; -1 for a record without one.
    """

    batch: pa.RecordBatch
    codes: Integers
    signs: Integers | None
    kinds: RowKinds
    touched: Integers
    local: Integers


class _Lines(NamedTuple):
    """Rows of several inputs beside each other.

    Attributes:
        codes: Of their keys; -1 for one that matches nothing.
        ids: By input, of those that have been joined.
        kinds: What kind of change each is.
    """

    codes: Integers
    ids: list[Integers]
    kinds: RowKinds

    def take(self, places: Integers) -> _Lines:
        """Some of them."""
        return _Lines(self.codes[places], [one[places] for one in self.ids], self.kinds[places])

    def beside(self, ids: Integers) -> _Lines:
        """The same with rows of one more input."""
        return self._replace(ids=[*self.ids, ids])

    def alone(self, places: Integers, kind: RowKind | None = None) -> _Lines:
        """Some of them without a row of the next input; maybe of another kind."""
        some = self.take(places).beside(np.full(len(places), -1, np.int64))
        return some if kind is None else some._replace(kinds=np.full(len(places), kind, np.int8))


class _Own(NamedTuple):
    """The batch, and which input of the chain it is of; -1 where its rows are not looked at."""

    batch: pa.RecordBatch
    at: int


class Pending(NamedTuple):
    """What a batch comes to as far as it can be said before its rows are kept.

    Attributes:
        own: The batch.
        kinds: What each of its records does to the result.
        before: The lines before it; of the first input those of the batch.
        rows: Records, and the lines that each matches.
        places: Those.
        num_matches: Of each line, without the batch; None if nobody asks.
    """

    own: _Own
    kinds: RowKinds
    before: _Lines
    rows: Integers
    places: Integers
    num_matches: Integers | None


class ChainState:
    """A chain over the rows of its inputs.

    Args:
        chain: The chain.
        stores: The rows of all inputs of the operator.
        kept: The columns that these have.
    """

    def __init__(self, chain: JoinChain, stores: Sequence[RowStore], kept: Sequence[Sequence[str]]) -> None:
        self._chain = chain
        self._stores = [stores[at] for at in chain.inputs]
        self._kept = [list(kept[at]) for at in chain.inputs]

    def before(self, arrived: Arrived, at: int) -> Pending:
        """Return what a batch matches, before its rows are kept.

        Args:
            arrived: The batch.
            at: Its input, as the operator counts.
        """
        own = _Own(arrived.batch, self._chain.inputs.index(at))
        kinds = arrived.kinds
        if not self._chain.passes_kinds:
            kinds = np.where(adds(kinds), RowKind.INSERT, RowKind.DELETE).astype(np.int8)
        if own.at == 0:
            rows = np.arange(arrived.batch.num_rows)
            return Pending(own, kinds, _Lines(arrived.codes, [rows], kinds), rows, rows, None)
        step = self._chain.steps[own.at - 1]
        before, owners = self._lines_of(arrived.touched, own)
        num_matches = self._num_matches(before, own) if step.counts_matches else None
        rows, places = pairs_of(arrived.local, owners, len(arrived.touched))
        rows, places = self._matching(before, rows, places, step, own)
        return Pending(own, kinds, before, rows, places, num_matches)

    def after(self, pending: Pending, arrived: Arrived, is_moved: Truths) -> Iterator[Batch]:
        """Give the changes of the result, when the rows of the batch are kept.

        Args:
            pending: What was found before that.
            arrived: The batch.
            is_moved: Which of its records have moved anything.
        """
        own = pending.own
        if own.at == 0:
            lines = pending.before.take(np.flatnonzero(is_moved))
        else:
            lines = self._moved(pending, arrived, is_moved)
        for behind in range(own.at + 1, len(self._stores)):
            lines = self._joined(lines, behind, own)
        yield from self._made(lines, own)

    def _moved(self, pending: Pending, arrived: Arrived, is_moved: Truths) -> _Lines:
        """The lines of the inputs up to the batch's own that come and go with it."""
        own, kinds, before, rows, places, num_matches = pending
        step = self._chain.steps[own.at - 1]
        moved = is_moved[rows] if step.gives_pairs else np.zeros(len(rows), np.bool_)
        pairs = before.take(places[moved]).beside(rows[moved])._replace(kinds=kinds[rows[moved]])
        if num_matches is None:
            return pairs
        weights = None if arrived.signs is None else arrived.signs[rows]
        net = np.bincount(places, weights, len(before.codes)).astype(np.int64)
        matched = np.flatnonzero((num_matches == 0) & (net > 0))
        unmatched = np.flatnonzero((num_matches > 0) & (num_matches + net == 0))
        goes, comes = (unmatched, matched) if step.how == "semi" else (matched, unmatched)
        return _one_after_another(before.alone(goes, RowKind.DELETE), pairs, before.alone(comes, RowKind.INSERT))

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _lines_of(self, codes: Integers, own: _Own) -> tuple[_Lines, Integers]:
        """The lines of some keys over the inputs before the batch's own, and the place of each one's key."""
        owners, ids = self._stores[0].by_key.of(codes)
        lines = _Lines(owners, [ids], np.zeros(len(ids), np.int8))
        for behind in range(1, own.at):
            lines = self._joined(lines, behind, own, codes)
        return lines._replace(codes=codes[lines.codes]), lines.codes

    def _joined(self, lines: _Lines, behind: int, own: _Own, codes: Integers | None = None) -> _Lines:
        """Lines with the rows of one more input; ``codes`` are those of the keys if lines have places of keys."""
        step = self._chain.steps[behind - 1]
        keys = lines.codes if codes is None else codes[lines.codes]
        places, ids = self._stores[behind].by_key.of(np.where(self._may_match(lines, step), keys, -1))
        if step.condition is not None:
            kept = self._are_true(lines, places, ids, step, behind, own)
            places, ids = places[kept], ids[kept]
        if step.how == "inner":
            return lines.take(places).beside(ids)
        has_match = np.bincount(places, minlength=len(keys)) > 0
        if not step.gives_pairs:
            return lines.alone(np.flatnonzero(has_match == (step.how == "semi")))
        lonely = np.flatnonzero(~has_match)
        order = np.argsort(np.concatenate([places, lonely]), kind="stable")
        places = np.concatenate([places, lonely])[order]
        return lines.take(places).beside(np.concatenate([ids, np.full(len(lonely), -1, np.int64)])[order])

    def _may_match(self, lines: _Lines, step: JoinStep) -> Truths:
        """Which lines have the rows that an input was joined by."""
        may = np.ones(len(lines.codes), np.bool_)
        for one in step.needs:
            may &= lines.ids[one] >= 0
        return may

    def _matching(
        self, lines: _Lines, rows: Integers, places: Integers, step: JoinStep, own: _Own
    ) -> tuple[Integers, Integers]:
        """Those pairs of a row of the batch and a line that match."""
        kept = self._may_match(lines, step)[places]
        if not kept.all():
            rows, places = rows[kept], places[kept]
        if step.condition is not None:
            kept = self._are_true(lines, places, rows, step, own.at, own)
            rows, places = rows[kept], places[kept]
        return rows, places

    def _num_matches(self, lines: _Lines, own: _Own) -> Integers:
        """How many rows of the batch's input match each line, without those of the batch."""
        step, store = self._chain.steps[own.at - 1], self._stores[own.at]
        codes = np.where(self._may_match(lines, step), lines.codes, -1)
        if step.condition is None:
            return store.by_key.counts_of(codes)
        places, ids = store.by_key.of(codes)
        kept = self._are_true(lines, places, ids, step, own.at, own._replace(at=-1))
        return np.bincount(places[kept], minlength=len(codes))

    def _are_true(
        self, lines: _Lines, places: Integers, ids: Integers, step: JoinStep, behind: int, own: _Own
    ) -> Truths:
        """For which pairs of a line and a row of the input behind it a step's condition is true."""
        assert step.condition is not None
        found = [np.zeros(0, np.bool_)]
        for start in range(0, len(places), MAX_BATCH_ROWS):
            some = slice(start, start + MAX_BATCH_ROWS)
            of_input = {behind: ids[some]}
            of_input |= {at: lines.ids[at][places[some]] for at, _, _ in step.columns if at < behind}
            found.append(where_true(step.condition, self._columns(of_input, own, step.columns), "join"))
        return np.concatenate(found)

    # -- what goes out -------------------------------------------------------------------------------------------------

    def _made(self, lines: _Lines, own: _Own) -> Iterator[Batch]:
        for start in range(0, len(lines.codes), MAX_BATCH_ROWS):
            some = slice(start, start + MAX_BATCH_ROWS)
            columns = self._columns({at: ids[some] for at, ids in enumerate(lines.ids)}, own, self._chain.projection)
            kinds = lines.kinds[some]
            yield Batch.of_columns(columns, None, kinds if kinds.any() else None)

    def _columns(
        self, ids: dict[int, Integers], own: _Own, projection: Sequence[tuple[int, str, str]]
    ) -> pa.RecordBatch:
        """Columns of rows of the batch and of stores, beside each other."""
        arrays = []
        for at, column, _ in projection:
            if at == own.at:
                is_none = ids[at] < 0
                arrays.append(own.batch.column(column).take(pa.array(ids[at], mask=is_none if is_none.any() else None)))
            else:
                arrays.append(self._stores[at].take_column(self._kept[at].index(column), ids[at]))
        return pa.RecordBatch.from_arrays(arrays, names=[name for _, _, name in projection])


def _one_after_another(*parts: _Lines) -> _Lines:
    ids = [np.concatenate(of_input) for of_input in zip(*(one.ids for one in parts), strict=True)]
    return _Lines(np.concatenate([one.codes for one in parts]), ids, np.concatenate([one.kinds for one in parts]))
