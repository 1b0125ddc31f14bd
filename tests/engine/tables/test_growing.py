"""Arrays that grow, beside lists that do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.tables import growing
from headrace.engine.tables.growing import grown


@pytest.fixture(params=[1, 200, 1 << 30], ids=["all reserved", "large ones reserved", "none reserved"], autouse=True)
def reserved_from(request, monkeypatch):
    monkeypatch.setattr(growing, "_LARGE_BYTES", request.param)
    monkeypatch.setattr(growing, "_RESERVED_TIMES", 4)


@given(
    st.sampled_from([np.int64, np.int8, np.bool_]),
    st.sampled_from([(), (3,)]),
    st.sampled_from([0, 1]),
    st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=12),
)
def test_what_was_there_stays_and_the_rest_is_filled(kind, width, fill, steps):
    array, wanted = np.zeros((0, *width), kind), np.zeros((0, *width), kind)
    for number, (size, is_written) in enumerate(steps):
        before, values = array, wanted.copy()
        array = grown(array, size, fill)
        assert len(array) >= size
        assert (before == values).all()
        more = np.full((len(array) - len(wanted), *width), fill, kind)
        wanted = np.concatenate([wanted, more])
        assert (array == wanted).all()
        if is_written:
            array[:size], wanted[:size] = number, number
        array[len(array) - len(array) // 3 :] = 1
        wanted[len(array) - len(array) // 3 :] = 1


def test_a_part_of_an_array_grows_by_itself():
    """What is behind the part in the same memory is not what it grows into."""
    whole = grown(np.zeros(0, np.int64), 200)
    whole[:] = 7
    part = grown(whole[:50], 100)
    assert (part[:50] == 7).all()
    assert not part[50:].any()
    part[:] = 8
    assert (whole == 7).all()


def test_what_has_grown_twice_from_one_array_is_not_shared():
    first = grown(np.zeros(0, np.int64), 200)
    one, other = grown(first, 300), grown(first, 300)
    one[200:] = 1
    assert not other[200:].any()


def test_memory_is_counted_as_it_is_given_out():
    array = grown(np.zeros(0, np.int64), 1_000)
    array = grown(array, 2_100)
    assert 8 * 2_100 <= array.nbytes <= 8 * 4_200


def test_without_addresses_to_reserve_it_grows_all_the_same(monkeypatch):
    def refuse(*_arguments, **_options):
        raise OSError

    monkeypatch.setattr(growing, "_Reserved", type("None", (), {"__new__": refuse}))
    array = grown(np.ones(1_000, np.int64), 5_000)
    assert array[:1_000].all()
    assert not array[1_000:].any()
