"""A function whose hint the records can never fit is refused where the program is written; what may fit is not."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from headrace import ExecutionEnvironment, MapFunction, StreamExecutionEnvironment, TypeMismatchError


class Pair(NamedTuple):
    name: str
    number: int


@dataclass
class Item:
    name: str


class Longer(MapFunction):
    def map(self, value: str) -> str:
        return value + value


class Called:
    def __call__(self, value: str) -> str:
        return value


def of_text(value: str) -> str:
    return value


def made_text(function):
    @functools.wraps(function)
    def called(value):
        return function(str(value))

    return called


class CalledWithoutItself:
    @staticmethod
    def __call__(value: int, unit: str = "km") -> str:
        return f"{value} {unit}"


@functools.singledispatch
def by_type(value: str) -> str:
    return value


@by_type.register
def _(value: int) -> str:
    return str(value)


def of_text_or_bytes(value: str | bytes) -> str:
    return str(value)


def of_number(value: float) -> float:
    return value


def of_number_or_none(value: int | None) -> bool:
    return value is None


def of_pair(value: Pair) -> str:
    return value.name


def of_item(value: Item) -> str:
    return value.name


def of_mapping(value: Mapping[str, Any]) -> str:
    return str(value)


def of_anything(value: object) -> str:
    return str(value)


RECORDS = {
    "numbers": [1, 2],
    "texts": ["a", "b"],
    "pairs": [("a", 1)],
    "named pairs": [Pair("a", 1)],
    "dicts": [{"name": "a"}],
}

WRONG = [
    ("numbers", of_text),
    ("numbers", of_text_or_bytes),
    ("numbers", Longer()),
    ("numbers", Called()),
    ("numbers", of_pair),
    ("texts", of_number),
    ("texts", of_item),
    ("pairs", of_text),
    ("dicts", of_number_or_none),
]

RIGHT = [
    ("numbers", of_number),
    ("numbers", of_number_or_none),
    ("numbers", of_anything),
    ("numbers", str),
    ("numbers", lambda value: value),
    ("numbers", made_text(of_text)),
    ("numbers", by_type),
    ("numbers", CalledWithoutItself()),
    ("texts", of_text),
    ("texts", Longer()),
    ("texts", str.upper),
    ("pairs", of_pair),
    ("named pairs", of_pair),
    ("dicts", of_mapping),
    ("dicts", of_item),
]


def _id(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)


@pytest.fixture
def streams():
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
        yield env


@pytest.fixture
def sets():
    with ExecutionEnvironment.get_execution_environment("local") as env:
        yield env


@pytest.mark.parametrize(("records", "function"), WRONG, ids=_id)
def test_a_hint_that_can_never_fit_is_refused(streams, sets, records, function):
    for data in (streams.from_collection(RECORDS[records]), sets.from_collection(RECORDS[records])):
        with pytest.raises(TypeMismatchError, match=r"takes .*, by its hint; the records are .* \(operator 'map'"):
            data.map(function)


@pytest.mark.parametrize("step", ["map", "filter", "flat_map", "process", "reduce"])
def test_the_step_is_named(streams, step):
    with pytest.raises(TypeMismatchError, match=rf"of_text takes a text, by its hint; .* \(operator '{step}'"):
        getattr(streams.from_collection([1]).key_by(lambda value: value), step)(of_text)


@pytest.mark.parametrize(("records", "function"), RIGHT, ids=_id)
def test_what_may_fit_is_taken(streams, sets, records, function):
    streams.from_collection(RECORDS[records]).map(function)
    sets.from_collection(RECORDS[records]).map(function)


def test_what_a_step_gives_is_known_by_its_hint(streams):
    with pytest.raises(TypeMismatchError, match="of_text takes a text, by its hint; the records are a number: double"):
        streams.from_collection([1]).map(of_number).rebalance().map(of_text)
