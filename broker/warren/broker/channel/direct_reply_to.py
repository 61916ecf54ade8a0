"""Direct reply-to: answers that go straight to the channel that asked, without a queue (https://www.rabbitmq.com/docs/direct-reply-to).

A client consumes from `amq.rabbitmq.reply-to` without acknowledgements. What it publishes with that reply-to carries a name
of its own in the place of it, to which the answer is published over the default exchange. At most once: an answer to a
channel that is gone is unroutable.
"""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Final

from warren.broker.channel.subscription import Subscription
from warren.broker.model.queue.queue import Queue
from warren.broker.model.queue.queue_arguments import QueueArguments
from warren.broker.model.vhost.vhost import REPLY_PREFIX
from warren.wire.content import body_payload, header_payload, join_content
from warren.wire.methods import BASIC, PUBLISH, frame
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.channel.methods.method_context import MethodContext
    from warren.wire.content import RoutingProperties

NAME: Final = REPLY_PREFIX.removesuffix(b".")
UNREAD: Final = 64 * 1024 * 1024
"""Bytes of answers that wait for a client that does not read; then the oldest are dropped."""
FIXED: Final = 14
"""Where in a header's payload the properties begin."""


def consume(context: MethodContext, tag: bytes) -> None:
    """basic.consume of the name that stands for answers.

    :raises AmqpError: 406 with acknowledgements, or if the channel has such a consumer.
    """
    channel = context.channel
    if not context.arguments.flag("no_ack"):
        raise AmqpError(Reply.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.replies is not None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "reply consumer already set")
    topology = context.topology
    # Whoever knows the name can answer: it cannot be guessed.
    name = REPLY_PREFIX + base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=")
    arguments = QueueArguments(max_length_bytes=UNREAD)
    queue = Queue(topology.vhost, name, False, False, None, b"", arguments, topology.new_incarnation(False))
    queue.capture = topology.vhost.capture
    subscription = Subscription(channel, queue, tag, True, False, 0)
    channel.subscriptions[tag] = subscription
    channel.replies = queue
    topology.vhost.reply_queues[name] = queue
    if not context.arguments.flag("nowait"):
        context.connection.send(frame(int(channel.number), "basic.consume-ok", tag))
    queue.subscribe(subscription)


def declare(context: MethodContext, name: bytes) -> None:
    """queue.declare of such a name: it is there, with its one consumer, or it is not.

    :raises AmqpError: 404 if it is not.
    """
    if name != NAME and name not in context.topology.vhost.reply_queues:
        raise AmqpError(Reply.NOT_FOUND, f"no {context.topology.describe('queue', name)}")
    context.channel.last_queue = name
    context.reply("queue.declare-ok", name, 0, 1)


def refuse_binding(context: MethodContext, name: bytes) -> None:
    """
    :raises AmqpError: 403 where RabbitMQ names the reason; before 4.0 there is just no such queue.
    """
    if name.startswith(REPLY_PREFIX) and context.topology.vhost.compat.refuses_binding_to_reply_queues:
        text = "cannot bind or unbind to a volatile (direct reply-to) queue"
        raise AmqpError(Reply.ACCESS_REFUSED, text)


def addressed(channel: Channel, content: bytes, properties: RoutingProperties) -> bytes:
    """The content of a message that wants its answer here, with the name that leads here.

    :raises AmqpError: 406 if the channel does not consume answers.
    """
    if properties.reply_to != NAME:
        return content
    if channel.replies is None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "fast reply consumer does not exist", BASIC, PUBLISH)
    name = channel.replies.name
    header = header_payload(content)
    at = FIXED + int(properties.reply_to_offset)
    header = b"".join((header[:at], bytes((len(name),)), name, header[at + 1 + len(NAME) :]))
    return join_content(channel.number, header, body_payload(content))
