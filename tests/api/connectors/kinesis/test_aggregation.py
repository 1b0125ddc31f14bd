"""Records that the Kinesis Producer Library has put into one: against what AWS's module for Python makes, and damaged.

Risks: records that are lost or made up, as bytes were taken for what they are not (fuzzing, against what was put in).
"""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinesis_server import aggregated

from headrace.connectors.kinesis.aggregation import MAGIC, UserRecord, hash_of, users_of

MOST = (1 << 128) - 1
OF_AWS = (
    b"\xf3\x89\x9a\xc2\n\x02k1\n\x02k2\x12'340282366920938463463374607431768211455\x1a\x07\x08\x00\x1a\x03one\x1a\t\x08"
    b"\x01\x10\x00\x1a\x03two\x1a\t\x08\x00\x1a\x05three\xd5\xb7\xff\xa7\x12\xa4:\xb1\x1fbCHZ\x00\x85%"
)
"""Made by aws_kinesis_agg 1.2: two keys, one hash that is told."""


def packed(message):
    return MAGIC + message + hashlib.md5(message).digest()


def test_what_awss_module_has_made_is_taken_apart():
    assert users_of(OF_AWS) == [
        UserRecord("k1", hash_of("k1"), b"one"),
        UserRecord("k2", MOST, b"two"),
        UserRecord("k1", hash_of("k1"), b"three"),
    ]
    assert hash_of("k1") == int(hashlib.md5(b"k1").hexdigest(), 16)


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=300), st.binary(max_size=300)), max_size=9))
def test_what_goes_in_comes_out(users):
    assert users_of(aggregated(users)) == [UserRecord(key, hash_of(key), data) for key, data in users]


@given(st.integers(0, len(OF_AWS) - 1), st.integers(1, 255))
def test_a_record_that_was_changed_is_one_as_it_is(place, bits):
    changed = bytearray(OF_AWS)
    changed[place] ^= bits
    assert users_of(bytes(changed)) is None


@given(st.binary(max_size=80))
def test_what_has_the_digest_and_is_no_such_message_is_one_as_it_is_or_empty(message):
    found = users_of(packed(message))
    assert found is None or all(isinstance(one, UserRecord) for one in found)


@pytest.mark.parametrize(
    "message",
    [
        b"\x1a\x07\x08\x00\x1a\x03one",  # a key that is not there
        b"\n\x01k\x1a\x02\x08\x00",  # no data
        b"\n\x01k\x1a\x05\x1a\x03one",  # no key
        b"\n\x01k\x12\x01x\x1a\x09\x08\x00\x10\x00\x1a\x03one",  # a hash that is no number
        b"\n\x01\xff\x1a\x07\x08\x00\x1a\x03one",  # a key that is no text
        b"\n\x01k\x1a\x07\x08\x00\x1a\x04one",  # longer than it is
        b"\x0b",  # a group
        b"\xff" * 12,
    ],
)
def test_what_is_not_complete_is_one_as_it_is(message):
    assert users_of(packed(message)) is None


def test_fields_that_nobody_knows_are_passed_over():
    message = b"\n\x01k\x25abcd\x21abcdefgh\x1a\x0b\x08\x00\x1a\x03one\x22\x02ab"
    assert users_of(packed(message)) == [UserRecord("k", hash_of("k"), b"one")]
