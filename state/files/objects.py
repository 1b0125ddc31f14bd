"""Object stores as a `headrace.state.files.filesystem.FileSystem`: S3 and what speaks its protocol, GCS, Azure.

``s3://bucket/path`` (``s3a``, ``s3n`` mean the same), ``gs://bucket/path``, ``az://container/path`` and
``abfs[s]://container@account.dfs.core.windows.net/path``. Who may do what is asked of the environment
(``AWS_ACCESS_KEY_ID`` ...) or of the machine's role; which server, of the URI's query or the environment.

The client is ``obstore`` (``pip install 'headrace[s3]'``), which nothing here imports before it is needed.

Source: RFC 9110 (If-None-Match); the S3 API's conditional writes; Flink's ``flink-s3-fs-*`` for names of options.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qsl

from ..errors import AlreadyExistsError, ConfigurationError, NotFoundError, StorageError, nearest
from ..extras import needs
from .client_streams import ClientOutput, RangedInput
from .local import at_most, storage_errors

__all__ = ["MAX_RENAMED_BYTES", "OBJECT_SCHEMES", "ObjectFileSystem"]

OBJECT_SCHEMES = {
    "s3": "S3Store",
    "s3a": "S3Store",
    "s3n": "S3Store",
    "gs": "GCSStore",
    "az": "AzureStore",
    "abfs": "AzureStore",
    "abfss": "AzureStore",
}
"""What URIs begin with, and the client's class for it."""

MAX_RENAMED_BYTES = 5 << 30
"""Stores copy an object of at most this size by one request; a rename is a copy and a deletion."""

_MAX_SINGLE_PUT_BYTES = 32 << 20
"""What is larger goes in parts; a process that dies in the midst leaves parts behind that nobody sees, but pays for."""

_READ_BYTES = 1 << 20
_WRITE_BYTES = 8 << 20
"""Of the buffer of a stream: what is smaller is written by one request."""

_WRITER = "headracewriter"
"""Metadata of an object that was made exclusively: which call has made it. Azure takes identifiers only as its name."""

_RETRIES = {
    "max_retries": 10,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
}
_OPTIONS = {
    "S3Store": ("endpoint", "region", "path.style.access"),
    "GCSStore": ("endpoint",),
    "AzureStore": ("endpoint",),
}
"""What the query of a URI may say, under the names of Flink's options, without ``s3.`` before them."""


