"""Numbers of messages that went through a queue, a channel or a virtual host, by what happened to them."""

from __future__ import annotations

from mypy_extensions import i64


class MessageCounts:
    """Numbers of messages since the queue, channel or virtual host exists, or since the broker started."""

    published: i64 = 0
    """Messages that clients published; for a queue, messages that arrived in it, dead letters included."""
    published_with_confirm: i64 = 0
    """Publishes, of those above, on channels with publisher confirms."""
    routed: i64 = 0
    """Copies of published messages that were routed to queues; a message that reaches two queues counts twice."""
    confirmed: i64 = 0
    """Publishes that were confirmed or refused."""
    returned_unroutable: i64 = 0
    """Publishes that were sent back with basic.return."""
    dropped_unroutable: i64 = 0
    """Publishes that were dropped, because they were routed nowhere and not mandatory."""
    delivered: i64 = 0
    """Deliveries to consumers with acknowledgement."""
    delivered_no_ack: i64 = 0
    """Deliveries to consumers with automatic acknowledgement."""
    redelivered: i64 = 0
    """Deliveries, of those above, of messages that were requeued before."""
    fetched: i64 = 0
    """Messages fetched by basic.get with acknowledgement."""
    fetched_no_ack: i64 = 0
    """Messages fetched by basic.get with automatic acknowledgement."""
    fetched_empty: i64 = 0
    """Calls of basic.get that found no message."""
    acknowledged: i64 = 0
    """Messages that were acknowledged."""
    given_back: i64 = 0
    """Messages that were requeued or rejected."""

    def add(self, other: MessageCounts) -> None:
        """Add other counts to these."""
        self.published += other.published
        self.published_with_confirm += other.published_with_confirm
        self.routed += other.routed
        self.confirmed += other.confirmed
        self.returned_unroutable += other.returned_unroutable
        self.dropped_unroutable += other.dropped_unroutable
        self.delivered += other.delivered
        self.delivered_no_ack += other.delivered_no_ack
        self.redelivered += other.redelivered
        self.fetched += other.fetched
        self.fetched_no_ack += other.fetched_no_ack
        self.fetched_empty += other.fetched_empty
        self.acknowledged += other.acknowledged
        self.given_back += other.given_back


class SizeCounts:
    """Numbers of message bodies by size: a histogram, as a message can afford it.

    :param bounds: upper bounds of the buckets in bytes, ascending; larger sizes are in a bucket of their own.
    """

    def __init__(self, bounds: list[int]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Numbers of bodies in each bucket; the last one has no upper bound."""
        self.sum: i64 = 0
        """Bytes of all bodies."""

    def add(self, size: i64, times: i64) -> None:
        """Add bodies of one size. A size that equals an upper bound belongs to that bucket."""
        bounds = self.bounds
        place: i64 = 0
        while place < len(bounds) and size > bounds[place]:
            place += 1
        self.counts[place] += int(times)
        self.sum += size * times
