"""Start and end of tracing: the firehose of a virtual host."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from warren.broker.channel.subscription import Subscription
from warren.broker.management.items.queue_items import NODE
from warren.broker.model.firehose import Firehose

if TYPE_CHECKING:
    from warren.broker.model.vhost.vhost import VirtualHost


def start_tracing(vhost: VirtualHost, loop: asyncio.AbstractEventLoop) -> None:
    """Publish a copy of each message that is published or delivered to `amq.rabbitmq.trace`, until the broker stops."""
    if vhost.firehose is not None:
        return
    vhost.firehose = Firehose(vhost, NODE, loop)
    # Cached routes and encoded methods are made again, which is where messages are traced.
    vhost.routing_epoch += 1
    for queue in (*vhost.queues.values(), *vhost.reply_queues.values()):
        for consumer in queue.consumers:
            if isinstance(consumer, Subscription):
                consumer.last_exchange = None


def stop_tracing(vhost: VirtualHost) -> None:
    """Stop tracing; trace messages that are not published yet are dropped."""
    vhost.firehose = None
    vhost.routing_epoch += 1
