"""Items (columns) of list_exchanges, list_bindings and list_consumers, under RabbitMQ's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from warren.broker.channel.subscription import Subscription
from warren.broker.management.json_values import channel_id, name_text, typed_table
from warren.broker.management.request import Json
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.queue.queue import Queue

if TYPE_CHECKING:
    from warren.broker.model.vhost.vhost import VirtualHost


def _policy(exchange: Exchange, vhost: VirtualHost) -> Json:
    policy, _ = vhost.policies.exchange_policies(exchange)
    return "" if policy is None else policy.name


EXCHANGE_ITEMS: Final[Mapping[str, Callable[[Exchange, VirtualHost], Json]]] = {
    "name": lambda exchange, _: name_text(exchange.name),
    "type": lambda exchange, _: name_text(exchange.kind),
    "durable": lambda exchange, _: exchange.durable,
    "auto_delete": lambda exchange, _: exchange.auto_delete,
    "internal": lambda exchange, _: exchange.internal,
    "arguments": lambda exchange, _: typed_table(exchange.arguments),
    "policy": _policy,
}


class ListedBinding(NamedTuple):
    """Binding as list_bindings shows it: a declared one, or an implicit one of the default exchange to a queue."""

    source: bytes
    destination: Queue | Exchange
    routing_key: bytes
    arguments: bytes


def bindings(vhost: VirtualHost) -> Iterator[ListedBinding]:
    """Yield all bindings of a virtual host, including the default exchange's binding to each queue.

    Objects may be made and deleted meanwhile.
    """
    for queue in list(vhost.queues.values()):
        yield ListedBinding(b"", queue, queue.name, b"")
    for exchange in list(vhost.exchanges.values()):
        for binding in exchange.live_bindings():
            yield ListedBinding(exchange.name, binding.destination, binding.routing_key, binding.arguments)


BINDING_ITEMS: Final[Mapping[str, Callable[[ListedBinding], Json]]] = {
    "source_name": lambda bound: name_text(bound.source),
    "source_kind": lambda _: "exchange",
    "destination_name": lambda bound: name_text(bound.destination.name),
    "destination_kind": lambda bound: "queue" if isinstance(bound.destination, Queue) else "exchange",
    "routing_key": lambda bound: name_text(bound.routing_key),
    "arguments": lambda bound: typed_table(bound.arguments),
}


def consumers(vhost: VirtualHost) -> Iterator[Subscription]:
    """Yield all consumers of a virtual host."""
    for queue in list(vhost.queues.values()):
        for consumer in list(queue.consumers):
            if isinstance(consumer, Subscription):
                yield consumer


def _is_active(consumer: Subscription) -> bool:
    """Return whether a consumer may get messages: False if another is the single active consumer of its queue."""
    return (
        not consumer.queue.scheduler.single_active
        or consumer.queue.scheduler.single_active_consumer is consumer
    )


def _activity(consumer: Subscription) -> Json:
    queue = consumer.queue
    if not queue.scheduler.single_active:
        is_listed = (
            queue.vhost.compat.lists_blocked_consumers and queue.declared_arguments.type_name == "classic"
        )
        return "blocked" if is_listed and consumer.stalled and not consumer.has_room() else "up"
    return "single_active" if _is_active(consumer) else "waiting"


CONSUMER_ITEMS: Final[Mapping[str, Callable[[Subscription], Json]]] = {
    "queue_name": lambda consumer: name_text(consumer.queue.name),
    "channel_pid": lambda consumer: channel_id(consumer.channel),
    "consumer_tag": lambda consumer: name_text(consumer.tag),
    "ack_required": lambda consumer: not consumer.no_ack,
    "prefetch_count": lambda consumer: int(consumer.prefetch),
    "active": _is_active,
    "activity_status": _activity,
    "arguments": lambda consumer: typed_table(consumer.raw_arguments),
}
