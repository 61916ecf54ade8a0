"""What a queue's arguments mean, and RabbitMQ's words for those that mean nothing.

Source: https://www.rabbitmq.com/docs/queues#optional-arguments and RabbitMQ's checks of them (rabbit_amqqueue).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from warren.wire.replies import AmqpError, Reply
from warren.wire.tables import Field, TableError, decode_fields

MAX_EXPIRY_MS = 315_360_000_000
"""Ten years: RabbitMQ's bound for TTLs."""

MAX_PRIORITY = 255

QUORUM_DELIVERY_LIMIT = 20
"""What a quorum queue has since RabbitMQ 4.0 when it is declared without a limit."""


class Overflow(Enum):
    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"


@dataclass(frozen=True)
class QueueArguments:
    """A queue's optional arguments, checked; times in milliseconds, -1 where there is no limit."""

    quorum: bool = False
    message_ttl: int = -1
    expires: int = -1
    max_length: int = -1
    max_length_bytes: int = -1
    overflow: Overflow = Overflow.DROP_HEAD
    dead_letter_exchange: bytes | None = None
    dead_letter_routing_key: bytes | None = None
    at_least_once: bool = False
    """Dead-lettering keeps a message aside until its target has taken it. As in RabbitMQ, only with reject-publish."""
    delivery_limit: int = -1
    max_priority: int = -1
    single_active_consumer: bool = False


KNOWN = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-delivery-limit",
    "x-max-priority",
    "x-single-active-consumer",
    "x-queue-type",
)
"""The arguments that a redeclaration has to repeat, in the order in which RabbitMQ compares them."""

DEFAULT_TYPE = "classic"
"""What a queue is that is declared without a type."""

OTHER_TYPES = {
    False: (
        "x-dead-letter-strategy",
        "x-quorum-initial-group-size",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
    ),
    True: (
        "x-max-priority",
        "x-queue-mode",
        "x-queue-version",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
    ),
}
"""By whether a queue is a quorum queue: the arguments that belong to queues of another type, and are refused.

Unlike RabbitMQ's, every queue may have a delivery limit: no message is requeued for ever.
"""


class Invalid(Exception):
    """The reason, as RabbitMQ prints it."""


def queue_arguments(raw: bytes, described: str) -> QueueArguments:
    """The meaning of an encoded argument table.

    :param described: the queue as error texts name it, `queue 'q' in vhost '/'`.
    :raises AmqpError: 406 with RabbitMQ's text for an invalid argument, 502 for a malformed table.
    """
    fields = argument_fields(raw)
    name = ""
    try:
        name = "x-queue-type"
        quorum = _queue_type(fields.get(name))
        _refuse_other_types(fields, quorum, described)
        # In RabbitMQ's order, which decides which of several faults is named.
        name = "x-expires"
        expires = _expiry(fields.get(name))
        if expires == 0:
            raise Invalid("{value_zero,0}")
        name = "x-message-ttl"
        message_ttl = _expiry(fields.get(name))
        name = "x-dead-letter-exchange"
        exchange = _exchange(fields.get(name), name, described)
        name = "x-dead-letter-routing-key"
        routing_key = _string(fields.get(name))
        if routing_key is not None and exchange is None:
            raise Invalid("routing_key_but_no_dlx_defined")
        name = "x-dead-letter-strategy"
        strategy = _strategy(fields.get(name))
        name = "x-max-length"
        max_length = _count(fields.get(name))
        name = "x-max-length-bytes"
        max_length_bytes = _count(fields.get(name))
        name = "x-max-priority"
        max_priority = _priority(fields.get(name))
        name = "x-overflow"
        overflow = _overflow(fields.get(name))
        name = "x-single-active-consumer"
        single_active_consumer = _flag(fields.get(name))
        name = "x-delivery-limit"
        delivery_limit = _limit(fields.get(name), QUORUM_DELIVERY_LIMIT if quorum else -1)
    except Invalid as reason:
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid arg '{name}' for {described}: {reason}"
        ) from None
    return QueueArguments(
        quorum=quorum,
        message_ttl=message_ttl,
        expires=expires,
        max_length=max_length,
        max_length_bytes=max_length_bytes,
        overflow=overflow,
        dead_letter_exchange=exchange,
        dead_letter_routing_key=routing_key,
        at_least_once=strategy and exchange is not None and overflow is Overflow.REJECT_PUBLISH,
        delivery_limit=delivery_limit,
        max_priority=max_priority,
        single_active_consumer=single_active_consumer,
    )


