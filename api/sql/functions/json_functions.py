"""Functions of JSON: texts that hold it, what is found in them, and texts that are made of values.

Source: Flink's documentation ("JSON Functions"); paths are those of `headrace.sql.functions.json_paths`.
"""

from __future__ import annotations

import base64
import functools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.engine.columns.expressions import lit

from ..parsing.errors import SqlError
from ..parsing.sql_types import sql_name
from .coercion import cast_to, is_number, is_text
from .contract import Function, KernelCall, Typed, made, require, row_by_row
from .json_paths import JsonPath, NotFoundError, json_of, parsed_json, path_of, whole_text
from .spelling import double_text, iso_text

__all__ = [
    "FUNCTIONS",
    "array_of_rows",
    "encoder_of",
    "is_json",
    "json_array",
    "json_exists",
    "json_itself",
    "json_object",
    "json_query",
    "json_value",
    "object_of_rows",
]

_TEXT = pa.string()
_TEXTS = pa.list_(pa.string())
_SCALARS = (pa.string(), pa.bool_(), pa.int32(), pa.float64())


def _text(value: Typed) -> Typed:
    return cast_to(require(value, is_text, "a text"), _TEXT)


# -- reading -----------------------------------------------------------------------------------------------------------


def is_json(value: Typed, what: str) -> Typed:
    """IS JSON [VALUE | SCALAR | ARRAY | OBJECT]: never null."""
    kernel = row_by_row(_IsJson(what), pa.bool_(), sees_nulls=True)
    return Typed(KernelCall(f"IS JSON {what}", kernel, (_text(value).expression,), pa.bool_()), pa.bool_())


class _IsJson:
    def __init__(self, what: str) -> None:
        self._what = what

    def __call__(self, text: str | None) -> bool:
        if text is None:
            return False
        try:
            found = parsed_json(text)
        except ValueError:
            return False
        kind = "OBJECT" if isinstance(found, dict) else "ARRAY" if isinstance(found, list) else "SCALAR"
        return self._what in ("VALUE", kind)


def _called(name: str, function: Any, kind: pa.DataType, value: Typed, path: Typed, *defaults: Typed) -> Typed:
    """A call whose path is a text; a literal is checked while the statement is planned."""
    each = row_by_row(function, kind, sees_nulls=True)

    def kernel(*values: Any, path: str) -> Any:
        path_of(path)
        return each(*values, path=path)

    return made(name, kernel, kind, _text(value), *defaults, path=_text(path))


def json_exists(value: Typed, path: Typed, on_error: str = "FALSE") -> Typed:
    """JSON_EXISTS(text, path [... ON ERROR])."""
    return _called("JSON_EXISTS", _Exists(on_error), pa.bool_(), value, path)


class _Exists:
    def __init__(self, on_error: str) -> None:
        self._on_error = on_error

    def __call__(self, text: str | None, path: str) -> bool | None:
        if text is None:
            return None
        try:
            return _found(text, path_of(path)) is not None
        except (ValueError, NotFoundError) as error:
            if self._on_error == "ERROR":
                raise ValueError(str(error)) from error
            return {"TRUE": True, "FALSE": False}.get(self._on_error)


def _found(text: str, path: JsonPath) -> Any:
    """What a path finds. A lax one finds None where nothing is, or null, or no JSON; for a strict one these are errors.

    Of a text that is nothing but null nothing can be found, as in Flink.
    """
    found = None
    try:
        found = path.find(parsed_json(text))
    except (ValueError, NotFoundError):
        if path.is_strict:
            raise
    if found is None and (path.is_strict or text.strip() == "null"):
        message = "there is null"
        raise NotFoundError(message)
    return found


def json_value(
    value: Typed, path: Typed, kind: pa.DataType = _TEXT, on_empty: Typed | str = "NULL", on_error: Typed | str = "NULL"
) -> Typed:
    """JSON_VALUE(text, path [RETURNING kind] [... ON EMPTY] [... ON ERROR]): a scalar of a JSON text.

    Args:
        value: The text.
        path: Where in it.
        kind: STRING, BOOLEAN, INT or DOUBLE.
        on_empty: What it gives if nothing is there: NULL, ERROR, or a default.
        on_error: What it gives if it fails.

    Raises:
        SqlError: If the kind is another one.
    """
    if kind not in _SCALARS:
        message = f"JSON_VALUE gives STRING, BOOLEAN, INTEGER or DOUBLE; got {sql_name(kind)}"
        raise SqlError(message, hint="CAST what it gives")
    none = Typed(lit(None, kind), kind)
    defaults = [cast_default(one, kind) if isinstance(one, Typed) else none for one in (on_empty, on_error)]
    words = tuple("DEFAULT" if isinstance(one, Typed) else one for one in (on_empty, on_error))
    return _called("JSON_VALUE", _Scalar(kind, *words), kind, value, path, *defaults)


