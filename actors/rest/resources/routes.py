"""What a route is, what a handler is given, and how a path finds its route.

A path is cut at its slashes before anything in it is decoded, and each part is decoded once: an id may hold a slash,
and a doubly encoded one stays what it is.

Source: Flink's ``MessageHeaders``; CVE-2020-17519 for decoding once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import parse_qsl, unquote

from .questions import ClusterQuestions

__all__ = [
    "Answer",
    "Handler",
    "Parameter",
    "RestError",
    "RestRequest",
    "Right",
    "Route",
    "RouteTable",
    "body_of",
    "query_of",
]

MOST_PARAMETERS = 100
"""Of a query."""


class Right(Enum):
    """What a token must allow."""

    NONE = "none"
    """No token at all: for files of pages, which hold no data."""
    READ = "read"
    WRITE = "write"


class RestError(Exception):
    """A request that is not answered as it wishes.

    Args:
        status: Of HTTP.
        message: Why, for people.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Parameter:
    """Something that a request may say.

    Attributes:
        name: As Flink calls it.
        description: What it means.
        kind: Of its value: ``string``, ``integer``, ``boolean``, ``object``, ``array`` (of texts); several are
            separated by commas where ``is_list``.
        is_required: Whether a request without it is refused.
        is_list: Whether there may be several.
        choices: The only values, if there are such.
    """

    name: str
    description: str
    kind: str = "string"
    is_required: bool = False
    is_list: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RestRequest:
    """A request that was let in.

    Attributes:
        path: Parts of the path by name.
        query: What was asked behind the question mark, checked.
        body: What was sent, checked; empty if nothing was.
        cluster: Whom to ask.
        right: What the token of who asks allows.
        content: The body as it came, of a route that takes a file.
        content_type: Its kind.
    """

    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Mapping[str, Any]
    cluster: ClusterQuestions
    right: Right = Right.READ
    content: bytes = b""
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a handler gives, where that is more than JSON with status 200.

    Attributes:
        content: JSON, or a text; of a page bytes.
        status: Of HTTP.
        media_type: Of the content.
        is_page: Whether browsers may show it, and load what belongs to it.
        is_kept: Whether browsers may keep it: its path changes with its content.
        worked_ms: Processor time that it took, which pages are told; None if that is not measured.
    """

    content: Any
    status: int = 200
    media_type: str = "application/json"
    is_page: bool = False
    is_kept: bool = False
    worked_ms: float | None = None


Handler = Callable[[RestRequest], Any]


@dataclass(frozen=True, slots=True)
class Route:
    """One way to ask.

    Attributes:
        method: ``GET``, ``POST``, ``PATCH``, ``PUT`` or ``DELETE``.
        path: With names in braces, or with a colon before them, as Flink writes them.
        right: What a token must allow.
        handler: Answers.
        summary: A sentence for people.
        query: What may stand behind the question mark.
        body: What may be sent.
        status: Of HTTP, if all is well.
        media_type: Of the answer.
        most_bytes: How large a file may be that is sent as a form; 0 if the body is JSON.
    """

    method: str
    path: str
    right: Right
    handler: Handler
    summary: str
    query: tuple[Parameter, ...] = ()
    body: tuple[Parameter, ...] = ()
    status: int = 200
    media_type: str = "application/json"
    most_bytes: int = 0

    @property
    def parts(self) -> list[str]:
        """The path, cut at its slashes."""
        return self.path.strip("/").split("/")


@dataclass(slots=True)
class _Node:
    """What may follow a part of a path."""

    fixed: dict[str, _Node] = field(default_factory=dict)
    # Any other part, and its name.
    named: tuple[str, _Node] | None = None
    routes: dict[str, Route] = field(default_factory=dict)


class RouteTable:
    """All routes, and which one is meant.

    Args:
        routes: They must differ in method or path.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        for route in routes:
            node = self._root
            for part in route.parts:
                if part.startswith(":"):
                    node.named = node.named or (part[1:], _Node())
                    assert node.named[0] == part[1:], route.path
                    node = node.named[1]
                else:
                    node = node.fixed.setdefault(part, _Node())
            assert route.method not in node.routes, route.path
            node.routes[route.method] = route

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
        """Return the route that is meant, and the named parts of the path.

        Raises:
            RestError: 404 if there is no such path, 405 if it is not asked like that.
        """
        node, found = self._root, {}
        for raw in raw_path.strip("/").split("/"):
            part = unquote(raw, errors="replace")
            following = node.fixed.get(part)
            if following is None and node.named is not None and part:
                found[node.named[0]] = part
                following = node.named[1]
            if following is None:
                raise RestError(404, f"there is no {raw_path[:200]}")
            node = following
        if not node.routes:
            raise RestError(404, f"there is no {raw_path[:200]}")
        route = node.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            raise RestError(405, f"{raw_path[:200]} is asked by {', '.join(sorted(node.routes))}, not by {method[:20]}")
        return route, found

    def is_open(self, method: str, raw_path: str) -> bool:
        """Return whether something is answered to those who bring no token."""
        try:
            return self.find(method, raw_path)[0].right is Right.NONE
        except RestError:
            return False


