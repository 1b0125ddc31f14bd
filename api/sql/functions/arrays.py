"""Functions of arrays. Places count from 1; null is an element like others.

Source: Flink's documentation ("Collection Functions").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.columns.kernels import Value

from ..parsing.errors import SqlError
from ..parsing.sql_types import sql_name
from .coercion import cast_to, common_type, is_number, is_text, starts_and_sizes, together
from .contract import Function, KernelCall, Typed, as_arrays, require, row_by_row

__all__ = ["FUNCTIONS", "array_of", "distinct_key", "element_at", "is_array"]

_INT = pa.int32()


def is_array(kind: pa.DataType) -> bool:
    """Whether it is an ARRAY."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _array(value: Typed) -> Typed:
    if not is_array(value.kind):
        message = f"expected an array; got {sql_name(value.kind)}"
        raise SqlError(message, hint="CAST(NULL AS ARRAY<INT>) has a type" if pa.types.is_null(value.kind) else None)
    return cast_to(value, pa.list_(value.kind.value_type))


def _of_one_type(*values: Typed) -> list[Typed]:
    """Arrays whose elements have one type."""
    arrays = [_array(value) for value in values]
    kind = pa.list_(common_type([one.kind.value_type for one in arrays]))
    return [cast_to(one, kind) for one in arrays]


def _with_element(array: Typed, element: Typed) -> tuple[Typed, Typed]:
    """An array and a value that may be an element of it."""
    array = _array(array)
    kind = common_type([array.kind.value_type, element.kind])
    return cast_to(array, pa.list_(kind)), cast_to(element, kind)


# -- construction and access -------------------------------------------------------------------------------------------


def array_of(values: Sequence[Typed]) -> Typed:
    """ARRAY[x, ...]: the values in their common type.

    Raises:
        SqlError: If they have none, or there are no values.
    """
    if not values:
        message = "an array of no elements has no type"
        raise SqlError(message, hint="CAST(NULL AS ARRAY<INT>) has a type")
    same = together(values)
    kind = pa.list_(same[0].kind)
    return Typed(KernelCall("ARRAY", _arrays_of, tuple(one.expression for one in same), kind), kind)


def _arrays_of(*values: Value) -> pa.Array:
    arrays = as_arrays(values)
    num_rows, width = len(arrays[0]), len(arrays)
    row_wise = np.arange(num_rows * width).reshape(width, num_rows).T.ravel()
    offsets = pa.array(np.arange(num_rows + 1, dtype=np.int32) * width)
    return pa.ListArray.from_arrays(offsets, pa.concat_arrays(arrays).take(pa.array(row_wise)))


def element_at(array: Typed, place: Typed) -> Typed:
    """``array[place]``: null where there is no such place.

    Raises:
        SqlError: If the place is a literal below 1.
    """
    array = _array(array)
    require(place, pa.types.is_integer, "an integer")
    if place.constant is not None and place.constant.as_py() < 1:
        message = f"the elements of an array are numbered from 1; got {place.constant.as_py()}"
        raise SqlError(message)
    kind = array.kind.value_type
    return Typed(KernelCall("ELEMENT_AT", _elements_at, (array.expression, place.expression), kind), kind)


def _elements_at(array: Value, place: Value) -> pa.Array:
    lists, places = as_arrays((array, place))
    numbers = places.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    starts, sizes = starts_and_sizes(lists)
    is_there = (numbers >= 1) & (numbers <= sizes)
    return lists.values.take(pa.array(starts + numbers - 1, mask=~is_there))


def _cardinality(value: Typed) -> Typed:
    require(value, lambda kind: is_array(kind) or pa.types.is_map(kind), "an array or a map")
    return Typed(KernelCall("CARDINALITY", _sizes, (value.expression,), _INT), _INT)


def _sizes(value: Value) -> pa.Array:
    return pa.array(starts_and_sizes(value)[1].astype(np.int32), mask=np.asarray(value.is_null()))


def _sole(array: list[Any]) -> Any:
    if len(array) > 1:
        message = f"an array has {len(array)} elements, and not one"
        raise ValueError(message)
    return array[0] if array else None


# -- what rows are asked -----------------------------------------------------------------------------------------------


def distinct_key(value: Any) -> Any:
    """Return what tells a value from others: NaN is one value, and lists can be keys."""
    if isinstance(value, list):
        return tuple(map(distinct_key, value))
    if isinstance(value, dict):
        return tuple(map(distinct_key, value.values()))
    return "NaN" if value != value else (value,)


