"""What a join keeps: the rows of both inputs by the codes of their keys, and how many rows match each of them.

A batch is worked off in steps: its pairs are found, then those for which the condition is true; the rows are added to
their store or taken out of it; what changes for rows of the other side follows from how many matches they had and have.
What goes out is a list of *places*: a row of the batch, or none, and a row of the other side, or none. Columns are made
of places at the end, for so many at a time.

Rows that nobody can match (their key has a null) are not kept: what they give, they give when they come.

With a time to live each row is kept until it was not written for so long: it is written when it comes, and when its
number of matches is counted anew. A row that has expired matches nothing any more, and its pairs stay where they are; a
row that is taken back and is not there, as it has expired, gives nothing. The number of matches is that of the pairs
that are out, so that it is never below zero: a row that has expired still counts as a match.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..columns.conditions import where_true
from ..columns.expressions import Expression
from ..columns.records import MAX_BATCH_ROWS, Batch, RowKind, RowKinds
from ..functions.operator import OperatorContext
from ..tables.columns import Integers, Truths, fields_of, validity
from ..tables.key_index import LocalCodes
from ..tables.lifetime import lifetime_of
from ..tables.resident_keys import ResidentKeys
from ..tables.row_store import RowStore
from .changes import adds, refuse_unknown_row
from .join_type import JoinType

__all__ = ["JoinState", "Moved", "codes_of_keys", "make_room", "put_away"]

_MIN_DEAD = 1_024
_STORES = ("left", "right")


class _Places(NamedTuple):
    """Rows to be made: of the batch and of the other side, -1 for nulls; and what kind of change each is."""

    rows: Integers
    ids: Integers
    kinds: RowKinds


class _Turned(NamedTuple):
    """Rows of the other side that have got their first match, and those that have lost their last one."""

    matched: Integers
    unmatched: Integers


class Moved(NamedTuple):
    """What a batch has done to the rows of an input.

    Attributes:
        is_moved: Which rows of the batch have moved anything.
        is_known: Which do not take back what has expired.
        removed: Those that have taken a row back.
        numbers: What these rows carried.
    """

    is_moved: Truths
    is_known: Truths
    removed: Integers
    numbers: Integers


_NONE = np.zeros(0, np.int64)


class JoinState:
    """The rows of both sides, of one subtask.

    Args:
        context: The operator's.
        join_type: Which rows are given.
        keys: Names of the key's columns, of both sides.
        schemas: Of the records, of both sides.
        projection: Side, column there, name in the result.
        condition: What else must be true of a pair.
        ttls_ms: How long rows of either side live; 0 for ever.

    Attributes:
        residents: Which keys are in memory.
    """

    def __init__(
        self,
        context: OperatorContext,
        join_type: JoinType,
        keys: tuple[tuple[str, ...], tuple[str, ...]],
        schemas: tuple[pa.Schema, pa.Schema],
        projection: Sequence[tuple[int, str, str]],
        condition: Expression | None,
        ttls_ms: tuple[int, int] = (0, 0),
    ) -> None:
        self._type = join_type
        self._key_names = keys
        self._condition = condition
        self._projection = projection
        # Of each side the columns that are kept: those that are projected.
        self._kept = [list(dict.fromkeys(column for of, column, _ in projection if of == side)) for side in (0, 1)]
        self.residents = ResidentKeys(context.keyed_state, [schemas[0].field(name).type for name in keys[0]])
        self._index = self.residents.index
        self._lifetimes = [lifetime_of(context, ttl, name) for ttl, name in zip(ttls_ms, _STORES, strict=True)]
        self._stores = [
            RowStore(
                context.keyed_state,
                _STORES[side],
                [schemas[side].field(name) for name in keys[side]],
                self._index,
                [schemas[side].field(name) for name in self._kept[side]],
                is_attached=True,
                lifetime=self._lifetimes[side],
            )
            for side in (0, 1)
        ]
        self.residents.attach(*self._stores)
        self._local = LocalCodes()
        given = {0} if join_type.gives_left_rows else {0, 1}
        self._given = [entry for entry in projection if entry[0] in given]
        used = condition.columns_used() if condition is not None else frozenset()
        self._judged = [entry for entry in projection if entry[2] in used] or list(projection)[:1]

    # -- a batch -------------------------------------------------------------------------------------------------------

    def process(
        self, batch: pa.RecordBatch, signs: Integers | None, kinds: RowKinds | None, side: int
    ) -> Iterator[Batch]:
        """Take records of a side; gives the changes of the result.

        Args:
            batch: The records.
            signs: -1 for those that are taken back; None if none is.
            kinds: What each record does; None if all are inserted.
            side: 0 for the left one.

        Raises:
            UserFunctionError: If one is taken back that was not there.
        """
        codes = codes_of_keys(self.residents, self.key_columns(batch, side), batch.num_rows)
        self._begin()
        rows, ids = self._matches(batch, codes, side)
        num_matches = np.bincount(rows, minlength=batch.num_rows)
        is_moved, is_known = self._keep(batch, codes, signs, num_matches, side)
        if not is_known.all():
            rows, ids = rows[is_known[rows]], ids[is_known[rows]]
        turned = self._count(rows, ids, signs, 1 - side)
        kinds = np.zeros(batch.num_rows, np.int8) if kinds is None else kinds
        places = self._places(rows, ids, num_matches, is_moved, turned, kinds, side)
        yield from self._made(batch, places, side)
        make_room(self.residents, self._stores)

    def key_columns(self, batch: pa.RecordBatch, side: int) -> list[pa.Array]:
        """Return the columns of records' keys."""
        return [batch.column(name) for name in self._key_names[side]]

    def _matches(self, batch: pa.RecordBatch, codes: Integers, side: int) -> tuple[Integers, Integers]:
        """The pairs of rows of the batch and rows of the other side that match, in order of the batch."""
        store = self._stores[1 - side]
        rows, ids = store.by_key.of(codes)
        if self._lifetimes[1 - side] is not None:
            lives = ~store.is_expired(ids)
            rows, ids = rows[lives], ids[lives]
        if self._condition is None or not len(rows):
            return rows, ids
        is_true = []
        for start in range(0, len(rows), MAX_BATCH_ROWS):
            part = slice(start, start + MAX_BATCH_ROWS)
            pairs = self._columns(batch, rows[part], ids[part], side, self._judged)
            is_true.append(where_true(self._condition, pairs, "join"))
        matches = np.concatenate(is_true)
        return rows[matches], ids[matches]

    def _keep(
        self, batch: pa.RecordBatch, codes: Integers, signs: Integers | None, num_matches: Integers, side: int
    ) -> tuple[Truths, Truths]:
        """Add rows to their store, and take others out; returns which rows of the batch have moved anything, and which
        do not take back what has expired.

        Where rows of the other side expire, what is taken back has had the matches that it carries, and not those that
        are found: their pairs are out.
        """
        store, counts = self._stores[side], self._type.counts_matches[side]
        has_ttl = any(lifetime is not None for lifetime in self._lifetimes)
        numbers = num_matches if counts else None
        moved = put_away(store, batch, self._kept[side], codes, signs, numbers, in_order=has_ttl)
        if counts and self._lifetimes[1 - side] is not None:
            num_matches[moved.removed] = moved.numbers
        return moved.is_moved, moved.is_known

    def _count(self, rows: Integers, ids: Integers, signs: Integers | None, side: int) -> _Turned:
        """Count the matches of rows of the other side."""
        if not self._type.counts_matches[side] or not len(rows):
            return _Turned(_NONE, _NONE)
        store = self._stores[side]
        touched, local = self._local.of(ids, store.size)
        net = np.bincount(local, None if signs is None else signs[rows], len(touched)).astype(np.int64)
        before = store.numbers[touched]
        after = before + net
        is_written = net != 0 if self._lifetimes[side] is None else np.ones(len(net), np.bool_)
        store.set_numbers(touched[is_written], after[is_written])
        return _Turned(touched[(before == 0) & (after > 0)], touched[(before > 0) & (after == 0)])

    # -- what goes out -------------------------------------------------------------------------------------------------

    def _places(
        self,
        rows: Integers,
        ids: Integers,
        num_matches: Integers,
        is_moved: Truths,
        turned: _Turned,
        kinds: RowKinds,
        side: int,
    ) -> list[_Places]:
        """The rows to be made, in order: what is taken back of the other side comes first, what is added last."""
        if self._type.gives_left_rows:
            return self._places_of_left_rows(num_matches, is_moved, turned, kinds, side)
        is_inner = self._type is JoinType.INNER
        row_kinds = kinds if is_inner else np.where(adds(kinds), RowKind.INSERT, RowKind.DELETE).astype(np.int8)
        if not is_moved.all():
            rows, ids = rows[is_moved[rows]], ids[is_moved[rows]]
        if self._type.preserves[side]:
            alone = np.flatnonzero((num_matches == 0) & is_moved)
            order = np.argsort(np.concatenate([rows, alone]), kind="stable")
            rows = np.concatenate([rows, alone])[order]
            ids = np.concatenate([ids, np.full(len(alone), -1)])[order]
        made = [_Places(rows, ids, row_kinds[rows])]
        if self._type.preserves[1 - side]:
            made = [_other_rows(turned.matched, RowKind.DELETE), *made, _other_rows(turned.unmatched, RowKind.INSERT)]
        return made

    def _places_of_left_rows(
        self, num_matches: Integers, is_moved: Truths, turned: _Turned, kinds: RowKinds, side: int
    ) -> list[_Places]:
        is_semi = self._type is JoinType.SEMI
        if side == 0:
            rows = np.flatnonzero(((num_matches > 0) == is_semi) & is_moved)
            return [_Places(rows, np.full(len(rows), -1), kinds[rows])]
        goes, comes = (turned.unmatched, turned.matched) if is_semi else (turned.matched, turned.unmatched)
        return [_other_rows(goes, RowKind.DELETE), _other_rows(comes, RowKind.INSERT)]

    def _made(self, batch: pa.RecordBatch, parts: list[_Places], side: int) -> Iterator[Batch]:
        whole = _Places(*(np.concatenate(of_parts) for of_parts in zip(*parts, strict=True)))
        for start in range(0, len(whole.rows), MAX_BATCH_ROWS):
            part = slice(start, start + MAX_BATCH_ROWS)
            columns = self._columns(batch, whole.rows[part], whole.ids[part], side, self._given)
            kinds = whole.kinds[part]
            yield Batch.of_columns(columns, None, kinds if kinds.any() else None)

    def _columns(
        self,
        batch: pa.RecordBatch,
        rows: Integers,
        ids: Integers,
        side: int,
        projection: Sequence[tuple[int, str, str]],
    ) -> pa.RecordBatch:
        """Columns of rows of the batch and of the other side, beside each other."""
        store, kept = self._stores[1 - side], self._kept[1 - side]
        is_none = rows < 0
        places = pa.array(rows, mask=is_none if is_none.any() else None)
        arrays = []
        for of, column, _ in projection:
            if of == side:
                arrays.append(batch.column(column).take(places))
            else:
                arrays.append(store.take_column(kept.index(column), ids))
        return pa.RecordBatch.from_arrays(arrays, names=[name for _, _, name in projection])

    # -- room and state ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        for lifetime in self._lifetimes:
            if lifetime is not None:
                lifetime.begin()

    def persist_all(self) -> None:
        """Write what has changed."""
        self._begin()
        for store, lifetime in zip(self._stores, self._lifetimes, strict=True):
            if lifetime is not None:
                store.sweep(is_forced=True)
                lifetime.snapshot()
        self.residents.persist()


