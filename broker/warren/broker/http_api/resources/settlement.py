"""Settlement of messages that a request got from a queue, as bulk work: there may be tens of thousands of them."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue

ACK_MODES: Final = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
REQUEUES: Final = ("ack_requeue_true", "reject_requeue_true")
CHUNK: Final = 16
"""Messages that are settled before the time is checked."""


class Settlement:
    """Messages of one queue that are put back, acknowledged or rejected, in slices and in order.

    It goes on if the client is gone meanwhile. The queue delivers nothing while messages are put back into it, and is
    not deleted before they are settled.

    :param mode: one of ACK_MODES.
    """

    def __init__(self, queue: Queue, messages: list[Message], mode: str) -> None:
        self._queue = queue
        self._messages = deque(messages)
        self._mode = mode

    def start(self) -> None:
        """Settle the first messages now, and the others as bulk work; this object is the lane of it."""
        if not self._messages:
            return
        self._queue.returns += 1
        if self._mode in REQUEUES:
            self._queue.hold()
        self._queue.vhost.bulk_work.run(self, self._step, self._end)

    def _step(self, end: float) -> bool:
        """Settle messages until a time; return True if none is left."""
        queue, messages = self._queue, self._messages
        while messages:
            if self._mode == "reject_requeue_false" and queue.vhost.dead_lettering.is_behind(queue):
                return False
            self._settle([messages.popleft() for _ in range(min(CHUNK, len(messages)))])
            if time.monotonic() >= end:
                break
        if messages:
            return False
        if self._mode in REQUEUES and not queue.deleted:
            queue.after_requeue()
        return True

    def _settle(self, messages: list[Message]) -> None:
        if self._mode in REQUEUES:
            self._queue.reinsert_all(messages, self._mode == "reject_requeue_true")
        elif self._mode == "ack_requeue_false":
            for message in messages:
                self._queue.acknowledge(message)
        else:
            self._queue.reject(messages)

    def _end(self) -> None:
        """Let go of the queue, because the settlement has ended in any way."""
        self._queue.returns -= 1
        if self._mode in REQUEUES:
            self._queue.release()
