"""The rows that a condition lets pass are those of Arrow's filter, and bytes are not copied where none is left out."""

from __future__ import annotations

import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.engine.columns.filtering import LEAST_ROWS, rows_where

TEXTS = {"text": pa.string(), "bytes": pa.binary(), "large text": pa.large_string(), "large bytes": pa.large_binary()}


def drawn(rng: random.Random, kinds: np.ndarray) -> pa.RecordBatch:
    """Columns of values for rows of kind 0 alone, for all rows, and some with nulls or empty texts anywhere."""
    num_rows = len(kinds)
    texts = ["x" * rng.randrange(9) + "é" for _ in range(num_rows)]
    numbers = np.arange(num_rows)
    arrays = {"kind": pa.array(kinds), "number": pa.array(numbers)}
    arrays["nothing"] = pa.nulls(num_rows)
    arrays["coded"] = pa.array(texts).dictionary_encode()
    arrays["row"] = pa.StructArray.from_arrays(
        [pa.array(texts), pa.array(numbers)], ["t", "n"], mask=pa.array(kinds > 0)
    )
    of_others = {
        "all": np.zeros(num_rows, bool),
        "of one kind": kinds > 0,
        "some": np.array([rng.random() < 0.3 for _ in range(num_rows)]),
        "of one kind, some": (kinds > 0) | (numbers % 7 == 0),
        "none": np.ones(num_rows, bool),
    }
    for name, is_null in of_others.items():
        for text, kind in TEXTS.items():
            arrays[f"{text}, {name}"] = pa.array(texts, kind, mask=is_null)
        arrays[f"number, {name}"] = pa.array(numbers, mask=is_null)
        arrays[f"flag, {name}"] = pa.array(numbers % 2 == 0, mask=is_null)
        arrays[f"time, {name}"] = pa.array(numbers, pa.timestamp("ms"), mask=is_null)
        arrays[f"decimal, {name}"] = pa.array(map(Decimal, range(num_rows)), pa.decimal128(19, 2), mask=is_null)
    empty = pa.array([text if kind == 0 else "" for text, kind in zip(texts, kinds, strict=True)])
    arrays["empty"] = empty
    names = rng.sample(list(arrays), len(arrays))
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], names=names)


@pytest.mark.parametrize("seed", range(4))
def test_the_rows_are_those_of_arrows_filter(seed):
    rng = random.Random(seed)
    first, num_rows = rng.randrange(40), LEAST_ROWS + rng.randrange(200)
    share = rng.choice([0.0, 0.05, 0.2])
    kinds = np.array([int(rng.random() < share) * rng.randrange(1, 3) for _ in range(first + num_rows + 50)])
    batch = drawn(rng, kinds).slice(first, num_rows)
    kinds = kinds[first : first + num_rows]
    some = np.array([rng.random() < 0.9 for _ in range(num_rows)])
    ends = np.ones(num_rows, bool)
    ends[[0, -1]] = False
    for mask in (kinds == 0, kinds >= 0, kinds > 0, kinds == 9, some, ends):
        found = rows_where(batch, mask)
        found.validate(full=True)
        assert found.schema == batch.schema
        assert found.equals(batch.filter(pa.array(mask)))
        for name in ("text, all", "text, of one kind", "text, of one kind, some"):  # these must begin at 0
            upper = pc.ascii_upper(found.column(name))
            upper.validate(full=True)
            assert upper.to_pylist() == [text and text.replace("x", "X") for text in found.column(name).to_pylist()]


@pytest.mark.parametrize("kind", TEXTS)
def test_bytes_are_not_copied_where_none_is_left_out(kind):
    kinds = np.arange(2 * LEAST_ROWS) % 20 // 19
    batch = drawn(random.Random(1), kinds).slice(99)
    found = rows_where(batch, kinds[99:] == 0)
    for name in ("of one kind", "of one kind, some"):
        assert lies_in(batch, found, f"{kind}, {name}")
    for name in ("all", "some"):
        assert not lies_in(batch, found, f"{kind}, {name}")
    for name in (f"{kind}, of one kind", "number, of one kind", "flag, of one kind", "decimal, of one kind"):
        assert found.column(name).buffers()[0] is None


def lies_in(batch: pa.RecordBatch, found: pa.RecordBatch, name: str) -> bool:
    """Whether the bytes of a column of texts are those of the batch."""
    bytes_of_batch, own = batch.column(name).buffers()[2], found.column(name).buffers()[2]
    return bytes_of_batch.address <= own.address < bytes_of_batch.address + bytes_of_batch.size
