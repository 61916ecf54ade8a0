"""Base class of consumers: the attributes and methods that a queue uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from mypy_extensions import i64

from warren.broker.model.message import Message

if TYPE_CHECKING:
    from warren.broker.model.capture.consumer_events import ConsumerEvents
    from warren.broker.model.queue.queue import Queue


class Consumer:
    """Consumer of one queue: the state that the queue uses. Subclasses implement the methods that send to a client."""

    unacked: i64 = 0
    """Number of messages that were delivered to it and are not settled yet."""
    delivered: i64 = 0
    """Number of messages that were delivered to it."""
    redelivered: i64 = 0
    """Number of those that were requeued before."""
    prefetch: i64 = 0
    """Limit of its unacknowledged messages (basic.qos); 0 is no limit."""
    stalled: bool = False
    """True if it cannot take more messages now. It gets none until its channel calls `Queue.resume_consumer`."""
    timed_out: i64 = 0
    """Number of its deliveries that were requeued by an acknowledgement timeout and that the client has not settled yet.

    While there are any, it gets no messages.
    """
    quiesces: bool = False
    """True while it is the single active consumer, and gets nothing because one with a higher priority waits for the role.

    The other takes over when all deliveries to this one are settled.
    """
    timeout: int = 0
    """Milliseconds that a delivered message may stay unacknowledged; 0 is no limit."""
    priority: int = 0
    """Consumer priority (x-priority).

    Consumers with a higher one get messages first, while their prefetch allows it.
    """
    raw_arguments: bytes = b""
    """The arguments of basic.consume, an encoded table."""
    origin: str = ""
    """Name of its connection for life-cycle events; empty unless events are captured."""
    capture_events: Optional[ConsumerEvents] = None  # noqa: UP045
    """Encoded beginnings of its life-cycle events; None unless events are captured."""
    next_ready: Optional[Consumer] = None  # noqa: UP045
    """The consumer behind it in the `ReadyRing` of the queue; None if it is not in it."""
    previous_ready: Optional[Consumer] = None  # noqa: UP045
    """The consumer before it in that ring."""
    wake_pending: bool = False
    """True while its channel acknowledges several messages and will resume this stalled consumer after the last."""

    def __init__(self, queue: Queue, tag: bytes, no_ack: bool, exclusive: bool) -> None:
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive

    def has_room(self) -> bool:
        """Return True if prefetch, channel and connection allow it another message now."""
        raise NotImplementedError

    def deliver(self, message: Message) -> bool:
        """Send a message to the client. Return True if the consumer can take another one now."""
        raise NotImplementedError

    def cancel_from_server(self) -> None:
        """Send basic.cancel to the client, because the queue was deleted or cannot be read any more."""
        raise NotImplementedError

    def unacknowledged(self) -> dict[int, Message]:
        """Return the unacknowledged messages of all consumers of its channel, by delivery tag."""
        raise NotImplementedError
