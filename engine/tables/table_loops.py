"""The loops of tables: plain ones, compiled.

Each is as one would write it down in Python, over arrays of one number a row. They hold no state, allocate nothing and
keep the GIL released; who calls them sees to it that arrays are large enough. Those that add to a table stop before it
is full and say at which row, so that the caller makes room and calls again.

Hashing here is for tables in memory only: no stored byte depends on it. Tables use open addressing: a slot holds a code
or -1, and a row looks from the slot of its hash onwards. In tables larger than the processor's caches rows are looked
up some at a time: their first slots, and what is stored for these, are read ahead, in loops in which no read waits for
another one. Only rows that have not found their key so go from slot to slot.

Source: Knuth, "The Art of Computer Programming" 6.4 (open addressing); Steele et al., "Fast splittable pseudorandom
number generators" (the finaliser).
"""

from __future__ import annotations

import numba
import numpy as np
from numba import types

from .compiling import compiled as _compiled
from .compiling import copy_bytes, word_at

__all__ = [
    "add_floats",
    "add_integers",
    "copy_texts",
    "count_to_none",
    "earlier_of_chain",
    "find_integers",
    "find_texts",
    "find_words",
    "first_rows",
    "gather",
    "hash_texts",
    "link",
    "local_codes",
    "next_of_chain",
    "place_hashes",
    "place_integers",
    "place_words",
    "unlink",
]

_INT = types.int64
_TRUTH = types.Array(types.uint8, 1, "C", readonly=True)
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INTS = types.Array(types.int64, 1, "C", readonly=True)
_WORDS = types.Array(types.int64, 2, "C", readonly=True)
_FLOATS = types.Array(types.float64, 1, "C", readonly=True)
_NEW_BYTES = types.uint8[::1]
_NEW_INTS = types.int64[::1]
_SLOTS = types.int32[::1]
_NEW_WORDS = types.int64[:, ::1]
_NEW_FLOATS = types.float64[::1]
_PLACE = types.UniTuple(_INT, 2)
_PLACES = types.UniTuple(_INT, 3)

_AHEAD = 256
"""How many rows are looked up at a time: what is read ahead for them must still be in the cache."""

