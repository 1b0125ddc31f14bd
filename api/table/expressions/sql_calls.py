"""Functions of SQL as properties and methods of expressions, under the names that PyFlink has for them.

``col("name").left(3)`` is the text ``LEFT(name, 3)``. Which functions there are, what they give, and why some of
Flink's are not there is said by SQL itself when the query is bound: `docs/guide/sql-functions.md`.

Source: PyFlink's ``pyflink.table.expression``.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from headrace.engine.errors import ProgramError

__all__ = [
    "Given",
    "JsonExistsOnError",
    "JsonOnNull",
    "JsonQueryOnEmptyOrError",
    "JsonQueryWrapper",
    "JsonType",
    "JsonValueOnEmptyOrError",
    "Scalar",
    "SqlCalls",
    "TimeIntervalUnit",
    "TimePointUnit",
    "word_of",
]

Scalar = Any
"""An `Expression`, or a Python value, which is a literal."""

_UNITS = ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND")

TimeIntervalUnit = Enum("TimeIntervalUnit", [(name, name) for name in _UNITS], type=str)  # type: ignore[misc]
"""Units to which times are rounded, and that are taken out of them; their names as texts are as good."""

TimePointUnit = Enum("TimePointUnit", [(name, name) for name in _UNITS], type=str)  # type: ignore[misc]
"""Units in which times are apart; their names as texts are as good."""


def _words(name: str, words: str) -> Any:
    return Enum(name, [(word, word) for word in words.split()], type=str)


# What is written between the arguments of functions of JSON; texts are as good.
JsonType = _words("JsonType", "VALUE SCALAR ARRAY OBJECT")
JsonExistsOnError = _words("JsonExistsOnError", "TRUE FALSE UNKNOWN ERROR")
JsonValueOnEmptyOrError = _words("JsonValueOnEmptyOrError", "NULL ERROR DEFAULT")
JsonQueryWrapper = _words("JsonQueryWrapper", "WITHOUT_ARRAY CONDITIONAL_ARRAY UNCONDITIONAL_ARRAY")
JsonQueryOnEmptyOrError = _words("JsonQueryOnEmptyOrError", "NULL EMPTY_ARRAY EMPTY_OBJECT ERROR")
JsonOnNull = _words("JsonOnNull", "NULL ABSENT")


def word_of(value: Any, what: str, words: Sequence[str] = ()) -> str:
    """Return a word of SQL: a text, or the name of a member of an enum.

    Args:
        value: The word.
        what: What it is, for the error.
        words: Those that there are; none for any.

    Raises:
        ProgramError: If it is none.
    """
    text = value.name if isinstance(value, Enum) else value
    word = text.upper().replace("_", " ") if isinstance(text, str) else ""
    if not word.replace(" ", "").isalpha() or (words and word not in words):
        message = f"{what} is {'one of ' + ', '.join(words) if words else 'a word such as HOUR'}; got {value!r}"
        raise ProgramError(message)
    return word


class _Arguments:
    """The arguments of a function behind the expression, as Python takes them.

    Args:
        names: Names with blanks between; ``[name]`` may be left out, ``*name`` is any number.
    """

    def __init__(self, names: str) -> None:
        kinds = inspect.Parameter
        self._signature = inspect.Signature([
            kinds(name[1:], kinds.VAR_POSITIONAL)
            if name.startswith("*")
            else kinds(name.strip("[]"), kinds.POSITIONAL_OR_KEYWORD, default=None if name[0] == "[" else kinds.empty)
            for name in names.split()
        ])  # fmt: skip

    def given(self, *arguments: Any, **by_name: Any) -> list[Any]:
        """Return those that are given, in their order.

        Raises:
            TypeError: If there are too many or too few.
        """
        bound = self._signature.bind(*arguments, **by_name)
        found: list[Any] = []
        for name, value in bound.arguments.items():
            is_any_number = self._signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            found += value if is_any_number else [value]
        while found and found[-1] is None and len(found) > self._num_needed:
            found.pop()
        return found

    @property
    def _num_needed(self) -> int:
        return sum(one.default is inspect.Parameter.empty for one in self._signature.parameters.values())

    def __str__(self) -> str:
        return ", ".join(self._signature.parameters)


class _Property:
    """A call of a function with nothing but the expression: ``col("name").upper_case``."""

    def __init__(self, function: str) -> None:
        self._function = function
        self.__doc__ = f"``{function}(x)`` of SQL."

    def __get__(self, expression: SqlCalls | None, _owner: type | None = None) -> Any:
        return self if expression is None else expression.called(self._function)


class _Method:
    """A call of a function with the expression in front: ``col("name").left(3)``."""

    def __init__(self, function: str, names: str = "") -> None:
        self._function = function
        self._arguments = _Arguments(names)
        told = str(self._arguments)
        self.__doc__ = f"``{function}(x{', ' if told else ''}{told})`` of SQL."

    def __get__(self, expression: SqlCalls | None, _owner: type | None = None) -> Any:
        return self if expression is None else functools.partial(self._call, expression)

    def _call(self, expression: SqlCalls, *arguments: Scalar, **by_name: Scalar) -> Any:
        return expression.called(self._function, *self._arguments.given(*arguments, **by_name))


class Given(NamedTuple):
    """A piece of an expression that is an expression or a literal, and not a text of SQL."""

    value: Scalar


class _Pieces(ABC):
    """What functions are called on."""

    __slots__ = ()

    @abstractmethod
    def called(self, function: str, *arguments: Scalar) -> Any:
        """Return a call of a function of SQL with the expression in front."""

    @abstractmethod
    def written(self, *pieces: Any) -> Any:
        """Return an expression that is put together of texts of SQL, expressions, and what is `Given`."""


class JsonCalls(_Pieces):
    """Functions of JSON that are written with words between their arguments."""

    __slots__ = ()

    def is_json(self, json_type: Any = None) -> Any:
        """Return whether a text is JSON: any, or a ``VALUE``, ``SCALAR``, ``ARRAY`` or ``OBJECT``."""
        kinds = ("VALUE", "SCALAR", "ARRAY", "OBJECT")
        kind = "" if json_type is None else f" {word_of(json_type, 'a kind of JSON', kinds)}"
        return self.written("(", self, f" IS JSON{kind})")

    def json_exists(self, path: str, on_error: Any = None) -> Any:
        """Return whether something is at a path of JSON; ``on_error``: TRUE, FALSE, UNKNOWN or ERROR."""
        words = ("TRUE", "FALSE", "UNKNOWN", "ERROR")
        end = "" if on_error is None else f" {word_of(on_error, 'on_error', words)} ON ERROR"
        return self.written("JSON_EXISTS(", self, ", ", Given(path), f"{end})")

    def json_value(
        self,
        path: str,
        returning_type: Any = None,
        on_empty: Any = None,
        default_on_empty: Any = None,
        on_error: Any = None,
        default_on_error: Any = None,
    ) -> Any:
        """Return the scalar at a path of JSON.

        Args:
            path: Of JSON, such as ``$.a``.
            returning_type: ``STRING``, ``BOOLEAN``, ``INTEGER`` or ``DOUBLE``.
            on_empty: Where nothing is there: NULL, ERROR or DEFAULT.
            default_on_empty: That default.
            on_error: Where it is none: NULL, ERROR or DEFAULT.
            default_on_error: That default.
        """
        returned = "" if returning_type is None else f" RETURNING {returning_type}"
        pieces: list[Any] = ["JSON_VALUE(", self, ", ", Given(path), returned]
        for word, default, when in ((on_empty, default_on_empty, "EMPTY"), (on_error, default_on_error, "ERROR")):
            if word is None and default is None:
                continue
            said = "DEFAULT" if word is None else word_of(word, f"on_{when.lower()}", ("NULL", "ERROR", "DEFAULT"))
            pieces += [f" {said} ", *([Given(default)] if said == "DEFAULT" else []), f" ON {when}"]
        return self.written(*pieces, ")")

    def json_query(self, path: str, wrapping_behavior: Any = None, on_empty: Any = None, on_error: Any = None) -> Any:
        """Return what is at a path of JSON, as JSON.

        Args:
            path: Of JSON, such as ``$.a``.
            wrapping_behavior: ``WITHOUT_ARRAY``, ``CONDITIONAL_ARRAY`` or ``UNCONDITIONAL_ARRAY``.
            on_empty: Where nothing is there: NULL, ERROR, EMPTY_ARRAY or EMPTY_OBJECT.
            on_error: Where it cannot be read: the same.
        """
        wrappings = {
            "WITHOUT ARRAY": "WITHOUT ARRAY WRAPPER",
            "CONDITIONAL ARRAY": "WITH CONDITIONAL ARRAY WRAPPER",
            "UNCONDITIONAL ARRAY": "WITH UNCONDITIONAL ARRAY WRAPPER",
        }
        words = ("NULL", "ERROR", "EMPTY ARRAY", "EMPTY OBJECT")
        end = ""
        if wrapping_behavior is not None:
            end += f" {wrappings[word_of(wrapping_behavior, 'wrapping_behavior', tuple(wrappings))]}"
        for word, when in ((on_empty, "EMPTY"), (on_error, "ERROR")):
            if word is not None:
                end += f" {word_of(word, f'on_{when.lower()}', words)} ON {when}"
        return self.written("JSON_QUERY(", self, ", ", Given(path), f"{end})")


class SqlCalls(JsonCalls):
    """What an expression calls by its own methods; `Expression` is one."""

    __slots__ = ()

    # -- aggregates ----------------------------------------------------------------------------------------------------

    count = _Property("COUNT")
    sum = _Property("SUM")
    avg = _Property("AVG")
    min = _Property("MIN")
    max = _Property("MAX")
    first_value = _Property("FIRST_VALUE")
    last_value = _Property("LAST_VALUE")
    stddev_pop = _Property("STDDEV_POP")
    stddev_samp = _Property("STDDEV_SAMP")
    var_pop = _Property("VAR_POP")
    var_samp = _Property("VAR_SAMP")
    collect = _Property("COLLECT")
    array_agg = _Property("ARRAY_AGG")
    list_agg = _Method("LISTAGG", "[separator]")
    percentile = _Method("PERCENTILE", "percentage [frequency]")

    # -- numbers -------------------------------------------------------------------------------------------------------

    abs = _Property("ABS")
    sqrt = _Property("SQRT")
    exp = _Property("EXP")
    ln = _Property("LN")
    log10 = _Property("LOG10")
    log2 = _Property("LOG2")
    sin = _Property("SIN")
    sinh = _Property("SINH")
    asin = _Property("ASIN")
    cos = _Property("COS")
    cosh = _Property("COSH")
    acos = _Property("ACOS")
    tan = _Property("TAN")
    tanh = _Property("TANH")
    atan = _Property("ATAN")
    cot = _Property("COT")
    degrees = _Property("DEGREES")
    radians = _Property("RADIANS")
    sign = _Property("SIGN")
    bin = _Property("BIN")
    hex = _Property("HEX")
    unhex = _Property("UNHEX")
    round = _Method("ROUND", "[places]")
    truncate = _Method("TRUNCATE", "[n]")
    power = _Method("POWER", "exponent")

    # -- texts ---------------------------------------------------------------------------------------------------------

    upper_case = _Property("UPPER")
    lower_case = _Property("LOWER")
    init_cap = _Property("INITCAP")
    char_length = _Property("CHAR_LENGTH")
    reverse = _Property("REVERSE")
    ascii = _Property("ASCII")
    chr = _Property("CHR")
    from_base64 = _Property("FROM_BASE64")
    to_base64 = _Property("TO_BASE64")
    to_timestamp = _Property("TO_TIMESTAMP")
    md5 = _Property("MD5")
    sha1 = _Property("SHA1")
    sha224 = _Property("SHA224")
    sha256 = _Property("SHA256")
    sha384 = _Property("SHA384")
    sha512 = _Property("SHA512")
    sha2 = _Method("SHA2", "hash_length")
    starts_with = _Method("STARTSWITH", "start_expr")
    ends_with = _Method("ENDSWITH", "end_expr")
    concat = _Method("CONCAT", "other")
    substring = _Method("SUBSTRING", "begin_index [length]")
    substr = _Method("SUBSTR", "begin_index [length]")
    ltrim = _Method("LTRIM", "[trim_str]")
    rtrim = _Method("RTRIM", "[trim_str]")
    btrim = _Method("BTRIM", "[trim_str]")
    replace = _Method("REPLACE", "search replacement")
    translate = _Method("TRANSLATE", "from_str to_str")
    lpad = _Method("LPAD", "length pad")
    rpad = _Method("RPAD", "length pad")
    overlay = _Method("OVERLAY", "new_string starting [length]")
    left = _Method("LEFT", "length")
    right = _Method("RIGHT", "length")
    instr = _Method("INSTR", "s")
    locate = _Method("LOCATE", "s [pos]")
    repeat = _Method("REPEAT", "n")
    split_index = _Method("SPLIT_INDEX", "separator index")
    split = _Method("SPLIT", "delimiter")
    str_to_map = _Method("STR_TO_MAP", "[list_delimiter] [key_value_delimiter]")
    elt = _Method("ELT", "expr *exprs")
    printf = _Method("PRINTF", "*obj")
    decode = _Method("DECODE", "charset")
    encode = _Method("ENCODE", "charset")
    url_decode = _Method("URL_DECODE")
    url_encode = _Method("URL_ENCODE")
    inet_aton = _Method("INET_ATON")
    inet_ntoa = _Method("INET_NTOA")
    parse_url = _Method("PARSE_URL", "part_to_extract [key]")
    regexp = _Method("REGEXP", "regex")
    regexp_count = _Method("REGEXP_COUNT", "regex")
    regexp_extract = _Method("REGEXP_EXTRACT", "regex [extract_index]")
    regexp_extract_all = _Method("REGEXP_EXTRACT_ALL", "regex [extract_index]")
    regexp_instr = _Method("REGEXP_INSTR", "regex")
    regexp_replace = _Method("REGEXP_REPLACE", "regex replacement")
    regexp_substr = _Method("REGEXP_SUBSTR", "regex")
    json_quote = _Method("JSON_QUOTE")
    json_unquote = _Method("JSON_UNQUOTE")

    # -- arrays and maps -----------------------------------------------------------------------------------------------

    cardinality = _Property("CARDINALITY")
    element = _Property("ELEMENT")
    map_keys = _Property("MAP_KEYS")
    map_values = _Property("MAP_VALUES")
    map_entries = _Property("MAP_ENTRIES")
    map_union = _Method("MAP_UNION", "*maps")
    array_append = _Method("ARRAY_APPEND", "addition")
    array_concat = _Method("ARRAY_CONCAT", "*arrays")
    array_contains = _Method("ARRAY_CONTAINS", "needle")
    array_distinct = _Method("ARRAY_DISTINCT")
    array_except = _Method("ARRAY_EXCEPT", "array")
    array_intersect = _Method("ARRAY_INTERSECT", "array")
    array_join = _Method("ARRAY_JOIN", "delimiter [null_replacement]")
    array_max = _Method("ARRAY_MAX")
    array_min = _Method("ARRAY_MIN")
    array_position = _Method("ARRAY_POSITION", "needle")
    array_prepend = _Method("ARRAY_PREPEND", "addition")
    array_remove = _Method("ARRAY_REMOVE", "needle")
    array_reverse = _Method("ARRAY_REVERSE")
    array_slice = _Method("ARRAY_SLICE", "start_offset [end_offset]")
    array_sort = _Method("ARRAY_SORT", "[ascending_order] [null_first]")
    array_union = _Method("ARRAY_UNION", "array")