class ObjectFileSystem:
    """The buckets of a store. Paths begin with the name of the bucket.

    * A file has its name once it is complete (a put is atomic), and is never seen half written.
    * ``create_exclusive`` is a put under the condition that there is no object (``If-None-Match: *``). Before the first
      one of a process the bucket is asked whether it heeds the condition: some servers ignore it without a word.
    * ``rename`` is a copy, which is atomic, followed by a deletion: both names may be there after a crash, never
      neither. It takes objects of up to `MAX_RENAMED_BYTES`.
    * Directories mean nothing. ``list_files`` is of one moment for up to 1,000 files.

    Args:
        place: Which store it is.
    """

    def __init__(self, place: _Place) -> None:
        self._place = place

    @classmethod
    def from_uri(cls, uri: str) -> tuple[ObjectFileSystem, str]:
        """Find the store of a URI, and the path in it.

        Raises:
            ConfigurationError: If the client is not installed, an option is not known, or no bucket is named.
        """
        scheme, _, rest = uri.partition("://")
        path, _, query = rest.partition("?")
        bucket, _, key = path.partition("/")
        if not bucket:
            message = f"a URI of an object store names a bucket, as {scheme}://bucket/path; got {uri!r}"
            raise ConfigurationError(message)
        kind = OBJECT_SCHEMES[scheme]
        return cls(_place(kind, bucket, _options(query, uri, _OPTIONS[kind]))), f"{bucket}/{key}".rstrip("/")

    def read_bytes(self, path: str, max_bytes: int | None = None) -> bytes:
        with _errors("read", path):
            found = _client().get(self._store(path), _key(path))
            if max_bytes is None or found.meta["size"] <= max_bytes:
                return bytes(found.bytes())
        return at_most(self.open_input(path), max_bytes, path)

    def write_bytes(self, path: str, data: bytes) -> None:
        with _errors("write", path):
            _client().put(self._store(path), _key(path), data, use_multipart=len(data) > _MAX_SINGLE_PUT_BYTES)

    def create_exclusive(self, path: str, data: bytes) -> None:
        self.require_exclusive_create(path.rpartition("/")[0])
        self._create(path, data)

    def _create(self, path: str, data: bytes) -> None:
        writer = uuid.uuid4().hex
        client, store = _client(), self._store(path)
        with _errors("create", path):
            try:
                client.put(store, _key(path), data, mode="create", attributes={_WRITER: writer})
            except client.exceptions.AlreadyExistsError as error:
                if self._writer_of(path) != writer:  # else it is this call's, whose first answer got lost
                    message = "could not create a file: it exists"
                    raise AlreadyExistsError(message, operation="create", path=path) from error

    def _writer_of(self, path: str) -> str | None:
        try:
            return _client().get(self._store(path), _key(path)).attributes.get(_WRITER)
        except FileNotFoundError:
            return None  # deleted meanwhile

    def require_exclusive_create(self, directory: str) -> None:
        """Make sure that the store heeds the condition of `create_exclusive`; asked once in a process.

        Args:
            directory: Where two objects may be made, one of which must be refused.

        Raises:
            ConfigurationError: If it does not.
        """
        with self._place.lock:
            if self._place.is_exclusive:
                return
            probe = f"{directory}/.exclusive-{uuid.uuid4().hex}"
            self._create(probe, b"1")
            try:
                self._create(probe, b"2")
            except AlreadyExistsError:
                self._place.is_exclusive = True
            finally:
                self.delete(probe)
        if not self._place.is_exclusive:
            message = (
                f"the object store of {self._place.bucket!r} ignores the condition that an object must not exist yet"
                " (If-None-Match): of two that create a file, both would believe to be the first"
            )
            hint = (
                "checkpoints, leases and file sinks need a store with conditional writes; files can be read from it,"
                " and an Alluxio cluster is better reached by a mount"
            )
            raise ConfigurationError(message, hint=hint, endpoint=self._place.endpoint or "the provider's own")

    def rename(self, source: str, target: str) -> None:
        if source == target:
            self.size(source)
            return
        client, store = _client(), self._store(source)
        with _errors("rename", source):
            client.copy(store, _key(source), _key(target), overwrite=True)
            client.delete(store, _key(source))

    def delete(self, path: str) -> None:
        with _errors("delete", path), contextlib.suppress(FileNotFoundError):
            _client().delete(self._store(path), _key(path))

    def delete_directory(self, path: str) -> None:
        # Google and Azure end at a file that another process has deleted meanwhile; what is left is listed again.
        while files := [_key(name) for name, _ in self.list_files(path)]:
            with _errors("delete", path), contextlib.suppress(FileNotFoundError):
                _client().delete(self._store(path), files)

    def list_files(self, prefix: str) -> list[tuple[str, int]]:
        bucket = prefix.partition("/")[0]
        with _errors("list", prefix):
            pages = _client().list(self._store(prefix), _key(prefix) or None)
            return sorted((f"{bucket}/{found['path']}", int(found["size"])) for page in pages for found in page)

    def exists(self, path: str) -> bool:
        with _errors("stat", path):
            try:
                _client().head(self._store(path), _key(path))
            except FileNotFoundError:
                return False
            return True

    def size(self, path: str) -> int:
        with _errors("stat", path):
            return int(_client().head(self._store(path), _key(path))["size"])

    def open_input(self, path: str) -> BinaryIO:
        with _errors("open", path):
            found = _client().head(self._store(path), _key(path))
        return io.BufferedReader(_ObjectInput(self._store(path), path, found), _READ_BYTES)

    def open_output(self, path: str) -> BinaryIO:
        with _errors("open", path):
            writer = _client().open_writer(self._store(path), _key(path), buffer_size=_WRITE_BYTES)
            return cast("BinaryIO", _ObjectOutput(writer, path, _errors))

    def _store(self, path: str) -> Any:
        """The client's object for the bucket."""
        assert path.partition("/")[0] == self._place.bucket, "a path of another bucket"
        return self._place.store

    def __repr__(self) -> str:
        return f"ObjectFileSystem({self._place.bucket!r})"


class _ObjectInput(RangedInput):
    """An object as it was when it was opened: one that is replaced meanwhile is not read further."""

    def __init__(self, store: Any, path: str, found: Any) -> None:
        super().__init__(int(found["size"]))
        self._store = store
        self._path = path
        self._tag = found["e_tag"]

    def read_range(self, start: int, count: int) -> Any:
        client, options = _client(), {"range": (start, start + count)}
        if self._tag is not None:
            options["if_match"] = self._tag
        with _errors("read", self._path):
            try:
                return client.get(self._store, _key(self._path), options=options).bytes()
            except client.exceptions.PreconditionError as error:
                message = "could not read a file: it was replaced while it was read"
                raise StorageError(message, operation="read", path=self._path) from error


class _ObjectOutput(ClientOutput):
    """Becomes an object when it is closed; one that its process leaves open when it dies never does."""

    def __del__(self) -> None:
        """Make nothing of what nobody has closed."""


# --------------------------------------------------------------------------------------------------------------- stores
@dataclass(frozen=True, slots=True)
class _Options:
    """What a URI's query says."""

    endpoint: str | None = None
    region: str | None = None
    is_path_style: bool | None = None


