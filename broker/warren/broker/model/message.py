"""A message in a queue: its exchange and routing key, its encoded content, and its state in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i32, i64, mypyc_attr

if TYPE_CHECKING:
    from warren.broker.model.queue.consumer import Consumer

PERSISTENT: Final = 2
"""Delivery mode of a persistent message."""


class UnencodableMessage(Exception):
    """A message cannot be encoded for a client, for example because its routing key is too long for AMQP.

    Neither the message nor the client's connection has changed.
    """


# Acyclic: the garbage collector must not traverse millions of waiting messages. A message refers to a consumer only while it
# is unacknowledged; the settlement, or the end of the channel, clears the reference.
@mypyc_attr(acyclic=True)
class Message:
    """One message in one queue. A fan-out makes one for each queue; they share the bytes of the content.

    `content` holds the encoded header frame and body frame as the publisher's channel sent them, with the number
    `channel` of that channel. A delivery on a channel of the same number copies nothing. `content` is empty while it is
    paged out to disk.
    """

    sequence: i64 = 0
    """Position in the queue, in the order of arrival. A requeue does not change it."""
    expires: i64 = 0
    """Time of expiry in milliseconds since 1970; 0 is never. In a delayed exchange's queue, the end of its delay."""
    ttl: i64 = -1
    """The property `expiration` in milliseconds; -1 is none."""
    log_position: i64 = 0
    """Position of its record in the broker's log; 0 if it has none or the position is not known."""
    tag: i64 = 0
    """Delivery tag while the message is unacknowledged."""
    acquired_count: i32 = 0
    """Number of times that it came back to its queue after a delivery (the header x-acquired-count)."""
    delivery_count: i32 = 0
    """Number of returns, of those above, that count against a delivery limit (the header x-delivery-count)."""
    priority: i64 = 0
    persistent: bool = False
    """True if it survives a restart in a durable queue: it has delivery mode 2, or its queue stores every message."""
    redelivered: bool = False
    dead_lettered: bool = False
    """True if the broker has dead-lettered it before: then the broker, not a client, wrote its x-death header."""
    has_bcc: bool = False
    """True if the message has a BCC header, which is removed before delivery."""
    has_publishing_id: bool = False
    """True if the client that published it gave it a publishing id, by which a stream recognises duplicates."""
    paging_out: bool = False
    """True if the content is to leave memory as soon as the log has written it to disk."""
    stored: bool = False
    """True if the message has a record in the broker's log. The log must then record its settlement as well."""
    consumer: Optional[Consumer] = None  # noqa: UP045  (a compiled class cannot evaluate the forward reference with |)
    """The consumer that holds the message unacknowledged; None if no consumer does."""

    def __init__(
        self, exchange: bytes, routing_key: bytes, content: bytes, body_size: i64, channel: i64
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.content = content
        self.body_size = body_size
        self.channel = channel

    def copy(self) -> Message:
        """Return a message with the same content, to be put into another queue."""
        other = Message(self.exchange, self.routing_key, self.content, self.body_size, self.channel)
        other.ttl = self.ttl
        other.priority = self.priority
        other.persistent = self.persistent
        other.dead_lettered = self.dead_lettered
        other.has_bcc = self.has_bcc
        other.has_publishing_id = self.has_publishing_id
        return other
