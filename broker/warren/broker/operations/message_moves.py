"""Operations on single ready messages, at any place of a queue: deletion, and the move to other queues.

A move puts a copy into the queues of the target and removes the message in one record of the log, as dead-lettering does:
after a crash, either the message or its copies are there. A message that cannot be moved stays where it is.
"""

from __future__ import annotations

from warren.broker.model.deduplication import DUPLICATE
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue
from warren.broker.operations.principal import Principal
from warren.broker.operations.publishing import check_topics, exchange_to_publish_to, expiration_ms
from warren.wire.properties import Properties
from warren.wire.reply_codes import AmqpError


class MoveRefused(Exception):
    """Refusal to move one message, with the reason. The message stays in its queue."""


def delete_message(queue: Queue, message: Message, place: int) -> bool:
    """Remove a message from a queue; return False if it is not ready there any more.

    :param message: the message, or a copy of it, with its content.
    :param place: index at which it may be among those that were requeued; -1 if it is not known.
    """
    removed = _take(queue, message, place)
    if removed is None:
        return False
    if queue.capture is not None:
        queue.capture.dropped(queue, removed, "deleted")
    if removed.stored:
        queue.remove_from_log(removed)
    return True


def move_message(
    principal: Principal, queue: Queue, message: Message, place: int, copy: Message, properties: Properties
) -> bool:
    """Put a copy of a message where the copy is addressed to, and remove the message, in one record of the log.

    Return False if the message is not ready in the queue any more.

    :param message: the message, or a copy of it, with its content.
    :param place: index at which it may be among those that were requeued; -1 if it is not known.
    :param copy: the copy, with its exchange and routing key.
    :param properties: properties of the copy.
    :raises MoveRefused: nothing has changed: the principal may not publish there, or no queue takes the copy.
    """
    vhost = queue.vhost
    try:
        exchange = exchange_to_publish_to(principal.authorization, vhost, copy.exchange)
        check_topics(principal.authorization, exchange, [copy.routing_key])
        expiration = properties.data("expiration")
        if expiration is not None:
            copy.ttl = expiration_ms(expiration)
    except AmqpError as error:
        raise MoveRefused(error.explanation) from None
    targets = vhost.find_queues(exchange, [copy.routing_key], properties.headers, copy)
    if targets is DUPLICATE:
        raise MoveRefused("it is a duplicate of a recent message")
    if not targets:
        raise MoveRefused(
            f"exchange '{_text(exchange.name)}' routes key '{_text(copy.routing_key)}' to no queue"
        )
    for target in targets:
        if target.rejects_publishes and target.has_length_limit and target.limit.would_exceed(copy):
            raise MoveRefused(f"queue '{_text(target.name)}' is full")
    removed = _take(queue, message, place)
    if removed is None:
        return False
    dead_lettering = vhost.dead_lettering
    was_busy = dead_lettering.busy
    # What overflows in the target is dead-lettered after the move, which is one record of the log.
    dead_lettering.defer()
    try:
        vhost.transfer(queue, removed, targets, copy)
    finally:
        vhost.end_transfers({queue: True})
        if not was_busy:
            dead_lettering.resume()
    exchange.published_in += 1
    exchange.published_out += len(targets)
    if queue.capture is not None:
        queue.capture.dead_lettered(queue, removed, "moved")
    return True


def _take(queue: Queue, message: Message, place: int) -> Message | None:
    removed = queue.ready.remove(message.priority, message.sequence, place)
    if removed is not None and not removed.content:
        removed.content = message.content
        removed.exchange, removed.routing_key = message.exchange, message.routing_key
        removed.channel = message.channel
        removed.dead_lettered, removed.has_bcc = message.dead_lettered, message.has_bcc
    return removed


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
