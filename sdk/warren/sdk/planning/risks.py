"""Risks of a declared topology: loss at a restart, silent loss of messages, arguments that not every RabbitMQ
supports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from warren.sdk.messages.types import Message
from warren.sdk.planning.broker_listing import Policy
from warren.sdk.planning.definitions import predeclared
from warren.sdk.planning.routes import Routes
from warren.sdk.topology.binding import Binding
from warren.sdk.topology.declarable import Declarable, label
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.queue import DEAD_LETTER_EXCHANGE, Queue
from warren.sdk.topology.queue_arguments import ARGUMENTS

Version = tuple[int, int]


class Kind(Enum):
    """Kind of a risk in a declared topology: loss at a restart, silent loss, or no support in some RabbitMQ."""

    RESTART = "restart"
    """The item or its messages do not survive a restart of the broker, or the broker deletes them even earlier."""
    LOSS = "loss"
    """A message can be lost silently."""
    PORTABILITY = "portability"
    """Some version of RabbitMQ refuses or ignores the item or one of its arguments."""


@dataclass(frozen=True, slots=True)
class Risk:
    """A risk of one declared exchange, queue or binding, and the change that removes it.

    :ivar subject: kind and name of that item: `queue 'billing'`.
    :ivar text: the risk.
    :ivar advice: the change that removes the risk, if it is not intended.
    """

    kind: Kind
    subject: str
    text: str
    advice: str


def risks(
    items: Iterable[Declarable],
    *,
    bindings: Iterable[Binding] = (),
    missing: Collection[str] = (),
    missing_queues: Collection[str] = (),
    rabbitmq: Version | None = None,
    messages: Iterable[type[Message]] = (),
) -> list[Risk]:
    """Return the risks of the declared exchanges, queues and bindings, in their order.

    :param bindings: bindings that exist on the broker, in addition to the declared ones.
    :param missing: exchanges that neither exist on the broker nor are declared.
    :param missing_queues: queues that neither exist on the broker nor are declared.
    :param rabbitmq: version of the broker, if it is a RabbitMQ.
    :param messages: message classes that are published. If all of an exchange must reach a queue, as events with an
        audience do, none is dropped there silently.
    """
    items = list(items)
    routes = Routes(items, bindings)
    mandatory: dict[str, bool] = {}
    for each in messages:
        mandatory[each.wire_exchange] = mandatory.get(each.wire_exchange, True) and each.wire_mandatory
    found: list[Risk] = []
    for item in items:
        match item:
            case Exchange():
                if not predeclared(item.name):
                    found += _of_exchange(item, routes, missing, mandatory.get(item.name, False))
            case Queue():
                found += _of_queue(item, routes, missing, missing_queues, rabbitmq)
            case Binding():
                found += _of_binding(item, routes)
    return found


def apply_policy(item: Declarable, policies: Mapping[tuple[str, str], Policy]) -> Declarable:
    """Return the item with the alternate exchange or the dead-lettering that its policy sets, unless it sets its own.

    Arguments of a declaration take precedence over policies (https://www.rabbitmq.com/docs/parameters#policies).

    :param policies: the effective policy by kind (`exchange` or `queue`) and name.
    """
    if isinstance(item, Exchange) and ("exchange", item.name) in policies:
        given = policies["exchange", item.name].definition
        return replace(item, alternate_exchange=item.alternate_exchange or given.get("alternate-exchange"))
    if isinstance(item, Queue) and item.type != "stream" and ("queue", item.name) in policies:
        given = policies["queue", item.name].definition
        if item.dead_letter_exchange is None and "dead-letter-exchange" in given:
            return replace(
                item,
                dead_letter_exchange=given["dead-letter-exchange"],
                dead_letter_routing_key=given.get("dead-letter-routing-key"),
            )
    return item


def _of_exchange(
    exchange: Exchange, routes: Routes, missing: Collection[str], is_mandatory: bool
) -> Iterator[Risk]:
    subject = label(exchange)
    if not exchange.durable:
        yield Risk(
            Kind.RESTART, subject, "is transient: a restart removes it with its bindings", "durable=True"
        )
    if exchange.auto_delete:
        yield Risk(
            Kind.RESTART, subject, "is auto-delete: it goes with its last binding", "auto_delete=False"
        )
    alternate = exchange.alternate_exchange
    if alternate is None:
        # Every dead letter queue of the SDK is bound to this exchange.
        if (
            exchange.name != DEAD_LETTER_EXCHANGE
            and not exchange.internal
            and not is_mandatory
            and not routes.routes_everything(exchange.name)
        ):
            what = (
                "messages that no binding takes"
                if routes.has_bindings(exchange.name)
                else "messages, as nothing is bound to it,"
            )
            yield Risk(
                Kind.LOSS,
                subject,
                f"has no alternate exchange: {what} are dropped, unless their publisher asks for them back"
                " (mandatory, which this SDK does but for events without an audience)",
                "alternate_exchange='...', a fanout exchange with a queue bound to it"
                + ("" if routes.has_bindings(exchange.name) else "; or name the audience of its events"),
            )
    elif alternate in missing:
        yield Risk(
            Kind.LOSS,
            subject,
            f"has the alternate exchange {alternate!r}, which is not there: what no binding takes is dropped silently",
            f"declare Exchange({alternate!r}, type='fanout') and a queue bound to it",
        )
    elif alternate in routes.exchanges and not routes.routes_everything(alternate):
        yield Risk(
            Kind.LOSS,
            subject,
            f"has the alternate exchange {alternate!r}, which has no catch-all: it keeps the routing key, and drops what no"
            " binding of its own takes",
            f"make {alternate!r} a fanout exchange, and bind a queue to it",
        )


def _of_queue(
    queue: Queue,
    routes: Routes,
    missing: Collection[str],
    missing_queues: Collection[str],
    rabbitmq: Version | None,
) -> Iterator[Risk]:
    subject = label(queue)
    chosen = queue.type_reason and queue.durable and not (queue.exclusive or queue.auto_delete)
    if chosen and queue.type == "classic":
        yield Risk(
            Kind.PORTABILITY,
            subject,
            f"is a classic queue because of {queue.type_reason}: it has one copy, on one node",
            "type='classic' says that it is meant so",
        )
    if queue.exclusive:
        yield Risk(Kind.RESTART, subject, "is exclusive: it goes with its connection", "exclusive=False")
    elif not queue.durable:
        yield Risk(
            Kind.RESTART,
            subject,
            "is transient: a restart removes it with its messages, and RabbitMQ 4.3 does not make it",
            "durable=True, with expires=... if it is to go by itself; or exclusive=True",
        )
    if queue.auto_delete:
        yield Risk(
            Kind.RESTART,
            subject,
            "is auto-delete: it goes with its last consumer, and its messages with it",
            "auto_delete=False, with expires=... if it is to go by itself",
        )
    if queue.expires is not None:
        yield Risk(
            Kind.LOSS,
            subject,
            f"expires: {queue.expires} without a consumer remove it, and its messages are not dead-lettered",
            "leave expires out, or keep a consumer on it",
        )
    yield from _of_dead_letters(queue, subject, routes, missing, missing_queues)
    yield from _of_arguments(queue, subject, rabbitmq)


def _of_dead_letters(
    queue: Queue, subject: str, routes: Routes, missing: Collection[str], missing_queues: Collection[str]
) -> Iterator[Risk]:
    exchange = queue.dead_letter_exchange
    if queue.type == "stream":
        return
    if exchange is None:
        ends = ["a consumer rejects"]
        if queue.message_ttl is not None:
            ends.append("expires")
        if (queue.max_length or queue.max_length_bytes) and queue.overflow in (None, "drop-head"):
            ends.append("is too much for its length")
        # A dead letter queue needs no dead letter exchange, unless a rule removes messages from it.
        if len(ends) > 1 or not _is_dead_letter_queue(queue, routes):
            yield Risk(
                Kind.LOSS,
                subject,
                f"has no dead letter exchange: what {' or '.join(ends)} is dropped",
                "leave dead_letter_exchange at its default, or name one",
            )
        return
    key = queue.dead_letter_key
    if exchange in missing:
        yield Risk(
            Kind.LOSS,
            subject,
            f"dead-letters to exchange {exchange!r}, which is not there",
            f"declare Exchange({exchange!r}) and a queue bound to it",
        )
    elif not exchange and key in missing_queues:
        yield Risk(
            Kind.LOSS,
            subject,
            f"dead-letters to queue {key!r}, which is not there",
            f"declare Queue({key!r})",
        )
    elif key is not None and exchange in routes.exchanges and not routes.routes_key(exchange, key):
        yield Risk(
            Kind.LOSS,
            subject,
            f"dead-letters to exchange {exchange!r} with key {key!r}, which no binding takes",
            f"Binding({exchange!r}, '<queue>', {key!r})",
        )
    wire = queue.wire_arguments()
    if queue.type == "classic" or wire.get("x-dead-letter-strategy") != "at-least-once":
        yield Risk(
            Kind.LOSS,
            subject,
            "dead-letters at most once: a node that goes down in that moment loses the message",
            "a quorum queue without another overflow dead-letters at least once",
        )


def _is_dead_letter_queue(queue: Queue, routes: Routes) -> bool:
    return any(
        each.dead_letter_queue is not None and each.dead_letter_queue.name == queue.name
        for each in routes.queues.values()
    )


def _of_arguments(queue: Queue, subject: str, rabbitmq: Version | None) -> Iterator[Risk]:
    wire = queue.wire_arguments()
    for argument in ARGUMENTS:
        if argument.wire not in wire or queue.type not in argument.types:
            continue
        since, idle = argument.known_since(queue.type), argument.idle_since
        if rabbitmq is not None and rabbitmq < since:
            yield Risk(
                Kind.PORTABILITY,
                subject,
                f"has {argument.wire}, which RabbitMQ supports since {since[0]}.{since[1]}; this one ignores or refuses it",
                f"leave {argument.field} out",
            )
        elif idle is not None and (rabbitmq is None or rabbitmq >= idle):
            yield Risk(
                Kind.PORTABILITY,
                subject,
                f"has {argument.wire}, which RabbitMQ ignores or refuses since {idle[0]}.{idle[1]}",
                f"leave {argument.field} out",
            )


def _of_binding(binding: Binding, routes: Routes) -> Iterator[Risk]:
    source = routes.exchanges.get(binding.source)
    named = routes.exchanges if binding.to_exchange else routes.queues
    destination = named.get(binding.destination)
    if source is None or destination is None or source.durable == destination.durable:
        return
    transient = source if destination.durable else destination
    yield Risk(
        Kind.RESTART,
        label(binding),
        f"does not survive a restart, because {label(transient)} is transient: a binding is durable if both its ends are",
        "make both durable",
    )
