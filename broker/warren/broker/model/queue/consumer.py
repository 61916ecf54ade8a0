"""Interface of a consumer, as the queue uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from mypy_extensions import i64

from warren.broker.model.message import Message

if TYPE_CHECKING:
    from warren.broker.model.capture.consumer_events import ConsumerEvents
    from warren.broker.model.queue.queue import Queue


class Consumer:
    """A consumer of one queue. The subclass of the channel implements how messages are sent."""

    unacked: i64 = 0
    """Messages that were delivered and are not settled yet."""
    prefetch: i64 = 0
    """Limit of unacknowledged messages; 0 is no limit."""
    stalled: bool = False
    """The consumer has no room: it is not among the queue's ready consumers until it is resumed."""
    timeout: int = 0
    """Milliseconds that a message may stay unacknowledged; 0 is no limit."""
    priority: int = 0
    """Consumer priority: consumers with a higher one get messages first, as long as they have room."""
    raw_arguments: bytes = b""
    """The arguments of basic.consume, an encoded table."""
    origin: str = ""
    """Name of its connection; empty unless events are captured."""
    capture_events: Optional[ConsumerEvents] = None  # noqa: UP045
    """Encoded event prefixes; None unless events are captured."""
    wake_pending: bool = False
    """The consumer is resumed at the end of an acknowledgement that covers several messages."""

    def __init__(self, queue: Queue, tag: bytes, no_ack: bool, exclusive: bool) -> None:
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive

    def has_room(self) -> bool:
        """Return True if another message can be sent to it now."""
        raise NotImplementedError

    def deliver(self, message: Message) -> bool:
        """Send a message. Return True if there is room for another."""
        raise NotImplementedError

    def cancel_from_server(self) -> None:
        """Send basic.cancel, because the queue was deleted or cannot be read any more."""
        raise NotImplementedError

    def unacknowledged(self) -> dict[int, Message]:
        """Return the unacknowledged messages of its channel by delivery tag. Other consumers' messages may be among them."""
        raise NotImplementedError
