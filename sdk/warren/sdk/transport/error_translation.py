"""Translation of the errors of aiormq and of the socket into the errors of the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
from collections.abc import Iterator
from typing import Final

import aiormq
from aiormq.exceptions import AMQPError, ChannelClosed, ChannelInvalidStateError
from pamqp.exceptions import PAMQPException

from warren.sdk.errors import (
    ConfigError,
    ConnectionRejected,
    TopologyMismatch,
    TransportUnavailable,
    WarrenError,
)

__all__ = ["ChannelClosed", "error_text", "to_sdk_error", "translate_errors"]

FOREIGN = (AMQPError, ChannelInvalidStateError, PAMQPException, OSError, EOFError, ValueError)
"""Errors of aiormq and of the socket. Others are errors of the program and are not translated."""
REFUSED: Final = re.compile(rf"\b{errno.ECONNREFUSED}\b.*(?:Connect call failed|Connection refused)")
"""Text of a refused connection: that of asyncio, for each address, or that of the operating system, on uvloop."""


@contextlib.contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Raise errors of aiormq and of the socket that occur within the block as errors of the SDK.

    :param what: the failed operation, as the beginning of the error text: `cannot open a channel`.
    """
    before = _cancellations()
    try:
        yield
    except asyncio.CancelledError as error:
        if _cancellations() > before:
            raise
        # aiormq raises CancelledError in whatever waits on a closed connection, although nobody cancelled this task.
        raise TransportUnavailable(f"{what}: the connection was closed") from error
    except WarrenError:
        raise
    except FOREIGN as error:
        if _cancellations() > before:
            # aiormq replaces a cancellation by the error that occurred at the same time.
            raise asyncio.CancelledError from error
        raise to_sdk_error(what, error) from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        # aiormq raises a bare Exception in whatever waits on a connection that ended between two frames.
        raise TransportUnavailable(f"{what}: the connection was closed") from error
    if _cancellations() > before:
        # Before Python 3.12 `asyncio.wait_for`, which aiormq uses, swallows a cancellation if its result is ready.
        raise asyncio.CancelledError


def _cancellations() -> int:
    """Return how many cancellations of this task are pending.

    The number may be above 0 before an operation begins: if a cancelled task is cleaning up.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def to_sdk_error(what: str, error: BaseException) -> WarrenError:
    """Return the SDK's error for an error of aiormq or of the socket.

    :param what: the failed operation, as the beginning of the error text: `cannot open a channel`.
    """
    match error:
        case WarrenError():
            return error
        case aiormq.exceptions.ChannelPreconditionFailed():
            return TopologyMismatch(f"{what}: {error_text(error)}", reply_code=406)
        case aiormq.exceptions.ChannelNotFoundEntity():
            return TopologyMismatch(f"{what}: {error_text(error)}", reply_code=404)
        case aiormq.exceptions.ChannelLockedResource():
            return TopologyMismatch(f"{what}: {error_text(error)}", reply_code=405, retryable=True)
        case aiormq.exceptions.ChannelAccessRefused():
            text = error_text(error)
            return TopologyMismatch(f"{what}: {text}", reply_code=403, retryable="in exclusive use" in text)
        case aiormq.exceptions.ProbableAuthenticationError() | aiormq.exceptions.AuthenticationError():
            return ConnectionRejected(f"{what}: the broker refused the user or password", reply_code=403)
        case (
            aiormq.exceptions.ConnectionNotAllowed()
            | aiormq.exceptions.ConnectionCommandInvalid()
            | aiormq.exceptions.ConnectionNotImplemented()
        ):
            return TransportUnavailable(f"{what}: {error_text(error)}", retryable=False)
        case aiormq.exceptions.ConnectionClosed() if error.args and error.args[0] in (402, 403, 530):
            return TransportUnavailable(f"{what}: {error.args[-1]}", retryable=False)
        case TimeoutError():
            return TransportUnavailable(f"{what}: no answer in time")
        case OSError() if REFUSED.search(error_text(error)):
            return TransportUnavailable(
                f"{what}: connection refused; no broker listens there (`warren broker` starts one)"
            )
        case UnicodeError() | ValueError():
            return ConfigError(f"{what}: {error_text(error)}")
        case _:
            return TransportUnavailable(f"{what}: {error_text(error)}")


def error_text(error: BaseException) -> str:
    """Return the text of an error (its arguments) as one line."""
    return " ".join(str(part) for part in error.args if part is not None) or type(error).__name__
