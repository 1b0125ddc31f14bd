"""The client of OpenSearch, imported when it is needed, and what its errors mean.

Numbers of documents that a float cannot hold, as those of decimals, stay the texts that they are (`document_text`).
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from headrace.engine.errors import ConfigurationError
from headrace.state.credentials import masked
from headrace.state.extras import needs
from headrace.state.values.json_text import json_text

from ..messages.client_thread import AnswerError

__all__ = ["Answer", "SearchClient", "document_text", "quoted"]

TIMEOUT_S = 30.0
"""For one answer, unless a sink says otherwise."""

AWAY_STATUS = frozenset({408, 429, 502, 503, 504})
"""HTTP's: too many requests, and whatever stands before a service that is away."""

OWN_OPTIONS = frozenset(
    {"hosts", "http_auth", "max_retries", "retry_on_timeout", "retry_on_status", "serializer", "timeout"}
)

Answer = dict[str, Any]


@dataclass(frozen=True)
class SearchClient:
    """Makes connections to a cluster of OpenSearch or Elasticsearch.

    Attributes:
        hosts: A URL, or several of one cluster: ``https://search-1:9200``; what follows the port is a prefix of paths.
        user: Who to be; None for nobody.
        password: The user's.
        options: More of the client's own settings (``opensearchpy.OpenSearch``), as ``ca_certs``, ``verify_certs``.
    """

    hosts: str | Sequence[str]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for host in self.urls:
            parts = urlsplit(host) if isinstance(host, str) else None
            if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
                message = f"hosts are URLs, as https://search:9200; got {masked(str(host))!r}"
                raise ConfigurationError(message)
            if parts.password is not None or parts.username is not None:
                message = f"a host's URL does not say who the user is; got {masked(host)!r}"
                raise ConfigurationError(message, hint="user and password are arguments of their own")
        if (self.user is None) != (self.password is None):
            message = "user and password need each other"
            raise ConfigurationError(message)
        for name in self.options:
            if name in OWN_OPTIONS:
                message = f"the option {name!r} of the client of OpenSearch is not for the program to set"
                raise ConfigurationError(message)

    @property
    def urls(self) -> tuple[str, ...]:
        """The hosts."""
        return (self.hosts,) if isinstance(self.hosts, str) else tuple(self.hosts)

    def connect(self, timeout_s: float = TIMEOUT_S) -> Service:
        """Return a connection, which is made with the first question.

        Raises:
            ConfigurationError: If the client is not installed, or takes an option for wrong.
        """
        with needs("OpenSearch and Elasticsearch need a client, opensearch-py", "opensearch"):
            import opensearchpy
        log = logging.getLogger("opensearch")
        if log.level == logging.NOTSET:  # who asks tells of errors: the client would write a stack for each try
            log.setLevel(logging.ERROR)
        own: dict[str, Any] = {"hosts": list(self.urls), "timeout": timeout_s}
        if self.user is not None:
            own["http_auth"] = (self.user, self.password)
        # Who asks decides what is asked again: not the client, by itself.
        own |= {"max_retries": 0, "retry_on_timeout": False, "serializer": _exact_serializer()}
        try:
            return Service(opensearchpy.OpenSearch(**{**self.options, **own}))
        except (TypeError, ValueError, opensearchpy.ImproperlyConfigured) as error:
            message = f"OpenSearch's client cannot be made: {masked(str(error))}"
            raise ConfigurationError(message) from error


_MARK = f"\0{secrets.token_hex(8)} "
"""Before the text of a number that a float does not hold; no document has it."""

_MARKED = re.compile(re.escape(json.dumps(_MARK)[:-1]) + '([^"]*)"')


def _number(text: str) -> float | str:
    """A number with a fraction or an exponent; its marked text if it is none of the floats."""
    number = float(text)
    is_exact = repr(number) == text or Decimal(repr(number)) == Decimal(text)
    return number if is_exact else _MARK + text


def document_text(document: Any) -> str:
    """Return a document of an answer as JSON, with all the digits of its numbers."""
    text = json_text(document)
    return _MARKED.sub(r"\1", text) if _MARK[1:] in text else text


def _exact_serializer() -> Any:
    from opensearchpy.exceptions import SerializationError
    from opensearchpy.serializer import JSONSerializer

    class Exact(JSONSerializer):
        def loads(self, s: str) -> Any:
            try:
                return json.loads(s, parse_float=_number)
            except (ValueError, TypeError) as error:
                raise SerializationError(s, error) from error

    return Exact()