def cast_default(value: Typed, kind: pa.DataType) -> Typed:
    """A default in the type of the result; a truth is ``true`` in JSON."""
    if pa.types.is_boolean(value.kind) and is_text(kind):
        return made("CAST", row_by_row(lambda one: str(one).lower(), _TEXT), _TEXT, value)
    return cast_to(value, kind)


class _Scalar:
    def __init__(self, kind: pa.DataType, on_empty: str, on_error: str) -> None:
        self._kind = kind
        self._on_empty = on_empty
        self._on_error = on_error

    def __call__(self, text: str | None, if_empty: Any, if_error: Any, path: str) -> Any:
        if text is None:
            return None
        wanted = path_of(path)
        try:
            found = _found(text, wanted)
            is_scalar = not isinstance(found, (dict, list))
            if wanted.is_strict and not is_scalar:
                message = f"{path} is no scalar"
                raise ValueError(message)
        except (ValueError, NotFoundError) as error:
            return _otherwise(self._on_error, if_error, error)
        if found is None or not is_scalar:
            return _otherwise(self._on_empty, if_empty, NotFoundError(f"there is no scalar at {path}"))
        return _as_scalar(found, self._kind)


def _otherwise(word: str, default: Any, error: Exception) -> Any:
    if word == "ERROR":
        raise ValueError(str(error)) from error
    return default if word == "DEFAULT" else None


def _as_scalar(found: Any, kind: pa.DataType) -> Any:
    if kind == _TEXT:
        return whole_text(found) if isinstance(found, str) else json_of(found)
    is_fit = isinstance(found, bool) == (kind == pa.bool_()) and not isinstance(found, str)
    if not is_fit or (kind == pa.int32() and not isinstance(found, int)):
        message = f"JSON_VALUE found {json_of(found)}, and not {sql_name(kind)}"
        raise ValueError(message)
    return float(found) if kind == pa.float64() else found


def json_query(
    value: Typed, path: Typed, kind: pa.DataType = _TEXT, wrapper: str = "WITHOUT", on_empty: str = "NULL",
    on_error: str = "NULL",
) -> Typed:  # fmt: skip
    """JSON_QUERY(text, path [RETURNING kind] [... WRAPPER] [... ON EMPTY] [... ON ERROR]): a part of a JSON text.

    Raises:
        SqlError: If the kind is neither STRING nor ARRAY<STRING>.
    """
    if kind not in (_TEXT, _TEXTS):
        message = f"JSON_QUERY gives STRING or ARRAY<STRING>; got {sql_name(kind)}"
        raise SqlError(message)
    return _called("JSON_QUERY", _Part(kind, wrapper, on_empty, on_error), kind, value, path)


class _Part:
    def __init__(self, kind: pa.DataType, wrapper: str, on_empty: str, on_error: str) -> None:
        self._kind = kind
        self._wrapper = wrapper
        self._on_empty = on_empty
        self._on_error = on_error

    def __call__(self, text: str | None, path: str) -> Any:
        if text is None:
            return None
        wanted = path_of(path)
        try:
            found = _found(text, wanted)
            is_wrapped = self._wrapper == "CONDITIONAL" and not isinstance(found, list)
            if found is not None and (is_wrapped or self._wrapper == "UNCONDITIONAL"):
                found = [found]
            if not wanted.is_strict and not isinstance(found, (dict, list)):
                return self._instead(self._on_empty, NotFoundError(f"there is no object or array at {path}"))
            return self._given(found, path)
        except (ValueError, NotFoundError) as error:
            return self._instead(self._on_error, error)

    def _given(self, found: Any, path: str) -> Any:
        if not isinstance(found, (dict, list)):
            message = f"{path} is a scalar"
            raise ValueError(message)
        if self._kind == _TEXT:
            return json_of(found)
        if not isinstance(found, list):
            message = f"{path} is no array"
            raise ValueError(message)
        return [whole_text(one) if isinstance(one, str) else None if one is None else json_of(one) for one in found]

    def _instead(self, word: str, error: Exception) -> Any:
        if word == "ERROR":
            raise _Refused(str(error)) from error
        empty: Any = {"EMPTY ARRAY": [], "EMPTY OBJECT": {}}.get(word)
        return empty if empty is None or self._kind == _TEXTS else json_of(empty)


class _Refused(TypeError):
    """What ERROR ON ... asks for: no other clause may catch it."""


# -- writing -----------------------------------------------------------------------------------------------------------


