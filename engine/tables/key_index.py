"""Keys as numbers: each key that comes gets the next code, and keeps it.

Codes are dense, so whatever is kept for a key is a place in an array. A key is made of *words* of 64 bits: the bits of
integers, times, floats and decimals, and for a text the code that it has in an index of its own, which compares bytes.
So two keys have one code exactly if they are equal; nothing rests on a hash alone.

Null is a key like any other; NaN is one key, -0.0 is 0.0; a struct is its fields, and null is none of its values. Keys
that are no longer used are forgotten by `compact`, which numbers the others anew.

Invariant: codes are 0 to ``len - 1``; `take` gives for a code the key that it was given for.

Source: hash tables of columnar databases; the meaning of keys is that of `headrace.engine.columns.grouping`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.errors import ManagedMemoryError, TypeMismatchError

from . import table_loops
from .columns import (
    Integers,
    array_of_bits,
    bits_of,
    fields_of,
    is_flat,
    is_text,
    plain,
    stored_type,
    text_array,
    text_buffers,
    validity,
)
from .growing import grown

__all__ = ["KeyIndex", "LocalCodes"]

_NULLS_OF_A_WORD = 63
_MOST_KEYS = 2**30


class KeyIndex:
    """Gives keys codes.

    Args:
        types: Those of the key's columns; none for the one key that all rows have.

    Raises:
        TypeMismatchError: If values of a type cannot be compared as keys (lists, maps).
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = [stored_type(kind) for kind in types]
        self._words = _Words(self._types)
        self._table: _IntegerTable | _WordTable | _TextTable
        if len(self._types) == 1 and self._words.is_one_text:
            self._table = self._words.texts[0]
        elif len(self._types) == 1 and self._words.width == 1 and is_flat(self._types[0]):
            self._table = _IntegerTable()
        else:
            self._table = _WordTable(self._words.width + self._words.num_null_words)

    def __len__(self) -> int:
        return self._table.num

    @property
    def nbytes(self) -> int:
        """How many bytes it holds."""
        texts = sum(text.nbytes for text in self._words.texts if text is not self._table)
        return self._table.nbytes + texts

    def codes_of(
        self, columns: Sequence[pa.Array | Integers], num_rows: int | None = None, *, add: bool = True
    ) -> tuple[Integers, int]:
        """Find the codes of keys.

        Args:
            columns: The key's columns, as Arrow arrays or, without nulls, as int64.
            num_rows: How many keys there are; needed only if there is no column.
            add: Whether new keys get codes; else theirs is -1.

        Returns:
            A code per row, and how many codes are new: those are the last ones, in the order of their first rows.
        """
        before = len(self)
        arrays = [plain(column) if isinstance(column, pa.Array) else pa.array(column) for column in columns]
        num_rows = len(arrays[0]) if arrays else num_rows or 0
        table = self._table
        if isinstance(table, _TextTable):
            codes = table.codes_of(arrays[0], add=add)
        elif isinstance(table, _IntegerTable):
            codes = table.codes_of(bits_of(arrays[0]).astype(np.int64, copy=False), validity(arrays[0]), add=add)
        else:
            codes = table.codes_of(self._words.of(arrays, num_rows, add=add), add=add)
        return codes, len(self) - before

    def take(self, codes: Integers) -> list[pa.Array]:
        """Return the keys of codes, as columns."""
        table = self._table
        if isinstance(table, _TextTable):
            return [table.take(codes, self._types[0])]
        if isinstance(table, _IntegerTable):
            return [table.take(codes, self._types[0])]
        return self._words.arrays(table.stored[codes])

    def compact(self, codes: Integers) -> None:
        """Forget all keys but those of some codes, which are numbered anew, in the order that they are given in."""
        columns = self.take(codes)
        self.__init__(self._types)  # type: ignore[misc]  # begins anew
        self.codes_of(columns, len(codes))


class LocalCodes:
    """Numbers the codes of a batch anew, so that its sums need only small arrays."""

    def __init__(self) -> None:
        self._places = np.full(0, -1, np.int64)

    def of(self, codes: Integers, num_codes: int) -> tuple[Integers, Integers]:
        """Return the codes that occur, in order of their first rows, and for each row the place of its code
        among them.
        """
        self._places = grown(self._places, num_codes, -1)
        touched, local = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
        num = table_loops.local_codes(codes, self._places, touched, local)
        return touched[:num].copy(), local


