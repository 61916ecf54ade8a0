"""Checks of single values in the argument tables of declarations and basic.consume, with RabbitMQ's error texts.

Each check takes the decoded field (type and value) of one argument, or None if the argument is missing, and raises
`InvalidValue` for a wrong one.
"""

from __future__ import annotations

from enum import Enum

from warren.wire.field_tables import Field, TableError, decode_fields, sort_fields
from warren.wire.methods import LONGEST_SHORT_STRING
from warren.wire.reply_codes import AmqpError, Reply

MAX_EXPIRY_MS = 315_360_000_000
"""Longest TTL in milliseconds: ten years, as in RabbitMQ."""

MAX_PRIORITY = 255

LEADER_LOCATORS = ("client-local", "balanced", "random", "least-leaders")
RETRIES = ("disabled", "all", "failed", "returned")


class Overflow(Enum):
    """Values of x-overflow: the reaction of a full queue to a publish."""

    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


class InvalidValue(Exception):
    """Invalid value of an argument. The text is the reason in RabbitMQ's words."""


def argument_fields(raw: bytes) -> dict[str, Field]:
    """Decode the encoded argument table of a method, such as queue.declare, to fields by name.

    :raises AmqpError: 502 for a malformed table.
    """
    try:
        return decode_fields(raw)
    except TableError as error:
        raise AmqpError(Reply.SYNTAX_ERROR, str(error)) from None


def sorted_arguments(raw: bytes) -> bytes:
    """Return the encoded argument table of a binding with its fields in the order of their names.

    :raises AmqpError: 502 for a malformed table.
    """
    try:
        return sort_fields(raw)
    except TableError as error:
        raise AmqpError(Reply.SYNTAX_ERROR, str(error)) from None


def format_value(field: Field) -> str:
    """Format an argument's value as RabbitMQ's error texts show it."""
    return str(field.value).lower() if isinstance(field.value, bool) else str(field.value)


def integer(field: Field) -> int:
    """Return the value of an integer argument of any width; raise `InvalidValue` for another type."""
    if not field.is_integer:
        raise InvalidValue(f'"expected integer, got {field.type_name}"')
    assert isinstance(field.value, int)
    return field.value


def non_negative(field: Field | None) -> int:
    """Return the value of an argument that has to be an integer of at least 0; -1 if the argument is missing."""
    if field is None:
        return -1
    value = integer(field)
    if value < 0:
        raise InvalidValue(f"{{value_negative,{value}}}")
    return value


def positive(field: Field | None) -> int:
    """Return the value of an argument that has to be an integer of at least 1; -1 if the argument is missing."""
    value = non_negative(field)
    if value == 0:
        raise InvalidValue("{value_zero,0}")
    return value


def boolean(field: Field | None) -> bool:
    """Return the value of a boolean argument; False if the argument is missing."""
    if field is None:
        return False
    if field.kind != "t":
        raise InvalidValue(f"{{unacceptable_type,{field.type_name}}}")
    return field.value is True


def string(field: Field | None) -> bytes | None:
    """Return the bytes of a string argument; None if the argument is missing."""
    if field is None:
        return None
    if field.kind != "S":
        raise InvalidValue(f"{{unacceptable_type,{field.type_name}}}")
    return field.raw[5:]


def short_string(field: Field | None) -> bytes | None:
    """Return the bytes of an argument that names an exchange or is a routing key; None if the argument is missing.

    AMQP transfers names and routing keys as short strings. RabbitMQ takes a longer argument, and later closes the
    connections of the clients that it should deliver a dead letter with this routing key to.
    """
    value = string(field)
    if value is not None and len(value) > LONGEST_SHORT_STRING:
        raise InvalidValue(f'"expected at most {LONGEST_SHORT_STRING} bytes, got {len(value)}"')
    return value


def one_of(field: Field | None, names: tuple[str, ...], reason: str) -> str:
    """Return the value of an argument that has to be one of `names`; the first of them if the argument is missing.

    :param reason: the error text for any other value. A `{}` in it is replaced by that value.
    """
    value = string(field)
    if value is None:
        return names[0]
    found = value.decode(errors="replace")
    if found not in names:
        raise InvalidValue(reason.format(found))
    return found


def exchange_name(field: Field | None, name: str, described: str) -> bytes | None:
    """Return the exchange that an argument such as x-dead-letter-exchange names; None if the argument is missing.

    :param name: the name of the argument, for the error text.
    :param described: the queue as error texts name it, `queue 'q' in vhost '/'`.
    :raises AmqpError: 406 if the value is no string.
    :raises InvalidValue: if it is longer than a name may be.
    """
    if field is not None and field.kind != "S":
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid type '{field.type_name}' for arg '{name}' in {described}"
        )
    return short_string(field)


def duration_ms(field: Field | None) -> int:
    """Return the milliseconds of an argument such as x-message-ttl, at most ten years; -1 if it is missing."""
    value = non_negative(field)
    if value > MAX_EXPIRY_MS:
        raise InvalidValue(f"{{value_too_large,{value}}}")
    return value


def expiry_ms(field: Field | None) -> int:
    """Return the milliseconds of x-expires, from 1 to ten years; -1 if the argument is missing."""
    value = duration_ms(field)
    if value == 0:
        raise InvalidValue("{value_zero,0}")
    return value


def max_priority(field: Field | None) -> int:
    """Return x-max-priority, the highest priority of a queue, from 0 to 255; -1 if the argument is missing."""
    value = non_negative(field)
    if value > MAX_PRIORITY:
        raise InvalidValue(f"{{max_value_exceeded,{value}}}")
    return value


def delivery_limit(field: Field | None, default: int) -> int:
    """Return x-delivery-limit, the number of times that a message may be requeued; -1 is no limit.

    :param default: the limit if the argument is missing.
    """
    if field is None:
        return default
    value = integer(field)
    if value < -1:
        raise InvalidValue(f"{{value_negative,{value}}}")
    return value


def overflow(field: Field | None) -> Overflow:
    """Return x-overflow; `drop-head` if the argument is missing."""
    return Overflow(one_of(field, tuple(mode.value for mode in Overflow), "invalid_overflow"))


def dead_letter_strategy(field: Field | None) -> bool:
    """Return True if x-dead-letter-strategy is `at-least-once`; the default is `at-most-once`."""
    return one_of(field, ("at-most-once", "at-least-once"), "invalid_dlx_strategy") == "at-least-once"


def queue_mode(field: Field | None) -> bool:
    """Return True if x-queue-mode is `lazy`; the default is `default`."""
    return one_of(field, ("default", "lazy"), "\"unsupported queue mode '{}'\"") == "lazy"


def queue_version(field: Field | None) -> None:
    """Check x-queue-version: only 2 is valid, as in RabbitMQ 4. The argument has no effect."""
    value = non_negative(field)
    if value not in (-1, 2):
        raise InvalidValue(f"\"unsupported queue version '{value}'\"")


def leader_locator(field: Field | None) -> None:
    """Check that x-queue-leader-locator has a value that RabbitMQ allows. It has no effect on a single node."""
    one_of(field, LEADER_LOCATORS, "invalid_queue_locator_arg")


def retry_type(field: Field | None) -> str:
    """Return x-delayed-retry-type: the kind of requeued messages that wait for a delay before they are delivered again.

    It is `disabled` (none, the default), `all`, `failed` (those whose channel ended) or `returned` (those that a client
    requeued).
    """
    return one_of(field, RETRIES, "invalid_delayed_retry_type")
