"""A stream of Kinesis, AWS's client for it, imported when it is needed, and what its errors mean."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from headrace.engine.errors import ConfigurationError
from headrace.state.credentials import masked
from headrace.state.extras import needs

from ..messages.client_thread import AnswerError

__all__ = ["TIMEOUT_S", "Stream", "StreamError", "kind_of", "service_ms"]

TIMEOUT_S = 10
"""For a connection, and for one answer."""

MOST_SHARDS = 1_000
"""In one answer."""

Kind = Literal["throttled", "away", "expired", "gone", "invalid", "setup", "refused"]

_KINDS: dict[str, Kind] = {
    "ProvisionedThroughputExceededException": "throttled",
    "LimitExceededException": "throttled",
    "KMSThrottlingException": "throttled",
    "Throttling": "throttled",
    "ThrottlingException": "throttled",
    "ThrottledException": "throttled",
    "RequestLimitExceeded": "throttled",
    "TooManyRequestsException": "throttled",
    "InternalFailure": "away",
    "InternalFailureException": "away",
    "RequestTimeout": "away",
    "ServiceUnavailable": "away",
    "ServiceUnavailableException": "away",
    "ResourceInUseException": "away",  # a stream that is being made
    "ExpiredIteratorException": "expired",
    "ResourceNotFoundException": "gone",
    "InvalidArgumentException": "invalid",
}

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_ARN = re.compile(r"arn:aws[a-z-]*:kinesis:([a-z0-9-]*):\d{12}:stream/[a-zA-Z0-9_.-]{1,128}")


_MAKES_CLIENTS = threading.Lock()
"""A session must not make two clients at once; they themselves are for any thread."""


@functools.cache
def _session() -> Any:
    """AWS's session of this process: to read what it knows of services takes longer than all else."""
    import boto3

    return boto3.session.Session()


class StreamError(AnswerError):
    """What Kinesis, or its client, has answered in place of what was asked for.

    Attributes:
        kind: ``throttled``: too much was asked for; ``away``: it does not answer; ``expired``: the iterator is too old;
            ``gone``: there is no such stream, shard or record; ``invalid``: an argument is none; ``setup``: credentials
            or a region are missing; ``refused``: anything else, which asking again will not change.
    """

    def __init__(self, text: str, kind: Kind) -> None:
        super().__init__(text, is_away=kind in ("throttled", "away"))
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream, where it is, and who asks.

    Attributes:
        name: Its name, or its ARN.
        region: Of AWS; None for that of the ARN, or of the surroundings.
        endpoint: A URL, where it is not that of the region.
        options: More settings of boto3's client, as ``aws_access_key_id`` and ``aws_secret_access_key``. Without these
            credentials are looked for as boto3 does.
    """

    name: str
    region: str | None = None
    endpoint: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not (_NAME.fullmatch(self.name) or _ARN.fullmatch(self.name)):
            message = f"a stream of Kinesis has a name, or an ARN; got {self.name!r}"
            raise ConfigurationError(message)

    def connect(self) -> Any:
        """Return a client of its own, which asks when it is used, once.

        Raises:
            ConfigurationError: If AWS's client is not installed, or does not take its options.
            StreamError: If nobody says in which region the stream is.
        """
        with needs("streams of Kinesis need AWS's client, boto3", "kinesis"):
            import boto3  # noqa: F401 - seen here that it is there
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        found = _ARN.fullmatch(self.name)
        region = self.region or (found[1] or None if found else None)
        # Who asks again, and when, is decided here.
        config = Config(connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S, retries={"total_max_attempts": 1})
        try:
            with _MAKES_CLIENTS:
                return _session().client(
                    "kinesis", region_name=region, endpoint_url=self.endpoint, **{"config": config, **self.options}
                )
        except (TypeError, ValueError) as error:
            message = f"boto3's client does not take its options: {masked(str(error))}"
            raise ConfigurationError(message) from error
        except BotoCoreError as error:
            raise StreamError(masked(str(error)), "setup") from error

    def ask(self, client: Any, operation: str, *, names_stream: bool = True, **arguments: Any) -> dict[str, Any]:
        """Ask something about the stream.

        Args:
            client: From `connect`.
            operation: A method of the client.
            names_stream: Whether the stream is an argument.
            arguments: All others.

        Raises:
            StreamError: If that is not answered.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        if names_stream:
            arguments["StreamARN" if ":" in self.name else "StreamName"] = self.name
        try:
            answer: dict[str, Any] = getattr(client, operation)(**arguments)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            raise StreamError(masked(str(error)), kind_of(code, status)) from error
        except BotoCoreError as error:
            raise StreamError(masked(str(error)), _kind_of_own(error)) from error
        return answer

    def shards(self, client: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return all shards that are listed, and one of the answers.

        Raises:
            StreamError: If that is not answered.
        """
        answer = self.ask(client, "list_shards", MaxResults=MOST_SHARDS)
        found = list(answer["Shards"])
        while token := answer.get("NextToken"):
            answer = self.ask(client, "list_shards", names_stream=False, NextToken=token, MaxResults=MOST_SHARDS)
            found += answer["Shards"]
        if not found:  # each stream has some: those that were known would be forgotten, and read again
            message = f"stream {self.name!r} of Kinesis is listed without any shard"
            raise StreamError(message, "away")
        return found, answer

    def retention_ms(self, client: Any) -> int:
        """Return how long a record is kept, milliseconds.

        Raises:
            StreamError: If that is not answered.
        """
        answer = self.ask(client, "describe_stream_summary")
        return int(answer["StreamDescriptionSummary"]["RetentionPeriodHours"]) * 3_600_000


def kind_of(code: str, status: int = 0) -> Kind:
    """Return what an error of Kinesis means, by its name and HTTP's number."""
    return _KINDS.get(code) or ("away" if status >= 500 else "refused")


def _kind_of_own(error: Exception) -> Kind:
    """What an error of the client means, which has no answer."""
    from botocore import exceptions

    if isinstance(error, (exceptions.HTTPClientError, exceptions.ConnectionError)):
        return "away"
    setup = (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.NoRegionError)
    return "setup" if isinstance(error, setup) else "refused"


def service_ms(answer: Mapping[str, Any]) -> int:
    """Return what the service's clock said when it answered, epoch milliseconds.

    The service tells the second; within it the clock here counts.
    """
    own_ms = int(time.time() * 1_000)
    told = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        second_ms = int(parsedate_to_datetime(told).timestamp() * 1_000)
    except (TypeError, ValueError):
        return own_ms
    return min(max(own_ms, second_ms), second_ms + 999)
