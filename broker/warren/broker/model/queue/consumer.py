"""Who takes a queue's messages, as the queue sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from mypy_extensions import i64

from warren.broker.model.message import Message

if TYPE_CHECKING:
    from warren.broker.model.capture.consumer_events import ConsumerEvents
    from warren.broker.model.queue.queue import Queue


class Consumer:
    """Who takes a queue's messages; a session's kind of consumer says how they are sent."""

    unacked: i64 = 0
    prefetch: i64 = 0
    """How many may be unacknowledged at once; 0 is no limit."""
    stalled: bool = False
    """It has no room and waits outside the queue's round."""
    timeout: int = 0
    """Milliseconds that what it is given may stay unacknowledged; 0 is for ever."""
    priority: int = 0
    """Those with a higher one are served first, as long as they have room."""
    raw_arguments: bytes = b""
    """What basic.consume gave, an encoded table."""
    origin: str = ""
    """Its connection by name, where events are captured."""
    capture_events: Optional[ConsumerEvents] = None  # noqa: UP045
    wake_pending: bool = False
    """An acknowledgement that covers several messages will look at it once, at its end."""

    def __init__(self, queue: Queue, tag: bytes, no_ack: bool, exclusive: bool) -> None:
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive

    def has_room(self) -> bool:
        """Whether it can be sent another message now."""
        raise NotImplementedError

    def deliver(self, message: Message) -> bool:
        """Send it; True if there is room for another."""
        raise NotImplementedError

    def cancel_from_server(self) -> None:
        """Its queue has gone."""
        raise NotImplementedError

    def unacknowledged(self) -> dict[int, Message]:
        """What it has unacknowledged, perhaps together with others, by delivery tag."""
        raise NotImplementedError
