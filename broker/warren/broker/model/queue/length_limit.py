"""Length limits of a queue: x-max-length, x-max-length-bytes and x-overflow (https://www.rabbitmq.com/docs/maxlength)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.broker.model.argument_checks import Overflow
from warren.broker.model.message import Message
from warren.broker.model.queue.queue_arguments import QueueArguments

if TYPE_CHECKING:
    from warren.broker.model.queue.queue import Queue


class LengthLimit:
    """The limits of one queue, by count and by bytes of bodies; -1 is no limit.

    Ready messages count, and dead letters that are pending. Unacknowledged messages do not.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.max_length: i64 = -1
        self.max_bytes: i64 = -1
        self.dead_letters_rejected = False
        """Overflow mode reject-publish-dlx: rejected publishes are dead-lettered."""

    def configure(self, arguments: QueueArguments) -> None:
        """Apply the limits of the arguments in force."""
        self.max_length = arguments.max_length
        self.max_bytes = arguments.max_length_bytes
        self.dead_letters_rejected = arguments.overflow is Overflow.REJECT_PUBLISH_DLX

    def would_exceed(self, message: Message) -> bool:
        """Return True if the queue would be over a limit with one more message.

        As in RabbitMQ, this is decided before a consumer is looked for.
        """
        queue = self.queue
        ready = queue.ready
        if 0 <= self.max_length < ready.count + len(queue.pending_dead_letters) + 1:
            return True
        return 0 <= self.max_bytes < ready.bytes + queue.pending_dead_letter_bytes + message.body_size

    def reject(self, message: Message) -> None:
        """Handle a publish that the full queue rejects: dead-letter it with reject-publish-dlx."""
        if self.dead_letters_rejected:
            self.queue.vhost.dead_lettering.dead_letter(self.queue, [message], "maxlen")

    def drop_head(self) -> None:
        """Dead-letter the oldest messages until the queue is within its limits."""
        queue = self.queue
        ready = queue.ready
        dropped: list[Message] = []
        while ready.count and (0 <= self.max_length < ready.count or 0 <= self.max_bytes < ready.bytes):
            message = ready.take()
            if message is None:
                break
            dropped.append(message)
        if dropped:
            queue.vhost.dead_lettering.dead_letter(queue, dropped, "maxlen")
            if queue.expiry.has_seen_expiry:
                # Another message is at the head now.
                queue.expiry.drop_expired()
                queue.expiry.schedule_head_timer()
