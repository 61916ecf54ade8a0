"""Reasons why a broker, or TLS, rejects a connection: errors with the broker's code, or with what to change in the URL."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl

from pamqp import commands
from pamqp.exceptions import PAMQPException
from pamqp.frame import unmarshal
from yarl import URL

from warren.sdk.errors import ConnectionRejected, TlsFailed, TransportUnavailable, WarrenError
from warren.sdk.transport.socket_stream import SocketFactory
from warren.wire.reply_codes import Reply

PROBE_SECONDS = 10.0
"""Seconds that a port gets to answer the beginning of a TLS handshake."""
TLS_ALERT = b"\x15\x03"
"""First bytes with which a TLS port answers what is not TLS (RFC 8446, section 5.1: alert, major version 3)."""
NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"}
)
"""Reasons of OpenSSL for an answer that is not TLS; which one depends on its version and on the bytes."""
CERTIFICATE_REQUIRED = frozenset(
    {"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE", "SSLV3_ALERT_BAD_CERTIFICATE"}
)
"""Reasons of OpenSSL for the alert of a server that misses the client's certificate: of TLS 1.3, and of TLS 1.2."""
WRONG_HOST = frozenset({62, 64})
"""Codes of OpenSSL for a certificate of another host: X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH."""
CLIENT_CERTIFICATE = "add certfile=FILE&keyfile=FILE to the parameters of the URL"

_UNKNOWN_VHOST = re.compile(r"vhost .* not found$")
_NO_PERMISSIONS = re.compile(r"access to vhost .* refused for user .*'$")


async def rejection(
    what: str, error: BaseException, socket: SocketFactory, target: URL
) -> WarrenError | None:
    """Return the error for a connection that was rejected before it was open; None if another reason is more likely.

    :param what: the failed operation, as the beginning of the error text.
    :param error: exception of the attempt, with its causes.
    :param socket: the socket of the attempt, with what it received last.
    :param target: URL of the attempt.
    """
    close = _connection_close(socket.last_frames)
    if close is not None:
        return _closed_by_broker(what, close, target.user or "")
    if isinstance(error, ConnectionRejected) and error.reply_code == Reply.ACCESS_REFUSED:
        return ConnectionRejected(
            f"{what}: {_refused_login(target.user or '')}",
            reply_code=error.reply_code,
            reply_text=error.reply_text,
        )
    cause = _tls_error(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return TlsFailed(
            f"{what}: the broker's certificate cannot be verified ({cause.verify_message}):"
            f" {_certificate_advice(cause, target)}"
        )
    if cause is not None and cause.reason in NOT_TLS:
        return TlsFailed(
            f"{what}: this port does not speak TLS: use amqp:// or the port for TLS, usually 5671"
        )
    if target.scheme == "amqps" and not socket.last_frames and "certfile" not in target.query:
        if cause is not None and cause.reason in CERTIFICATE_REQUIRED:
            return TlsFailed(
                f"{what}: the broker requires a client certificate (mutual TLS): {CLIENT_CERTIFICATE}"
            )
        if _ended(error):
            return TransportUnavailable(
                f"{error}; if the broker requires a client certificate (mutual TLS), {CLIENT_CERTIFICATE}"
            )
    if target.scheme == "amqp" and socket.writer is not None and not socket.last_frames:
        rest = socket.scanner.rest
        if rest.startswith(TLS_ALERT) or (not rest and _ended(error) and await _speaks_tls(target)):
            return TlsFailed(
                f"{what}: this port speaks TLS: use amqps:// or the port without TLS, usually 5672"
            )
    return None


def _certificate_advice(error: ssl.SSLCertVerificationError, target: URL) -> str:
    """Return what to change so that the certificate of the broker is valid."""
    if error.verify_code in WRONG_HOST:
        return f"connect to a name that the certificate contains; {target.host} is not one"
    if "cafile" in target.query or "capath" in target.query:
        return "the authorities that the URL names did not issue it; name the one that did with ?cafile=FILE"
    return "name its authority with ?cafile=FILE in the URL"


def _refused_login(user: str) -> str:
    return f"the broker refused the user or password (the user is {user!r})"


def _closed_by_broker(what: str, close: commands.Connection.Close, user: str) -> WarrenError:
    code, whole = close.reply_code or 0, close.reply_text or ""
    name, separator, text = whole.partition(" - ")
    if not separator:
        text = whole
        name = Reply(code).name if code in Reply.__members__.values() else "CLOSED"
    if code == Reply.ACCESS_REFUSED:
        return ConnectionRejected(
            f"{what}: {code} {name}: {_refused_login(user)}",
            reply_code=code,
            reply_text=text,
        )
    if code != Reply.NOT_ALLOWED:
        return TransportUnavailable(f"{what}: {code} {name}: {text}")
    advice, retryable = "", False
    if _UNKNOWN_VHOST.search(text):
        advice = "; create the virtual host, or correct the URL"
    elif _NO_PERMISSIONS.search(text):
        advice = "; grant the user permissions on the virtual host, or correct the URL"
    else:
        # A limit of connections, or a virtual host that is down: that may pass.
        retryable = True
    return ConnectionRejected(
        f"{what}: {code} {name}: {text}{advice}", reply_code=code, reply_text=text, retryable=retryable
    )


def _connection_close(frames: bytes) -> commands.Connection.Close | None:
    """Return the first connection.close among whole frames."""
    with contextlib.suppress(PAMQPException, ValueError):
        while frames:
            size, _, frame = unmarshal(frames)
            if isinstance(frame, commands.Connection.Close):
                return frame
            frames = frames[size:] if size else b""
    return None


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error among an exception and its causes."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__
    return None


def _ended(error: BaseException | None) -> bool:
    """Return whether an exception, or one of its causes, is the end of the socket."""
    while error is not None:
        if isinstance(error, asyncio.IncompleteReadError | ConnectionResetError | EOFError):
            return True
        error = error.__cause__
    return False


async def _speaks_tls(target: URL) -> bool:
    """Begin a TLS handshake on a new socket, and return whether the port answers it.

    A server that cannot read the protocol header of AMQP may close its socket without a word, as a load balancer without
    a broker does; only the former answers this. Nothing is sent over the connection.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
    except ssl.SSLError as error:
        return error.reason not in NOT_TLS and not isinstance(error, ssl.SSLEOFError)
    except OSError:
        return False
    writer.transport.abort()
    return True
