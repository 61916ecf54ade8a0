"""Arguments of streams and of their consumers: parsing, and checks with RabbitMQ's error texts.

Source: https://www.rabbitmq.com/docs/streams and RabbitMQ's checks (rabbit_amqqueue, rabbit_stream_queue).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warren.broker.model import argument_checks
from warren.broker.model.argument_checks import InvalidValue
from warren.broker.model.queue.queue_arguments import QueueArguments
from warren.broker.model.stream.interval_format import LONGEST, parse_interval_ms
from warren.wire.field_tables import Field
from warren.wire.reply_codes import AmqpError, Reply
from warren.wire.reply_codes import erlang_binary as erlang

STREAM_EQUIVALENCE_ARGUMENTS: Final = (
    "x-max-length-bytes",
    "x-queue-type",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
    "x-queue-leader-locator",
)
"""Arguments that a redeclaration of a stream has to repeat, in the order in which RabbitMQ compares them."""

REFUSED: Final = frozenset(
    (
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-max-length",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-max-priority",
        "x-overflow",
        "x-queue-mode",
        "x-queue-version",
        "x-single-active-consumer",
        "x-delivery-limit",
        "x-quorum-initial-group-size",
        "x-queue-master-locator",
    )
)
"""Queue arguments that a stream must not have."""

LARGEST_SEGMENT: Final = 3_000_000_000
SEGMENT_SIZE: Final = "x-stream-max-segment-size-bytes"
FILTER_SIZE: Final = "x-stream-filter-size-bytes"
SMALLEST_FILTER: Final = 16
LARGEST_FILTER: Final = 255
OFFSET: Final = "x-stream-offset"
TRACKING: Final = "x-stream-automatic-offset-tracking"
IDENTITY: Final = "x-warren-show-stream-id"
"""Argument of basic.consume: true to add the header x-warren-stream-id to each delivery."""


def stream_arguments(
    fields: dict[str, Field], described: str, *, is_restored: bool = False
) -> QueueArguments:
    """Parse and check the decoded arguments of a queue.declare for a stream.

    :param fields: the arguments, by name.
    :param described: the stream as error texts name it, `queue 'q' in vhost '/'`.
    :param is_restored: True for a stream of the data folder: earlier versions did not look at
        x-stream-filter-size-bytes.
    :raises AmqpError: 406 with RabbitMQ's text for an invalid argument.
    """
    name = ""
    try:
        name = "x-max-length-bytes"
        max_bytes = argument_checks.non_negative(fields.get(name))
        name = "x-max-age"
        max_age = _max_age(fields.get(name))
        name = SEGMENT_SIZE
        segment = argument_checks.non_negative(fields.get(name))
        name = FILTER_SIZE
        filter_size = -1 if is_restored else argument_checks.non_negative(fields.get(name))
        name = "x-initial-cluster-size"
        argument_checks.positive(fields.get(name))
        name = "x-queue-leader-locator"
        argument_checks.leader_locator(fields.get(name))
    except InvalidValue as reason:
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid arg '{name}' for {described}: {reason}"
        ) from None
    for name in fields:
        if name in REFUSED:
            raise wrong_queue_type(name, described, "stream")
    return QueueArguments(
        stream=True,
        max_length_bytes=max_bytes,
        max_age_ms=max_age,
        stream_max_segment_size_bytes=segment,
        stream_filter_size_bytes=filter_size,
    )


def refuse_sizes(arguments: QueueArguments) -> None:
    """Check the bounds of x-stream-max-segment-size-bytes and x-stream-filter-size-bytes.

    RabbitMQ does so after all other checks; its texts name no queue.

    :raises AmqpError: 406 if segments would be larger than 3,000,000,000 bytes, or the size of a Bloom filter, of which
        Warren has none, is not from 16 to 255.
    """
    if arguments.stream_max_segment_size_bytes > LARGEST_SEGMENT:
        raise AmqpError(Reply.PRECONDITION_FAILED, f"Exceeded max value for {SEGMENT_SIZE}")
    size = arguments.stream_filter_size_bytes
    if size >= 0 and not SMALLEST_FILTER <= size <= LARGEST_FILTER:
        raise AmqpError(Reply.PRECONDITION_FAILED, f"Invalid value for {FILTER_SIZE}")


def wrong_queue_type(name: str, described: str, kind: str) -> AmqpError:
    """Return the error for an argument that queues of a type do not have.

    :param name: the name of the argument.
    :param described: the queue as error texts name it, `queue 'q' in vhost '/'`.
    :param kind: the type of the queue, such as `stream`.
    """
    return AmqpError(
        Reply.PRECONDITION_FAILED, f"invalid arg '{name}' for {described} of queue type rabbit_{kind}_queue"
    )


@dataclass(frozen=True)
class OffsetSpecification:
    """Position at which a stream consumer begins, from the argument x-stream-offset of its basic.consume."""

    kind: str = "next"
    """Kind of the position: `first`, `last`, `next`, `offset` or `time`."""
    value: int = 0
    """For the kind `offset` the offset, negative to count from the end; for `time` milliseconds since 1970."""
    tracked: bool = False
    """True if the server stores the consumer's position under its consumer tag, and continues there."""


