"""Expiry of messages (per-message and per-queue TTL) and of unused queues (x-expires).

Messages expire at the head of the queue only: expired messages stay while one with a longer TTL is before them
(https://www.rabbitmq.com/docs/ttl).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.model.clock import Timer
from warren.broker.model.exchange.delayed import message_delay_ms
from warren.broker.model.message import Message

if TYPE_CHECKING:
    from warren.broker.model.queue.queue import Queue

SLICE: Final = 500
"""Expired messages that are removed at once, in about 5 ms, before the event loop runs other callbacks."""


class Expiry:
    """Expiry of one queue's messages, and of the queue itself: keeps the timers."""

    has_backlog: bool = False
    """True while expired messages are left at the head, because at most 500 (`SLICE`) are removed at once.

    `catch_up` removes them. Nothing is delivered until then.
    """
    has_seen_expiry: bool = False
    """True if the queue has had a message that can expire: then the head is checked before each delivery.

    A message that was delivered at once counts, too, because its consumer may requeue it.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.head_timer: Optional[Timer] = None  # noqa: UP045
        self.head_expires: i64 = 0
        """Time at which `head_timer` fires, in milliseconds since 1970."""
        self.queue_timer: Optional[Timer] = None  # noqa: UP045
        self.waiters: list[Callable[[], None]] = []
        """Functions to call when no expired message is at the head any more, such as a basic.get that waits."""
        self.last_used: float = 0.0
        """Time of the last use of the queue, in seconds since 1970. x-expires counts from it."""

    def now_ms(self) -> i64:
        """Return the time in milliseconds since 1970."""
        # As a float, a whole number of milliseconds may be slightly too small. Without the added microsecond a timer
        # could fire on time and find nothing due.
        return i64(self.queue.vhost.clock.now() * 1000 + 0.001)

    def set_expiry(self, message: Message) -> None:
        """Set a published message's time of expiry, from the smaller of two TTLs: the message's and the queue's.

        In the internal queue of a delayed exchange, set the time at which the message's delay ends.
        """
        ttl: i64 = self.queue.message_ttl
        if self.queue.delayed_exchange is not None:
            message.expires = self.now_ms() + message_delay_ms(message)
            self.has_seen_expiry = True
            return
        if ttl < 0 or 0 <= message.ttl < ttl:
            ttl = message.ttl
        message.expires = self.now_ms() + ttl
        self.has_seen_expiry = True

    def message_queued(self, message: Message) -> None:
        """Expire a message that was just appended, or schedule its expiry, if it is at the head of the queue.

        Behind the head nothing is done: messages expire at the head only.
        """
        due = self.queue.ready.next_expiry()
        if due and due == message.expires:
            self.drop_expired()
            self.schedule_head_timer()

    def drop_expired(self) -> bool:
        """Dead-letter the expired messages at the head: at most 500 (`SLICE`) now, the rest later by `catch_up`.

        Return True if there were any: the head has changed, or is still expired (`has_backlog`).
        """
        waiting = self.queue.ready
        if self.has_backlog:
            return True
        if not waiting.next_expiry():
            return False
        now = self.now_ms()
        expired = waiting.take_expired(now, SLICE)
        if not expired:
            return False
        due = waiting.next_expiry()
        if due and due <= now:
            self.has_backlog = True
            clock = self.queue.vhost.clock
            clock.call_at(clock.now(), self.catch_up)
        capture = self.queue.capture
        if capture is not None:
            for message in expired:
                capture.expired(self.queue, message)
        self.queue.vhost.dead_lettering.dead_letter(self.queue, expired, "expired")
        return True

    def catch_up(self) -> None:
        """Dead-letter at most 500 more expired messages at the head. If no expired ones are left, resume deliveries."""
        self.has_backlog = False
        if self.queue.deleted:
            self.call_waiters()
            return
        self.drop_expired()
        if not self.has_backlog:
            self.queue.drain()
            self.call_waiters()

    def call_waiters(self) -> None:
        """Call the functions in `waiters` once: the head is not expired any more, or the queue is deleted.

        A basic.get, for example, waits in this way until the expired messages at the head are removed.
        """
        waiters = self.waiters
        self.waiters = []
        for call in waiters:
            call()

    def schedule_head_timer(self) -> None:
        """Schedule the timer for the expiry of the message at the head, if it has one."""
        due = self.queue.ready.next_expiry()
        if not due or self.has_backlog:
            return
        if self.head_timer is not None:
            if self.head_expires <= due:
                return
            self.head_timer.cancel()
        self.head_expires = due
        self.head_timer = self.queue.vhost.clock.call_at(due / 1000, self.head_expired)

    def head_expired(self) -> None:
        """Dead-letter the expired messages at the head, because the timer has fired."""
        self.head_timer = None
        if not self.queue.deleted:
            self.drop_expired()
            self.schedule_head_timer()

    def touch(self) -> None:
        """Record that the queue is used now, so that x-expires counts from now.

        See https://www.rabbitmq.com/docs/ttl#queue-ttl.
        """
        queue = self.queue
        if queue.arguments.expires < 0:
            return
        self.last_used = queue.vhost.clock.now()
        if self.queue_timer is None:
            self.queue_timer = queue.vhost.clock.call_at(self.queue_expires_at(), self.delete_if_unused)

    def restart(self) -> None:
        """Apply an x-expires that a policy has changed: the queue expires if it is not used for that time from now."""
        if self.queue_timer is not None:
            self.queue_timer.cancel()
            self.queue_timer = None
        self.touch()

    def queue_expires_at(self) -> float:
        """Return the time at which x-expires deletes the queue if it is not used before, in seconds since 1970."""
        return self.last_used + self.queue.arguments.expires / 1000

    def delete_if_unused(self) -> None:
        """Delete the queue if x-expires has passed since its last use; otherwise schedule the next check."""
        queue = self.queue
        self.queue_timer = None
        if queue.deleted or queue.consumers:
            return
        if queue.vhost.clock.now() >= self.queue_expires_at():
            queue.vhost.remove_queue(queue)
        else:
            self.queue_timer = queue.vhost.clock.call_at(self.queue_expires_at(), self.delete_if_unused)

    def stop(self) -> None:
        """Cancel the timers, because the broker stops or the queue is deleted."""
        for timer in (self.head_timer, self.queue_timer):
            if timer is not None:
                timer.cancel()
        self.head_timer = None
        self.queue_timer = None
