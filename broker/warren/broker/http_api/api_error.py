"""Errors of the HTTP API: the status of a response, and its body, a JSON object with `error` and `reason`."""

from __future__ import annotations

from typing import Final

from warren.broker.management.request import Json
from warren.broker.model.operator_errors import ObjectNotFound, OperationRefused
from warren.wire.reply_codes import AmqpError, Reply

VALIDATION: Final = "Validation failed: "
"""Beginning of the texts of refused policies, parameters and limits."""


class ApiError(Exception):
    """Refusal of a request.

    :param status: HTTP status, such as 400.
    :param error: RabbitMQ's name of the error, such as `bad_request`.
    :param reason: what is wrong: one line of text, or the list that RabbitMQ sends instead.
    """

    def __init__(self, status: int, error: str, reason: Json) -> None:
        super().__init__(f"{error}: {reason}")
        self.status = status
        self.error = error
        self.reason = reason


def bad_request(reason: Json) -> ApiError:
    """Return the error for a request that cannot be carried out as it is."""
    return ApiError(400, "bad_request", reason)


def object_not_found() -> ApiError:
    """Return the error for a path that names no object."""
    return ApiError(404, "Object Not Found", "Not Found")


def not_found(reason: str) -> ApiError:
    """Return the error for a request that needs an object which does not exist."""
    return ApiError(404, "not_found", reason)


def not_authorised(reason: str) -> ApiError:
    """Return the error for a user who may not do this.

    RabbitMQ spells the name of this error in two ways: `not_authorised` for a user without the rights, and
    `not_authorized` for a failed login.
    """
    return ApiError(401, "not_authorised", reason)


def from_amqp(error: AmqpError) -> ApiError:
    """Return the response to an operation that fails with an AMQP error: RabbitMQ carries it out over AMQP."""
    if error.code == Reply.NOT_FOUND:
        return not_found(error.explanation)
    if error.code == Reply.ACCESS_REFUSED:
        return not_authorised("Access refused.")
    if error.code == Reply.INTERNAL_ERROR:
        return ApiError(500, "internal_server_error", error.explanation)
    if error.code == Reply.NOT_IMPLEMENTED:
        # RabbitMQ prefixes the code of errors that end a connection.
        return bad_request(f"{int(error.code)} {error.explanation}")
    return bad_request(error.explanation)


def from_refusal(refused: OperationRefused) -> ApiError:
    """Return the response to a management operation that was refused."""
    if isinstance(refused, ObjectNotFound):
        return object_not_found()
    text = str(refused)
    if text.startswith(VALIDATION):
        # RabbitMQ's layout of these texts over HTTP.
        text = f"Validation failed\n\n{text.removeprefix(VALIDATION)}\n"
    return bad_request(text)