_LARGE = 1 << 16
"""From so many slots on reading ahead is worth it."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


@numba.njit(inline="always")
def _mixed(bits):  # type: ignore[no-untyped-def]  # inlined by the compiler, which finds the types
    bits = np.uint64(bits) + _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _M1
    bits = (bits ^ (bits >> np.uint64(27))) * _M2
    return bits ^ (bits >> np.uint64(31))


@numba.njit(inline="always")
def _hash_words(words, row):  # type: ignore[no-untyped-def]
    hashed = np.uint64(words.shape[1])
    for word in range(words.shape[1]):
        hashed = _mixed(hashed ^ np.uint64(words[row, word]))
    return hashed


@numba.njit(inline="always")
def _same_words(stored, code, words, row):  # type: ignore[no-untyped-def]
    for word in range(words.shape[1]):
        if stored[code, word] != words[row, word]:
            return False
    return True


@numba.njit(inline="always")
def _hash_text(data, start, length):  # type: ignore[no-untyped-def]
    hashed = _mixed(length)
    place = start
    end = start + length
    while place + 8 <= end:
        hashed = _mixed(hashed ^ word_at(data, place))
        place += 8
    if place < end:
        word = np.uint64(0)
        for byte in range(end - place):
            word |= np.uint64(data[place + byte]) << np.uint64(8 * byte)
        hashed = _mixed(hashed ^ word)
    return hashed


@numba.njit(inline="always")
def _hash_or_null(data, start, length, hash_bits):  # type: ignore[no-untyped-def]
    return (_hash_text(data, start, length) if length >= 0 else _mixed(length)) & hash_bits


@numba.njit(inline="always")
def _same_text(data, start, held, held_start, length):  # type: ignore[no-untyped-def]
    place = 0
    while place + 8 <= length:
        if word_at(data, start + place) != word_at(held, held_start + place):
            return False
        place += 8
    while place < length:
        if data[start + place] != held[held_start + place]:
            return False
        place += 1
    return True


# ------------------------------------------------------------------------------------------------------- tables of keys
@_compiled(_PLACE(_INTS, _INT, _SLOTS, _NEW_INTS, _INT, types.boolean, _NEW_INTS))
def find_integers(keys, row, slots, stored, num, add, codes):  # type: ignore[no-untyped-def]
    """Find the codes of integers, from a row on; with ``add`` new ones get the next codes.

    Args:
        keys: One per row.
        row: The first row to look at.
        slots: The table; a power of two.
        stored: The key of each code.
        num: How many codes there are.
        add: Whether keys that are not there are added; else their code is -1.
        codes: Where codes are written, one per row.

    Returns:
        The row at which it stopped (the number of rows, if there was room for all) and the number of codes.
    """
    mask = np.uint64(len(slots) - 1)
    room = min(len(slots) // 2, len(stored))
    while row < len(keys):
        key = keys[row]
        slot = _mixed(key) & mask
        while True:
            code = slots[slot]
            if code < 0 or stored[code] == key:
                break
            slot = (slot + np.uint64(1)) & mask
        if code < 0 and add:
            if num >= room:
                return row, num
            code = num
            slots[slot] = code
            stored[code] = key
            num += 1
        codes[row] = code
        row += 1
    return row, num


@_compiled(_PLACE(_WORDS, _INT, _SLOTS, _NEW_WORDS, _INT, types.boolean, _NEW_INTS))
def find_words(keys, row, slots, stored, num, add, codes):  # type: ignore[no-untyped-def]
    """As `find_integers`, of keys of several words each."""
    mask = np.uint64(len(slots) - 1)
    room = min(len(slots) // 2, len(stored))
    while row < len(keys):
        end = min(row + _AHEAD, len(keys))
        for ahead in range(row, end):
            codes[ahead] = slots[_hash_words(keys, ahead) & mask] if len(slots) >= _LARGE else -1
        for ahead in range(row, end):
            if codes[ahead] >= 0 and not _same_words(stored, codes[ahead], keys, ahead):
                codes[ahead] = -1
        while row < end:
            if codes[row] < 0:
                slot = _hash_words(keys, row) & mask
                while True:
                    code = slots[slot]
                    if code < 0 or _same_words(stored, code, keys, row):
                        break
                    slot = (slot + np.uint64(1)) & mask
                if code < 0 and add:
                    if num >= room:
                        return row, num
                    code = num
                    slots[slot] = code
                    for word in range(keys.shape[1]):
                        stored[code, word] = keys[row, word]
                    num += 1
                codes[row] = code
            row += 1
    return row, num


@_compiled(
    _PLACES(
        _INTS, _BYTES, _TRUTH, types.uint64, _INT, _SLOTS, _NEW_INTS, _NEW_INTS, _NEW_INTS, _NEW_BYTES, _INT, _INT,
        types.boolean, _NEW_INTS,
    )
)  # fmt: skip
def find_texts(  # type: ignore[no-untyped-def]
    offsets, data, valid, hash_bits, row, slots, hashes, starts, lengths, held, num, used, add, codes
):
    """As `find_integers`, of texts; null is one too, of length -1. Bytes are compared, never just hashes.

    Args:
        offsets: Where the texts begin in ``data``, and the end of the last one.
        data: Their bytes.
        valid: 0 for null.
        hash_bits: The bits of the hash that are used: all, but in tests of collisions.
        row: The first row to look at.
        slots: The table; a power of two.
        hashes: The hash of each code.
        starts: Where the text of each code begins in ``held``.
        lengths: Its length.
        held: The bytes of all texts.
        num: How many codes there are.
        used: How many bytes are held.
        add: Whether texts that are not there are added; else their code is -1.
        codes: Where codes are written, one per row.

    Returns:
        The row at which it stopped, the number of codes, and of bytes held.
    """
    mask = np.uint64(len(slots) - 1)
    room = min(len(slots) // 2, len(starts))
    while row < len(valid):
        end = min(row + _AHEAD, len(valid))
        for ahead in range(row, end):
            start = offsets[ahead]
            length = offsets[ahead + 1] - start if valid[ahead] else -1
            codes[ahead] = slots[_hash_or_null(data, start, length, hash_bits) & mask] if len(slots) >= _LARGE else -1
        for ahead in range(row, end):
            if codes[ahead] >= 0:
                start, code = offsets[ahead], codes[ahead]
                length = offsets[ahead + 1] - start if valid[ahead] else -1
                if lengths[code] != length or not _same_text(data, start, held, starts[code], max(length, 0)):
                    codes[ahead] = -1
        while row < end:
            if codes[row] < 0:
                start = offsets[row]
                length = offsets[row + 1] - start if valid[row] else -1
                hashed = np.int64(_hash_or_null(data, start, length, hash_bits))
                slot = np.uint64(hashed) & mask
                while True:
                    code = slots[slot]
                    if code < 0:
                        break
                    if (
                        hashes[code] == hashed
                        and lengths[code] == length
                        and _same_text(data, start, held, starts[code], max(length, 0))
                    ):
                        break
                    slot = (slot + np.uint64(1)) & mask
                if code < 0 and add:
                    if num >= room or used + max(length, 0) > len(held):
                        return row, num, used
                    code = num
                    slots[slot] = code
                    hashes[code], starts[code], lengths[code] = hashed, used, length
                    if length > 0:
                        copy_bytes(held, used, data, start, length)
                    used += max(length, 0)
                    num += 1
                codes[row] = code
            row += 1
    return row, num, used


@_compiled(types.void(_INTS, _INT, _SLOTS))
def place_integers(keys, skipped, slots):  # type: ignore[no-untyped-def]
    """Put codes into the slots of their keys, which all differ; there is room for all.

    Args:
        keys: By code.
        skipped: A code that has no slot; -1 for none.
        slots: The empty table.
    """
    mask = np.uint64(len(slots) - 1)
    for code in range(len(keys)):
        if code != skipped:
            slot = _mixed(keys[code]) & mask
            while slots[slot] >= 0:
                slot = (slot + np.uint64(1)) & mask
            slots[slot] = code


@_compiled(types.void(_WORDS, _SLOTS))
def place_words(keys, slots):  # type: ignore[no-untyped-def]
    """As `place_integers`, of keys of several words."""
    mask = np.uint64(len(slots) - 1)
    for code in range(len(keys)):
        slot = _hash_words(keys, code) & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = code


@_compiled(types.void(_INTS, _SLOTS))
def place_hashes(hashes, slots):  # type: ignore[no-untyped-def]
    """Put the codes of texts that differ into the slots of their hashes; there is room for all."""
    mask = np.uint64(len(slots) - 1)
    for code in range(len(hashes)):
        slot = np.uint64(hashes[code]) & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = code


@_compiled(types.void(_INTS, _BYTES, _NEW_INTS))
def hash_texts(offsets, data, hashes):  # type: ignore[no-untyped-def]
    """Write a hash of each text."""
    for row in range(len(hashes)):
        hashes[row] = np.int64(_hash_text(data, offsets[row], offsets[row + 1] - offsets[row]))


@_compiled(types.void(_INTS, _INTS, _INTS, _BYTES, _INTS, _NEW_BYTES))
def copy_texts(ids, starts, lengths, held, offsets, data):  # type: ignore[no-untyped-def]
    """Write the texts of some rows one behind the other, to where ``offsets`` says; a length below 0 is null."""
    for row in range(len(ids)):
        if ids[row] >= 0 and lengths[ids[row]] > 0:
            copy_bytes(data, offsets[row], held, starts[ids[row]], lengths[ids[row]])


@_compiled(_INT(_INTS, _NEW_INTS, _NEW_INTS, _NEW_INTS))
def local_codes(codes, places, touched, local):  # type: ignore[no-untyped-def]
    """Number the codes of a batch anew, in order of their first row.

    Args:
        codes: One per row.
        places: By code, -1 everywhere; it is so again afterwards.
        touched: Where the codes that occur are written.
        local: Where the new number of each row is written.

    Returns:
        How many codes occur.
    """
    num = 0
    for row in range(len(codes)):
        code = codes[row]
        place = places[code]
        if place < 0:
            place = num
            places[code] = place
            touched[place] = code
            num += 1
        local[row] = place
    for place in range(num):
        places[touched[place]] = -1
    return num


@_compiled(types.void(_INTS, _WORDS, _NEW_INTS))
def first_rows(local, keys, firsts):  # type: ignore[no-untyped-def]
    """Find the first row of each group in an order.

    Args:
        local: The group of each row.
        keys: What rows are ordered by, the first word most; no two rows of a group have the same ones.
        firsts: By group, where its first row is written; -1 before.
    """
    for row in range(len(local)):
        first = firsts[local[row]]
        if first >= 0:
            word = 0
            while keys[row, word] == keys[first, word]:
                word += 1
            if keys[row, word] > keys[first, word]:
                continue
        firsts[local[row]] = row


# --------------------------------------------------------------------------------------------------------------- chains
@_compiled(types.void(_INTS, _INTS, _NEW_INTS, _NEW_INTS, _NEW_INTS, _NEW_INTS, _NEW_INTS))
def link(codes, ids, heads, tails, counts, nexts, priors):  # type: ignore[no-untyped-def]
    """Put ids at the ends of the chains of codes, in order."""
    for row in range(len(ids)):
        code, number = codes[row], ids[row]
        last = tails[code]
        priors[number], nexts[number] = last, -1
        if last < 0:
            heads[code] = number
        else:
            nexts[last] = number
        tails[code] = number
        counts[code] += 1


@_compiled(types.void(_INTS, _INTS, _NEW_INTS, _NEW_INTS, _NEW_INTS, _NEW_INTS, _NEW_INTS))
def unlink(codes, ids, heads, tails, counts, nexts, priors):  # type: ignore[no-untyped-def]
    """Take ids out of the chains of codes, in which they are."""
    for row in range(len(ids)):
        code, number = codes[row], ids[row]
        before, behind = priors[number], nexts[number]
        if before < 0:
            heads[code] = behind
        else:
            nexts[before] = behind
        if behind < 0:
            tails[code] = before
        else:
            priors[behind] = before
        counts[code] -= 1


@_compiled(types.void(_INTS, _INTS, _INTS, _NEW_INTS))
def gather(codes, heads, nexts, found):  # type: ignore[no-untyped-def]
    """Write the ids of the chains of codes one behind the other; -1 is a code without a chain."""
    at = 0
    for row in range(len(codes)):
        number = heads[codes[row]] if codes[row] >= 0 else -1
        while number >= 0:
            found[at] = number
            at += 1
            number = nexts[number]


@_compiled(types.void(_INTS, _NEW_INTS, _INTS, _NEW_INTS))
def next_of_chain(local, cursors, steps, found):  # type: ignore[no-untyped-def]
    """Give each row an id of its own: that at its cursor, which goes on by ``steps``; -1 once a chain has ended."""
    for row in range(len(local)):
        number = cursors[local[row]]
        found[row] = number
        if number >= 0:
            cursors[local[row]] = steps[number]


@_compiled(types.void(_INTS, _NEW_INTS, _INTS, _INTS, _NEW_INTS))
def earlier_of_chain(local, cursors, steps, limits, found):  # type: ignore[no-untyped-def]
    """Give each row an id of its own: that at its cursor, which goes on by ``steps``, if it is below the row's limit;
    -1 else, and once a chain has ended.
    """
    for row in range(len(local)):
        number = cursors[local[row]]
        found[row] = -1
        if 0 <= number < limits[row]:
            found[row] = number
            cursors[local[row]] = steps[number]


@_compiled(_INT(_INTS, _INTS, _NEW_INTS, _NEW_INTS, _NEW_BYTES))
def count_to_none(local, signs, counts, emptied, is_ignored):  # type: ignore[no-untyped-def]
    """Count rows up and down by group, in order, where nothing is taken from a count of zero.

    Args:
        local: The group of each row.
        signs: 1 or -1; more, or less, for a row that counts several times.
        counts: What groups begin with, and then have.
        emptied: For each group the last row at which its count has fallen to zero; -1 for none.
        is_ignored: 1 for each row that would take from zero.

    Returns:
        How many rows are ignored.
    """
    num_ignored = 0
    for row in range(len(local)):
        group = local[row]
        if signs[row] < 0:
            if counts[group] == 0:
                is_ignored[row] = 1
                num_ignored += 1
                continue
            counts[group] = max(counts[group] + signs[row], 0)
            if counts[group] == 0:
                emptied[group] = row
        else:
            counts[group] += signs[row]
    return num_ignored


# ----------------------------------------------------------------------------------------------------------------- sums
@_compiled(types.void(_INTS, _INTS, _TRUTH, _INTS, _NEW_INTS, _NEW_INTS, _NEW_INTS))
def add_integers(local, values, valid, signs, lows, highs, counts):  # type: ignore[no-untyped-def]
    """Add up integers, or take them away, by group: in 128 bits, so that no order of them overflows.

    Args:
        local: The group of each row.
        values: One per row.
        valid: 0 for null, which is passed over.
        signs: 1 or -1.
        lows: The lower 64 bits of the sums.
        highs: The upper ones.
        counts: How many values there are.
    """
    for row in range(len(local)):
        if valid[row]:
            group, value = local[row], values[row]
            low = np.uint64(lows[group])
            if signs[row] > 0:
                total = low + np.uint64(value)
                carry = np.int64(total < low)
                highs[group] += carry + (value >> 63)
            else:
                total = low - np.uint64(value)
                borrow = np.int64(low < np.uint64(value))
                highs[group] -= borrow + (value >> 63)
            lows[group] = np.int64(total)
            counts[group] += signs[row]


@_compiled(types.void(_INTS, _INTS, _INTS, _NEW_INTS, _NEW_INTS))
def add_wide_integers(local, values, uppers, lows, highs):  # type: ignore[no-untyped-def]
    """Add up integers of 128 bits, by group.

    Args:
        local: The group of each row.
        values: The lower 64 bits of each row's number.
        uppers: The upper ones.
        lows: The lower 64 bits of the sums.
        highs: The upper ones.
    """
    for row in range(len(local)):
        group = local[row]
        low = np.uint64(lows[group])
        total = low + np.uint64(values[row])
        highs[group] += np.int64(total < low) + uppers[row]
        lows[group] = np.int64(total)


@_compiled(types.void(_INTS, _FLOATS, _TRUTH, _INTS, _NEW_FLOATS, _NEW_INTS, _NEW_INTS, _NEW_INTS, _NEW_INTS))
def add_floats(local, values, valid, signs, sums, nans, positives, negatives, counts):  # type: ignore[no-untyped-def]
    """Add up floats, or take them away, by group. NaN and infinities are counted: they could not be taken away."""
    for row in range(len(local)):
        if valid[row]:
            group, value, sign = local[row], values[row], signs[row]
            counts[group] += sign
            if np.isnan(value):
                nans[group] += sign
            elif value == np.inf:
                positives[group] += sign
            elif value == -np.inf:
                negatives[group] += sign
            else:
                sums[group] += value * sign
