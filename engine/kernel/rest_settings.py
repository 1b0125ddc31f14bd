"""How a cluster serves REST: where it listens, whom it answers, and how much it takes.

Loopback is the default. An address that others reach needs TLS, as a token that travels in the clear is nobody's
secret; who knows better says so. Option names are Flink's where there are any.

Source: Flink's ``RestOptions``, ``WebOptions`` and ``SecurityOptions``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.state.values.durations import parse_duration_ms

from ..errors import ConfigurationError
from .sampling_settings import SamplingSettings

__all__ = ["RestSettings"]

_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_HOST = re.compile(r"[A-Za-z0-9.:_-]+")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.:_\[\]-]+")


_SAMPLING = SamplingSettings()


@dataclass(frozen=True, slots=True)
class RestSettings:
    """How a cluster serves REST.

    Attributes:
        bind_port: ``rest.bind-port``: a port or a range (``8081-8180``), of which the first free one is taken; 0 takes
            any.
        bind_address: ``rest.bind-address``: the address that is listened on.
        address: ``rest.address``: the name that clients are told; empty for ``bind_address``.
        certificate_file: Of TLS, in PEM; with it ``https`` is served.
        key_file: Of its private key.
        allows_plain_http: Whether an address that others reach may be served without TLS.
        allowed_hosts: Names that requests may use for this server (``Host``), beside ``localhost``, the loopback
            addresses and ``address``.
        allowed_origins: Pages of these origins may ask, as ``https://dashboards.example``; by default only the
            server's own.
        refresh_interval_ms: ``web.refresh-interval``: how often pages ask; less often of very large jobs.
        view_ttl_ms: So long an answer of a JobManager is good for all who ask.
        answer_timeout_ms: ``rest.await-leader-timeout``: a cluster that takes longer to answer is unavailable.
        max_content_length: ``rest.server.max-content-length``: of a request, bytes.
        store_duration_ms: ``rest.async.store-duration``: so long the end of a rescale is remembered.
        backpressure: ``web.backpressure.*``: how subtasks are looked at for credit.
        flame_graph: ``rest.flamegraph.*``: how they are looked at for what they do.
        allows_record_samples: ``rest.record-samples.enabled``: whether records may be shown, to those who may do
            everything.
        masked_fields: ``rest.record-samples.masked-fields``: fields of records whose values nobody is shown.
        allows_submit: ``web.submit.enable``: whether programs may be uploaded and run, by those who may do everything.
        max_program_bytes: ``web.submit.max-content-length``: how large one may be.
        start_delay_ms: So long after its head the server is started, unless somebody asks before where it is: the first
            job of a program does not wait for it.
    """

    bind_port: str = "8081-8180"
    bind_address: str = "127.0.0.1"
    address: str = ""
    certificate_file: str | None = None
    key_file: str | None = None
    allows_plain_http: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    refresh_interval_ms: int = 3_000
    view_ttl_ms: int = 500
    answer_timeout_ms: int = 10_000
    max_content_length: int = 1 << 20
    store_duration_ms: int = 300_000
    backpressure: SamplingSettings = _SAMPLING
    flame_graph: SamplingSettings = _SAMPLING
    allows_record_samples: bool = False
    masked_fields: tuple[str, ...] = ()
    allows_submit: bool = True
    max_program_bytes: int = 32 << 20
    start_delay_ms: int = 0

    def __post_init__(self) -> None:
        low, high = self.ports
        if low > high or high > 65_535:
            message = f"rest.bind-port must be a port or a range of ports, up to 65535; got {self.bind_port!r}"
            raise ConfigurationError(message)
        for name in (*self.allowed_hosts, *((self.address,) if self.address else ())):
            if _HOST.fullmatch(name) is None:
                message = f"a name of a host must have no port and no scheme; got {name!r}"
                raise ConfigurationError(message)
        for origin in self.allowed_origins:
            if _ORIGIN.fullmatch(origin) is None:
                message = f"an origin is a scheme, a name and maybe a port, as https://example.org:8443; got {origin!r}"
                raise ConfigurationError(message)
        if (self.certificate_file is None) != (self.key_file is None):
            message = "TLS needs both a certificate and its key"
            raise ConfigurationError(message, hint="set security.ssl.rest.certificate and security.ssl.rest.key")
        if not self.is_loopback and self.certificate_file is None and not self.allows_plain_http:
            message = f"REST on {self.bind_address!r} is reached by others, who would read its token: it needs TLS"
            hint = "set a certificate and its key, or listen on 127.0.0.1 and use 'ssh -L'; allows_plain_http overrides"
            raise ConfigurationError(message, hint=hint)
        for name, low_bound in (
            ("refresh_interval_ms", 1),
            ("view_ttl_ms", 0),
            ("answer_timeout_ms", 1),
            ("start_delay_ms", 0),
        ):
            if getattr(self, name) < low_bound:
                message = f"{name} must be at least {low_bound}; got {getattr(self, name)}"
                raise ConfigurationError(message)

    @property
    def ports(self) -> tuple[int, int]:
        """The first and the last port that may be taken.

        Raises:
            ConfigurationError: If that is no port and no range.
        """
        match = _PORTS.fullmatch(self.bind_port)
        if match is None:
            message = f"rest.bind-port must be a port or a range of ports; got {self.bind_port!r}"
            raise ConfigurationError(message)
        return int(match[1]), int(match[2] or match[1])

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the address."""
        if self.bind_address == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.bind_address).is_loopback
        except ValueError:
            return False

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, str]) -> RestSettings:
        """Read Flink's configuration keys; those of others are left alone.

        Understood are ``rest.port``, ``rest.bind-port``, ``rest.address``, ``rest.bind-address``,
        ``rest.await-leader-timeout``, ``rest.server.max-content-length``, ``rest.async.store-duration``,
        ``web.refresh-interval``, ``web.submit.enable``, ``web.backpressure.*``, ``rest.flamegraph.*`` and, not of
        Flink, ``web.submit.max-content-length``, ``rest.allowed-hosts`` and ``rest.allowed-origins`` (separated by
        commas), ``rest.view-ttl``, ``rest.record-samples.*``, ``rest.plain-http-allowed``,
        ``security.ssl.rest.certificate`` and ``security.ssl.rest.key``.

        Raises:
            ConfigurationError: If a value is illegal, or a key that begins with ``rest.`` is not known.
        """
        options: dict[str, Any] = {}
        samplings: dict[str, dict[str, Any]] = {"backpressure": {}, "flame_graph": {}}
        if "rest.port" in configuration:
            options["bind_port"] = configuration["rest.port"]
        for key, value in configuration.items():
            if key in _KEYS:
                name, read = _KEYS[key]
                options[name] = read(value)
            elif key in _SAMPLING_KEYS:
                which, name, read = _SAMPLING_KEYS[key]
                samplings[which][name] = read(value)
            elif key.startswith("rest.") and key != "rest.port":
                message = f"no option is called {key}"
                raise ConfigurationError(message, hint=f"there are {', '.join(sorted([*_KEYS, *_SAMPLING_KEYS]))}")
        options |= {which: SamplingSettings(**given) for which, given in samplings.items()}
        return cls(**options)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _whole_number(text: str) -> int:
    if not text.isdecimal():
        message = f"an option must be a whole number; got {text!r}"
        raise ConfigurationError(message)
    return int(text)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        message = f"an option must be true or false; got {text!r}"
        raise ConfigurationError(message)
    return text.lower() == "true"