class Service:
    """A connection to a cluster; blocks."""

    def __init__(self, client: Any) -> None:
        self._client = client
        # How a point in time is asked for here; None while that is unknown.
        self._has_pits_of_elasticsearch: bool | None = None

    def ask(self, method: str, path: str, body: Any = None, parameters: Mapping[str, Any] | None = None) -> Answer:
        """Return an answer.

        Raises:
            AnswerError: If it is an error, or there is none.
        """
        import opensearchpy

        try:
            answer: Answer = self._client.transport.perform_request(method, path, params=parameters, body=body)
        except opensearchpy.ConnectionError as error:  # there was no answer, maybe not in time
            is_away = not isinstance(error, opensearchpy.SSLError)
            text = str(error.info) if isinstance(error.info, Exception) else str(error)
            raise AnswerError(masked(text)[:500], is_away=is_away) from error
        except opensearchpy.TransportError as error:
            status = error.status_code if isinstance(error.status_code, int) else None
            raise AnswerError(_told(error), is_away=status in AWAY_STATUS, status=status) from error
        except opensearchpy.OpenSearchException as error:  # an answer that is cut off, or none of such a service
            raise AnswerError(masked(str(error))[:500], is_away=True) from error
        return answer

    def open_point_in_time(self, index: str, keep_alive: str) -> str:
        """Return the id of a view of an index that does not change.

        Raises:
            AnswerError: If there is none.
        """
        ways = (True, False) if self._has_pits_of_elasticsearch is None else (self._has_pits_of_elasticsearch,)
        for is_elasticsearch in ways:
            path = f"/{quoted(index)}/{'_pit' if is_elasticsearch else '_search/point_in_time'}"
            # Else OpenSearch leaves out shards that are away, and no search says that they are missing.
            whole = {} if is_elasticsearch else {"allow_partial_pit_creation": "false"}
            try:
                answer = self.ask("POST", path, parameters={"keep_alive": keep_alive, **whole})
            except AnswerError as error:
                if is_elasticsearch and len(ways) == 2 and error.status in (400, 404, 405) and _knows_no(error):
                    continue
                raise
            self._has_pits_of_elasticsearch = is_elasticsearch
            _check_whole(answer)
            return str(answer["id" if is_elasticsearch else "pit_id"])
        raise AssertionError

    def search(self, body: Mapping[str, Any]) -> Answer:
        """Return what a search of a point in time finds, in all of its shards.

        Raises:
            AnswerError: If there is an error or no answer, or one of some shards, or of some of their documents.
        """
        answer = self.ask("POST", "/_search", body, {"allow_partial_search_results": "false"})
        _check_whole(answer)
        return answer

    def close_point_in_time(self, point: str) -> None:
        """Let go of a view. What cannot be told that lets go by itself when nobody has asked for long."""
        ways = (False, True) if self._has_pits_of_elasticsearch is None else (self._has_pits_of_elasticsearch,)
        for is_elasticsearch in ways:
            try:
                if is_elasticsearch:
                    self.ask("DELETE", "/_pit", {"id": point})
                else:
                    self.ask("DELETE", "/_search/point_in_time", {"pit_id": [point]})
            except AnswerError as error:
                if not error.is_away:
                    continue  # it is no point of that kind, or gone
            return

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


def _check_whole(answer: Answer) -> None:
    """See that nothing is missing in an answer: shards that are away are not always counted as failed.

    Raises:
        AnswerError: If something is.
    """
    shards = answer.get("_shards", {})
    num_missing = shards.get("total", 0) - shards.get("successful", 0)
    if num_missing or answer.get("timed_out"):
        why = f"{num_missing} of {shards['total']} shards are missing" if num_missing else "its time was over"
        message = f"an answer is not whole: {why}"
        raise AnswerError(message, is_away=True)


def _knows_no(error: AnswerError) -> bool:
    """Whether an error says that there is no such address, and not that there is no such index."""
    return "index_not_found" not in str(error)


def _told(error: Any) -> str:
    """What an answer says of an error, in one line."""
    info = error.info
    found = info.get("error", info) if isinstance(info, dict) else info
    if isinstance(found, dict):
        causes = found.get("root_cause") or [found]
        found = "; ".join(dict.fromkeys(f"{one.get('type')}: {one.get('reason')}" for one in causes[:3]))
    return masked(f"status {error.status_code}: {str(found)[:500]}")


def quoted(name: str) -> str:
    """Return a name as a part of a path."""
    from urllib.parse import quote

    return quote(name, safe=",*-_.")
