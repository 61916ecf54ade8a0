"""Definitions: declared topology in RabbitMQ's JSON format, which RabbitMQ and Warren import.

https://www.rabbitmq.com/docs/definitions
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from warren.sdk.topology.binding import Binding
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.queue import Queue

FORMAT_VERSION = "3.10.8"
"""RabbitMQ version that is written into the definitions; newer versions import them as well."""


def definitions(items: Iterable[Declarable], virtual_host: str = "/") -> dict[str, Any]:
    """Return exchanges, queues and bindings of one virtual host as the content of a RabbitMQ definitions file.

    The lists `exchanges`, `queues` and `bindings` in it are sorted by name. Exclusive queues and the bindings to them
    are left out, because only their connection can declare them; so are the exchanges that every broker has.

    :param items: the declared exchanges, queues and bindings.
    :param virtual_host: its name, which every entry contains.
    """
    items = list(items)
    own = {item.name for item in items if isinstance(item, Queue) and item.exclusive}
    queues = [item for item in items if isinstance(item, Queue) and not item.exclusive]
    exchanges = [item for item in items if isinstance(item, Exchange) and not predeclared(item.name)]
    bindings = [
        item
        for item in items
        if isinstance(item, Binding) and (item.to_exchange or item.destination not in own)
    ]
    return {
        "rabbit_version": FORMAT_VERSION,
        "rabbitmq_version": FORMAT_VERSION,
        "product_name": "Warren",
        "vhosts": [{"name": virtual_host}],
        "queues": [
            {
                "name": queue.name,
                "vhost": virtual_host,
                "durable": queue.durable,
                "auto_delete": queue.auto_delete,
                "arguments": queue.wire_arguments(),
            }
            for queue in sorted(queues, key=lambda each: each.name)
        ],
        "exchanges": [
            {
                "name": exchange.name,
                "vhost": virtual_host,
                "type": exchange.type,
                "durable": exchange.durable,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": exchange.wire_arguments(),
            }
            for exchange in sorted(exchanges, key=lambda each: each.name)
        ],
        "bindings": [
            {
                "source": binding.source,
                "vhost": virtual_host,
                "destination": binding.destination,
                "destination_type": "exchange" if binding.to_exchange else "queue",
                "routing_key": binding.key,
                "arguments": dict(binding.arguments),
            }
            for binding in sorted(bindings, key=lambda each: (each.source, each.destination, each.key))
        ],
    }


def predeclared(exchange: str) -> bool:
    """Return whether the exchange exists on every broker without being declared."""
    return not exchange or exchange.startswith("amq.")
