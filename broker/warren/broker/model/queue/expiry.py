"""Expiry of messages (per-message and per-queue TTL) and of unused queues (x-expires).

Messages expire at the head of the queue only: expired messages stay while one with a longer TTL is before them
(https://www.rabbitmq.com/docs/ttl).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.model.clock import Timer
from warren.broker.model.exchange.delayed import message_delay_ms
from warren.broker.model.message import Message

if TYPE_CHECKING:
    from warren.broker.model.queue.queue import Queue

CHUNK: Final = 64
"""Most expired messages that are removed at once, before the time is checked."""


class Expiry:
    """Expiry of one queue's messages, and of the queue itself: keeps the timers."""

    has_backlog: bool = False
    """True while expired messages are left at the head, because a slice of bulk work was over.

    `drop_slice` removes them. Nothing is delivered until then (`Queue.hold`).
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
        """Dead-letter the expired messages at the head: now for the time of a slice, the rest as bulk work.

        Return True if there were any: the head has changed, or is still expired (`has_backlog`).
        """
        if self.has_backlog:
            return True
        if not self.is_head_expired():
            return False
        if not self.drop_chunk():
            return False
        if self.is_head_expired():
            self.has_backlog = True
            self.queue.hold()
            self.queue.vhost.bulk_work.run(self.queue, self.drop_slice, self.end_backlog)
        return True

    def is_head_expired(self) -> bool:
        """Return True if the message at the head is expired."""
        due = self.queue.ready.next_expiry()
        return due > 0 and due <= self.now_ms()

    def drop_chunk(self) -> bool:
        """Dead-letter a few expired messages at the head; return False if there is none that can be read."""
        queue = self.queue
        expired = queue.ready.take_expired(self.now_ms(), CHUNK)
        if not expired:
            return False
        if queue.capture is not None:
            for message in expired:
                queue.capture.expired(queue, message)
        queue.vhost.dead_lettering.dead_letter(queue, expired, "expired")
        return True

    def drop_slice(self, end: float) -> bool:
        """Dead-letter expired messages at the head until a time; return True if none is left.

        :param end: the time by `time.monotonic()`.
        """
        queue = self.queue
        dead_lettering = queue.vhost.dead_lettering
        while not queue.deleted and self.is_head_expired():
            if dead_lettering.is_behind(queue):
                return False
            if not self.drop_chunk():
                break
            if time.monotonic() >= end and self.is_head_expired():
                return False
        return True

    def end_backlog(self) -> None:
        """Resume deliveries, because no expired message is left at the head, or removing them has failed."""
        self.has_backlog = False
        self.queue.release()

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
        """Dead-letter the expired messages at the head as bulk work, because the timer has fired."""
        self.head_timer = None
        vhost = self.queue.vhost
        vhost.bulk_work.later(vhost.timer_lane, self.drop_after_timer)

    def drop_after_timer(self, _: float) -> bool:
        """Dead-letter the expired messages at the head, and return True. The argument, the end of a slice, is not used."""
        if not self.queue.deleted:
            self.drop_expired()
            self.schedule_head_timer()
        return True

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
        """Delete the queue as bulk work if x-expires has passed since its last use; else schedule the next check."""
        queue = self.queue
        self.queue_timer = None
        if queue.deleted or queue.consumers:
            return
        if queue.vhost.clock.now() >= self.queue_expires_at():
            queue.vhost.bulk_work.later(queue.vhost.timer_lane, self.delete_after_timer)
        else:
            self.queue_timer = queue.vhost.clock.call_at(self.queue_expires_at(), self.delete_if_unused)

    def delete_after_timer(self, _: float) -> bool:
        """Delete the queue once its messages are settled; return True. The argument, the end of a slice, is not used."""
        self.queue.when_settled(self.delete_if_still_unused)
        return True

    def delete_if_still_unused(self) -> None:
        """Delete the queue unless it was used while its last dead letters were published."""
        queue = self.queue
        if not queue.deleted and not queue.consumers and queue.vhost.clock.now() >= self.queue_expires_at():
            queue.vhost.remove_queue(queue)

    def stop(self) -> None:
        """Cancel the timers, because the broker stops or the queue is deleted."""
        for timer in (self.head_timer, self.queue_timer):
            if timer is not None:
                timer.cancel()
        self.head_timer = None
        self.queue_timer = None
