"""Operations on the messages of a queue: consume, get, settle what was got, and look at them without taking them.

Rules and texts are RabbitMQ's (https://www.rabbitmq.com/amqp-0-9-1-reference#class.basic).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from warren.broker.access.permissions import READ
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.message import Message, UnencodableMessage
from warren.broker.model.message_counts import MessageCounts
from warren.broker.model.queue.queue import Queue
from warren.broker.operations.firehose_traces import trace_delivery
from warren.broker.operations.principal import Principal
from warren.broker.operations.queues import refuse_stream
from warren.broker.operations.waiting import Operation, UntilNotHeld
from warren.wire.reply_codes import AmqpError, Reply

E = TypeVar("E")


class GotMessage(NamedTuple, Generic[E]):
    """Message that was taken from a queue.

    :ivar message: the message.
    :ivar encoded: the message as the client gets it.
    :ivar identity: id for the life-cycle event of its settlement; empty if none is recorded.
    """

    message: Message
    encoded: E
    identity: str


def queue_to_consume_from(principal: Principal, name: bytes, *, exclusive: bool) -> Queue:
    """Return a queue or stream that the client may consume from.

    :param exclusive: True if it wants to be the queue's only consumer. It is without effect on a stream.
    :raises AmqpError: 404 if it does not exist; 403 without the permission, or if another consumer is exclusive; 405 if it
        is exclusive to another connection.
    """
    principal.check(READ, "queue", name)
    queue = principal.queue(name)
    # An exclusive consumer is the queue's only one; with a single active consumer, others wait beside it.
    other = None if queue.is_stream else queue.first_consumer()
    is_refused = exclusive and queue.arguments.single_active_consumer and not queue.is_stream
    if is_refused or (other is not None and (exclusive or other.exclusive)):
        described = principal.declarations.describe("queue", name)
        raise AmqpError(Reply.ACCESS_REFUSED, f"{described} in exclusive use")
    return queue


def queue_to_get_from(principal: Principal, name: bytes) -> Operation[Queue]:
    """Return a queue whose messages the client may get one by one, when nothing is left to do at its head.

    It may be deleted by then.

    :raises AmqpError: 404 if it does not exist; 403 without the permission; 405 if it is exclusive to another connection,
        or a quorum queue with a single active consumer; 540 for a stream.
    """
    principal.check(READ, "queue", name)
    queue = principal.queue(name)
    refuse_stream(queue, "basic.get")
    if queue.arguments.single_active_consumer and queue.arguments.quorum:
        # RabbitMQ 4 prints the type as an Erlang term.
        kind = '<<"quorum">>' if principal.vhost.compat.names_streams_once else "quorum"
        raise AmqpError(
            Reply.RESOURCE_LOCKED,
            f"cannot obtain access to locked {principal.declarations.describe('queue', name)}. basic.get operations are "
            f"not supported by {kind} queues with single active consumer",
        )
    yield UntilNotHeld(queue)
    return queue


def get_message(
    principal: Principal,
    queue: Queue,
    encode: Callable[[Message], E],
    counts: MessageCounts,
    *,
    no_ack: bool,
) -> GotMessage[E] | None:
    """Take the next message of a queue; return None if there is none.

    Messages that cannot be encoded are set aside. Call this only while nothing holds the queue.

    :param encode: returns the message as the client gets it; it raises ValueError or struct.error if that is not possible.
    :param counts: numbers of messages of the client's channel.
    :param no_ack: True if the message needs no acknowledgement.
    """
    while True:
        message = None if queue.deleted else queue.get()
        if message is None:
            counts.fetched_empty += 1
            queue.counts.fetched_empty += 1
            return None
        try:
            encoded = encode(message)
            break
        except (ValueError, struct.error) as error:
            queue.unacked -= 1
            queue.set_aside(message, UnencodableMessage(str(error)))
    for each in (counts, queue.counts):
        if no_ack:
            each.fetched_no_ack += 1
        else:
            each.fetched += 1
        if message.redelivered:
            each.redelivered += 1
    if queue.vhost.firehose is not None:
        trace_delivery(queue.vhost.firehose, principal, queue, message)
    identity = ""
    if queue.capture is not None:
        identity = queue.capture.delivered(queue.basic_get_consumer, message, principal.origin, no_ack)
    if no_ack:
        queue.acknowledge(message)
    return GotMessage(message, encoded, identity)


def queue_to_browse(principal: Principal, name: bytes) -> Queue:
    """Return a queue whose messages the client may look at, and take out one by one.

    :raises AmqpError: 404 if it does not exist, 403 without the permission, 405 if it is exclusive to another connection.
    """
    principal.check(READ, "queue", name)
    return principal.queue(name)


def exchange_to_browse(principal: Principal, name: bytes) -> Exchange:
    """Return an exchange whose delayed messages the client may look at.

    :raises AmqpError: 404 if it does not exist, 403 without the permission.
    """
    exchange = principal.declarations.exchange(name)
    principal.check(READ, "exchange", name)
    return exchange
