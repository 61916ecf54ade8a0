"""What a queue's arguments mean, and RabbitMQ's words for those that mean nothing.

Source: https://www.rabbitmq.com/docs/queues#optional-arguments and RabbitMQ's checks of them (rabbit_amqqueue).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from warren.broker.model import argument_checks
from warren.broker.model.argument_checks import InvalidValue, Overflow, argument_fields, format_value
from warren.broker.model.deduplication import ARGUMENTS as DEDUPLICATION
from warren.broker.model.deduplication import DeduplicationRule, InvalidArgument, deduplication_rule
from warren.wire.field_tables import Field
from warren.wire.reply_codes import AmqpError, Reply

logger = logging.getLogger(__name__)

QUORUM_DELIVERY_LIMIT = 20
"""What a quorum queue has since RabbitMQ 4.0 when it is declared without a limit."""


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
    lazy: bool = False
    """Its messages go to the disk at once, and are read when they are consumed."""
    consumer_timeout: int = -1
    """How long a delivered message may stay unacknowledged; 0 is for ever, -1 is as the broker is configured."""
    delayed_retry: str = "disabled"
    """Which messages wait before they are ready again: all, those that failed with their channel, or the returned ones."""
    delayed_retry_min: int = -1
    delayed_retry_max: int = -1
    deduplication: DeduplicationRule | None = None
    """What makes a message a duplicate that the queue does not take."""
    stream: bool = False
    max_age_ms: int = -1
    """What a stream keeps at least; with -1 age is no reason to remove anything."""
    stream_max_segment_size_bytes: int = -1

    @property
    def type_name(self) -> str:
        """`classic`, `quorum` or `stream`."""
        return "stream" if self.stream else "quorum" if self.quorum else "classic"


QUORUM_ONLY = (
    "x-delivery-limit",
    "x-consumer-timeout",
    "x-delayed-retry-type",
    "x-delayed-retry-min",
    "x-delayed-retry-max",
)
"""Those of the common ones that RabbitMQ has for quorum queues alone."""

COMMON = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-single-active-consumer",
    "x-queue-type",
    "x-queue-leader-locator",
    *QUORUM_ONLY,
    *DEDUPLICATION,
)
CLASSIC = ("x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator")
QUORUM = (
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-quorum-initial-group-size",
    "x-consumer-disconnected-timeout",
)
STREAM = (
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
)
"""The arguments that queues have, by their type; what no type has is ignored.

Unlike RabbitMQ's, every queue may have a delivery limit, delayed retries and a consumer timeout: no message is requeued for
ever, and none is kept for ever by a consumer that hangs.
"""

OTHER_TYPES = {
    False: (*QUORUM, *STREAM, "x-dead-letter-strategy"),
    True: (*CLASSIC, *STREAM),
}
"""By whether a queue is a quorum queue: the arguments that belong to queues of another type, and are refused."""

QUEUE_EQUIVALENCE_ARGUMENTS = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
    "x-quorum-initial-group-size",
    "x-queue-leader-locator",
    "x-queue-master-locator",
    "x-consumer-disconnected-timeout",
    *QUORUM_ONLY,
    *DEDUPLICATION,
)
"""The arguments that a redeclaration has to repeat, in RabbitMQ's order: the first that differs is named."""

DEFAULT_TYPE = "classic"
"""What a queue is that is declared without a type."""


