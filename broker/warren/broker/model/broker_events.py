"""Events of the broker: objects that are created and deleted, logins and alarms, as messages of `amq.rabbitmq.event`.

Routing keys, headers and their types are those of RabbitMQ's plugin rabbitmq_event_exchange
(https://www.rabbitmq.com/docs/event-exchange), without the headers that it alone has.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from warren.broker.model.clock import Clock
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.message import Message
from warren.broker.model.server_names import EVENT_EXCHANGE
from warren.wire import properties
from warren.wire.content import join_content
from warren.wire.field_tables import Field, Value, field_of, long_field

if TYPE_CHECKING:
    from warren.broker.model.vhost.vhost import VirtualHost

logger = logging.getLogger(__name__)

MAX_PENDING: Final = 10_000
"""Events that wait for the next turn of the event loop at most; further ones of the same turn are dropped."""
BROKER_ITSELF: Final = "rmq-internal"
"""RabbitMQ's name, in the header `user_who_performed_action`, for changes that no user has asked for."""

_actor: contextvars.ContextVar[str] = contextvars.ContextVar("actor", default=BROKER_ITSELF)


@contextlib.contextmanager
def acting_as(user: str) -> Iterator[None]:
    """Name a user in the events of the block as the one who performs the action."""
    token = _actor.set(user)
    try:
        yield
    finally:
        _actor.reset(token)


class BrokerEvents:
    """Publisher of the broker's events to the event exchange of one virtual host.

    Events are published in the next turn of the event loop, and only if a binding matches. Messages that pass through
    the exchange are no events, so that it cannot feed itself.

    :param vhost: name of the virtual host that has the exchange.
    """

    def __init__(self, vhost: bytes, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.vhost_name = vhost
        self._clock = clock
        self._loop = loop
        self._vhost: VirtualHost | None = None
        self._pending: list[tuple[bytes, dict[str, Field], int]] = []
        self.dropped = 0
        """Events that were dropped because too many were pending."""

    def attach(self, vhost: VirtualHost) -> None:
        """Declare the event exchange in its virtual host, which was just made."""
        vhost.exchanges[EVENT_EXCHANGE] = Exchange(EVENT_EXCHANGE, b"topic", True, False, True, b"")
        self._vhost = vhost

    def emit(self, key: str, fields: dict[str, Value], *, has_actor: bool = True) -> None:
        """Publish an event.

        :param key: its routing key, such as `queue.created`.
        :param fields: its headers; integers become fields of type `l`, as in RabbitMQ.
        :param has_actor: True to add the user who performs the action.
        """
        vhost = self._vhost
        exchange = vhost.exchanges.get(EVENT_EXCHANGE) if vhost is not None else None
        if vhost is None or exchange is None or not exchange.bindings:
            return
        if not vhost.find_queues(exchange, [key.encode()], {}, None):
            return
        if len(self._pending) >= MAX_PENDING:
            if not self.dropped:
                logger.warning("event=event_exchange.events_dropped limit=%d", MAX_PENDING)
            self.dropped += 1
            return
        now = self._clock.wall()
        if has_actor:
            fields = {**fields, "user_who_performed_action": _actor.get()}
        headers = {name: _field(value) for name, value in fields.items()}
        headers["timestamp_in_ms"] = long_field(int(now * 1000))
        if not self._pending:
            self._loop.call_soon(self._publish_pending)
        self._pending.append((key.encode(), headers, int(now)))

    def _publish_pending(self) -> None:
        pending, self._pending = self._pending, []
        vhost = self._vhost
        exchange = vhost.exchanges.get(EVENT_EXCHANGE) if vhost is not None else None
        if vhost is None or exchange is None:
            return
        for key, headers, second in pending:
            header = properties.encode(
                properties.Properties(headers=headers, delivery_mode=2, timestamp=second), 0
            )
            message = Message(EVENT_EXCHANGE, key, join_content(1, header, b""), 0, 1)
            message.persistent = True
            queues = vhost.find_queues(exchange, [key], headers, message)
            exchange.published_in += 1
            exchange.published_out += len(queues)
            if queues:
                vhost.deliver(queues, message)


def _field(value: Value) -> Field:
    if isinstance(value, int) and not isinstance(value, bool):
        return long_field(value)
    return field_of(value)


def text(name: bytes) -> str:
    """Decode a name from the wire; bytes that are not UTF-8 become surrogates."""
    return name.decode("utf-8", "surrogateescape")
