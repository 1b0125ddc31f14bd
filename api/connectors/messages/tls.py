"""Certificates of connections to servers: verified by default, never left out.

Source: Python's ``ssl.create_default_context``.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from headrace.engine.errors import ConfigurationError

__all__ = ["Tls"]


@dataclass(frozen=True, slots=True)
class Tls:
    """Whom to trust, and who asks.

    A server's certificate is verified, and its name; there is no way to leave that out. Files are read where a
    connection is made: they must be there on each machine.

    Attributes:
        ca_file: Certificates of authorities that are trusted, in PEM; None: those that the system trusts.
        certificate_file: Of who asks, in PEM, if the server wants one.
        key_file: Its private key, if that is in another file.
        key_password: Of that key.
    """

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)

    def context(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            ConfigurationError: If one of them is none, or is not there.
        """
        try:
            found = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file is not None:
                password = self.key_password if self.key_password is not None else ""  # never asked for on a terminal
                found.load_cert_chain(self.certificate_file, self.key_file, password)
        except (OSError, ValueError) as error:
            message = f"certificates cannot be read from {self}: {error}"
            raise ConfigurationError(message) from error
        return found
