"""Answers of a channel to publishes: basic.return of an unroutable message, and the life-cycle event of the outcome."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.broker.model.delivery_headers import returned_content
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import REJECTED, Queue
from warren.broker.operations.publishing import NO_CONSUMERS
from warren.wire.content import content_frames
from warren.wire.methods import frame

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel, PublishTarget
    from warren.broker.model.capture.life_cycle_hook import LifeCycleHook


def handle_unroutable(channel: Channel, target: PublishTarget, queues: list[Queue], message: Message) -> None:
    """Handle a message that is enqueued nowhere: send basic.return, or drop it.

    It is returned if it is mandatory, or if it is immediate and its queues have no consumers. Either way, a counter of
    its exchange is increased. The confirm comes later, because basic.return must precede basic.ack.

    :param queues: the list `NO_CONSUMERS` itself if the queues have no consumers; any other list means unroutable.
    """
    exchange = target.resolved_exchange
    assert exchange is not None
    if queues is NO_CONSUMERS:
        code, text = 313, b"NO_CONSUMERS"
    elif target.mandatory:
        code, text = 312, b"NO_ROUTE"
    else:
        exchange.unroutable_dropped += 1
        channel.counts.dropped_unroutable += 1
        return
    exchange.unroutable_returned += 1
    channel.counts.returned_unroutable += 1
    if channel.capture is not None:
        channel.capture.returned(message, channel.origin, text)
    connection = channel.connection
    number = channel.number
    returned = frame(int(number), "basic.return", code, text, target.exchange, target.routing_key)
    content = returned_content(message)
    if len(content) > connection.frame_max:
        content = content_frames(content, number, connection.frame_max)
    # In one piece: a flush in between would put confirms between a method and its content.
    connection.send(returned + content)


def capture_published(channel: Channel, capture: LifeCycleHook, message: Message, outcome: i64) -> None:
    """Record the life-cycle event that a message was published.

    In confirm mode, keep the message's id until the confirm, which is recorded as an event of the same message.

    :param outcome: ACCEPTED or STORED if the queues took the message, REJECTED if one refused it.
    """
    identity = capture.publish_finished(message, outcome == REJECTED)
    if channel.confirming:
        confirms = channel.confirms
        if confirms.captured is None:
            confirms.captured = deque()
        confirms.captured.append((message.exchange, identity))