# --------------------------------------------------------------------------------------------------------------- tables
class _Slots:
    """What open addressing needs besides keys."""

    def __init__(self) -> None:
        self.slots = grown(np.zeros(0, np.int32), 64, -1)
        self.num = 0

    def _larger_slots(self) -> bool:
        """Have four times as many slots, all of them empty, if half of them are taken; returns whether they were.

        Raises:
            ManagedMemoryError: If there are more keys than slots can tell apart.
        """
        if 2 * self.num < len(self.slots):
            return False
        if self.num > _MOST_KEYS:
            message = f"one subtask has more than {_MOST_KEYS:,} keys in memory"
            raise ManagedMemoryError(message, hint="a higher parallelism, or state on RocksDB")
        self.slots = grown(np.zeros(0, np.int32), 4 * len(self.slots), -1)
        return True


class _IntegerTable(_Slots):
    """Integers, and null, which has a code of its own and no slot."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = np.zeros(32, np.int64)
        self._null_code = -1

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes + self.stored.nbytes

    def codes_of(self, keys: Integers, valid: npt.NDArray[np.bool_] | None, *, add: bool) -> Integers:
        if valid is None:
            return self._find(np.ascontiguousarray(keys), add=add)
        codes = np.empty(len(keys), np.int64)
        if add and self._null_code < 0:  # it gets its code in turn, as all keys do
            first = int(np.argmin(valid))
            codes[:first] = self._find(keys[:first], add=add)
            self.stored = grown(self.stored, self.num + 1)
            self._null_code, self.stored[self.num] = self.num, 0
            self.num += 1
        codes[valid] = self._find(keys[valid], add=add)
        codes[~valid] = self._null_code
        return codes

    def _find(self, keys: Integers, *, add: bool) -> Integers:
        codes, row = np.empty(len(keys), np.int64), 0
        while True:
            row, self.num = table_loops.find_integers(keys, row, self.slots, self.stored, self.num, add, codes)
            if row == len(keys):
                return codes
            self.stored = grown(self.stored, self.num + 1)
            if self._larger_slots():
                table_loops.place_integers(self.stored[: self.num], self._null_code, self.slots)

    def take(self, codes: Integers, kind: pa.DataType) -> pa.Array:
        width = 8 if pa.types.is_boolean(kind) else kind.bit_width
        bits = self.stored[codes].astype(f"i{width // 8}")
        return array_of_bits(bits, None if self._null_code < 0 else codes != self._null_code, kind)


class _WordTable(_Slots):
    """Keys of several words."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stored = np.zeros((32, width), np.int64)

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes + self.stored.nbytes

    def codes_of(self, keys: npt.NDArray[np.int64], *, add: bool) -> Integers:
        codes, row = np.empty(len(keys), np.int64), 0
        while True:
            row, self.num = table_loops.find_words(keys, row, self.slots, self.stored, self.num, add, codes)
            if row == len(keys):
                return codes
            self.stored = grown(self.stored, self.num + 1)
            if self._larger_slots():
                table_loops.place_words(self.stored[: self.num], self.slots)


class _TextTable(_Slots):
    """Texts, and null."""

    hash_bits = 2**64 - 1
    """The bits of hashes that are used; tests leave few, so that texts collide."""

    def __init__(self) -> None:
        super().__init__()
        self._hashes, self._starts, self._lengths = (np.zeros(32, np.int64) for _ in range(3))
        self._held = np.zeros(256, np.uint8)
        self._used = 0

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes + 3 * self._hashes.nbytes + self._held.nbytes

    def codes_of(self, array: pa.Array, *, add: bool) -> Integers:
        offsets, data = text_buffers(array)
        valid = validity(array)
        present = np.ones(len(array), np.uint8) if valid is None else valid.view(np.uint8)
        codes, row = np.empty(len(array), np.int64), 0
        while True:
            row, self.num, self._used = table_loops.find_texts(
                offsets, data, present, np.uint64(self.hash_bits), row, self.slots, self._hashes, self._starts,
                self._lengths, self._held, self.num, self._used, add, codes,
            )  # fmt: skip
            if row == len(array):
                return codes
            self._grow(int(offsets[row + 1] - offsets[row]))

    def _grow(self, num_bytes: int) -> None:
        self._held = grown(self._held, self._used + num_bytes)
        self._hashes = grown(self._hashes, self.num + 1)
        self._starts = grown(self._starts, self.num + 1)
        self._lengths = grown(self._lengths, self.num + 1)
        if self._larger_slots():  # all texts differ, so that each goes to the next free slot of its hash
            table_loops.place_hashes(self._hashes[: self.num], self.slots)

    def take(self, codes: Integers, kind: pa.DataType) -> pa.Array:
        bounds = np.zeros(len(codes) + 1, np.int64)
        lengths = self._lengths[codes]
        np.cumsum(np.maximum(lengths, 0), out=bounds[1:])
        data = np.empty(int(bounds[-1]), np.uint8)
        table_loops.copy_texts(codes, self._starts, self._lengths, self._held, bounds, data)
        return text_array(bounds, data, lengths >= 0, kind)


