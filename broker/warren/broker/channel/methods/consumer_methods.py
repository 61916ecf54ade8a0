"""Methods of class basic for consumers: qos, consume, cancel, get, reject, nack, recover.

Reference: https://www.rabbitmq.com/amqp-0-9-1-reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.channel import direct_reply_to
from warren.broker.channel.ack_timeouts import effective_ack_timeout
from warren.broker.channel.client_events import on_consumer_started
from warren.broker.channel.methods.method_context import MethodContext
from warren.broker.channel.methods.stream_methods import consume_stream
from warren.broker.channel.subscription import Subscription
from warren.broker.channel.transaction import REQUEUED
from warren.broker.model.argument_checks import argument_fields
from warren.broker.model.delivery_headers import EXPIRY_ARGUMENT, delivered_content
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue
from warren.broker.model.queue.queue_arguments import consumer_priority
from warren.broker.model.server_names import generate_name
from warren.broker.model.stream.stream import Stream
from warren.broker.model.vhost.vhost import PSEUDO_QUEUE
from warren.broker.operations.messages import get_message, queue_to_consume_from, queue_to_get_from
from warren.wire.content import content_frames
from warren.wire.methods import NACK, RECOVER, REJECT, frame
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel


def basic_qos(context: MethodContext) -> None:
    """Set the prefetch limit of the channel's future consumers, or with `global` of the whole channel.

    :raises AmqpError: 540 for a limit in bytes, as in RabbitMQ.
    """
    arguments, channel = context.arguments, context.channel
    size = arguments.number("prefetch_size")
    if size:
        raise AmqpError(Reply.NOT_IMPLEMENTED, f"prefetch_size!=0 ({size})")
    count = arguments.number("prefetch_count")
    if arguments.flag("global") and not context.declarations.vhost.portability.check("global_qos"):
        context.reply("basic.qos-ok")
        channel.set_prefetch(count)
    else:
        channel.next_prefetch = count
        context.reply("basic.qos-ok")


def basic_consume(context: MethodContext) -> None:
    """Process basic.consume: add a consumer to a queue, a stream, or the pseudo-queue of direct reply-to.

    :raises AmqpError: 530 if the consumer tag is in use, 404 without the queue, 403 without the permission or if
        another consumer is exclusive, 406 for an invalid argument.
    """
    arguments, channel, connection = context.arguments, context.channel, context.connection
    tag = arguments.data("consumer_tag") or generate_name(b"amq.ctag")
    if tag in channel.subscriptions:
        raise AmqpError(Reply.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag.decode(errors='replace')}'")
    if arguments.data("queue") == PSEUDO_QUEUE:
        direct_reply_to.consume(context, tag)
        return
    direct_reply_to.refuse_consumer(context, context.queue_name())
    exclusive = arguments.flag("exclusive")
    queue = queue_to_consume_from(context.principal, context.queue_name(), exclusive=exclusive)
    if isinstance(queue, Stream):
        consume_stream(context, queue, tag)
        return
    subscription = Subscription(
        channel, queue, tag, arguments.flag("no_ack"), exclusive, channel.next_prefetch
    )
    subscription.priority = consumer_priority(
        arguments.data("arguments"),
        queue.arguments.quorum,
        context.declarations.describe("queue", queue.name),
    )
    subscription.raw_arguments = arguments.data("arguments")
    subscription.shows_expiry = _shows_expiry(subscription.raw_arguments)
    subscription.timeout = ack_timeout(context, queue, subscription.raw_arguments)
    if subscription.timeout and not subscription.no_ack:
        subscription.deadlines = channel.deadlines_for(subscription.timeout)
    channel.subscriptions[tag] = subscription
    if not arguments.flag("nowait"):
        connection.send(frame(int(channel.number), "basic.consume-ok", tag))
    on_consumer_started(subscription)
    queue.subscribe(subscription)
    queue.drain()


def _shows_expiry(raw: bytes) -> bool:
    field = argument_fields(raw).get(EXPIRY_ARGUMENT) if raw else None
    return field is not None and field.value is True


def basic_cancel(context: MethodContext) -> None:
    """Cancel a consumer and reply; an unknown tag is no error.

    Messages that were delivered to it stay unacknowledged.
    """
    tag = context.arguments.data("consumer_tag")
    subscription = context.channel.subscriptions.pop(tag, None)
    context.reply("basic.cancel-ok", tag)
    if subscription is not None:
        end_subscription(context.channel, subscription)


def end_subscription(channel: Channel, subscription: Subscription) -> None:
    """End a consumer that has left its channel's `subscriptions`; its queue delivers to others."""
    channel.count_ended(subscription)
    subscription.queue.unsubscribe(subscription)
    subscription.queue.drain()
    if subscription.queue is channel.replies:
        channel.stop_replies()