def refuse_arguments_of_other_consumers(
    fields: dict[str, Field], described: str, knows_mirrored_queues: bool
) -> None:
    """Check that basic.consume of a stream has no argument that belongs to consumers of other queues.

    :param fields: the decoded arguments, by name.
    :param described: the stream as error texts name it, `queue 'q' in vhost '/'`.
    :param knows_mirrored_queues: True to refuse x-cancel-on-ha-failover, which later versions ignore.
    :raises AmqpError: 406 for such an argument.
    """
    for name in fields:
        if name == "x-priority" or (knows_mirrored_queues and name == "x-cancel-on-ha-failover"):
            raise wrong_queue_type(name, described, "stream")


def parse_offset_specification(fields: dict[str, Field], described: str, now_ms: int) -> OffsetSpecification:
    """Return the position at which a stream consumer begins, from the arguments of its basic.consume.

    :param fields: the decoded arguments, by name.
    :param described: the stream as error texts name it, `queue 'q' in vhost '/'`.
    :param now_ms: the time in milliseconds since 1970, from which an interval such as `1h` is subtracted.
    :raises AmqpError: 406 for an invalid argument.
    """
    tracked = _tracking(fields.get(TRACKING), described)
    field = fields.get(OFFSET)
    if field is None:
        return OffsetSpecification(tracked=tracked)
    if field.kind == "S":
        text = field.raw[5:]
        if text in (b"first", b"last", b"next"):
            return OffsetSpecification(text.decode(), tracked=tracked)
        interval = parse_interval_ms(text)
        if interval > 0:
            return OffsetSpecification("time", now_ms - interval, tracked)
        raise _invalid_offset(field, described, erlang(text))
    if field.kind == "T" and isinstance(field.value, int):
        return OffsetSpecification("time", min(int(field.value) * 1000, LONGEST), tracked)
    if field.is_integer and isinstance(field.value, int):
        return OffsetSpecification("offset", field.value, tracked)
    raise _invalid_offset(field, described, str(field.value).lower())


def _invalid_offset(field: Field, described: str, value: str) -> AmqpError:
    reason = f"{{invalid_stream_offset_arg,{{{field.type_name},{value}}}}}"
    return AmqpError(Reply.PRECONDITION_FAILED, f"invalid arg '{OFFSET}' for {described}: {reason}")


def _tracking(field: Field | None, described: str) -> bool:
    if field is None:
        return False
    if field.kind == "t":
        return field.value is True
    if field.kind == "S" and field.value in ("true", "false"):
        return field.value == "true"
    raise AmqpError(
        Reply.PRECONDITION_FAILED,
        f"invalid arg '{TRACKING}' for {described}: {{unacceptable_type,{field.type_name}}}",
    )


def _max_age(field: Field | None) -> int:
    text = argument_checks.string(field)
    if text is None:
        return -1
    age = parse_interval_ms(text)
    if age <= 0:
        raise InvalidValue("invalid_max_age")
    return age


__all__ = [
    "IDENTITY",
    "OFFSET",
    "STREAM_EQUIVALENCE_ARGUMENTS",
    "TRACKING",
    "OffsetSpecification",
    "parse_offset_specification",
    "refuse_arguments_of_other_consumers",
    "refuse_sizes",
    "stream_arguments",
    "wrong_queue_type",
]