def query_of(route: Route, text: str) -> dict[str, Any]:
    """Read what stands behind the question mark.

    Raises:
        RestError: 400 if something is not known, or not of its kind.
    """
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
    except ValueError as error:
        raise RestError(400, "the query has too many parameters") from error
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        given.setdefault(name, []).append(value)
    return _checked(route.query, given, "parameter", _from_text)


def body_of(route: Route, content: Any) -> dict[str, Any]:
    """Check what was sent.

    Raises:
        RestError: 400 if something is not known, or not of its kind.
    """
    if not isinstance(content, dict):
        raise RestError(400, "the body must be a JSON object")
    return _checked(route.body, content, "field", _from_json)


def _checked(
    known: Sequence[Parameter], given: Mapping[str, Any], what: str, read: Callable[[Parameter, Any], Any]
) -> dict[str, Any]:
    by_name = {parameter.name: parameter for parameter in known}
    for name in given:
        if name not in by_name:
            names = ", ".join(by_name) or "none"
            raise RestError(400, f"no {what} is called {name[:100]!r} here; there are: {names}")
    for parameter in known:
        if parameter.is_required and parameter.name not in given:
            raise RestError(400, f"the {what} {parameter.name!r} is missing")
    return {name: read(by_name[name], value) for name, value in given.items()}


def _from_text(parameter: Parameter, values: list[str]) -> Any:
    if parameter.is_list:
        return [_value(parameter, part) for text in values for part in text.split(",") if part]
    if len(values) > 1:
        raise RestError(400, f"the parameter {parameter.name!r} is given {len(values)} times")
    return _value(parameter, values[0])


def _value(parameter: Parameter, text: str) -> Any:
    if parameter.kind == "integer":
        if not (text.isascii() and text.isdecimal() and len(text) < 18):
            raise RestError(400, f"{parameter.name!r} must be a whole number; got {text[:100]!r}")
        return int(text)
    if parameter.kind == "boolean":
        if text.lower() not in ("true", "false"):
            raise RestError(400, f"{parameter.name!r} must be true or false; got {text[:100]!r}")
        return text.lower() == "true"
    _check_choice(parameter, text)
    return text


_TYPES = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list}


def _from_json(parameter: Parameter, value: Any) -> Any:
    kind = _TYPES[parameter.kind]
    if value is None and not parameter.is_required:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RestError(400, f"{parameter.name!r} must be of type {parameter.kind}")
    if isinstance(value, str):
        _check_choice(parameter, value)
    return value


def _check_choice(parameter: Parameter, text: str) -> None:
    if parameter.choices and text not in parameter.choices:
        raise RestError(400, f"{parameter.name!r} must be one of {', '.join(parameter.choices)}; got {text[:100]!r}")
