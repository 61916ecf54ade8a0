"""Query parameters of an AMQP URL: the known ones, and the TLS files that they name."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from yarl import URL

from warren.sdk.errors import ConfigError, TlsFailed

FILES: Final = ("cafile", "capath", "certfile", "keyfile")
"""Parameters whose value is a path on this machine; `capath` is a folder."""
TLS_PARAMETERS: Final = (*FILES, "cadata", "no_verify_ssl")
"""Parameters that only `amqps://` uses."""
PARAMETERS: Final = (*TLS_PARAMETERS, "auth", "heartbeat", "name", "timeout")
"""Parameters that a URL may have."""


def check_parameters(url: str) -> None:
    """Check the names of the query parameters of an AMQP URL.

    :raises ConfigError: for an unknown parameter, which would be ignored, and for one of TLS in a URL without TLS.
    """
    parsed = URL(url)
    for name in parsed.query:
        if name not in PARAMETERS:
            raise ConfigError(
                f"the URL has an unknown parameter {name!r}: known are {', '.join(sorted(PARAMETERS))}"
            )
        if name in TLS_PARAMETERS and parsed.scheme != "amqps":
            raise ConfigError(f"the URL names {name}, but amqp:// does not use TLS: write amqps://")


def check_tls_files(what: str, url: URL) -> None:
    """Read the files that an `amqps://` URL names. Call it in a thread.

    :param what: the operation that needs them, as the beginning of the error text.
    :raises TlsFailed: if one cannot be read, or is not what its parameter needs.
    """
    named = {name: url.query[name] for name in FILES if url.query.get(name)}
    for name, path in named.items():
        try:
            if name == "capath":
                next(Path(path).iterdir(), None)
            else:
                Path(path).read_bytes()
        except OSError as error:
            raise TlsFailed(f"{what}: {name} {path!r} of the URL cannot be read: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if "cafile" in named:
            context.load_verify_locations(named["cafile"])
    except ssl.SSLError:
        raise TlsFailed(
            f"{what}: cafile {named['cafile']!r} of the URL has no certificate in PEM format"
        ) from None
    try:
        if "certfile" in named:
            # Without a password function, OpenSSL asks on the terminal for the password of an encrypted key.
            context.load_cert_chain(named["certfile"], named.get("keyfile"), password=lambda: b"")
    except ssl.SSLError:
        raise TlsFailed(
            f"{what}: certfile {named['certfile']!r} of the URL and its key cannot be used: both must be in PEM format"
            " and belong together, and the key must have no password"
        ) from None