def codes_of_keys(residents: ResidentKeys, columns: Sequence[pa.Array], num_rows: int) -> Integers:
    """Return the codes of keys; -1 for those that match nothing, as a part of them is null."""
    is_whole = np.ones(num_rows, np.bool_)
    for column in columns:
        _leave_out_nulls(column, is_whole)
    if is_whole.all():
        return residents.codes_of(columns)
    codes = np.full(num_rows, -1, np.int64)
    codes[is_whole] = residents.codes_of([column.filter(pa.array(is_whole)) for column in columns])
    return codes


def put_away(
    store: RowStore,
    batch: pa.RecordBatch,
    names: Sequence[str],
    codes: Integers,
    signs: Integers | None,
    numbers: Integers | None = None,
    *,
    in_order: bool = False,
) -> Moved:
    """Add rows to a store and take others out of it.

    A row that is taken back by the batch that has brought it has moved nothing, nor has one that takes back what has
    expired.

    Args:
        store: The rows of an input.
        batch: The records.
        names: The columns that are kept.
        codes: Of the records' keys; those of -1 are not kept.
        signs: -1 for those that are taken back; None if none is.
        numbers: What the rows carry.
        in_order: Whether each record takes back the oldest of what has come before it, as where rows expire: of rows
            that are equal, some may have had matches that have expired.

    Raises:
        UserFunctionError: If one is taken back that was not there, and cannot have expired.
    """
    kept = [batch.column(name) for name in names]
    has_key, size = codes >= 0, store.size
    added = np.flatnonzero(has_key if signs is None else has_key & (signs > 0))
    ids = store.add(codes[added], _taken(kept, added), None if numbers is None else numbers[added])
    is_moved, is_known = np.ones((2, batch.num_rows), np.bool_)
    if signs is None:
        return Moved(is_moved, is_known, _NONE, _NONE)
    removed = np.flatnonzero(has_key & (signs < 0))
    # The latest one would be that which an update has just written, and the time of the other would stay.
    limits = size + np.cumsum(has_key & (signs > 0))[removed] if in_order else None
    found = store.find(codes[removed], _taken(kept, removed), latest=not in_order, limits=limits)
    if store.lifetime is None and (found < 0).any():
        refuse_unknown_row(batch.columns, batch.schema.names, int(removed[np.argmin(found)]))
    if store.lifetime is not None:
        is_known[removed[found < 0]] = is_moved[removed[found < 0]] = False
        store.lifetime.count(num_ignored=int((found < 0).sum()))
        removed, found = removed[found >= 0], found[found >= 0]
    carried = store.numbers[found]
    store.remove(found)
    if len(ids):
        is_undone = found >= ids[0]
        is_moved[removed[is_undone]] = False
        is_moved[added[found[is_undone] - ids[0]]] = False
    return Moved(is_moved, is_known, removed, carried)