def queue_arguments(raw: bytes, described: str) -> QueueArguments:
    """The meaning of an encoded argument table.

    :param described: the queue as error texts name it, `queue 'q' in vhost '/'`.
    :raises AmqpError: 406 with RabbitMQ's text for an invalid argument, 502 for a malformed table.
    """
    fields = argument_fields(raw)
    if is_stream(fields):
        from warren.broker.model.stream.stream_arguments import stream_arguments

        return stream_arguments(fields, described)
    name = ""
    try:
        name = "x-queue-type"
        quorum = _queue_type(fields.get(name))
        # In RabbitMQ's order, which decides which of several faults is named.
        name = "x-expires"
        expires = argument_checks.duration_ms(fields.get(name))
        if expires == 0:
            raise InvalidValue("{value_zero,0}")
        name = "x-message-ttl"
        message_ttl = argument_checks.duration_ms(fields.get(name))
        name = "x-dead-letter-exchange"
        exchange = argument_checks.exchange_name(fields.get(name), name, described)
        name = "x-dead-letter-routing-key"
        routing_key = argument_checks.string(fields.get(name))
        if routing_key is not None and exchange is None:
            raise InvalidValue("routing_key_but_no_dlx_defined")
        at_least_once = False
        if quorum:
            name = "x-dead-letter-strategy"
            at_least_once = argument_checks.dead_letter_strategy(fields.get(name))
        name = "x-max-length"
        max_length = argument_checks.non_negative(fields.get(name))
        name = "x-max-length-bytes"
        max_length_bytes = argument_checks.non_negative(fields.get(name))
        max_priority, lazy = -1, False
        if quorum:
            for name in ("x-max-in-memory-length", "x-max-in-memory-bytes"):
                argument_checks.non_negative(fields.get(name))
        else:
            name = "x-max-priority"
            max_priority = argument_checks.max_priority(fields.get(name))
        name = "x-overflow"
        overflow = argument_checks.overflow(fields.get(name))
        if not quorum:
            name = "x-queue-mode"
            lazy = argument_checks.queue_mode(fields.get(name))
            name = "x-queue-version"
            argument_checks.queue_version(fields.get(name))
        name = "x-single-active-consumer"
        single_active_consumer = argument_checks.boolean(fields.get(name))
        name = "x-consumer-timeout"
        consumer_timeout = argument_checks.non_negative(fields.get(name))
        if quorum:
            name = "x-consumer-disconnected-timeout"
            argument_checks.non_negative(fields.get(name))
            name = "x-quorum-initial-group-size"
            argument_checks.positive(fields.get(name))
        name = "x-queue-leader-locator"
        argument_checks.leader_locator(fields.get(name))
        name = "x-delivery-limit"
        delivery_limit = argument_checks.delivery_limit(
            fields.get(name), QUORUM_DELIVERY_LIMIT if quorum else -1
        )
        name = "x-delayed-retry-type"
        delayed_retry = argument_checks.retry_type(fields.get(name))
        name = "x-delayed-retry-min"
        retry_min = argument_checks.positive(fields.get(name))
        name = "x-delayed-retry-max"
        retry_max = argument_checks.positive(fields.get(name))
        if 0 <= retry_max < retry_min:
            raise InvalidValue("delayed_retry_max_below_min")
        unique = deduplication_rule(fields)
    except InvalidArgument as invalid:
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid arg '{invalid.name}' for {described}: {invalid}"
        ) from None
    except InvalidValue as reason:
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid arg '{name}' for {described}: {reason}"
        ) from None
    _refuse_other_types(fields, quorum, described)
    if quorum and overflow is Overflow.REJECT_PUBLISH_DLX:
        # As RabbitMQ: accepted, and no mode of a quorum queue.
        logger.warning("event=overflow_ignored %s overflow=%s", described, overflow.value)
        overflow = Overflow.DROP_HEAD
    if retry_min < 0:
        delayed_retry = "disabled"
    return QueueArguments(
        quorum=quorum,
        message_ttl=message_ttl,
        expires=expires,
        max_length=max_length,
        max_length_bytes=max_length_bytes,
        overflow=overflow,
        dead_letter_exchange=exchange,
        dead_letter_routing_key=routing_key,
        at_least_once=at_least_once and exchange is not None and overflow is Overflow.REJECT_PUBLISH,
        delivery_limit=delivery_limit,
        max_priority=max_priority,
        single_active_consumer=single_active_consumer,
        lazy=lazy,
        consumer_timeout=consumer_timeout,
        delayed_retry=delayed_retry,
        delayed_retry_min=retry_min,
        delayed_retry_max=max(retry_min, retry_max),
        deduplication=unique,
    )


def is_stream(fields: dict[str, Field]) -> bool:
    """Whether a queue with these arguments is a stream."""
    kind = fields.get("x-queue-type")
    return kind is not None and kind.kind == "S" and kind.value == "stream"


def _refuse_other_types(fields: dict[str, Field], quorum: bool, described: str) -> None:
    for name in fields:
        if name in OTHER_TYPES[quorum]:
            raise _of_another_type(name, described, quorum)


def _of_another_type(name: str, described: str, quorum: bool) -> AmqpError:
    kind = "quorum" if quorum else "classic"
    return AmqpError(
        Reply.PRECONDITION_FAILED, f"invalid arg '{name}' for {described} of queue type rabbit_{kind}_queue"
    )


def check_equivalence(required: bytes, current: bytes, names: tuple[str, ...], described: str) -> None:
    """Arguments that a redeclaration gives must be those that the thing has.

    :raises AmqpError: 406 naming the first that differs.
    """
    given, have = argument_fields(required), argument_fields(current)
    for name in names:
        new, old = given.get(name), have.get(name)
        if not _same(name, new, old):
            if new is not None and old is not None:
                both = f"received '{format_value(new)}' but current is '{format_value(old)}'"
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
    return f"the value '{format_value(field)}' of type '{field.type_name}'"


def consumer_priority(raw: bytes, quorum: bool, described: str) -> int:
    """The `x-priority` among the arguments of basic.consume.

    :raises AmqpError: 406 if it is no integer, or for an argument that is for consumers of another type of queue.
    """
    fields = argument_fields(raw)
    field = fields.get("x-priority")
    try:
        priority = 0 if field is None else argument_checks.integer(field)
    except InvalidValue as reason:
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid arg 'x-priority' for {described}: {reason}"
        ) from None
    for name in fields:
        if name == "x-stream-offset":
            raise _of_another_type(name, described, quorum)
    return priority


def _queue_type(field: Field | None) -> bool:
    """Whether it is a quorum queue."""
    names = ("classic", "quorum")
    return argument_checks.one_of(field, names, "\"unsupported queue type '{}'\"") == "quorum"
