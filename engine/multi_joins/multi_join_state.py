"""What a multi-way join keeps, the rows of each input by the codes of the common key, and how a batch is worked off.

A *line* is a row of each input that has been joined so far, by its number in its store; -1 stands for nulls, and where
the batch's own input is, for a row of the batch. The lines of a key are those of the first input, with the rows that
match in the second, and so on (`_MultiJoin._joined`).

A batch of an input changes the result in three steps. The *lines before* it are those of the inputs before its own, of
the keys of the batch: they have not changed. Each row of the batch that matches one comes or goes with it; of a left
join a line that gets its first match loses its nulls, and one that loses its last match gets them. How many matches a
line has is counted in the store, so nothing of lines is kept. What has come and gone is then joined with the inputs
behind, which have not changed either.

Lines are made for all keys of a batch at once; columns are made of them at the end, for so many at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..changelog.changes import adds
from ..changelog.join_state import codes_of_keys, make_room, put_away
from ..columns.conditions import where_true
from ..columns.records import MAX_BATCH_ROWS, Batch, RowKind, RowKinds
from ..functions.operator import OperatorContext
from ..tables.columns import Integers, Truths
from ..tables.key_index import LocalCodes
from ..tables.pairs import pairs_of
from ..tables.resident_keys import ResidentKeys
from ..tables.row_store import RowStore
from .join_step import JoinStep

__all__ = ["MultiJoinState"]


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


class _Own(NamedTuple):
    """The batch, and which input it is of."""

    batch: pa.RecordBatch
    at: int


class MultiJoinState:
    """The rows of all inputs, of one subtask.

    Args:
        context: The operator's.
        keys: Names of the key's columns, of each input.
        schemas: Of the records, of each input.
        steps: How all inputs but the first are joined.
        projection: Input, column there, name in the result.

    Attributes:
        residents: Which keys are in memory.
    """

    def __init__(
        self,
        context: OperatorContext,
        keys: Sequence[tuple[str, ...]],
        schemas: Sequence[pa.Schema],
        steps: Sequence[JoinStep],
        projection: Sequence[tuple[int, str, str]],
    ) -> None:
        self._keys = keys
        self._steps = steps
        self._projection = projection
        self._is_inner = not any(step.is_left for step in steps)
        used = [*projection, *(entry for step in steps for entry in step.columns)]
        self._kept = [list(dict.fromkeys(column for of, column, _ in used if of == at)) for at in range(len(keys))]
        self.residents = ResidentKeys(context.keyed_state, [schemas[0].field(name).type for name in keys[0]])
        self._stores = [
            RowStore(
                context.keyed_state,
                f"input{at}",
                [schema.field(name) for name in keys[at]],
                self.residents.index,
                [schema.field(name) for name in self._kept[at]],
                is_attached=True,
            )
            for at, schema in enumerate(schemas)
        ]
        self.residents.attach(*self._stores)
        self._local = LocalCodes()

    # -- a batch -------------------------------------------------------------------------------------------------------

    def process(
        self, batch: pa.RecordBatch, signs: Integers | None, kinds: RowKinds | None, at: int
    ) -> Iterator[Batch]:
        """Take records of an input; gives the changes of the result.

        Args:
            batch: The records.
            signs: -1 for those that are taken back; None if none is.
            kinds: What each record does; None if all are inserted.
            at: The input.

        Raises:
            UserFunctionError: If one is taken back that was not there.
        """
        own = _Own(batch, at)
        columns = [batch.column(name) for name in self._keys[at]]
        codes = codes_of_keys(self.residents, columns, batch.num_rows)
        kinds = np.zeros(batch.num_rows, np.int8) if kinds is None else kinds
        if not self._is_inner:
            kinds = np.where(adds(kinds), RowKind.INSERT, RowKind.DELETE).astype(np.int8)
        if at == 0:
            is_moved = self._keep(own, codes, signs)
            lines = _Lines(codes, [np.arange(batch.num_rows)], kinds).take(np.flatnonzero(is_moved))
        else:
            lines = self._moved(own, codes, signs, kinds)
        for behind in range(at + 1, len(self._stores)):
            lines = self._joined(lines, behind, own)
        yield from self._made(lines, own)
        make_room(self.residents, self._stores)

    def persist_all(self) -> None:
        """Write what has changed of all that is kept."""
        self.residents.persist()

    def _keep(self, own: _Own, codes: Integers, signs: Integers | None) -> Truths:
        return put_away(self._stores[own.at], own.batch, self._kept[own.at], codes, signs).is_moved

    def _moved(self, own: _Own, codes: Integers, signs: Integers | None, kinds: RowKinds) -> _Lines:
        """The lines of the inputs up to the batch's own that come and go with it."""
        step = self._steps[own.at - 1]
        touched, local = self._touched(codes)
        before, owners = self._lines_of(touched, own)
        num_matches = self._num_matches(before, own) if step.is_left else None
        rows, lines = pairs_of(local, owners, len(touched))
        rows, lines = self._matching(before, rows, lines, step, own)
        is_moved = self._keep(own, codes, signs)
        moved = is_moved[rows]
        pairs = before.take(lines[moved]).beside(rows[moved])._replace(kinds=kinds[rows[moved]])
        if num_matches is None:
            return pairs
        net = np.bincount(lines, None if signs is None else signs[rows], len(before.codes)).astype(np.int64)
        matched = np.flatnonzero((num_matches == 0) & (net > 0))
        unmatched = np.flatnonzero((num_matches > 0) & (num_matches + net == 0))
        return _one_after_another(
            _with_nulls(before.take(matched), RowKind.DELETE), pairs,
            _with_nulls(before.take(unmatched), RowKind.INSERT),
        )  # fmt: skip

    def _touched(self, codes: Integers) -> tuple[Integers, Integers]:
        """The codes that occur, and for each row the place of its own; -1 for a row without one."""
        known = np.flatnonzero(codes >= 0)
        touched, places = self._local.of(codes[known], len(self.residents.index))
        local = np.full(len(codes), -1, np.int64)
        local[known] = places
        return touched, local

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
        step = self._steps[behind - 1]
        keys = lines.codes if codes is None else codes[lines.codes]
        places, ids = self._stores[behind].by_key.of(np.where(self._may_match(lines, step), keys, -1))
        if step.condition is not None:
            kept = self._are_true(lines, places, ids, step, behind, own)
            places, ids = places[kept], ids[kept]
        if step.is_left:
            lonely = np.flatnonzero(np.bincount(places, minlength=len(keys)) == 0)
            order = np.argsort(np.concatenate([places, lonely]), kind="stable")
            places = np.concatenate([places, lonely])[order]
            ids = np.concatenate([ids, np.full(len(lonely), -1, np.int64)])[order]
        return lines.take(places).beside(ids)

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
        step, store = self._steps[own.at - 1], self._stores[own.at]
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
            columns = self._columns({at: ids[some] for at, ids in enumerate(lines.ids)}, own, self._projection)
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


def _with_nulls(lines: _Lines, kind: RowKind) -> _Lines:
    """Lines without a row of the next input."""
    nothing = np.full(len(lines.codes), -1, np.int64)
    return lines.beside(nothing)._replace(kinds=np.full(len(lines.codes), kind, np.int8))


def _one_after_another(*parts: _Lines) -> _Lines:
    ids = [np.concatenate(of_input) for of_input in zip(*(one.ids for one in parts), strict=True)]
    return _Lines(np.concatenate([one.codes for one in parts]), ids, np.concatenate([one.kinds for one in parts]))
