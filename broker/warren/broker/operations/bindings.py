"""Operations on bindings: bind and unbind.

Rules and texts are RabbitMQ's (https://www.rabbitmq.com/amqp-0-9-1-reference#queue.bind).
"""

from __future__ import annotations

from warren.broker.access.permissions import READ, WRITE
from warren.broker.model.argument_checks import sorted_arguments
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.queue.queue import Queue
from warren.broker.model.server_names import refuse_default_exchange
from warren.broker.operations.principal import Principal


def bind(
    principal: Principal, source: bytes, kind: str, destination: bytes, routing_key: bytes, arguments: bytes
) -> None:
    """Bind a queue or an exchange to an exchange; the binding may exist already.

    :param source: name of the exchange.
    :param kind: type of the destination: `queue` or `exchange`.
    :param arguments: encoded field table.
    :raises AmqpError: 404 if source or destination does not exist; 403 without the permissions, or if one of them is the
        default exchange; 405 if the queue is exclusive to another connection; 406 or 502 for wrong arguments.
    """
    _check(principal, source, kind, destination, routing_key)
    exchange = principal.declarations.exchange(source)
    end: Queue | Exchange
    end = principal.queue(destination) if kind == "queue" else principal.declarations.exchange(destination)
    principal.declarations.bind(exchange, end, routing_key, arguments)


def unbind(
    principal: Principal, source: bytes, kind: str, destination: bytes, routing_key: bytes, arguments: bytes
) -> None:
    """Remove a binding; a missing one is no error.

    :param source: name of the exchange.
    :param kind: type of the destination: `queue` or `exchange`.
    :param arguments: encoded field table, in any order.
    :raises AmqpError: 403 without the permissions, or if source or destination is the default exchange; 405 if the binding
        exists and the queue is exclusive to another connection; 502 for malformed arguments.
    """
    _check(principal, source, kind, destination, routing_key)
    vhost = principal.vhost
    end: Queue | Exchange | None
    if kind == "queue":
        end = queue = vhost.queues.get(destination)
        exchange = vhost.exchanges.get(source)
        if queue is not None and exchange is not None:
            bound = queue.incoming_bindings.get(exchange, ())
            if (routing_key, sorted_arguments(arguments)) in bound:
                # Exclusive access matters only if there is a binding to remove.
                end = principal.queue(destination)
    else:
        end = vhost.exchanges.get(destination)
    principal.declarations.unbind(source, end, routing_key, arguments)


def _check(principal: Principal, source: bytes, kind: str, destination: bytes, routing_key: bytes) -> None:
    """Check that the user may write to the destination and read from the source of a binding.

    :raises AmqpError: 403 if the user may not, or if source or destination is the default exchange.
    """
    principal.check(WRITE, kind, destination)
    refuse_default_exchange(*((source, destination) if kind == "exchange" else (source,)))
    principal.check(READ, "exchange", source)
    exchange = principal.vhost.exchanges.get(source)
    if exchange is not None:
        principal.check_topic(READ, exchange, routing_key)