def _duration_ms(text: str) -> int:
    """A duration; a number alone is milliseconds, as in Flink."""
    return parse_duration_ms(int(text) if text.isdecimal() else text)


_KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "rest.bind-port": ("bind_port", str),
    "rest.bind-address": ("bind_address", str),
    "rest.address": ("address", str),
    "rest.allowed-hosts": ("allowed_hosts", _names),
    "rest.allowed-origins": ("allowed_origins", _names),
    "rest.await-leader-timeout": ("answer_timeout_ms", _duration_ms),
    "rest.async.store-duration": ("store_duration_ms", _duration_ms),
    "rest.server.max-content-length": ("max_content_length", _whole_number),
    "rest.view-ttl": ("view_ttl_ms", _duration_ms),
    "rest.plain-http-allowed": ("allows_plain_http", _truth),
    "rest.record-samples.enabled": ("allows_record_samples", _truth),
    "rest.record-samples.masked-fields": ("masked_fields", _names),
    "security.ssl.rest.certificate": ("certificate_file", str),
    "security.ssl.rest.key": ("key_file", str),
    "web.submit.enable": ("allows_submit", _truth),
    "web.submit.max-content-length": ("max_program_bytes", _whole_number),
    "web.refresh-interval": ("refresh_interval_ms", _duration_ms),
}

_SAMPLING_KEYS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "web.backpressure.num-samples": ("backpressure", "num_samples", _whole_number),
    "web.backpressure.delay-between-samples": ("backpressure", "delay_ms", _duration_ms),
    "web.backpressure.refresh-interval": ("backpressure", "refresh_interval_ms", _duration_ms),
    "web.backpressure.cleanup-interval": ("backpressure", "cleanup_interval_ms", _duration_ms),
    "rest.flamegraph.enabled": ("flame_graph", "is_enabled", _truth),
    "rest.flamegraph.num-samples": ("flame_graph", "num_samples", _whole_number),
    "rest.flamegraph.delay-between-samples": ("flame_graph", "delay_ms", _duration_ms),
    "rest.flamegraph.refresh-interval": ("flame_graph", "refresh_interval_ms", _duration_ms),
    "rest.flamegraph.cleanup-interval": ("flame_graph", "cleanup_interval_ms", _duration_ms),
    "rest.flamegraph.stack-depth": ("flame_graph", "stack_depth", _whole_number),
}
