"""Random rows and changelogs, and what operators over them must give, for tests of tables and changelogs.

Rows are tuples of Python values. `canonical` makes equal what is equal in columns: NaN, zeros, structs. A `Changelog`
is a random walk over a multiset: it takes back only what is there. `Applied` is a multiset to which an operator's
output is applied; it refuses what takes back a row that is not there.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
from campaigns import campaign, num_blocks
from operator_harness import MAX_PARALLELISM, ParallelHarness

from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.functions.operator import Operator
from headrace.engine.tables import resident_keys, run_log
from headrace.engine.tables.hash_runs import hashes_of
from headrace.state.backends.rocksdb.database import SlotMemory
from headrace.state.keys.column_hashing import hash_columns
from headrace.state.keys.key_groups import key_groups_of, subtask_of

NAN = float("nan")

KINDS = {
    "int": (pa.int64(), [-3, -1, 0, 1, 2, 7]),
    "small": (pa.int16(), [-2, 0, 1, 5]),
    "text": (pa.string(), ["", "a", "b", "ab", "long enough for two words"]),
    "bytes": (pa.binary(), [b"", b"a", b"\0"]),
    "float": (pa.float64(), [0.0, -0.0, NAN, 1.5, -2.25, math.inf, -math.inf]),
    "decimal": (pa.decimal128(20, 2), [decimal.Decimal("0.00"), decimal.Decimal("1.50"), decimal.Decimal("-7.25")]),
    "truth": (pa.bool_(), [True, False]),
    "time": (pa.timestamp("ms"), [datetime.datetime(2020, 1, day) for day in (1, 2, 3)]),  # noqa: DTZ001
    "date": (pa.date32(), [datetime.date(2020, 1, day) for day in (1, 2, 3)]),
    "struct": (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        [{"x": 1, "y": "a"}, {"x": 1, "y": None}, {"x": None, "y": "a"}, {"x": None, "y": None}],
    ),
    "list": (pa.list_(pa.int64()), [[], [1], [1, 2], [None]]),
}
"""Type and values by name."""

BACKENDS = ["heap", "rocksdb", "rocksdb without room"]
"""What operators over changes run on; on the last one there is no room for tables, so that all is put aside always."""

RUNS = [
    (seed, name) if seed < in_every_run else campaign(seed, name)
    for name, in_every_run, in_all in zip(BACKENDS, (12, 3, 8), (50, 12, 25), strict=True)
    for seed in range(num_blocks(in_every_run, in_all))
]
"""Seeds and backends: databases cost more than what they are tested for, so that they have fewer."""


def chosen_backend(name, rng, monkeypatch):
    """The state backend of a name of `BACKENDS`; blocks of logs are small, and hashes of keys may collide."""
    kind, _, without = name.partition(" ")
    if without:
        room, bits = rng.choice([0, 0, 3_000, 20_000]), rng.choice([-1, -1, 3])
        monkeypatch.setattr(SlotMemory, "table_share", lambda _memory: room)
        monkeypatch.setattr(run_log, "BLOCK_BYTES", rng.choice([50, 500]))
        monkeypatch.setattr(run_log, "_BLOCKS_AT_ONCE", rng.choice([1, 3]))
        for module in (run_log, resident_keys):
            monkeypatch.setattr(module, "hashes_of", lambda keys, num_rows: hashes_of(keys, num_rows) & bits)
    return kind


KEYS = [name for name in KINDS if name not in ("struct", "list")]
"""What streams can be keyed by."""

ORDERED = ["int", "small", "text", "float", "decimal", "time", "date"]


def random_value(rng, kind, nulls=0.15):
    return None if rng.random() < nulls else rng.choice(KINDS[kind][1])


def canonical(value):
    if isinstance(value, float):
        return "nan" if value != value else value + 0.0
    if isinstance(value, dict):
        return tuple(map(canonical, value.values()))
    if isinstance(value, (tuple, list)):
        return tuple(map(canonical, value))
    return value


def schema_of(kinds):
    """A schema of columns ``c0``, ``c1`` ... of kinds."""
    return pa.schema([(f"c{index}", KINDS[kind][0]) for index, kind in enumerate(kinds)])


def columns_of(rows, schema):
    arrays = [pa.array([row[index] for row in rows], field.type) for index, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of(columns):
    return list(zip(*(column.to_pylist() for column in columns.columns), strict=True))


def batch_of(changes, schema):
    """A batch of pairs of kind and row; without kinds if all are inserted. Its columns are parts of longer ones."""
    kinds = np.array([kind for kind, _ in changes], np.int8)
    rows = [row for _, row in changes]
    batch = Batch.of_columns(columns_of([*rows[-1:], *rows, *rows[:1]], schema).slice(1, len(rows)))
    return batch.with_row_kinds(kinds) if kinds.any() else batch


def changes_of(batch):
    """The pairs of kind and row of a batch."""
    kinds = [0] * batch.num_rows if batch.row_kinds is None else batch.row_kinds.tolist()
    return list(zip(map(RowKind, kinds), rows_of(batch.columns), strict=True))


class Changelog:
    """A random changelog of rows of kinds; ``live`` are the rows that remain, in order of arrival."""

    def __init__(self, rng, kinds, *, takes_back=True, nulls=0.15):
        self.rng, self.kinds, self.takes_back, self.nulls = rng, kinds, takes_back, nulls
        self.schema = schema_of(kinds)
        self.live = []

    def row(self):
        return tuple(random_value(self.rng, kind, self.nulls) for kind in self.kinds)

    def changes(self, num):
        """About so many changes; updates may be cut anywhere."""
        made = []
        for _ in range(num):
            what = self.rng.random()
            if not self.takes_back or not self.live or what < 0.5:
                made.append((RowKind.INSERT, self.row()))
                self.live.append(made[-1][1])
            else:
                old = self.rng.choice(self.live)
                self._forget(old)
                if what < 0.75:
                    made.append((RowKind.DELETE, old))
                else:
                    made += [(RowKind.UPDATE_BEFORE, old), (RowKind.UPDATE_AFTER, self.row())]
                    self.live.append(made[-1][1])
        return made

    def _forget(self, row):
        """The first of equal rows goes."""
        wanted = canonical(row)
        del self.live[next(index for index, one in enumerate(self.live) if canonical(one) == wanted)]


class Applied:
    """The multiset that a changelog makes."""

    def __init__(self):
        self.rows = Counter()

    def apply(self, changes):
        for kind, row in changes:
            row = canonical(row)
            if kind in (RowKind.INSERT, RowKind.UPDATE_AFTER):
                self.rows[row] += 1
            else:
                assert self.rows[row] > 0, f"{kind.short} takes back {row}, which is not there"
                self.rows[row] -= 1
                if not self.rows[row]:
                    del self.rows[row]


def multiset(rows):
    return Counter(map(canonical, rows))


class Running:
    """All subtasks of an operator over changes: fed by key, cut at random, restored at any parallelism.

    Every change that comes out is applied, so that what is out is known at every moment, and none may take back what
    is not there.
    """

    def __init__(self, operator, keys, parallelism=1, backend=None):
        """``keys`` are the names of the key's columns, one list for each input."""
        self.keys = keys
        self.harness = ParallelHarness(operator, parallelism, backend=backend)
        self.out = Applied()
        self.sides = defaultdict(Applied)
        self.kinds = Counter()

    def feed(self, batch, input_index=0):
        """Feed a batch, cut by key; returns what came out, subtask by subtask."""
        names, subtasks = self.keys[input_index], self.harness.subtasks
        targets = np.zeros(batch.num_rows, np.int64)
        if names and len(subtasks) > 1:
            hashes = hash_columns([batch.columns.column(name) for name in names])
            targets = subtask_of(key_groups_of(hashes, MAX_PARALLELISM), MAX_PARALLELISM, len(subtasks))
        for number, subtask in enumerate(subtasks):
            if (targets == number).any():
                subtask.operator.process_batch(batch.filter(targets == number), input_index)
        return self.collect()

    def collect(self):
        """Apply what has come out since; returns it, subtask by subtask."""
        came_out = []
        for subtask in self.harness.subtasks:
            came_out.append([change for made in subtask.output.elements for change in changes_of(made)])
            subtask.output.elements.clear()
            for tag, made in subtask.output.sides.items():
                self.sides[tag].apply([change for batch in made for change in changes_of(batch)])
                made.clear()
        for changes in came_out:
            self.out.apply(changes)
            self.kinds.update(kind for kind, _ in changes)
        return came_out

    def restore(self, parallelism):
        """Go on from a snapshot, with so many subtasks."""
        before, self.harness = self.harness, self.harness.restored(parallelism)
        before.close()

    def close(self):
        self.harness.close()


class AsChanges(Operator):
    """Makes changes of records, whose column ``change`` says what each does."""

    may_change_records = False

    def __init__(self, schema):
        self.schema = schema

    def process_batch(self, batch, input_index):
        columns = batch.columns_as(pa.schema([("change", pa.int64()), *self.schema]))
        kinds = columns.column(0).to_numpy().astype(np.int8)
        rest = pa.RecordBatch.from_arrays(columns.columns[1:], schema=self.schema)
        self.context.output.emit(Batch.of_columns(rest).with_row_kinds(kinds if kinds.any() else None))


class FromChanges(Operator):
    """The inverse: records say in ``change`` what they do."""

    may_change_records = False
    takes_changes = True

    def process_batch(self, batch, input_index):
        rows = [{"change": int(kind), **row} for (kind, _), row in zip(changes_of(batch), batch.rows, strict=True)]
        self.context.output.emit(Batch.of_rows(rows))


def cut(rng, changes):
    """The changes in batches of any size."""
    start = 0
    while start < len(changes):
        end = start + rng.randint(1, max(1, len(changes)))
        yield changes[start:end]
        start = end
