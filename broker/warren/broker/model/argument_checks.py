"""What the value of one argument may be, and RabbitMQ's words for what it may not."""

from __future__ import annotations

from enum import Enum

from warren.wire.field_tables import Field, TableError, decode_fields
from warren.wire.reply_codes import AmqpError, Reply

MAX_EXPIRY_MS = 315_360_000_000
"""Ten years: RabbitMQ's bound for TTLs."""

MAX_PRIORITY = 255

LEADER_LOCATORS = ("client-local", "balanced", "random", "least-leaders")
RETRIES = ("disabled", "all", "failed", "returned")


class Overflow(Enum):
    """What a full queue does with a publish."""

    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


class InvalidValue(Exception):
    """The reason, as RabbitMQ prints it."""


def argument_fields(raw: bytes) -> dict[str, Field]:
    """The fields of an encoded table.

    :raises AmqpError: 502 for a malformed one.
    """
    try:
        return decode_fields(raw)
    except TableError as error:
        raise AmqpError(Reply.SYNTAX_ERROR, str(error)) from None


def format_value(field: Field) -> str:
    """A value as error texts have it."""
    return str(field.value).lower() if isinstance(field.value, bool) else str(field.value)


def integer(field: Field) -> int:
    if not field.is_integer:
        raise InvalidValue(f'"expected integer, got {field.type_name}"')
    assert isinstance(field.value, int)
    return field.value


def non_negative(field: Field | None) -> int:
    """None or more; -1 if the argument is not there."""
    if field is None:
        return -1
    value = integer(field)
    if value < 0:
        raise InvalidValue(f"{{value_negative,{value}}}")
    return value


def positive(field: Field | None) -> int:
    """At least 1; -1 if the argument is not there."""
    value = non_negative(field)
    if value == 0:
        raise InvalidValue("{value_zero,0}")
    return value


def boolean(field: Field | None) -> bool:
    if field is None:
        return False
    if field.kind != "t":
        raise InvalidValue(f"{{unacceptable_type,{field.type_name}}}")
    return field.value is True


def string(field: Field | None) -> bytes | None:
    if field is None:
        return None
    if field.kind != "S":
        raise InvalidValue(f"{{unacceptable_type,{field.type_name}}}")
    return field.raw[5:]


def one_of(field: Field | None, names: tuple[str, ...], reason: str) -> str:
    """One of these names; the first if the argument is not there."""
    value = string(field)
    if value is None:
        return names[0]
    found = value.decode(errors="replace")
    if found not in names:
        raise InvalidValue(reason.format(found))
    return found


def exchange_name(field: Field | None, name: str, described: str) -> bytes | None:
    """The name of an exchange in an argument.

    :raises AmqpError: 406 if it is no string.
    """
    if field is not None and field.kind != "S":
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid type '{field.type_name}' for arg '{name}' in {described}"
        )
    return string(field)


def duration_ms(field: Field | None) -> int:
    """A time in milliseconds; -1 if the argument is not there."""
    value = non_negative(field)
    if value > MAX_EXPIRY_MS:
        raise InvalidValue(f"{{value_too_large,{value}}}")
    return value


def max_priority(field: Field | None) -> int:
    value = non_negative(field)
    if value > MAX_PRIORITY:
        raise InvalidValue(f"{{max_value_exceeded,{value}}}")
    return value


def delivery_limit(field: Field | None, default: int) -> int:
    """How often a message may come back; -1 is no limit."""
    if field is None:
        return default
    value = integer(field)
    if value < -1:
        raise InvalidValue(f"{{value_negative,{value}}}")
    return value


def overflow(field: Field | None) -> Overflow:
    return Overflow(one_of(field, tuple(mode.value for mode in Overflow), "invalid_overflow"))


def dead_letter_strategy(field: Field | None) -> bool:
    """Whether it is at-least-once."""
    return one_of(field, ("at-most-once", "at-least-once"), "invalid_dlx_strategy") == "at-least-once"


def queue_mode(field: Field | None) -> bool:
    """Whether it is lazy."""
    return one_of(field, ("default", "lazy"), "\"unsupported queue mode '{}'\"") == "lazy"


def queue_version(field: Field | None) -> None:
    """There is one way to store a queue: RabbitMQ 4 knows version 2 alone."""
    value = non_negative(field)
    if value not in (-1, 2):
        raise InvalidValue(f"\"unsupported queue version '{value}'\"")


def leader_locator(field: Field | None) -> None:
    """Where a queue's leader would be, were there several nodes."""
    one_of(field, LEADER_LOCATORS, "invalid_queue_locator_arg")


def retry_type(field: Field | None) -> str:
    """Which returned messages wait before they are ready again."""
    return one_of(field, RETRIES, "invalid_delayed_retry_type")
