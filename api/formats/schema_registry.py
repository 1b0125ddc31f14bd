"""A schema registry of Confluent's protocol: each message begins with the number of the schema that it was written by.

The client is made where it is used, and remembers what it was told. What a registry says of a number never changes.

Source: Confluent's documentation ("Wire Format", "Schema Registry API"); Flink's ``ConfluentSchemaRegistryCoder``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from headrace.engine.errors import ConfigurationError, ExternalError
from headrace.state.credentials import masked
from headrace.state.extras import needs

__all__ = ["SchemaRegistry"]

_HEAD = struct.Struct(">bI")
_NOT_FOUND = 404
_REFUSALS = (401, 403, 409, 422)
"""Rights that are missing, and a schema that is none or does not go with those before."""


class SchemaRegistry:
    """Says which schemas messages are of.

    Args:
        url: Where it answers, as ``http://localhost:8081``.
        subject: Under which schemas of what is written are registered, as ``topic-value``; None if nothing is written.
        properties: More settings of the client (``confluent_kafka``'s names), as ``basic.auth.user.info``.

    Raises:
        ConfigurationError: If there is no address.
    """

    def __init__(self, url: str, subject: str | None = None, properties: Mapping[str, Any] = {}) -> None:
        if not url.startswith(("http://", "https://")):
            message = f"a schema registry has an address such as http://localhost:8081; got {masked(url)!r}"
            raise ConfigurationError(message)
        self._settings = {**properties, "url": url}
        self._subject = subject
        # Made with the first question, in the process that asks; and the number of the schema that is written.
        self._client: Any = None
        self._written: int | None = None

    def __repr__(self) -> str:
        return f"SchemaRegistry({masked(self._settings['url'])!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_written": None}

    def schema_of(self, message: bytes) -> tuple[int, str | None, bytes]:
        """Return the number of a message's schema, the schema as a text, and the message without its head.

        The text is None if the registry has no such schema.

        Raises:
            ValueError: If the message has no head.
            ExternalError: If the registry does not answer.
        """
        number, rest = self.number_of(message)
        return number, self._text_of(number), rest

    @staticmethod
    def number_of(message: bytes) -> tuple[int, bytes]:
        """Return the number of a message's schema, and the message without its head.

        Raises:
            ValueError: If the message has no head.
        """
        if len(message) < _HEAD.size or message[0] != 0:
            text = "it does not begin with the number of a schema"
            raise ValueError(text)
        return _HEAD.unpack_from(message)[1], message[_HEAD.size :]

    def _text_of(self, number: int) -> str | None:
        client = self._connected()
        try:
            return str(client.get_schema(number).schema_str)
        except Exception as error:  # its HTTP library has errors of its own
            if getattr(error, "http_status_code", 0) == _NOT_FOUND:
                return None
            what = f"does not say what schema {number} is"
            raise self._failed(what, error) from error

    def head_of(self, schema: str, kind: str = "AVRO", needed: Mapping[str, str] = {}) -> bytes:
        """Return what messages of a schema begin with; the registry knows it then.

        Args:
            schema: The schema, as the registry keeps it.
            kind: ``AVRO`` or ``PROTOBUF``.
            needed: Schemas that it refers to, by the names that it calls them, each behind what it needs itself.

        Raises:
            ConfigurationError: If there is no subject, or the registry refuses the schema.
            ExternalError: If it does not answer.
        """
        if self._written is None:
            if self._subject is None:
                message = "the subject must be named under which the schema of what is written is registered"
                raise ConfigurationError(message)
            references: list[Any] = []
            for name, text in needed.items():
                self._register(name, text, kind, references)
                version = self._asked(name, "lookup_schema", _library().Schema(text, kind, list(references))).version
                references.append(_library().SchemaReference(name, name, version))
            self._written = self._register(self._subject, schema, kind, references)
        return _HEAD.pack(0, self._written)

    def _register(self, subject: str, schema: str, kind: str, references: list[Any]) -> int:
        return int(self._asked(subject, "register_schema", _library().Schema(schema, kind, list(references))))

    def _asked(self, subject: str, what: str, schema: Any) -> Any:
        """Have the client do something with a schema."""
        try:
            return getattr(self._connected(), what)(subject, schema)
        except Exception as error:  # its HTTP library has errors of its own
            if getattr(error, "http_status_code", 0) in _REFUSALS:
                message = f"the schema registry refuses the schema for subject {subject!r}: {error}"
                raise ConfigurationError(message) from error
            reason = f"does not take a schema for {subject!r}"
            raise self._failed(reason, error) from error

    def _connected(self) -> Any:
        if self._client is None:
            self._client = _library().SchemaRegistryClient(self._settings)
        return self._client

    def _failed(self, what: str, error: Exception) -> ExternalError:
        message = f"the schema registry at {masked(self._settings['url'])} {what}: {masked(str(error))}"
        return ExternalError(message)


def _library() -> Any:
    with needs("a schema registry needs its client, confluent-kafka[schemaregistry]", "avro"):
        import confluent_kafka.schema_registry as library
    return library
