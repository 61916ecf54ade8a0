"""Direct reply-to: replies that go straight to the requesting channel, without a queue.

https://www.rabbitmq.com/docs/direct-reply-to. A client consumes from the pseudo-queue `amq.rabbitmq.reply-to` without
acknowledgements, and publishes requests with that name in the property reply-to. The broker replaces it with a name
generated for the channel. Servers publish replies with the generated name as routing key to the default exchange.
Delivery is at most once: a reply to a closed channel is unroutable.
"""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Final

from warren.broker.channel.subscription import Subscription
from warren.broker.model.queue.queue import Queue
from warren.broker.model.queue.queue_arguments import QueueArguments
from warren.broker.model.vhost.vhost import PSEUDO_QUEUE, REPLY_PREFIX
from warren.broker.operations.publishing import no_reply_consumer
from warren.wire.content import HEADER_FIXED, body_payload, header_payload, join_content
from warren.wire.methods import frame
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.channel.methods.method_context import MethodContext
    from warren.wire.content import RoutingProperties

UNREAD_REPLY_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of replies that are kept for a client that does not read; beyond it, the oldest are dropped."""


def consume(context: MethodContext, tag: bytes) -> None:
    """Process basic.consume of the pseudo-queue.

    :param tag: consumer tag, given by the client or generated.
    :raises AmqpError: 406 if the flag `no_ack` is missing, or if the channel consumes from the pseudo-queue already.
    """
    channel = context.channel
    if not context.arguments.flag("no_ack"):
        raise AmqpError(Reply.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.replies is not None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "reply consumer already set")
    declarations = context.declarations
    # Anybody who knows the name can publish a reply: it must not be guessable.
    name = REPLY_PREFIX + base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=")
    arguments = QueueArguments(max_length_bytes=UNREAD_REPLY_BYTES)
    queue = Queue(
        declarations.vhost, name, False, False, None, b"", arguments, declarations.new_incarnation(False)
    )
    queue.capture = declarations.vhost.capture
    subscription = Subscription(channel, queue, tag, True, False, 0)
    channel.subscriptions[tag] = subscription
    channel.replies = queue
    declarations.vhost.reply_queues[name] = queue
    if not context.arguments.flag("nowait"):
        context.connection.send(frame(int(channel.number), "basic.consume-ok", tag))
    queue.subscribe(subscription)


def declare(context: MethodContext, name: bytes) -> None:
    """Process queue.declare of the pseudo-queue or of a generated reply queue name, without declaring a queue.

    The reply queue.declare-ok reports 0 messages and 1 consumer. A server can thus test whether the client that sent a
    request still waits for its reply.

    :raises AmqpError: 404 if no channel receives replies under that name.
    """
    if name != PSEUDO_QUEUE and name not in context.declarations.vhost.reply_queues:
        raise AmqpError(Reply.NOT_FOUND, f"no {context.declarations.describe('queue', name)}")
    context.channel.last_queue = name
    context.reply("queue.declare-ok", name, 0, 1)


def refuse_binding(context: MethodContext, name: bytes) -> None:
    """Refuse with 403 to bind or unbind a generated reply queue name, as RabbitMQ does since 4.0.

    For any other name, or while an older version is emulated, return without effect.

    :raises AmqpError: 403 for a generated name, unless the emulated version is before 4.0.
    """
    if name.startswith(REPLY_PREFIX) and context.declarations.vhost.compat.has_reply_queues:
        text = "cannot bind or unbind to a volatile (direct reply-to) queue"
        raise AmqpError(Reply.ACCESS_REFUSED, text)


def is_reply_queue(context: MethodContext, name: bytes) -> bool:
    """Return True if a channel receives replies under the name, and the emulated version calls that a queue."""
    vhost = context.declarations.vhost
    return vhost.compat.has_reply_queues and name in vhost.reply_queues


def refuse_get(context: MethodContext, name: bytes) -> None:
    """Refuse basic.get of a reply queue, as RabbitMQ does since 4.2.

    :raises AmqpError: 540 for the generated name of a channel that receives replies.
    """
    if is_reply_queue(context, name):
        described = context.declarations.describe("queue", name)
        raise AmqpError(Reply.NOT_IMPLEMENTED, f"basic.get not supported by volatile {described}")


def refuse_consumer(context: MethodContext, name: bytes) -> None:
    """Refuse basic.consume of a reply queue by its generated name, as RabbitMQ does since 4.2.

    :raises AmqpError: 406 for the generated name of a channel that receives replies.
    """
    if is_reply_queue(context, name):
        own = context.channel.replies is not None and context.channel.replies.name == name
        reason = "multiple consumers are unsupported for" if own else "only creator channel may consume from"
        described = context.declarations.describe("queue", name)
        raise AmqpError(Reply.PRECONDITION_FAILED, f"{reason} {described}")


def replace_reply_to(channel: Channel, content: bytes, properties: RoutingProperties) -> bytes:
    """Return a message's content; if its reply-to is the pseudo-queue, with the channel's generated name instead.

    :raises AmqpError: 406 if the channel does not consume replies.
    """
    if properties.reply_to != PSEUDO_QUEUE:
        return content
    if channel.replies is None:
        raise no_reply_consumer()
    name = channel.replies.name
    header = header_payload(content)
    at = HEADER_FIXED + int(properties.reply_to_offset)
    header = b"".join((header[:at], bytes((len(name),)), name, header[at + 1 + len(PSEUDO_QUEUE) :]))
    return join_content(channel.number, header, body_payload(content))
