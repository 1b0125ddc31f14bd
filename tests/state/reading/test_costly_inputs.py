"""Stored data that asks for more work or memory than it weighs: refused, or read in steps that grow with its size."""

from __future__ import annotations

import pickle
import struct
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.state.errors import CheckpointCorruptError
from headrace.state.reading import arrow_reading, plain_values, reading_costs, stored_json
from headrace.state.reading.arrow_reading import read_arrow_stream
from headrace.state.reading.plain_pickle import NotPlainError, read_plain_pickle
from headrace.state.values.packed import decode_packed, encode_packed

START = b"\x80\x04"


def _opened(data):
    return read_plain_pickle(data, lambda nested: None)


def _number(number):
    return b"J" + struct.pack("<i", number)


def _list(size):
    return b"]\x94(" + b"".join(map(_number, range(size))) + b"e"


def _call_often(name, argument, times):
    """Call a recipe with one shared argument."""
    return START + argument + b"c" + name.replace(b".", b"\n", 1) + b"\n\x94(" + b"h\x01h\x00\x85R" * times + b"t\x87."


_BYTES = b"B" + struct.pack("<I", 10_000) + b"x" * 10_000 + b"\x94"
_TEXT = b"X" + struct.pack("<I", 10_000) + b"7" * 10_000 + b"\x94"
_HEAVY = b"K\x01\x94" + b"".join(b"h" + bytes([i, 0x68, i]) + b"\x86\x94" for i in range(12))


@pytest.mark.parametrize(
    "data",
    [
        _call_often(b"builtins.frozenset", _list(4_000), 4_000),
        _call_often(b"builtins.set", _list(4_000), 4_000),
        _call_often(b"builtins.bytearray", _BYTES, 4_000),
        _call_often(b"decimal.Decimal", _TEXT, 4_000),
        START + _HEAVY + b"}" + b"h\x0cNs" * 4_000 + b".",
        START + _HEAVY + b"\x8f" + b"(h\x0c\x90" * 4_000 + b".",
        START + b"X" + struct.pack("<I", 10_000) + b"m" * 10_000 + b"\x94" + b"h\x00h\x00\x93" * 4_000 + b".",
    ],
    ids=["frozenset", "set", "bytearray", "Decimal", "keys of a dict", "members of a set", "names"],
)
def test_a_shared_part_is_not_worked_on_without_end(data):
    with pytest.raises(NotPlainError, match=r"steps of work|a name of"):
        _opened(data)


def test_heavy_keys_of_one_hash_are_not_compared_without_end():
    body, at = b"", 0
    for number in range(600):
        # -1 and -2 hash alike, so that all these keys do; a copy of its own makes each be compared to its end.
        body += b"K\x01\x94"
        for _ in range(9):
            body += b"j" + struct.pack("<I", at) + b"j" + struct.pack("<I", at) + b"\x86\x94"
            at += 1
        at += 1
        body += _number(-1 - number % 2) + b"\x86N"
    with pytest.raises(NotPlainError, match="steps of work"):
        _opened(START + b"}(" + body + b"u.")


def test_a_dict_that_grows_key_by_key_is_looked_through_once(monkeypatch):
    num_hashed = 0

    def counting(keys, counts=None):
        nonlocal num_hashed
        keys = list(keys)
        num_hashed += len(keys)
        plain_values.check_hashes(keys, counts)

    monkeypatch.setattr(reading_costs, "check_hashes", counting)
    big = b"}(" + b"".join(_number(i) + b"N" for i in range(2_000)) + b"u"
    found = _opened(START + big + b"".join(_number(i) + b"Ns" for i in range(3_000)) + b".")
    assert len(found) == 3_000
    assert num_hashed <= 6_000
    alike = b"".join(b"\x8a\x0b" + (k * (2**61 - 1)).to_bytes(11, "little") + b"Ns" for k in range(1, 1_500))
    with pytest.raises(NotPlainError, match="hash alike"):
        _opened(START + big + alike + b".")


def test_what_is_shared_honestly_is_read():
    key, names = ("a", ("b", 1), Decimal("1.5")), [f"field number {i} of a record" for i in range(20)]
    value = [dict.fromkeys(names, number) for number in range(500)] + [{key: 1}] * 300 + [frozenset((key,))] * 300
    value += [{(name, name): name for name in names} for _ in range(200)]
    for protocol in (4, 5):
        assert _opened(pickle.dumps(value, protocol)) == value


def test_a_name_that_is_twice_is_found_in_one_pass():
    class Name(str):
        num_compared = 0

        def __eq__(self, other):
            Name.num_compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    pairs = [(Name(i), i) for i in range(2_000)] + [(Name(1_999), 0)]
    with pytest.raises(ValueError, match="has the name '1999' twice"):
        stored_json._object(pairs)
    assert Name.num_compared < 10_000


def _with_dictionaries(num_batches, *, grow):
    words, sink = ["x" * 1_000] * 100, pa.BufferOutputStream()
    schema = pa.schema({"word": pa.dictionary(pa.int32(), pa.string())})
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=grow)) as writer:
        for number in range(num_batches):
            words += ["more"] if grow and number else []
            column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(words))
            writer.write_batch(pa.record_batch([column], schema=schema))
    return sink.getvalue().to_pybytes()


def test_a_dictionary_does_not_grow_from_batch_to_batch():
    # Each batch would hold a copy of the dictionary that it saw: 700 MB of 2 MB.
    with pytest.raises(CheckpointCorruptError, match="a dictionary that grows"):
        read_arrow_stream(_with_dictionaries(3, grow=True), "a file")
    assert len(read_arrow_stream(_with_dictionaries(3, grow=False), "a file")[1]) == 3


def test_a_dictionary_is_not_validated_with_every_batch_without_end(monkeypatch):
    monkeypatch.setattr(arrow_reading, "_FREE_VALIDATED_BYTES", 1 << 20)
    monkeypatch.setattr(arrow_reading, "MAX_FACTOR", 10)
    assert read_arrow_stream(_with_dictionaries(5, grow=False), "a file")
    with pytest.raises(CheckpointCorruptError, match=r"200 batches share 100,4.. bytes of dictionaries"):
        read_arrow_stream(_with_dictionaries(200, grow=False), "a file")


@pytest.mark.parametrize("make", [dict.fromkeys, set, frozenset])
def test_heavy_packed_keys_of_one_hash_are_few_and_light_ones_are_not(make):
    def keys(num_parts, number):
        """Tuples of -1 and -2, which all hash alike."""
        return [tuple(-1 - (i >> bit & 1) for bit in range(num_parts)) for i in range(number)]

    for light in (keys(9, 512), keys(100, 100)):
        assert decode_packed(encode_packed(make(light))) == make(light)
    for heavy in (keys(100, 101), [((-1, key), 2**2_000) for key in keys(8, 200)]):
        with pytest.raises(CheckpointCorruptError, match="keys hash alike"):
            decode_packed(encode_packed(make(heavy)))