def make_room(residents: ResidentKeys, stores: Sequence[RowStore]) -> None:
    """Forget rows and keys that are gone, and put keys aside for which there is no room."""
    for store in stores:
        store.sweep()
        if store.is_sparse:
            store.compact()
    num_keys = len(residents.index)
    if num_keys > 2 * sum(store.num_live for store in stores) + _MIN_DEAD:
        residents.keep(np.flatnonzero(sum(store.weights(num_keys) for store in stores)))
    residents.make_room()


def _other_rows(ids: Integers, kind: RowKind) -> _Places:
    """Rows of the other side, beside nulls."""
    return _Places(np.full(len(ids), -1), ids, np.full(len(ids), kind, np.int8))


def _taken(columns: Sequence[pa.Array], rows: Integers) -> list[pa.Array]:
    places = pa.array(rows)
    return [column if len(rows) == len(column) else column.take(places) for column in columns]


def _leave_out_nulls(column: pa.Array, is_whole: Truths) -> None:
    """Note which keys are null or, of structs, have a part that is."""
    if pa.types.is_null(column.type):
        is_whole[:] = False
        return
    valid = validity(column)
    if valid is not None:
        is_whole &= valid
    if pa.types.is_struct(column.type):
        for field in fields_of(column):
            _leave_out_nulls(field, is_whole)
