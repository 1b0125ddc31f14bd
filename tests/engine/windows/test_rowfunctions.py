"""Result rows of windows and plain callables as window functions. Example tests."""

import pickle
from datetime import datetime

import pytest

from headrace.engine.errors import ProgramError
from headrace.engine.windows.row_functions import ApplyFunction, WindowRow
from headrace.engine.windows.windows import GlobalWindow, TimeWindow


def test_a_window_row_has_key_times_and_aggregates_in_this_order():
    make = WindowRow(("shop", "day"), ["n", "top"])
    row = pickle.loads(pickle.dumps(make))(("a", 3), TimeWindow(-1_000, 1_500), {"n": 2, "top": 9})
    assert list(row.items()) == [
        ("shop", "a"),
        ("day", 3),
        ("window_start", datetime(1969, 12, 31, 23, 59, 59)),  # noqa: DTZ001
        ("window_end", datetime(1970, 1, 1, 0, 0, 1, 500_000)),  # noqa: DTZ001
        ("n", 2),
        ("top", 9),
    ]


def test_a_key_made_by_a_function_is_called_key_and_count_windows_have_no_times():
    assert WindowRow(None, ["n"])((1, 2), GlobalWindow(), {"n": 3}) == {"key": (1, 2), "n": 3}


@pytest.mark.parametrize(("keys", "names"), [(("n",), ["n"]), (None, ["key"]), (("a",), ["window_end"])])
def test_two_fields_of_one_name_are_refused(keys, names):
    with pytest.raises(ProgramError, match="the result would have several columns called"):
        WindowRow(keys, names)


def test_a_callable_gets_key_window_and_records():
    def largest(key, window, rows):
        yield key, window.end, max(rows)

    function = ApplyFunction(largest)
    assert list(function.apply("a", TimeWindow(0, 5), [1, 3, 2])) == [("a", 5, 3)]
    assert function.__qualname__.endswith("largest")
