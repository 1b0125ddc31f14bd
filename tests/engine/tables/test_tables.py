"""Tables in memory and their logs, on both state backends.

Families: oracle (dicts and lists), property (random types, batches, restores), collision (hashes of few bits).
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from campaigns import blocks
from changelog_kit import KEYS, KINDS, ORDERED, canonical, columns_of, random_value, schema_of
from operator_harness import keyed_state, restore_keyed_state

from headrace.engine.errors import TypeMismatchError
from headrace.engine.tables import key_index, row_store, run_log, value_counts
from headrace.engine.tables.columns import stored_column
from headrace.engine.tables.key_index import KeyIndex, LocalCodes
from headrace.engine.tables.row_store import Chains, RowStore
from headrace.engine.tables.value_counts import Filter, ValueCounts
from headrace.state.checkpoints.snapshot import RestoredPart
from headrace.state.keys.column_hashing import hash_columns
from headrace.state.keys.key_groups import key_groups_of, subtask_of

SEEDS = blocks(8, 25)


@contextmanager
def few_bits(bits):
    """Hashes of so many bits: nearly all collide."""
    texts, rows = key_index._TextTable.hash_bits, RowStore.hash_bits
    key_index._TextTable.hash_bits, RowStore.hash_bits = bits & (2**64 - 1), bits
    try:
        yield
    finally:
        key_index._TextTable.hash_bits, RowStore.hash_bits = texts, rows


def restored(backends, parallelism):
    """Backends of so many subtasks, restored from what some others write now."""
    parts = [
        RestoredPart(part.state, part.kind, part.metadata, part.write(), subtask)
        for subtask, backend in enumerate(backends)
        for part in backend.snapshot()
    ]
    made = [keyed_state(subtask, parallelism) for subtask in range(parallelism)]
    for backend in made:
        if parts:
            restore_keyed_state(backend, parts)
    return made


# ------------------------------------------------------------------------------------------------------------ key index
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bits", [-1, 1], ids=["whole hashes", "one bit"])
def test_codes_are_equal_exactly_for_equal_keys(seed, bits):
    rng = random.Random(seed)
    kinds = rng.choices([*KEYS, "struct"], k=rng.randint(0, 3))
    schema, known = schema_of(kinds), {}
    with few_bits(bits):
        index = KeyIndex(schema.types)
        for _ in range(6):
            rows = [tuple(random_value(rng, kind) for kind in kinds) for _ in range(rng.randint(0, 200))]
            columns = columns_of(rows, schema).columns if kinds else []
            before = len(index)
            codes, num_new = index.codes_of(columns, len(rows))
            assert len(index) - before == num_new
            for row, code in zip(rows, codes.tolist(), strict=True):
                assert known.setdefault(canonical(row), code) == code
            assert list(known.values()) == list(range(len(index)))  # in order of their first rows
            taken = index.take(codes)
            assert [array.type for array in taken] == schema.types
            if kinds:
                assert list(map(canonical, zip(*(array.to_pylist() for array in taken), strict=True))) == list(
                    map(canonical, rows)
                )


@pytest.mark.parametrize("kind", [*KEYS, "struct"])
def test_codes_go_by_first_rows_and_those_kept_stay_in_order(kind):
    first, *_, other = KINDS[kind][1]
    for values in ([first, None, other], [None, first, other], [None, None, other, first]):
        index = KeyIndex([KINDS[kind][0]])
        wanted = list(dict.fromkeys(map(canonical, values)))
        codes, _ = index.codes_of([pa.array(values, KINDS[kind][0])])
        assert codes.tolist() == [wanted.index(canonical(value)) for value in values]
        index.compact(np.array([0, 1]))
        assert list(map(canonical, index.take(np.arange(2))[0].to_pylist())) == wanted[:2]


def test_texts_of_all_lengths_are_told_apart_and_given_back():
    """Bytes are hashed, compared and copied eight at a time: any place of a text may be the one that differs."""
    whole = bytes(range(1, 41))
    texts = {whole[:length] for length in range(41)}
    texts |= {text[:place] + b"\0" + text[place + 1 :] for text in texts for place in range(len(text))}
    column = pa.array([b"in front", *sorted(texts), None, b"behind"]).slice(1, len(texts) + 1)
    index = KeyIndex([pa.binary()])
    codes, num_new = index.codes_of([column])
    assert num_new == len(texts) + 1
    again, _ = index.codes_of([column.take(pa.array(np.arange(len(column))[::-1]))], add=False)
    assert again.tolist() == codes[::-1].tolist()
    (given,) = index.take(codes)
    assert given.equals(column)
    stored = stored_column(pa.binary())
    stored.append(column)
    ids = np.array([*range(len(column) - 1, -1, -1), -1, 3, 3])
    assert stored.take(ids).to_pylist() == [None if one < 0 else column[one].as_py() for one in ids.tolist()]


def test_keys_that_are_not_there_are_not_added_by_a_search():
    for kind in [*KEYS, "struct"]:
        for others in ([], [pa.int64()]):
            index = KeyIndex([KINDS[kind][0], *others])
            first, other = KINDS[kind][1][0], KINDS[kind][1][-1]
            held = [pa.array([first], KINDS[kind][0]), *(pa.array([1]) for _ in others)]
            asked = [pa.array([first, other, None], KINDS[kind][0]), *(pa.array([1, 1, 1]) for _ in others)]
            index.codes_of(held)
            assert index.codes_of(asked, add=False)[0].tolist() == [0, -1, -1], kind
            assert len(index) == 1


def test_a_large_index_grows_and_forgets():
    rng = np.random.default_rng(1)
    for make in (pa.array, lambda keys: pa.array([f"key {key}" for key in keys])):
        keys = rng.permutation(50_000)
        index = KeyIndex([make(keys[:1]).type])
        codes = np.concatenate([index.codes_of([make(part)])[0] for part in np.split(keys, 10)])
        assert codes.tolist() == list(range(50_000))
        kept = rng.permutation(50_000)[:1_000]
        index.compact(kept)
        assert index.codes_of([make(keys)], add=False)[0][kept].tolist() == list(range(1_000))
        assert len(index) == 1_000


def test_lists_are_no_keys():
    with pytest.raises(TypeMismatchError, match="a plain value or a struct"):
        KeyIndex([pa.list_(pa.int64()), pa.int64()])


def test_local_codes_are_in_order_of_first_rows():
    local = LocalCodes()
    for codes in ([5, 2, 5, 9, 2], [9], []):
        touched, numbers = local.of(np.array(codes, np.int64), 10)
        assert touched.tolist() == list(dict.fromkeys(codes))
        assert touched[numbers].tolist() == codes


# --------------------------------------------------------------------------------------------------------------- chains
@pytest.mark.parametrize("seed", SEEDS)
def test_chains_are_lists_by_code(seed):
    rng, chains, lists, live = random.Random(seed), Chains(), {}, {}
    for number in range(200):
        code = rng.randrange(6)
        chains.append(np.array([code]), np.array([number]))
        lists.setdefault(code, []).append(number)
        live[number] = code
        if rng.random() < 0.6:
            gone = rng.sample(sorted(live), min(len(live), 2))
            chains.remove(np.array([live[one] for one in gone]), np.array(gone))
            for one in gone:
                lists[live.pop(one)].remove(one)
        asked = np.array([rng.randrange(-1, 9) for _ in range(4)])
        owners, found = chains.of(asked)
        wanted = [(place, one) for place, code in enumerate(asked.tolist()) for one in lists.get(code, [])]
        assert list(zip(owners.tolist(), found.tolist(), strict=True)) == wanted


# ------------------------------------------------------------------------------------------------------------ row store
class Stores:
    """Row stores of some subtasks, and lists that must be the same: key -> rows in order of arrival."""

    def __init__(self, kinds, key_kind):
        self.schema, self.key = schema_of(kinds), pa.field("k", KINDS[key_kind][0])
        self.lists = {}
        self.open([keyed_state()])

    def open(self, backends):
        self.backends = backends
        self.indexes = [KeyIndex([self.key.type]) for _ in backends]
        self.stores = [
            RowStore(backend, "rows", [self.key], index, list(self.schema))
            for backend, index in zip(backends, self.indexes, strict=True)
        ]

    def rescale(self, parallelism):
        for store in self.stores:
            store.persist()
        before, self.backends = self.backends, restored(self.backends, parallelism)
        for backend in before:
            backend.close()
        self.open(self.backends)

    def routed(self, keys):
        column = pa.array(keys, self.key.type)
        targets = subtask_of(key_groups_of(hash_columns([column]), 128), 128, len(self.stores))
        for subtask, store in enumerate(self.stores):
            rows = np.flatnonzero(targets == subtask)
            yield store, self.indexes[subtask].codes_of([column.take(pa.array(rows))])[0], rows

    def add(self, keys, rows):
        for store, codes, places in self.routed(keys):
            store.add(codes, columns_of([rows[place] for place in places], self.schema).columns, places)
        for key, row in zip(keys, rows, strict=True):
            self.lists.setdefault(canonical(key), []).append(canonical(row))

    def remove(self, keys, rows, *, latest):
        for store, codes, places in self.routed(keys):
            ids = store.find(codes, columns_of([rows[place] for place in places], self.schema).columns, latest=latest)
            assert (ids >= 0).all()
            assert len(set(ids.tolist())) == len(ids)
            store.remove(ids)
        for key, row in zip(keys, rows, strict=True):
            held = self.lists[canonical(key)]
            places = [place for place, one in enumerate(held) if one == canonical(row)]
            del held[places[-1 if latest else 0]]

    def check(self, keys):
        for store, codes, places in self.routed(keys):
            owners, ids = store.by_key.of(codes)
            columns = [array.to_pylist() for array in store.take(ids)]
            rows = list(zip(*columns, strict=True)) if columns else [()] * len(ids)
            found = {place: [] for place in places.tolist()}
            for owner, row in zip(owners.tolist(), rows, strict=True):
                found[places[owner]].append(canonical(row))
            assert found == {place: self.lists.get(canonical(keys[place]), []) for place in places.tolist()}
        assert sum(store.num_live for store in self.stores) == sum(map(len, self.lists.values()))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bits", [-1, 1], ids=["whole hashes", "one bit"])
@pytest.mark.sampled(4)
def test_rows_are_lists_by_key(seed, bits, monkeypatch):
    """Equal rows are held one by one, found one by one, and keep their order over restores and renumbering."""
    rng = random.Random(seed)
    monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
    monkeypatch.setattr(row_store, "_MIN_DEAD", rng.choice([0, 10]))
    kinds, key_kind = rng.choices(list(KINDS), k=rng.randint(0, 3)), rng.choice(KEYS)
    latest = rng.random() < 0.5
    all_keys = [None, *dict.fromkeys(KINDS[key_kind][1])]
    with few_bits(bits):
        stores, live = Stores(kinds, key_kind), []
        for _ in range(20):
            new = [
                (rng.choice(all_keys), tuple(random_value(rng, kind) for kind in kinds))
                for _ in range(rng.randint(0, 10))
            ]
            stores.add([key for key, _ in new], [row for _, row in new])
            live += new
            gone = [live.pop(rng.randrange(len(live))) for _ in range(min(len(live), rng.randint(0, 9)))]
            stores.remove([key for key, _ in gone], [row for _, row in gone], latest=latest)
            stores.check(all_keys)
            for store in stores.stores:
                if store.is_sparse:
                    store.compact()
            if rng.random() < 0.3:
                stores.rescale(rng.randint(1, 3))
                stores.check(all_keys)
        for backend in stores.backends:
            backend.close()


def test_a_row_that_is_not_there_is_not_found():
    for bits in (-1, 1):
        with few_bits(bits):
            store = RowStore(
                keyed_state(), "rows", [pa.field("k", pa.int64())], KeyIndex([pa.int64()]), [pa.field("v", pa.int64())]
            )
            asked = [np.array([0, 1, 0, 0, -1])], [pa.array([1, 1, 2, 1, 1])]
            assert store.find(*asked[0], asked[1], latest=True).tolist() == [-1] * 5
            store.add(np.array([0, 0]), [pa.array([1, 3])])
            assert store.find(*asked[0], asked[1], latest=True).tolist() == [0, -1, -1, -1, -1]


def test_numbers_that_rows_carry_are_kept(monkeypatch):
    monkeypatch.setattr(run_log, "MIN_ROWS", 0)
    stores = Stores(["text"], "int")
    stores.add([1, 2, 7, 1], [("a",), ("b",), (None,), ("a",)])
    for restores in range(3):
        for store in stores.stores:
            live = np.flatnonzero(store.codes[: store.size] >= 0)
            store.set_numbers(live, store.numbers[live] + 10)
        stores.rescale(restores + 1)
        held = {}
        for store, codes, places in stores.routed([1, 2, 7]):
            owners, ids = store.by_key.of(codes)
            for owner, number in zip(owners.tolist(), store.numbers[ids].tolist(), strict=True):
                held.setdefault((1, 2, 7)[places[owner]], []).append(number)
        more = 10 * (restores + 1)
        assert held == {1: [more, more + 3], 2: [more + 1], 7: [more + 2]}


def test_logs_stay_in_proportion(monkeypatch):
    monkeypatch.setattr(run_log, "MIN_ROWS", 10)
    backend = keyed_state()
    index = KeyIndex([pa.int64()])
    store = RowStore(backend, "rows", [pa.field("k", pa.int64())], index, [pa.field("v", pa.int64())])
    codes, _ = index.codes_of([pa.array(np.arange(100))])
    ids = store.add(codes, [pa.array(np.arange(100))])
    for _ in range(50):
        store.set_numbers(ids[:30], np.ones(30, np.int64))
        store.persist()
        assert sum(run.num_rows for run in backend.tables()["rows"].runs(None)) <= 2 * 100 + 10


# --------------------------------------------------------------------------------------------------------- value counts
@pytest.mark.parametrize("seed", SEEDS)
def test_values_are_counted(seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
    monkeypatch.setattr(value_counts, "_MIN_DEAD", rng.choice([0, 10]))
    kind = rng.choice(ORDERED)
    field, backend = pa.field("k", pa.int64()), keyed_state()
    both = frozenset(["min", "max"])
    filters = rng.choice([[Filter("all", both)], [Filter("all", both), Filter("some", both)], [Filter("some", both)]])
    index = KeyIndex([field.type])
    counts = ValueCounts(backend, "counts", [field], index, KINDS[kind][0], filters)
    held = []
    for _ in range(25):
        new = [(rng.randrange(5), random_value(rng, kind), rng.choice([True, False])) for _ in range(rng.randint(0, 8))]
        gone = [held.pop(rng.randrange(len(held))) for _ in range(min(len(held), rng.randint(0, 7)))]
        held += new
        rows = [*((row, 1) for row in new), *((row, -1) for row in gone)]
        rng.shuffle(rows)
        codes, _ = index.codes_of([pa.array([row[0] for row, _ in rows], pa.int64())])
        signs = np.array([sign for _, sign in rows], np.int64)
        is_some = np.array([row[2] for row, _ in rows], np.bool_)
        values = pa.array([row[1] for row, _ in rows], KINDS[kind][0])
        assert counts.add(
            codes, values, [signs] * len(filters), [is_some if one.name == "some" else None for one in filters]
        )
        codes, _ = index.codes_of([pa.array(range(5))])
        for number, one in enumerate(filters):
            values = [
                [row[1] for row in held if row[0] == key and row[1] is not None and (row[2] or one.name == "all")]
                for key in range(5)
            ]
            assert counts.num_distinct(number, codes).tolist() == [len(set(map(canonical, ones))) for ones in values]
            for name, best in (("min", min), ("max", max)):
                wanted = [best([v for v in ones if v == v] or ones, default=None) for ones in values]
                found = counts.extreme(name, number, codes).to_pylist()
                assert list(map(canonical, found)) == list(map(canonical, wanted))
        if counts.is_sparse:
            counts.compact()
        if rng.random() < 0.3:
            counts.persist()
            backend = restored([backend], 1)[0]
            index = KeyIndex([field.type])
            counts = ValueCounts(backend, "counts", [field], index, KINDS[kind][0], filters)
    backend.close()


def test_what_was_never_counted_cannot_be_taken_away():
    counts = ValueCounts(keyed_state(), "counts", [], KeyIndex([]), pa.int64(), [Filter("all", frozenset())])
    one = np.zeros(1, np.int64)
    assert counts.add(one, pa.array([3]), [one + 1])
    assert not counts.add(one, pa.array([4]), [one - 1])


# -------------------------------------------------------------------------------------------------------------- sums
def test_sums_of_integers_are_exact_in_any_order():
    from headrace.engine.tables import table_loops

    rng = random.Random(1)
    values = [rng.choice([2**63 - 1, -(2**63), rng.randrange(-(2**63), 2**63)]) for _ in range(500)]
    signs = [rng.choice([1, -1]) for _ in values]
    groups = [rng.randrange(3) for _ in values]
    lows, highs, counts = (np.zeros(3, np.int64) for _ in range(3))
    present = np.array([rng.random() < 0.9 for _ in values])
    arrays = np.array(groups), np.array(values), present.view(np.uint8), np.array(signs)
    table_loops.add_integers(*arrays, lows, highs, counts)
    wanted = Counter()
    for group, value, is_there, sign in zip(groups, values, present, signs, strict=True):
        wanted[group] += value * sign if is_there else 0
    assert [(int(high) << 64) + (int(low) & (2**64 - 1)) for low, high in zip(lows, highs, strict=True)] == [
        wanted[group] for group in range(3)
    ]