def _refuse_other_types(fields: dict[str, Field], quorum: bool, described: str) -> None:
    for name in OTHER_TYPES[quorum]:
        if name in fields:
            kind = "quorum" if quorum else "classic"
            raise AmqpError(
                Reply.PRECONDITION_FAILED,
                f"invalid arg '{name}' for {described} of queue type rabbit_{kind}_queue",
            )


def argument_fields(raw: bytes) -> dict[str, Field]:
    try:
        return decode_fields(raw)
    except TableError as error:
        raise AmqpError(Reply.SYNTAX_ERROR, str(error)) from None


def assert_equivalent(required: bytes, current: bytes, names: tuple[str, ...], described: str) -> None:
    """Arguments that a redeclaration gives must be those that the thing has.

    :raises AmqpError: 406 naming the first that differs.
    """
    given, have = argument_fields(required), argument_fields(current)
    for name in names:
        new, old = given.get(name), have.get(name)
        if not _same(name, new, old):
            if new is not None and old is not None:
                both = f"received '{shown(new)}' but current is '{shown(old)}'"
            else:
                both = f"received {_told(new)} but current is {_told(old)}"
            raise AmqpError(Reply.PRECONDITION_FAILED, f"inequivalent arg '{name}' for {described}: {both}")


def _same(name: str, new: Field | None, old: Field | None) -> bool:
    if new is None or old is None:
        given = new or old
        return given is None or (name == "x-queue-type" and given.value == DEFAULT_TYPE)
    if new.is_integer and old.is_integer:
        return new.value == old.value
    return new.kind == old.kind and new.value == old.value


def _told(field: Field | None) -> str:
    if field is None:
        return "none"
    return f"the value '{shown(field)}' of type '{field.type_name}'"


def shown(field: Field) -> str:
    return str(field.value).lower() if isinstance(field.value, bool) else str(field.value)


def _integer(field: Field) -> int:
    if not field.is_integer:
        raise Invalid(f'"expected integer, got {field.type_name}"')
    assert isinstance(field.value, int)
    return field.value


def _count(field: Field | None) -> int:
    if field is None:
        return -1
    value = _integer(field)
    if value < 0:
        raise Invalid(f"{{value_negative,{value}}}")
    return value


def _flag(field: Field | None) -> bool:
    if field is None:
        return False
    if field.kind != "t":
        raise Invalid(f"{{unacceptable_type,{field.type_name}}}")
    return field.value is True


def consumer_priority(raw: bytes, described: str) -> int:
    """The `x-priority` among the arguments of basic.consume.

    :raises AmqpError: 406 if it is no integer.
    """
    field = argument_fields(raw).get("x-priority")
    try:
        return 0 if field is None else _integer(field)
    except Invalid as reason:
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid arg 'x-priority' for {described}: {reason}"
        ) from None


def _priority(field: Field | None) -> int:
    value = _count(field)
    if value > MAX_PRIORITY:
        raise Invalid(f"{{max_value_exceeded,{value}}}")
    return value


def _limit(field: Field | None, default: int) -> int:
    if field is None:
        return default
    value = _integer(field)
    if value < -1:
        raise Invalid(f"{{value_negative,{value}}}")
    return value


def _expiry(field: Field | None) -> int:
    value = _count(field)
    if value > MAX_EXPIRY_MS:
        raise Invalid(f"{{value_too_large,{value}}}")
    return value


def _string(field: Field | None) -> bytes | None:
    if field is None:
        return None
    if field.kind != "S":
        raise Invalid(f"{{unacceptable_type,{field.type_name}}}")
    return field.raw[5:]


def _exchange(field: Field | None, name: str, described: str) -> bytes | None:
    if field is not None and field.kind != "S":
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid type '{field.type_name}' for arg '{name}' in {described}"
        )
    return _string(field)


def _overflow(field: Field | None) -> Overflow:
    value = _string(field)
    if value is None:
        return Overflow.DROP_HEAD
    try:
        return Overflow(value.decode())
    except ValueError:
        raise Invalid("invalid_overflow") from None


def _strategy(field: Field | None) -> bool:
    value = _string(field)
    if value not in (None, b"at-most-once", b"at-least-once"):
        raise Invalid("invalid_dlx_strategy")
    return value == b"at-least-once"


def _queue_type(field: Field | None) -> bool:
    value = _string(field)
    if value not in (None, b"classic", b"quorum"):
        assert value is not None
        raise Invalid(f"\"unsupported queue type '{value.decode(errors='replace')}'\"")
    return value == b"quorum"