def _first_ones(array: list[Any]) -> list[Any]:
    found: dict[Any, Any] = {}
    for value in array:
        found.setdefault(distinct_key(value), value)
    return list(found.values())


def _place_of(array: list[Any], element: Any) -> int:
    keys = [distinct_key(value) for value in array]
    wanted = distinct_key(element)
    return keys.index(wanted) + 1 if wanted in keys else 0


def _contains(array: list[Any] | None, element: Any) -> bool | None:
    return None if array is None else _place_of(array, element) > 0


def _removed(array: list[Any] | None, element: Any) -> list[Any] | None:
    return None if array is None else [one for one in array if distinct_key(one) != distinct_key(element)]


def _appended(array: list[Any] | None, element: Any) -> list[Any] | None:
    return None if array is None else [*array, element]


def _prepended(array: list[Any] | None, element: Any) -> list[Any] | None:
    return None if array is None else [element, *array]


def _without(array: list[Any], other: list[Any]) -> list[Any]:
    known = set(map(distinct_key, other))
    return [one for one in _first_ones(array) if distinct_key(one) not in known]


def _common_ones(array: list[Any], other: list[Any]) -> list[Any]:
    known = set(map(distinct_key, other))
    return [one for one in _first_ones(array) if distinct_key(one) in known]


def _slice(array: list[Any], start: int, end: int | None = None) -> list[Any]:
    size = len(array)
    end = size if end is None else end
    first, last = (_from_zero(place, size) for place in (start, end))
    if first >= size or (first < 0 and last < 0):
        return []
    return array[max(first, 0) : max(last, 0) + 1]


def _from_zero(place: int, size: int) -> int:
    return place + size if place < 0 else max(place - 1, 0)


def _order(value: Any) -> tuple[bool, Any]:
    return value != value, value


def _sorted(array: list[Any], ascending: bool = True, nulls_first: bool | None = None) -> list[Any]:
    values = sorted((one for one in array if one is not None), key=_order, reverse=not ascending)
    nulls = [None] * (len(array) - len(values))
    return nulls + values if (ascending if nulls_first is None else nulls_first) else values + nulls


