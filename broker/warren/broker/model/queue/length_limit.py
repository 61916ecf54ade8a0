"""Length limits of a queue: x-max-length, x-max-length-bytes and x-overflow.

See https://www.rabbitmq.com/docs/maxlength.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.broker.model.argument_checks import Overflow
from warren.broker.model.message import Message
from warren.broker.model.queue.queue_arguments import QueueArguments

if TYPE_CHECKING:
    from warren.broker.model.queue.queue import Queue


class LengthLimit:
    """Length limits of one queue, by number of messages and by bytes of bodies; -1 is no limit.

    Ready messages count, and dead letters that no queue has accepted yet (strategy at-least-once). Unacknowledged
    messages do not.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.max_length: i64 = -1
        self.max_bytes: i64 = -1
        self.dead_letters_rejected = False
        """True if x-overflow is `reject-publish-dlx`: rejected messages are dead-lettered."""

    def configure(self, arguments: QueueArguments) -> None:
        """Set the limits and the overflow mode from the queue's arguments, which a policy may have changed."""
        self.max_length = arguments.max_length
        self.max_bytes = arguments.max_length_bytes
        self.dead_letters_rejected = arguments.overflow is Overflow.REJECT_PUBLISH_DLX

    def would_exceed(self, message: Message) -> bool:
        """Return True if the queue would be over a limit with this message added.

        As in RabbitMQ, a consumer that could take the message at once makes no difference.
        """
        queue = self.queue
        ready = queue.ready
        if 0 <= self.max_length < ready.count + len(queue.pending_dead_letters) + 1:
            return True
        return 0 <= self.max_bytes < ready.bytes + queue.pending_dead_letter_bytes + message.body_size

    def reject(self, message: Message) -> None:
        """Dead-letter a message that the full queue rejects, if x-overflow is `reject-publish-dlx`."""
        if self.dead_letters_rejected:
            self.queue.vhost.dead_lettering.dead_letter(self.queue, [message], "maxlen")

    def drop_head(self) -> None:
        """Dead-letter the oldest ready messages until the queue is within its limits (x-overflow `drop-head`)."""
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
