"""Topology of a virtual host as a graph with rates, and the places where a message could vanish."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from warren.broker.http_api.call import Call, Response
from warren.broker.http_api.message_stats import exchange_statistics, queue_statistics
from warren.broker.management.json_values import name_text
from warren.broker.management.queue_counts import count_lengths
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_in_slices
from warren.broker.model.argument_checks import Overflow
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.queue.queue import Queue
from warren.broker.model.vhost.vhost import VirtualHost

MOST_NODES: Final = 2000
"""Most exchanges and queues of a graph; further ones are counted only."""
MOST_EDGES: Final = 10_000
"""Most connections of a graph."""
LOSS: Final = "loss"
"""Kind of a risk: a message can be lost silently."""
UNREACHED_DELIVERY_LIMIT: Final = 2**31 - 1
"""Delivery limit that no message reaches: clients set it where there is to be none."""
RESTART: Final = "restart"
"""Kind of a risk: the object or its messages do not survive a restart of the broker."""


async def graph(call: Call) -> Response:
    """Return exchanges and queues, what leads from one to another, and the risks."""
    vhost = call.visible().vhost
    return Response(body=await run_in_slices(_graph(call, vhost)))


def _graph(call: Call, vhost: VirtualHost) -> Generator[None, None, Json]:
    nodes: list[Json] = []
    edges: list[Json] = []
    risks: list[Json] = []
    exchanges, queues = list(vhost.exchanges.values()), list(vhost.queues.values())
    for exchange in sorted(exchanges, key=lambda each: each.name):
        if len(nodes) >= MOST_NODES:
            break
        if not exchange.name or (
            _is_predeclared(exchange) and not exchange.bindings and not exchange.published_in
        ):
            continue
        nodes.append(_exchange_node(call, exchange))
        risks += _exchange_risks(vhost, exchange)
        for binding in exchange.live_bindings():
            if len(edges) >= MOST_EDGES:
                break
            to = binding.destination
            edges.append(_edge("binding", _id(exchange), _id(to), name_text(binding.routing_key)))
            yield
        if exchange.alternate is not None:
            edges.append(_edge("alternate", _id(exchange), f"exchange:{name_text(exchange.alternate)}", ""))
        yield
    for queue in sorted(queues, key=lambda each: each.name):
        if len(nodes) >= MOST_NODES:
            break
        nodes.append(_queue_node(call, queue))
        risks += _queue_risks(vhost, queue)
        target = queue.arguments.dead_letter_exchange
        if target is not None and not queue.is_stream:
            key = queue.arguments.dead_letter_routing_key
            to_id = (
                f"exchange:{name_text(target)}"
                if target
                else f"queue:{name_text(queue.name if key is None else key)}"
            )
            edges.append(_edge("dead-letter", _id(queue), to_id, "" if key is None else name_text(key)))
        yield
    return {
        "vhost": name_text(vhost.name),
        "nodes": nodes,
        "edges": edges[:MOST_EDGES],
        "risks": risks,
        "complete": len(nodes) < MOST_NODES and len(edges) < MOST_EDGES,
        "exchanges": len(exchanges),
        "queues": len(queues),
    }


def _id(node: Queue | Exchange) -> str:
    return f"{'queue' if isinstance(node, Queue) else 'exchange'}:{name_text(node.name)}"


def _edge(kind: str, source: str, target: str, key: str) -> Json:
    return {"kind": kind, "source": source, "target": target, "routing_key": key}


def _is_predeclared(exchange: Exchange) -> bool:
    return exchange.name.startswith(b"amq.")


def _rate(stats: dict[str, Json], name: str) -> float:
    found = stats.get("message_stats", {}).get(f"{name}_details", {}).get("rate", 0.0)
    return float(found)


def _exchange_node(call: Call, exchange: Exchange) -> Json:
    stats = exchange_statistics(call, exchange)
    return {
        "id": _id(exchange),
        "kind": "exchange",
        "name": name_text(exchange.name),
        "type": name_text(exchange.kind),
        "durable": exchange.durable,
        "messages": 0 if exchange.delay_queue is None else int(exchange.delay_queue.ready.count),
        "consumers": 0,
        "in_rate": _rate(stats, "publish_in"),
        "out_rate": _rate(stats, "publish_out"),
        "unroutable_dropped": exchange.unroutable_dropped,
    }


def _queue_node(call: Call, queue: Queue) -> Json:
    stats = queue_statistics(call, queue)
    return {
        "id": _id(queue),
        "kind": "queue",
        "name": name_text(queue.name),
        "type": queue.declared_arguments.type_name,
        "durable": queue.durable,
        "messages": count_lengths(queue).messages,
        "consumers": len(queue.consumers),
        "in_rate": _rate(stats, "publish"),
        "out_rate": _rate(stats, "deliver_get"),
        "unroutable_dropped": 0,
    }


def _exchange_risks(vhost: VirtualHost, exchange: Exchange) -> Iterator[Json]:
    subject = _id(exchange)
    if not exchange.durable and not exchange.auto_delete:
        yield _risk(
            RESTART, subject, "is transient: a restart removes it with its bindings", "declare it durable"
        )
    if exchange.unroutable_dropped:
        yield _risk(
            LOSS,
            subject,
            f"has dropped {exchange.unroutable_dropped} messages that no binding took",
            "give it an alternate exchange, bind a queue, or publish as mandatory",
        )
    elif exchange.alternate is None and not exchange.internal and not exchange.bindings:
        yield _risk(
            LOSS,
            subject,
            "has neither a binding nor an alternate exchange: messages are dropped, unless they are mandatory",
            "bind a queue to it, or delete it",
        )
    if exchange.alternate is not None and exchange.alternate not in vhost.exchanges:
        yield _risk(
            LOSS,
            subject,
            f"has the alternate exchange '{name_text(exchange.alternate)}', which does not exist",
            "declare it, and bind a queue to it",
        )


def _queue_risks(vhost: VirtualHost, queue: Queue) -> Iterator[Json]:
    subject, arguments = _id(queue), queue.arguments
    if queue.owner is not None:
        return
    if not queue.durable:
        yield _risk(
            RESTART, subject, "is transient: a restart removes it with its messages", "declare it durable"
        )
    if queue.auto_delete:
        yield _risk(
            LOSS,
            subject,
            "is auto-delete: it goes with its last consumer, and its messages with it",
            "declare it without auto_delete",
        )
    if arguments.expires >= 0:
        yield _risk(
            LOSS,
            subject,
            "expires without a consumer, and its messages are not dead-lettered",
            "leave x-expires out, or keep a consumer on it",
        )
    if queue.is_stream:
        return
    name, key = arguments.dead_letter_exchange, arguments.dead_letter_routing_key
    if name is None:
        ends = _endings(queue)
        if ends:
            yield _risk(
                LOSS,
                subject,
                f"has no dead letter exchange: messages that {' or '.join(ends)} are dropped",
                "set dead-letter-exchange by a policy",
            )
        return
    exchange = vhost.exchanges.get(name)
    if exchange is None:
        yield _risk(
            LOSS,
            subject,
            f"dead-letters to exchange '{name_text(name)}', which does not exist",
            "declare it, and bind a queue to it",
        )
    elif not name and (queue.name if key is None else key) not in vhost.queues:
        yield _risk(
            LOSS,
            subject,
            f"dead-letters to queue '{name_text(key or b'')}', which does not exist",
            "declare it",
        )
    elif name and exchange.alternate is None and not exchange.bindings:
        yield _risk(
            LOSS,
            subject,
            f"dead-letters to exchange '{name_text(name)}', to which nothing is bound",
            "bind a queue to it",
        )
    elif (
        key is not None
        and name
        and exchange.alternate is None
        and exchange.selector is None
        and not exchange.inspects_message
        and not exchange.match([key], {})
    ):
        yield _risk(
            LOSS,
            subject,
            f"dead-letters to exchange '{name_text(name)}' with key '{name_text(key)}', which no binding takes",
            "bind a queue with this key",
        )


def _endings(queue: Queue) -> list[str]:
    """Return the ways in which messages leave a queue without having been consumed."""
    arguments = queue.arguments
    found = []
    if arguments.message_ttl >= 0:
        found.append("expire")
    if (
        arguments.max_length >= 0 or arguments.max_length_bytes >= 0
    ) and arguments.overflow is Overflow.DROP_HEAD:
        found.append("are too many for its length")
    if 0 <= queue.delivery_limit < UNREACHED_DELIVERY_LIMIT:
        found.append("reach the delivery limit")
    return found


def _risk(kind: str, subject: str, text: str, advice: str) -> Json:
    return {"kind": kind, "subject": subject, "text": text, "advice": advice}