def encoder_of(kind: pa.DataType) -> Callable[[Any], str]:
    """Return what makes JSON of a value of a type that is not null.

    Raises:
        SqlError: If there is no JSON of the type.
    """
    if is_text(kind):
        return json_of
    if pa.types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if pa.types.is_floating(kind):
        return _number_text
    if is_number(kind):
        return str
    if pa.types.is_timestamp(kind):
        return lambda value: f'"{iso_text(value.replace(tzinfo=None), "T")}{"Z" if value.tzinfo else ""}"'
    if pa.types.is_date(kind):
        return lambda value: f'"{value.isoformat()}"'
    if pa.types.is_binary(kind):
        return lambda value: f'"{base64.b64encode(value).decode()}"'
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _or_null(kind.value_type)
        return lambda value: f"[{','.join(map(element, value))}]"
    if pa.types.is_map(kind) and is_text(kind.key_type):
        item = _or_null(kind.item_type)
        return lambda value: f"{{{','.join(f'{json_of(key)}:{item(one)}' for key, one in value)}}}"
    if pa.types.is_struct(kind):
        parts = {field.name: _or_null(field.type) for field in kind}
        return lambda value: f"{{{','.join(f'{json_of(name)}:{part(value[name])}' for name, part in parts.items())}}}"
    if pa.types.is_null(kind):
        return lambda value: "null"
    message = f"there is no JSON of {sql_name(kind)}"
    raise SqlError(message, hint="CAST it to STRING")


def _number_text(value: float) -> str:
    if not math.isfinite(value):
        message = f"there is no JSON of {double_text(value)}"
        raise ValueError(message)
    return str(Decimal(double_text(value)))


def _or_null(kind: pa.DataType) -> Callable[[Any], str]:
    encode = encoder_of(kind)
    return lambda value: "null" if value is None else encode(value)


def json_object(entries: Sequence[tuple[str, Typed, bool]], *, skips_nulls: bool = False) -> Typed:
    """JSON_OBJECT([KEY] name VALUE value, ... [NULL | ABSENT ON NULL]).

    Args:
        entries: Names, values, and whether a value is JSON already.
        skips_nulls: Whether an entry whose value is null is left out.
    """
    names = [json_of(name) for name, _value, _is_json in entries]
    function = _Object(names, _encoders([(value, is_json) for _name, value, is_json in entries]), skips_nulls)
    return _constructed("JSON_OBJECT", function, [value for _name, value, _is_json in entries])


def json_array(values: Sequence[tuple[Typed, bool]], *, skips_nulls: bool = True) -> Typed:
    """JSON_ARRAY(value, ... [NULL | ABSENT ON NULL])."""
    return _constructed("JSON_ARRAY", _Array(_encoders(values), skips_nulls), [value for value, _is_json in values])


def json_itself(value: Typed) -> Typed:
    """JSON(text): a text that is JSON already, made compact."""
    return made("JSON", row_by_row(lambda text: json_of(parsed_json(text)), _TEXT), _TEXT, _text(value))


def _encoders(values: Sequence[tuple[Typed, bool]]) -> list[Callable[[Any], str]]:
    return [str if is_ready else encoder_of(value.kind) for value, is_ready in values]


def _constructed(name: str, function: Any, values: Sequence[Typed]) -> Typed:
    kernel = row_by_row(function, _TEXT, sees_nulls=True)
    expressions = tuple(one.expression for one in values) or (lit(None, pa.int32()),)
    return Typed(KernelCall(name, kernel, expressions, _TEXT, form=function.form), _TEXT)


class _Object:
    def __init__(self, names: list[str], encoders: list[Callable[[Any], str]], skips_nulls: bool) -> None:
        self._names = names
        self._encoders = encoders
        self._skips_nulls = skips_nulls
        self.form = (*names, skips_nulls)

    def __call__(self, *values: Any, form: Any) -> str:
        # Of several values with one name the last counts, at the place of the first.
        found: dict[str, str] = {}
        for name, encode, value in zip(self._names, self._encoders, values, strict=False):
            if value is not None or not self._skips_nulls:
                found[name] = "null" if value is None else encode(value)
        return f"{{{','.join(f'{name}:{value}' for name, value in found.items())}}}"


class _Array:
    def __init__(self, encoders: list[Callable[[Any], str]], skips_nulls: bool) -> None:
        self._encoders = encoders
        self._skips_nulls = skips_nulls
        self.form = (len(encoders), skips_nulls)

    def __call__(self, *values: Any, form: Any) -> str:
        pairs = [
            (encode, value)
            for encode, value in zip(self._encoders, values, strict=False)
            if value is not None or not self._skips_nulls
        ]
        return f"[{','.join('null' if value is None else encode(value) for encode, value in pairs)}]"