def _extreme(choose: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    return lambda array: choose((one for one in array if one is not None), key=_order, default=None)


def _joined(array: list[str | None], delimiter: str, for_null: str | None = None) -> str:
    return delimiter.join(for_null if one is None else one for one in array if one is not None or for_null is not None)  # type: ignore[misc]


def _split(text: str, delimiter: str) -> list[str]:
    return text.split(delimiter) if delimiter and text else list(text)


# -- calls -------------------------------------------------------------------------------------------------------------


def _rows(name: str, function: Any, kind: pa.DataType, *operands: Typed, sees_nulls: bool = False) -> Typed:
    kernel = row_by_row(function, kind, sees_nulls=sees_nulls)
    return Typed(KernelCall(name, kernel, tuple(one.expression for one in operands), kind), kind)


def _is_ordered(kind: pa.DataType) -> bool:
    is_time = pa.types.is_temporal(kind)
    return bool(is_number(kind) or is_text(kind) or is_time or pa.types.is_boolean(kind) or pa.types.is_binary(kind))


def _ordered(value: Typed) -> Typed:
    array = _array(value)
    if not _is_ordered(array.kind.value_type):
        message = f"elements of type {sql_name(array.kind.value_type)} have no order"
        raise SqlError(message)
    return array


def _of_array(name: str, function: Any, meaning: str) -> Function:
    def bind(value: Typed) -> Typed:
        array = _array(value)
        return _rows(name, function, array.kind, array)

    return Function(name, f"{name}(array)", bind, 1, 1, meaning)


def _of_arrays(name: str, function: Any, meaning: str, most: int | None = 2) -> Function:
    def bind(*values: Typed) -> Typed:
        arrays = _of_one_type(*values)
        return _rows(name, function, arrays[0].kind, *arrays)

    usage = f"{name}(array, ...)" if most is None else f"{name}(array, array)"
    return Function(name, usage, bind, 1 if most is None else 2, most, meaning)


_WIDENS = "the element may widen the type of the array, which Flink refuses"


def _of_element(
    name: str, function: Any, meaning: str, kind: pa.DataType | None = None, *, sees_nulls: bool = True
) -> Function:
    def bind(value: Typed, element: Typed) -> Typed:
        array, one = _with_element(value, element)
        return _rows(name, function, array.kind if kind is None else kind, array, one, sees_nulls=sees_nulls)

    return Function(name, f"{name}(array, element)", bind, 2, 2, meaning, _WIDENS)


def _of_extreme(name: str, choose: Callable[..., Any], meaning: str) -> Function:
    def bind(value: Typed) -> Typed:
        array = _ordered(value)
        return _rows(name, _extreme(choose), array.kind.value_type, array)

    return Function(name, f"{name}(array)", bind, 1, 1, meaning)


def _element(value: Typed) -> Typed:
    array = _array(value)
    return _rows("ELEMENT", _sole, array.kind.value_type, array)


def _reversed(array: list[Any]) -> list[Any]:
    return array[::-1]


def _concatenated(*arrays: list[Any]) -> list[Any]:
    return [one for array in arrays for one in array]


def _union(one: list[Any], other: list[Any]) -> list[Any]:
    return _first_ones([*one, *other])


def _bind_slice(value: Typed, *places: Typed) -> Typed:
    array = _array(value)
    numbers = [cast_to(require(place, pa.types.is_integer, "an integer"), pa.int64()) for place in places]
    return _rows("ARRAY_SLICE", _slice, array.kind, array, *numbers)


def _bind_sort(value: Typed, *flags: Typed) -> Typed:
    array = _ordered(value)
    conditions = [cast_to(require(flag, pa.types.is_boolean, "a condition"), pa.bool_()) for flag in flags]
    return _rows("ARRAY_SORT", _sorted, array.kind, array, *conditions)


def _bind_join(value: Typed, *texts: Typed) -> Typed:
    array = _array(value)
    if not is_text(array.kind.value_type):
        message = f"ARRAY_JOIN is for arrays of texts; got {sql_name(array.kind)}"
        raise SqlError(message, hint="CAST it to ARRAY<STRING>")
    given = [cast_to(require(one, is_text, "a text"), pa.string()) for one in texts]
    return _rows("ARRAY_JOIN", _joined, pa.string(), array, *given)


def _bind_split(value: Typed, delimiter: Typed) -> Typed:
    texts = [cast_to(require(one, is_text, "a text"), pa.string()) for one in (value, delimiter)]
    return _rows("SPLIT", _split, pa.list_(pa.string()), *texts)


FUNCTIONS = (
    Function("CARDINALITY", "CARDINALITY(array or map)", _cardinality, 1, 1, "How many elements or entries it has."),
    Function("ELEMENT", "ELEMENT(array)", _element, 1, 1,
             "The sole element; null of none, an error of several."),
    _of_element("ARRAY_APPEND", _appended, "The array with an element, which may be null, behind."),
    _of_element("ARRAY_PREPEND", _prepended, "The array with an element, which may be null, in front."),
    _of_element("ARRAY_CONTAINS", _contains, "Whether an element, which may be null, is in it.", pa.bool_()),
    _of_element("ARRAY_POSITION", _place_of, "The place of the first such element, from 1; 0 if there is none.",
                _INT, sees_nulls=False),
    _of_element("ARRAY_REMOVE", _removed, "The array without an element, which may be null."),
    _of_array("ARRAY_DISTINCT", _first_ones, "Each different element once, in their order."),
    _of_array("ARRAY_REVERSE", _reversed, "The elements in reverse order."),
    _of_arrays("ARRAY_CONCAT", _concatenated, "The elements of all, one array after the other.", None),
    _of_arrays("ARRAY_UNION", _union, "The elements of both, each once."),
    _of_arrays("ARRAY_EXCEPT", _without, "The elements of the first that are not in the second, each once."),
    _of_arrays("ARRAY_INTERSECT", _common_ones, "The elements of the first that are in the second, too, each once."),
    _of_extreme("ARRAY_MAX", max, "The greatest element; nulls are skipped."),
    _of_extreme("ARRAY_MIN", min, "The smallest element; nulls are skipped."),
    Function("ARRAY_SLICE", "ARRAY_SLICE(array, start[, end])", _bind_slice, 2, 3,
             "The elements from one place to another, both with it; negative places count from the end."),
    Function("ARRAY_SORT", "ARRAY_SORT(array[, ascending[, nulls_first]])", _bind_sort, 1, 3,
             "The elements in order; nulls come first where it ascends, unless it is said."),
    Function("ARRAY_JOIN", "ARRAY_JOIN(array, delimiter[, for_null])", _bind_join, 2, 3,
             "The texts one after the other; nulls are skipped, or replaced."),
    Function("SPLIT", "SPLIT(text, delimiter)", _bind_split, 2, 2,
             "The parts of a text as an array; its characters if the delimiter is empty."),
)  # fmt: skip