class _Place:
    """A bucket of a store, with the connections of this process.

    Attributes:
        bucket: Its name; ``container@account.host`` for some of Azure.
        endpoint: The server, if one is named.
        store: The client's object.
        lock: Held while it is found out whether `is_exclusive`.
        is_exclusive: Whether the store is known to heed conditions.
    """

    def __init__(self, kind: str, bucket: str, options: _Options) -> None:
        self.bucket = bucket
        self.endpoint = options.endpoint
        self.store = _open_store(kind, bucket, options)
        self.lock = threading.Lock()
        self.is_exclusive = False


_VARIABLES = re.compile(r"(?:AWS|GOOGLE|AZURE)_[A-Z0-9_]+")
_places_lock = threading.Lock()
_places: dict[Any, _Place] = {}


def _place(kind: str, bucket: str, options: _Options) -> _Place:
    """One for each bucket, while the environment says the same."""
    environment = tuple(sorted((name, value) for name, value in os.environ.items() if _VARIABLES.fullmatch(name)))
    known = kind, bucket, options, environment
    with _places_lock:
        place = _places.get(known)
        if place is None:
            place = _places[known] = _Place(kind, bucket, options)
        return place


def _open_store(kind: str, bucket: str, options: _Options) -> Any:
    client = _client()
    endpoint = options.endpoint
    config: dict[str, Any] = {}
    if kind == "S3Store":
        config["disable_bulk_delete"] = True  # which not all servers have
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint:
            config["endpoint"] = endpoint.rstrip("/")
        if options.region:
            config["region"] = options.region
        if options.is_path_style is not None:
            config["virtual_hosted_style_request"] = not options.is_path_style
            if not options.is_path_style and endpoint:
                scheme, _, host = endpoint.rstrip("/").partition("://")
                config["endpoint"] = f"{scheme}://{bucket}.{host}"
    elif kind == "AzureStore":
        bucket, _, host = bucket.partition("@")
        if host:
            config["account_name"] = host.partition(".")[0]
        endpoint = endpoint or os.environ.get("AZURE_STORAGE_ENDPOINT")
        if endpoint:
            config["endpoint"] = endpoint.rstrip("/")
    else:
        endpoint = endpoint or os.environ.get("GOOGLE_BASE_URL")
        if endpoint:
            config["base_url"] = endpoint.rstrip("/")
    is_plain = endpoint is not None and endpoint.startswith("http://")
    try:
        return getattr(client.store, kind)(
            bucket, config=config, client_options={"allow_http": is_plain}, retry_config=_RETRIES
        )
    except (client.exceptions.BaseError, ValueError) as error:
        message = f"cannot use the object store of {bucket!r}: {_first_line(error)}"
        raise ConfigurationError(message) from error


def _options(query: str, uri: str, known: Sequence[str]) -> _Options:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        option = name.removeprefix("s3.")
        option = {"endpoint.region": "region", "path-style-access": "path.style.access"}.get(option, option)
        if option not in known:
            message = f"a URI of {uri.partition(':')[0]}:// has no option {name!r}; got {uri!r}"
            raise ConfigurationError(message, hint=nearest(option, known) or f"it has {', '.join(known)}")
        given[option] = value
    style = given.get("path.style.access")
    if style not in (None, "true", "false"):
        message = f"option path.style.access of a URI is 'true' or 'false'; got {style!r}"
        raise ConfigurationError(message)
    endpoint = given.get("endpoint")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        message = f"option endpoint of a URI is a URL, such as http://host:9000; got {endpoint!r}"
        raise ConfigurationError(message)
    return _Options(endpoint, given.get("region"), None if style is None else style == "true")


@functools.cache
def _client() -> Any:
    """The client's module.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("object stores need the package obstore", "s3"):
        import obstore
        import obstore.exceptions
        import obstore.store
    return obstore


def _key(path: str) -> str:
    return path.partition("/")[2]


@contextlib.contextmanager
def _errors(operation: str, path: str) -> Iterator[None]:
    """Turn the client's errors into `StorageError` and its kinds."""
    try:
        with storage_errors(operation, path):
            try:
                yield
            except FileNotFoundError as error:
                if operation not in ("write", "create"):
                    raise
                message = f"could not {operation} a file: there is no bucket {path.partition('/')[0]!r}"
                raise NotFoundError(message, operation=operation, path=path) from error
    except (_client().exceptions.BaseError, ValueError) as error:
        message = f"could not {operation} a file: {_first_line(error)}"
        raise StorageError(message, operation=operation, path=path) from error


def _first_line(error: Exception) -> str:
    """What the client says, without its own insides."""
    return str(error).partition("\n")[0].strip()
