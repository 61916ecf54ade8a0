"""The ends that time brings: a message's, by its TTL or its queue's, and a queue's, when nobody uses it.

Messages leave from the head only; one with a longer TTL in front keeps those behind it
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
"""How many expire in one go before the loop gets its turn: about 5 ms."""


class Expiry:
    """The timers of one queue."""

    has_backlog: bool = False
    """More died at once than one slice takes: until the rest is gone, nothing is delivered."""
    has_seen_expiry: bool = False
    """A message with an expiry has been here, even if it went straight to a consumer, who may return it: the head has to be
    looked at before it is delivered."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.head_timer: Optional[Timer] = None  # noqa: UP045
        self.head_expires: i64 = 0
        self.queue_timer: Optional[Timer] = None  # noqa: UP045
        self.waiters: list[Callable[[], None]] = []
        """Whom to call when the dead are gone."""
        self.last_used: float = 0.0

    def now_ms(self) -> i64:
        # A time that is a whole number of milliseconds may lie a hair below it as a float; without the microsecond a timer
        # could fire at its time and find nothing due.
        return i64(self.queue.vhost.clock.now() * 1000 + 0.001)

    def set_expiry(self, message: Message) -> None:
        """Set when the message dies: by the smaller of the two TTLs; or when it is passed on, if it is held back."""
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
        """A message with an expiry waits in the queue."""
        due = self.queue.ready.next_expiry()
        if due and due == message.expires:
            self.drop_expired()
            self.schedule_head_timer()

    def drop_expired(self) -> bool:
        """Dead-letter what is dead at the head, a slice of it, the rest soon; True if there was any."""
        waiting = self.queue.ready
        if self.has_backlog:
            return True
        if not waiting.next_expiry():
            return False
        now = self.now_ms()
        dead = waiting.take_expired(now, SLICE)
        if not dead:
            return False
        due = waiting.next_expiry()
        if due and due <= now:
            self.has_backlog = True
            clock = self.queue.vhost.clock
            clock.call_at(clock.now(), self.catch_up)
        capture = self.queue.capture
        if capture is not None:
            for message in dead:
                capture.expired(self.queue, message)
        self.queue.vhost.dead_lettering.dead_letter(self.queue, dead, "expired")
        return True

    def catch_up(self) -> None:
        """The next slice; when the dead are gone, the living have their turn."""
        self.has_backlog = False
        if self.queue.deleted:
            self.call_waiters()
            return
        self.drop_expired()
        if not self.has_backlog:
            self.queue.drain()
            self.call_waiters()

    def call_waiters(self) -> None:
        waiters = self.waiters
        self.waiters = []
        for call in waiters:
            call()

    def schedule_head_timer(self) -> None:
        """Have a timer for the head's end, if it has one."""
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
        self.head_timer = None
        if not self.queue.deleted:
            self.drop_expired()
            self.schedule_head_timer()

    def touch(self) -> None:
        """The queue was used: x-expires counts from now (https://www.rabbitmq.com/docs/ttl#queue-ttl)."""
        queue = self.queue
        if queue.arguments.expires < 0:
            return
        self.last_used = queue.vhost.clock.now()
        if self.queue_timer is None:
            self.queue_timer = queue.vhost.clock.call_at(self.queue_expires_at(), self.delete_if_unused)

    def restart(self) -> None:
        """The queue's x-expires is another now, and counts from now."""
        if self.queue_timer is not None:
            self.queue_timer.cancel()
            self.queue_timer = None
        self.touch()

    def queue_expires_at(self) -> float:
        return self.last_used + self.queue.arguments.expires / 1000

    def delete_if_unused(self) -> None:
        queue = self.queue
        self.queue_timer = None
        if queue.deleted or queue.consumers:
            return
        if queue.vhost.clock.now() >= self.queue_expires_at():
            queue.vhost.remove_queue(queue)
        else:
            self.queue_timer = queue.vhost.clock.call_at(self.queue_expires_at(), self.delete_if_unused)

    def stop(self) -> None:
        for timer in (self.head_timer, self.queue_timer):
            if timer is not None:
                timer.cancel()
        self.head_timer = None
        self.queue_timer = None
