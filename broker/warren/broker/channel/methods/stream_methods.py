"""basic.consume on streams, and RabbitMQ's errors for methods that streams do not support.

https://www.rabbitmq.com/docs/streams#usage and RabbitMQ's module rabbit_stream_queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.channel.client_events import on_consumer_started
from warren.broker.channel.subscription import Subscription
from warren.broker.model.argument_checks import argument_fields
from warren.broker.model.message import Message
from warren.broker.model.stream.stream import Stream
from warren.broker.model.stream.stream_arguments import (
    IDENTITY,
    TRACKING,
    OffsetSpecification,
    parse_offset_specification,
    refuse_arguments_of_other_consumers,
)
from warren.broker.model.stream.stream_filter import EXPRESSION, parse_stream_filter
from warren.broker.operations.queues import not_supported_by_stream
from warren.wire.methods import frame
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.channel.methods.method_context import MethodContext


def consume_stream(context: MethodContext, stream: Stream, tag: bytes) -> None:
    """Process basic.consume on a stream; as in RabbitMQ, the flag `exclusive` does not keep other consumers out.

    :param tag: consumer tag, given by the client or generated.
    :raises AmqpError: 406 without a prefetch limit or for an invalid argument, 540 without acknowledgements or
        with a prefetch limit for the whole channel.
    """
    arguments, channel = context.arguments, context.channel
    described = context.declarations.describe("queue", stream.name)
    fields = argument_fields(arguments.data("arguments"))
    refuse_arguments_of_other_consumers(fields, described, stream.vhost.compat.knows_mirrored_queues)
    start = parse_offset_specification(fields, described, stream.now_ms())
    chosen = parse_stream_filter(fields, described)
    if EXPRESSION in fields:
        stream.vhost.portability.check("filter_expression", EXPRESSION, described)
    if start.tracked and not arguments.data("consumer_tag"):
        raise AmqpError(
            Reply.PRECONDITION_FAILED,
            f"invalid arg '{TRACKING}' for {described}: the offset is stored under the consumer tag, which has to be given",
        )
    if not channel.next_prefetch:
        named = f"stream {described}" if stream.vhost.compat.names_streams_once else f"'{described}'"
        raise AmqpError(Reply.PRECONDITION_FAILED, f"consumer prefetch count is not set for {named}")
    if arguments.flag("no_ack"):
        described = (
            f"stream {described}" if stream.vhost.compat.names_streams_once else f"stream queues {described}"
        )
        raise AmqpError(Reply.NOT_IMPLEMENTED, f"automatic acknowledgement not supported by {described}")
    if channel.prefetch:
        raise AmqpError(Reply.NOT_IMPLEMENTED, f"{described} does not support global qos")
    subscription = Subscription(
        channel, stream, tag, False, arguments.flag("exclusive"), channel.next_prefetch
    )
    subscription.raw_arguments = arguments.data("arguments")
    channel.subscriptions[tag] = subscription
    if not arguments.flag("nowait"):
        context.connection.send(frame(int(channel.number), "basic.consume-ok", tag))
    offset, since = _start_position(stream, start, tag)
    identity = fields.get(IDENTITY)
    stream.attach_reader(
        subscription,
        tag if start.tracked else b"",
        offset,
        since,
        chosen,
        identity is not None and identity.value is True,
    )
    on_consumer_started(subscription)
    stream.subscribe(subscription)
    stream.drain()


def _start_position(stream: Stream, start: OffsetSpecification, tag: bytes) -> tuple[int, int]:
    """Return (offset of the first message, Unix time in milliseconds) from which a stream consumer reads.

    The time is -1 unless the consumer asked to start at a time; then the offset is the first of the stream.

    :param start: the consumer's argument x-stream-offset, parsed.
    :param tag: consumer tag. If `start.tracked`, and an offset is stored under this tag, the consumer starts there.
    """
    messages = stream.messages
    stored = messages.offsets.get(tag) if start.tracked else None
    if stored is not None:
        return stored, -1
    if start.kind == "time":
        return int(messages.first), max(start.value, 0)
    if start.kind == "offset":
        return start.value if start.value >= 0 else max(int(messages.next_offset) + start.value, 0), -1
    offsets = {"first": messages.first, "last": messages.last_chunk, "next": messages.next_offset}
    return int(offsets[start.kind]), -1


def refuse_return(channel: Channel, messages: list[Message]) -> None:
    """Raise an error if messages of a stream are to be requeued or rejected, as before RabbitMQ 4.3.

    Messages stay in a stream anyway.

    :param messages: messages to requeue or reject, which the caller has removed from `channel.unacked`.
    :raises AmqpError: 540 if one of them belongs to a stream. Then all of them are put back into `channel.unacked`.
    """
    if channel.vhost.compat.streams_take_returns:
        return
    for message in messages:
        consumer = message.consumer
        if consumer is not None and consumer.queue.is_stream:
            for other in messages:
                channel.unacked[int(other.tag)] = other
                channel.lowest_tag = min(channel.lowest_tag, other.tag)
            raise not_supported_by_stream("basic.nack and basic.reject", consumer.queue)