def object_of_rows(rows: Typed, *, skips_nulls: bool, is_json: bool) -> Typed:
    """What JSON_OBJECTAGG makes of the list of its pairs of a name and a value."""
    return _gathered("JSON_OBJECTAGG", _Gathered.object_of, rows, skips_nulls=skips_nulls, is_json=is_json)


def array_of_rows(rows: Typed, *, skips_nulls: bool, is_json: bool) -> Typed:
    """What JSON_ARRAYAGG makes of the list of its values, each in a row of its own."""
    return _gathered("JSON_ARRAYAGG", _Gathered.array_of, rows, skips_nulls=skips_nulls, is_json=is_json)


def _gathered(name: str, make: Callable[..., str], rows: Typed, *, skips_nulls: bool, is_json: bool) -> Typed:
    *names, value = rows.kind.value_type
    if names and not is_text(names[0].type):
        message = f"a name in JSON is a text; got {sql_name(names[0].type)}"
        raise SqlError(message, hint="CAST it to STRING")
    encode = str if is_json else encoder_of(value.type)
    function = functools.partial(make, _Gathered(encode, skips_nulls))
    kernel = row_by_row(function, _TEXT, sees_nulls=True)
    return Typed(KernelCall(name, kernel, (rows.expression,), _TEXT, form=(skips_nulls, is_json)), _TEXT)


class _Gathered:
    """Makes JSON of rows that an aggregate has gathered: of a value, behind its name in an object."""

    def __init__(self, encode: Callable[[Any], str], skips_nulls: bool) -> None:
        self._encode = encode
        self._skips_nulls = skips_nulls

    def _told(self, rows: list[dict[str, Any]] | None) -> Iterator[tuple[Any, str]]:
        for row in rows or ():
            *name, value = row.values()
            if value is not None or not self._skips_nulls:
                yield name[0] if name else None, "null" if value is None else self._encode(value)

    def object_of(self, rows: list[dict[str, Any]] | None, form: Any) -> str:
        found: dict[str, str] = {}
        for name, value in self._told(rows):
            if name is None or name in found:
                message = (
                    "JSON_OBJECTAGG has a name that is null" if name is None else f"JSON_OBJECTAGG has {name!r} twice"
                )
                raise ValueError(message)
            found[name] = value
        return f"{{{','.join(f'{json_of(name)}:{value}' for name, value in found.items())}}}"

    def array_of(self, rows: list[dict[str, Any]] | None, form: Any) -> str:
        return f"[{','.join(value for _, value in self._told(rows))}]"


def _json_string(value: Typed) -> Typed:
    return made("JSON_STRING", row_by_row(encoder_of(value.kind), _TEXT), _TEXT, value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True).replace("/", "\\/")


def _unquoted(text: str) -> str:
    if len(text) < 2 or not (text.startswith('"') and text.endswith('"')):
        return text
    try:
        return whole_text(str(json.loads(text)))
    except ValueError:
        return text


def _rows_of_text(name: str, function: Any, meaning: str) -> Function:
    def bind(value: Typed) -> Typed:
        return made(name, row_by_row(function, _TEXT), _TEXT, _text(value))

    return Function(name, f"{name}(text)", bind, 1, 1, meaning)


_PATHS = "paths have no filters, slices and '..'"


def _of_path(name: str, bind: Callable[..., Typed], usage: str, meaning: str, differs: str) -> Function:
    return Function(name, usage, bind, 2, 2, meaning, differs)


FUNCTIONS = (
    _of_path("JSON_EXISTS", json_exists, "JSON_EXISTS(text, path [{TRUE | FALSE | UNKNOWN | ERROR} ON ERROR])",
             "Whether something but null is at a path.", _PATHS),
    _of_path("JSON_VALUE", json_value,
             "JSON_VALUE(text, path [RETURNING type] [{NULL | ERROR | DEFAULT x} ON EMPTY] [... ON ERROR])",
             "The scalar at a path, as a text if no type is said.",
             f"{_PATHS}; RETURNING DOUBLE takes whole numbers, too"),
    _of_path("JSON_QUERY", json_query,
             "JSON_QUERY(text, path [RETURNING type] [{WITHOUT | WITH [UN]CONDITIONAL} WRAPPER] "
             "[{NULL | EMPTY ARRAY | EMPTY OBJECT | ERROR} ON EMPTY] [... ON ERROR])",
             "The object or array at a path, as JSON or as an array of texts.", _PATHS),
    Function("JSON_STRING", "JSON_STRING(value)", _json_string, 1, 1, "A value as JSON; null is null.",
             "dates are taken, too"),
    _rows_of_text("JSON_QUOTE", _quoted, "A text as a JSON text."),
    _rows_of_text("JSON_UNQUOTE", _unquoted, "What a JSON text says; another one as it is."),
)  # fmt: skip
