"""Dead letter for very many queues: it is put into them in slices of bulk work, as one record of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.model.message import Message
from warren.broker.model.vhost.bulk_publish import BulkPublish

if TYPE_CHECKING:
    from warren.broker.model.dead_letter.dead_lettering import DeadLettering
    from warren.broker.model.queue.queue import Queue


class DeadLetterFanOut(BulkPublish):
    """Move of one message to very many queues. It shares the lane of bulk publishes with them.

    :param queue: the queue that the message has left.
    :param reason: why it has left: `rejected`, `expired`, `maxlen` or `delivery_limit`.
    :param targets: the queues that the dead letter enters.
    """

    is_logged = False
    """True when the dead letter is staged in all queues and passed to the log."""

    def __init__(
        self,
        dead_lettering: DeadLettering,
        queue: Queue,
        message: Message,
        reason: str,
        targets: list[Queue],
        letter: Message,
    ) -> None:
        super().__init__(dead_lettering.vhost)
        self.dead_lettering = dead_lettering
        self.queue = queue
        self.message = message
        self.reason = reason
        self.destinations = targets
        self.letter = letter

    def step(self, end: float) -> bool:
        """Do a part of the move, until `time.monotonic()` reaches `end`; return True when it is finished."""
        if not self.is_logged:
            if not self.stage(self.destinations, self.letter, end):
                return False
            self.is_logged = True
            self.copies = []
        self.is_done = self.put(end)
        if self.is_done and self.refused:
            self.dead_lettering.record_drop(
                self.queue, self.message, self.reason, "a full queue rejected its copy"
            )
        return self.is_done

    def log_copies(self) -> None:
        """Write the copies and the removal of the message from its queue to the log, in one record."""
        # Before the removal is in the log: streams are written with the batch, before its records.
        for stream, copy in self.for_streams:
            if not stream.deleted:
                stream.publish(copy)
        self.for_streams = []
        log = self.vhost.log
        begins_group = log is not None and not log.in_group
        if log is not None and begins_group:
            log.begin_group()
        try:
            super().log_copies()
            if self.message.stored:
                self.queue.remove_from_log(self.message)
        finally:
            if log is not None and begins_group:
                log.end_group()
        if log is not None:
            self.queue.letters_batch = log.batch

    def end(self) -> None:
        """End the move: if it has failed, release the queues, and keep the message for a retry unless it is in the log."""
        if self.is_done:
            return
        self.is_done = True
        if self.is_logged:
            self.put(float("inf"))
        else:
            self.undo()
            if not self.queue.deleted:
                self.dead_lettering.hold_for_retry(self.queue, self.message, self.reason)


__all__ = ["DeadLetterFanOut"]
