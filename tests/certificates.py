"""Certificates for tests, each of which is its own authority, by ``openssl``."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["Certificate", "new_certificate"]


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as files; who trusts the certificate as an authority trusts it."""

    file: str
    key_file: str

    def server_side(self, clients: Certificate | None = None) -> ssl.SSLContext:
        """What a server needs, which wants to see a client's certificate if there is one that it trusts."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key_file)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients.file)
        return context


def new_certificate(directory: Path, name: str, *, names: str = "DNS:localhost,IP:127.0.0.1") -> Certificate:
    """Make a certificate for some names of hosts; skips the test if there is no ``openssl``."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make certificates with")
    made = Certificate(str(directory / f"{name}.pem"), str(directory / f"{name}.key"))
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    request += ["-addext", f"subjectAltName={names}", "-keyout", made.key_file, "-out", made.file]
    subprocess.run([openssl, *request], check=True, capture_output=True)
    return made
