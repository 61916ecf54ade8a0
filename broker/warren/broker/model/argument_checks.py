"""Checks of single argument values, with RabbitMQ's texts for invalid ones.

Each check takes a field, or None for an argument that is missing, and raises `InvalidValue`.
"""

from __future__ import annotations

from enum import Enum

from warren.wire.field_tables import Field, TableError, decode_fields
from warren.wire.reply_codes import AmqpError, Reply

MAX_EXPIRY_MS = 315_360_000_000
"""Longest TTL in milliseconds: ten years, as in RabbitMQ."""

MAX_PRIORITY = 255

LEADER_LOCATORS = ("client-local", "balanced", "random", "least-leaders")
RETRIES = ("disabled", "all", "failed", "returned")


class Overflow(Enum):
    """Overflow mode: the reaction of a full queue to a publish."""

    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


class InvalidValue(Exception):
    """The value of an argument is invalid. The text is RabbitMQ's."""


def argument_fields(raw: bytes) -> dict[str, Field]:
    """Decode an argument table.

    :raises AmqpError: 502 for a malformed one.
    """
    try:
        return decode_fields(raw)
    except TableError as error:
        raise AmqpError(Reply.SYNTAX_ERROR, str(error)) from None


def format_value(field: Field) -> str:
    """Format a value for an error text."""
    return str(field.value).lower() if isinstance(field.value, bool) else str(field.value)


def integer(field: Field) -> int:
    """Return an integer of any width."""
    if not field.is_integer:
        raise InvalidValue(f'"expected integer, got {field.type_name}"')
    assert isinstance(field.value, int)
    return field.value


def non_negative(field: Field | None) -> int:
    """Return an integer of at least 0; -1 if the argument is missing."""
    if field is None:
        return -1
    value = integer(field)
    if value < 0:
        raise InvalidValue(f"{{value_negative,{value}}}")
    return value


def positive(field: Field | None) -> int:
    """Return an integer of at least 1; -1 if the argument is missing."""
    value = non_negative(field)
    if value == 0:
        raise InvalidValue("{value_zero,0}")
    return value


def boolean(field: Field | None) -> bool:
    """Return a boolean; False if the argument is missing."""
    if field is None:
        return False
    if field.kind != "t":
        raise InvalidValue(f"{{unacceptable_type,{field.type_name}}}")
    return field.value is True


def string(field: Field | None) -> bytes | None:
    """Return the bytes of a string; None if the argument is missing."""
    if field is None:
        return None
    if field.kind != "S":
        raise InvalidValue(f"{{unacceptable_type,{field.type_name}}}")
    return field.raw[5:]


def one_of(field: Field | None, names: tuple[str, ...], reason: str) -> str:
    """Return one of these names; the first one if the argument is missing.

    :param reason: the error text, with `{}` for the value.
    """
    value = string(field)
    if value is None:
        return names[0]
    found = value.decode(errors="replace")
    if found not in names:
        raise InvalidValue(reason.format(found))
    return found


def exchange_name(field: Field | None, name: str, described: str) -> bytes | None:
    """Return the name of an exchange; None if the argument is missing.

    :raises AmqpError: 406 if the value is no string.
    """
    if field is not None and field.kind != "S":
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid type '{field.type_name}' for arg '{name}' in {described}"
        )
    return string(field)


def duration_ms(field: Field | None) -> int:
    """Return a duration in milliseconds, at most ten years; -1 if the argument is missing."""
    value = non_negative(field)
    if value > MAX_EXPIRY_MS:
        raise InvalidValue(f"{{value_too_large,{value}}}")
    return value


def max_priority(field: Field | None) -> int:
    """Return the highest priority of a queue, from 0 to 255; -1 if the argument is missing."""
    value = non_negative(field)
    if value > MAX_PRIORITY:
        raise InvalidValue(f"{{max_value_exceeded,{value}}}")
    return value


def delivery_limit(field: Field | None, default: int) -> int:
    """Return the number of requeues that a message may have; -1 is no limit."""
    if field is None:
        return default
    value = integer(field)
    if value < -1:
        raise InvalidValue(f"{{value_negative,{value}}}")
    return value


def overflow(field: Field | None) -> Overflow:
    """Return the overflow mode; `drop-head` if the argument is missing."""
    return Overflow(one_of(field, tuple(mode.value for mode in Overflow), "invalid_overflow"))


def dead_letter_strategy(field: Field | None) -> bool:
    """Return True for the strategy at-least-once."""
    return one_of(field, ("at-most-once", "at-least-once"), "invalid_dlx_strategy") == "at-least-once"


def queue_mode(field: Field | None) -> bool:
    """Return True for the mode lazy."""
    return one_of(field, ("default", "lazy"), "\"unsupported queue mode '{}'\"") == "lazy"


def queue_version(field: Field | None) -> None:
    """Check x-queue-version, which has no effect. RabbitMQ 4 supports version 2 only."""
    value = non_negative(field)
    if value not in (-1, 2):
        raise InvalidValue(f"\"unsupported queue version '{value}'\"")


def leader_locator(field: Field | None) -> None:
    """Check the leader locator, which has no effect on a single node."""
    one_of(field, LEADER_LOCATORS, "invalid_queue_locator_arg")


def retry_type(field: Field | None) -> str:
    """Return the requeued messages that are delayed: `disabled`, `all`, `failed` or `returned`."""
    return one_of(field, RETRIES, "invalid_delayed_retry_type")