# ---------------------------------------------------------------------------------------------------------------- words
class _Words:
    """Turns columns into rows of words, and back: values of all columns first, then a bit for each null."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = list(types)
        self.texts: list[_TextTable] = []
        self.width = 0
        self._num_nullable = 0
        for kind in self._types:
            self._measure(kind)
        self.is_one_text = len(self._types) == 1 and is_text(self._types[0])

    @property
    def num_null_words(self) -> int:
        return -(-self._num_nullable // _NULLS_OF_A_WORD) if self._num_nullable else (0 if self.width else 1)

    def _measure(self, kind: pa.DataType) -> None:
        kind = stored_type(kind)
        if is_text(kind):
            self.texts.append(_TextTable())
            self.width += 1
            return
        self._num_nullable += 1
        if pa.types.is_struct(kind):
            for index in range(kind.num_fields):
                self._measure(kind.field(index).type)
        elif is_flat(kind):
            self.width += _num_words(kind)
        elif not pa.types.is_null(kind):
            message = f"a key must be a plain value or a struct of such; got {kind}"
            raise TypeMismatchError(message)

    def of(self, arrays: Sequence[pa.Array], num_rows: int, *, add: bool) -> npt.NDArray[np.int64]:
        self._made = np.zeros((num_rows, self.width + self.num_null_words), np.int64)
        self._word = self._null = self._text = 0
        self._add = add
        for array in arrays:
            self._fill(plain(array))
        return self._made

    def _fill(self, array: pa.Array) -> None:
        kind = array.type
        if is_text(kind):
            self._made[:, self._word] = self.texts[self._text].codes_of(array, add=self._add)
            self._word += 1
            self._text += 1
            return
        valid = validity(array)
        if valid is not None:
            word, bit = divmod(self._null, _NULLS_OF_A_WORD)
            self._made[:, self.width + word] |= (~valid).astype(np.int64) << bit
        self._null += 1
        if pa.types.is_struct(kind):
            for field in fields_of(array):
                self._fill(plain(field))
        elif is_flat(kind):
            bits = bits_of(array)
            width = 1 if bits.ndim == 1 else bits.shape[1]
            if valid is not None:
                bits = np.where(valid if bits.ndim == 1 else valid[:, None], bits, 0)
            self._made[:, self._word : self._word + width] = bits if bits.ndim > 1 else bits[:, None]
            self._word += width

    def arrays(self, words: npt.NDArray[np.int64]) -> list[pa.Array]:
        self._made = words
        self._word = self._null = self._text = 0
        return [self._array(kind) for kind in self._types]

    def _array(self, kind: pa.DataType) -> pa.Array:
        kind = stored_type(kind)
        if is_text(kind):
            codes = np.ascontiguousarray(self._made[:, self._word])
            text = self.texts[self._text]
            self._word += 1
            self._text += 1
            return text.take(codes, kind)
        word, bit = divmod(self._null, _NULLS_OF_A_WORD)
        valid = (self._made[:, self.width + word] >> bit) & 1 == 0
        self._null += 1
        if pa.types.is_null(kind):
            return pa.nulls(len(self._made))
        if pa.types.is_struct(kind):
            fields = [kind.field(index) for index in range(kind.num_fields)]
            parts = [self._array(field.type).cast(field.type) for field in fields]
            return pa.StructArray.from_arrays(parts, fields=fields, mask=pa.array(~valid))
        width = _num_words(kind)
        bits = self._made[:, self._word : self._word + width]
        self._word += width
        if width == 1:
            size = 8 if pa.types.is_boolean(kind) else kind.bit_width
            bits = bits[:, 0].astype(f"i{size // 8}")
        return array_of_bits(bits, valid, kind)


def _num_words(kind: pa.DataType) -> int:
    """How many words a value of a flat type takes; decimals are held with 38 digits at least."""
    return max(kind.bit_width // 64, 2 if pa.types.is_decimal(kind) else 1)
