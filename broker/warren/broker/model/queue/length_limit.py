"""Length limits of a queue: x-max-length, x-max-length-bytes and x-overflow.

See https://www.rabbitmq.com/docs/maxlength.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.broker.model.argument_checks import Overflow
from warren.broker.model.message import Message
from warren.broker.model.queue.queue_arguments import QueueArguments

if TYPE_CHECKING:
    from warren.broker.model.queue.queue import Queue


CHUNK: Final = 64
"""Most messages that are dropped at once from a queue over its limits, before the time is checked."""


class LengthLimit:
    """Length limits of one queue, by number of messages and by bytes of bodies; -1 is no limit.

    Ready messages count, and dead letters that no queue has accepted yet (strategy at-least-once). Unacknowledged
    messages do not.
    """

    has_backlog: bool = False
    """True while the queue is over its limits, because a slice of bulk work was over.

    `drop_slice` drops the rest. Nothing is delivered until then (`Queue.hold`).
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
        count = ready.count + len(queue.pending_dead_letters) + 1
        if queue.staged is not None:
            count += len(queue.staged)
        if 0 <= self.max_length < count:
            return True
        held = ready.bytes + queue.staged_bytes + queue.pending_dead_letter_bytes
        return 0 <= self.max_bytes < held + message.body_size

    def reject(self, message: Message) -> None:
        """Dead-letter a message that the full queue rejects, if x-overflow is `reject-publish-dlx`."""
        if self.dead_letters_rejected:
            self.queue.vhost.dead_lettering.dead_letter(self.queue, [message], "maxlen")

    def drop_head(self) -> None:
        """Dead-letter the oldest ready messages until the queue is within its limits (x-overflow `drop-head`).

        What a slice has no time for is done as bulk work, and nothing is delivered until then.
        """
        if self.has_backlog or not self.is_exceeded():
            return
        if self.drop_chunk() and self.is_exceeded():
            self.has_backlog = True
            self.queue.hold()
            self.queue.vhost.bulk_work.run(self.queue, self.drop_slice, self.end_backlog)
        else:
            self.on_head_changed()

    def is_exceeded(self) -> bool:
        """Return True if more messages are ready than the limits allow."""
        ready = self.queue.ready
        return ready.count > 0 and (0 <= self.max_length < ready.count or 0 <= self.max_bytes < ready.bytes)

    def drop_chunk(self) -> bool:
        """Dead-letter a few of the oldest ready messages, at most those over the limits.

        Return False if there is none that can be read.
        """
        queue = self.queue
        dropped: list[Message] = []
        while len(dropped) < CHUNK and self.is_exceeded():
            message = queue.ready.take()
            if message is None:
                break
            dropped.append(message)
        if dropped:
            queue.vhost.dead_lettering.dead_letter(queue, dropped, "maxlen")
        return len(dropped) > 0

    def drop_slice(self, end: float) -> bool:
        """Dead-letter messages over the limits until a time; return True if none is left.

        :param end: the time by `time.monotonic()`.
        """
        queue = self.queue
        dead_lettering = queue.vhost.dead_lettering
        while not queue.deleted and not queue.rejects_publishes and self.is_exceeded():
            if dead_lettering.is_behind(queue):
                return False
            if not self.drop_chunk():
                break
            if time.monotonic() >= end and self.is_exceeded():
                return False
        return True

    def end_backlog(self) -> None:
        """Resume deliveries, because no message over the limits is left, or dropping them has failed."""
        self.has_backlog = False
        try:
            if not self.queue.deleted:
                self.on_head_changed()
        finally:
            self.queue.release()

    def on_head_changed(self) -> None:
        """Expire the message that is at the head now, if it is due; otherwise schedule its expiry."""
        expiry = self.queue.expiry
        if expiry.has_seen_expiry:
            expiry.drop_expired()
            expiry.schedule_head_timer()