def basic_get(context: MethodContext) -> None:
    """Process basic.get: reply with the next message of a queue, or with basic.get-empty."""
    direct_reply_to.refuse_get(context, context.queue_name())
    context.run(
        queue_to_get_from(context.principal, context.queue_name()), lambda queue: get_one(context, queue)
    )


def get_one(context: MethodContext, queue: Queue) -> None:
    """Reply to basic.get with the next message of a queue, or with basic.get-empty."""
    channel = context.channel
    tag, no_ack = int(channel.last_tag) + 1, context.arguments.flag("no_ack")
    got = get_message(
        context.principal,
        queue,
        lambda message: _encode_get_ok(context, queue, message, tag),
        channel.counts,
        no_ack=no_ack,
    )
    if got is None:
        context.reply("basic.get-empty", b"")
        return
    channel.last_tag = tag
    context.connection.send(got.encoded)
    if no_ack:
        return
    if got.identity:
        channel.captured_ids[tag] = got.identity
    message = got.message
    message.tag = tag
    message.consumer = queue.basic_get_consumer
    channel.unacked[tag] = message
    timeout = queue.basic_get_consumer.timeout = ack_timeout(context, queue, b"")
    if timeout:
        channel.deadlines_for(timeout).on_delivery(tag)


def _encode_get_ok(context: MethodContext, queue: Queue, message: Message, tag: int) -> bytes:
    """Encode basic.get-ok and a message's content as frames.

    :raises ValueError: or struct.error, if the message cannot be encoded.
    """
    channel, connection = context.channel, context.connection
    content = delivered_content(queue, message)
    return frame(
        int(channel.number),
        "basic.get-ok",
        tag,
        bool(message.redelivered),
        message.exchange,
        message.routing_key,
        int(queue.ready.count),
    ) + content_frames(content, channel.number, connection.frame_max)


def ack_timeout(context: MethodContext, queue: Queue, consumer: bytes) -> int:
    """Return the acknowledgement timeout of a consumer in milliseconds; 0 is none.

    :param consumer: the consumer's arguments, an encoded table.
    """
    default = context.connection.node.settings.consumer_timeout
    described = context.declarations.describe("queue", queue.name)
    return effective_ack_timeout(queue.arguments, consumer, default, described)


def basic_reject(context: MethodContext) -> None:
    """Process basic.reject: requeue one message, or without the flag `requeue` dead-letter or drop it."""
    arguments = context.arguments
    context.channel.reject(arguments.number("delivery_tag"), False, arguments.flag("requeue"), REJECT)


def basic_nack(context: MethodContext) -> None:
    """Process basic.nack: requeue one message, or without the flag `requeue` dead-letter or drop it.

    With `multiple`, this applies to all messages up to the delivery tag.
    """
    arguments = context.arguments
    context.channel.reject(
        arguments.number("delivery_tag"), arguments.flag("multiple"), arguments.flag("requeue"), NACK
    )


def basic_recover(context: MethodContext) -> None:
    """Requeue all unacknowledged messages of the channel, and reply."""
    recover(context)
    context.connection.after_bulk_work(lambda: context.reply("basic.recover-ok"))


def recover(context: MethodContext) -> None:
    """Requeue all unacknowledged messages of the channel.

    In a transaction, this takes effect at once, because it is no acknowledgement.
    """
    if not context.arguments.flag("requeue"):
        raise AmqpError(Reply.NOT_IMPLEMENTED, "requeue=false")
    context.channel.settle_in_bulk(0, RECOVER, REQUEUED)


def basic_cancel_ok(context: MethodContext) -> None:
    """Process the client's answer to the broker's basic.cancel: end the consumer if it was only suspended until now."""
    channel = context.channel
    tag = context.arguments.data("consumer_tag")
    subscription = channel.subscriptions.get(tag)
    # A consumer of the same tag may be newer than the basic.cancel.
    if subscription is not None and subscription.was_suspended:
        del channel.subscriptions[tag]
        end_subscription(channel, subscription)
