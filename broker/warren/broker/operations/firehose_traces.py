"""Traces of what clients publish and get, for the firehose (https://www.rabbitmq.com/docs/firehose)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.model.delivery_headers import delivered_content
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue

if TYPE_CHECKING:
    from warren.broker.model.firehose import Firehose
    from warren.broker.operations.principal import Principal


def trace_publish(firehose: Firehose, principal: Principal, queues: list[Queue], message: Message) -> None:
    """Trace a publish of a client, with the queues that the message is routed to."""
    user = principal.user.decode(errors="surrogateescape")
    firehose.published(message, queues, principal.origin, principal.channel, user)


def trace_delivery(firehose: Firehose, principal: Principal, queue: Queue, message: Message) -> None:
    """Trace a delivery of a message from a queue to a client."""
    user = principal.user.decode(errors="surrogateescape")
    content = delivered_content(queue, message)
    firehose.delivered(message, content, queue.name, principal.origin, principal.channel, user)
