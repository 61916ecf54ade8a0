"""Source of dead letters: one queue and one reason, with all that its dead letters share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from mypy_extensions import i64

from warren.broker.model.dead_letter.death_history import DeadLetterHeaders, DeathHistory
from warren.broker.model.message import PERSISTENT, Message
from warren.broker.model.queue.queue_arguments import QueueArguments
from warren.broker.model.server_names import LONGEST_NAME
from warren.wire.content import header_payload
from warren.wire.headers_splice import HeadersSplice
from warren.wire.properties import decode

if TYPE_CHECKING:
    from warren.broker.model.exchange.exchange import Exchange
    from warren.broker.model.queue.queue import Queue


class DeadLetterSource:
    """Maker of the dead letters of one queue for one reason within one second.

    Successive messages that die in a queue often have the same headers and the same routing key. Headers and targets of
    such dead letters are determined once, for the first of them.

    :param reason: why messages leave the queue: `rejected`, `expired`, `maxlen` or `delivery_limit`.
    :param time: the present second, counted from 1970.
    """

    epoch: i64 = -1
    """Value of the virtual host's `routing_epoch` for which `exchange` and all targets were determined."""

    def __init__(self, queue: Queue, arguments: QueueArguments, reason: str, time: i64) -> None:
        self.queue = queue
        self.arguments = arguments
        self.reason = reason
        self.time = time
        self.exchange: Optional[Exchange] = None  # noqa: UP045
        """The dead letter exchange; None if it does not exist."""
        self.shares_targets = False
        """True if the targets depend on nothing but routing keys and x-death."""
        self.key: bytes | None = arguments.dead_letter_routing_key
        """The queue's x-dead-letter-routing-key; None to keep the routing key of the message."""
        self._exchange_name = arguments.dead_letter_exchange or b""
        self._splice = HeadersSplice()
        self._history = DeathHistory(
            queue.name,
            reason,
            time,
            removes_cc=self.key is not None,
            sets_last_death=queue.vhost.compat.sets_last_death_headers,
        )

    def read_headers(self, message: Message) -> DeadLetterHeaders:
        """Return the headers of the dead letter of a message. Call `make_letter` for it next."""
        splice = self._splice
        splice.parse(message.content)
        return self._history.record(
            splice.table, message.dead_lettered, message.exchange, message.routing_key, splice.expiration
        )

    def make_letter(self, message: Message, headers: DeadLetterHeaders) -> Message:
        """Return the message that is published to the dead letter exchange: with x-death, and without an expiration.

        :param message: the message that has left the queue, for which `read_headers` was called last.
        :param headers: the result of that call.
        """
        channel = message.channel
        letter = Message(
            self._exchange_name,
            message.routing_key if self.key is None else self.key,
            self._splice.join(channel, headers.table),
            message.body_size,
            channel,
        )
        letter.priority = message.priority
        # The queue that it has left may store every message, the queues that it enters may not.
        letter.persistent = self._splice.delivery_mode == PERSISTENT
        letter.dead_lettered = True
        return letter

    def find_exchange(self) -> None:
        """Look up the dead letter exchange, because the topology of the virtual host has changed."""
        vhost = self.queue.vhost
        self.epoch = vhost.routing_epoch
        self._history.forget_targets()
        self.exchange = vhost.exchanges.get(self._exchange_name)
        if len(self._exchange_name) > LONGEST_NAME:
            # An earlier version has declared it. AMQP cannot deliver a message that was published to it.
            self.exchange = None
        self.shares_targets = self.exchange is not None and not vhost.routes_by_message(self.exchange)

    def find_targets(self, message: Message, headers: DeadLetterHeaders, letter: Message) -> list[Queue]:
        """Return the queues that the dead letter exchange routes a dead letter to; `DUPLICATE` if it drops it.

        :param message: the message that has left the queue.
        """
        exchange = self.exchange
        if exchange is None:
            return []
        vhost = self.queue.vhost
        keys = headers.keys if self.key is None else [self.key]
        if not self.shares_targets or vhost.window_count:
            # An exchange on the way may match headers. It reads those of the message, not those of the dead letter.
            opaque = None if vhost.routes_by_message(exchange) else "x-death"
            original = decode(header_payload(message.content), opaque)
            return vhost.find_queues(exchange, keys, original.headers, letter)
        if len(keys) == 1 and not vhost.is_reply_key(keys[0]):
            return vhost.route(exchange, keys[0])
        return vhost.find_queues(exchange, keys, {}, None)

    def may_share_targets(self, headers: DeadLetterHeaders) -> bool:
        """Return True if all dead letters with these headers enter the same queues until the topology changes."""
        vhost = self.queue.vhost
        if not self.shares_targets or vhost.window_count:
            return False
        # Queues of direct reply-to come and go without a change of the topology.
        keys = headers.keys if self.key is None else [self.key]
        return not any(vhost.is_reply_key(key) for key in keys)
