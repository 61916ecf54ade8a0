"""The methods by which a client takes messages, and gives them back: consume, cancel, get, qos, reject, recover.

Each one's meaning: https://www.rabbitmq.com/amqp-0-9-1-reference.
"""

from __future__ import annotations

from warren.broker.channel import direct_reply_to
from warren.broker.channel.ack_timeouts import timeout_of
from warren.broker.channel.authorization import READ
from warren.broker.channel.delivery_headers import as_received
from warren.broker.channel.methods.method_context import MethodContext
from warren.broker.channel.methods.stream_methods import consume_stream, refuse_return, refuse_stream
from warren.broker.channel.subscription import Subscription
from warren.broker.model.queue.queue import Queue
from warren.broker.model.queue.queue_arguments import consumer_priority
from warren.broker.model.server_names import generate_name
from warren.broker.model.stream.stream import Stream
from warren.wire.content import content_frames
from warren.wire.methods import NACK, RECOVER, REJECT, frame
from warren.wire.reply_codes import AmqpError, Reply


def basic_qos(context: MethodContext) -> None:
    arguments, channel = context.arguments, context.channel
    size = arguments.number("prefetch_size")
    if size:
        raise AmqpError(Reply.NOT_IMPLEMENTED, f"prefetch_size!=0 ({size})")
    count = arguments.number("prefetch_count")
    if arguments.flag("global") and not context.topology.vhost.portability.check("global_qos"):
        context.reply("basic.qos-ok")
        channel.limit(count)
    else:
        channel.next_prefetch = count
        context.reply("basic.qos-ok")


def basic_consume(context: MethodContext) -> None:
    arguments, channel, connection = context.arguments, context.channel, context.connection
    tag = arguments.data("consumer_tag") or generate_name(b"amq.ctag")
    if tag in channel.subscriptions:
        raise AmqpError(Reply.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag.decode(errors='replace')}'")
    if arguments.data("queue") == direct_reply_to.NAME:
        direct_reply_to.consume(context, tag)
        return
    queue = context.queue(READ)
    if isinstance(queue, Stream):
        consume_stream(context, queue, tag)
        return
    exclusive = arguments.flag("exclusive")
    single = queue.arguments.single_active_consumer
    # An exclusive one is the only one, which those that wait for their turn are not.
    if (exclusive and single) or (queue.consumers and (exclusive or queue.consumers[0].exclusive)):
        raise AmqpError(
            Reply.ACCESS_REFUSED, f"{context.topology.describe('queue', queue.name)} in exclusive use"
        )
    subscription = Subscription(
        channel, queue, tag, arguments.flag("no_ack"), exclusive, channel.next_prefetch
    )
    subscription.priority = consumer_priority(
        arguments.data("arguments"), queue.arguments.quorum, context.topology.describe("queue", queue.name)
    )
    subscription.raw_arguments = arguments.data("arguments")
    subscription.timeout = ack_timeout(context, queue, subscription.raw_arguments)
    if subscription.timeout and not subscription.no_ack:
        subscription.deadlines = channel.deadlines_for(subscription.timeout)
    channel.subscriptions[tag] = subscription
    if not arguments.flag("nowait"):
        connection.send(frame(int(channel.number), "basic.consume-ok", tag))
    queue.subscribe(subscription)
    queue.drain()


def basic_cancel(context: MethodContext) -> None:
    tag = context.arguments.data("consumer_tag")
    subscription = context.channel.subscriptions.pop(tag, None)
    context.reply("basic.cancel-ok", tag)
    if subscription is not None:
        subscription.queue.unsubscribe(subscription)
        subscription.queue.drain()
        if subscription.queue is context.channel.replies:
            context.channel.end_replies()


def basic_get(context: MethodContext) -> None:
    connection = context.connection
    queue = context.queue(READ)
    refuse_stream(context, queue, "basic.get")
    if queue.arguments.single_active_consumer and queue.arguments.quorum:
        raise AmqpError(
            Reply.RESOURCE_LOCKED,
            f"cannot obtain access to locked {context.topology.describe('queue', queue.name)}. basic.get operations are "
            "not supported by quorum queues with single active consumer",
        )
    if queue.has_expired_backlog():
        # The answer has to wait, and the client's next frames with it, until it is known what lives.
        connection.hold()
        queue.expiry.waiters.append(lambda: connection.go_on_with(lambda: take_one(context, queue)))
    else:
        take_one(context, queue)


def take_one(context: MethodContext, queue: Queue) -> None:
    channel, connection = context.channel, context.connection
    message = None if queue.deleted else queue.get()
    if message is None:
        context.reply("basic.get-empty", b"")
        return
    channel.last_tag += 1
    tag = int(channel.last_tag)
    content = as_received(queue, message)
    encoded = frame(
        int(channel.number),
        "basic.get-ok",
        tag,
        bool(message.redelivered),
        message.exchange,
        message.routing_key,
        int(queue.ready.count),
    ) + content_frames(content, channel.number, connection.frame_max)
    connection.send(encoded)
    no_ack = context.arguments.flag("no_ack")
    if queue.capture is not None:
        channel.identities[tag] = queue.capture.delivered(
            queue.basic_get_consumer, message, channel.origin, no_ack
        )
    if no_ack:
        channel.identities.pop(tag, None)
        queue.acknowledge(message)
        return
    message.tag = tag
    message.consumer = queue.basic_get_consumer
    channel.unacked[tag] = message
    timeout = queue.basic_get_consumer.timeout = ack_timeout(context, queue, b"")
    if timeout:
        channel.deadlines_for(timeout).delivered(tag)


def ack_timeout(context: MethodContext, queue: Queue, consumer: bytes) -> int:
    """For how many milliseconds an acknowledgement is waited for; 0 is for ever."""
    default = context.connection.node.limits.consumer_timeout
    described = context.topology.describe("queue", queue.name)
    return timeout_of(queue.arguments, consumer, default, described)


def basic_reject(context: MethodContext) -> None:
    arguments = context.arguments
    context.channel.reject(arguments.number("delivery_tag"), False, arguments.flag("requeue"), REJECT)


def basic_nack(context: MethodContext) -> None:
    arguments = context.arguments
    context.channel.reject(
        arguments.number("delivery_tag"), arguments.flag("multiple"), arguments.flag("requeue"), NACK
    )


def basic_recover(context: MethodContext) -> None:
    recover(context)
    context.reply("basic.recover-ok")


def recover(context: MethodContext) -> None:
    """Everything unacknowledged on the channel returns to its queues, in a transaction as well: it is no acknowledgement."""
    if not context.arguments.flag("requeue"):
        raise AmqpError(Reply.NOT_IMPLEMENTED, "requeue=false")
    messages = context.channel.take(0, RECOVER)
    refuse_return(context.channel, messages)
    context.channel.give_back(messages, True)


def cancel_answered(context: MethodContext) -> None:
    """The client has seen that its consumer is gone."""
