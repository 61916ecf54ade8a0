"""A message in a queue: where it was published, its raw content, and its state there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from warren.broker.model.queue.consumer import Consumer


# What waits by the million is not for the garbage collector to look through: a message refers to its consumer only while
# that has it unacknowledged, and whoever settles it, or closes the channel, ends that.
@mypyc_attr(acyclic=True)
class Message:
    """One message in one queue. A fan-out makes one for each queue; they share the bytes.

    `content` is the header frame and the body frame as they came on `channel`, so that forwarding to a channel of the same
    number copies nothing. It is empty while the message waits with its content on the disk only.
    """

    sequence: i64 = 0
    """Its place in its queue: the order of arrival, kept by a requeue."""
    expires: i64 = 0
    """When it is dead, in milliseconds since 1970; 0 is never."""
    ttl: i64 = -1
    """The publisher's `expiration` in milliseconds; -1 is none."""
    log_position: i64 = 0
    """Where it stands in the log, if it does and the place is known."""
    tag: i64 = 0
    """The delivery tag while it is unacknowledged."""
    delivery_count: i64 = 0
    """How often it came back after a delivery (the header x-delivery-count)."""
    priority: i64 = 0
    persistent: bool = False
    redelivered: bool = False
    dead_lettered: bool = False
    """The broker has dead-lettered it before: its x-death header is the broker's own and not a client's."""
    has_bcc: bool = False
    """Its header BCC is for the broker alone."""
    paging_out: bool = False
    """It waits, and its content leaves memory as soon as it is on the disk."""
    stored: bool = False
    """It is in the log, and its end has to go there as well."""
    consumer: Optional[Consumer] = None  # noqa: UP045  (a compiled class cannot evaluate the forward reference with |)
    """Who has it unacknowledged."""

    def __init__(
        self, exchange: bytes, routing_key: bytes, content: bytes, body_size: i64, channel: i64
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.content = content
        self.body_size = body_size
        self.channel = channel

    def copy(self) -> Message:
        """The same content for another queue."""
        other = Message(self.exchange, self.routing_key, self.content, self.body_size, self.channel)
        other.ttl = self.ttl
        other.priority = self.priority
        other.persistent = self.persistent
        other.dead_lettered = self.dead_lettered
        other.has_bcc = self.has_bcc
        return other
