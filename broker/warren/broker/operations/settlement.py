"""Settlement of messages that a client without a channel got from a queue, as bulk work: there may be tens of thousands."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from warren.broker.model.capture.life_cycle_hook import LifeCycleHook
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue
from warren.broker.operations.principal import Principal
from warren.broker.operations.waiting import Disk, Operation, UntilWorkDone, until_synced

ACK_MODES: Final = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
REQUEUES: Final = ("ack_requeue_true", "reject_requeue_true")
CHUNK: Final = 16
"""Messages that are settled before the time is checked."""


def settle(
    principal: Principal, disk: Disk, queue: Queue, got: list[tuple[Message, str]], mode: str
) -> Operation[None]:
    """Settle messages that `get_message` has taken, each with its id for life-cycle events; return when that is on disk.

    :param mode: one of ACK_MODES.
    :raises AmqpError: 541 if the disk has failed.
    """
    settlement = Settlement(principal, queue, got, mode)
    settlement.start()
    yield UntilWorkDone(queue.vhost.bulk_work, settlement)
    yield from until_synced(disk)


class Settlement:
    """Messages of one queue that are put back, acknowledged or rejected, in slices and in order.

    It goes on if the client is gone meanwhile. The queue delivers nothing while messages are put back into it, and is
    not deleted before they are settled.

    :param got: messages that `get_message` has taken, each with its id for life-cycle events.
    :param mode: one of ACK_MODES.
    """

    def __init__(self, principal: Principal, queue: Queue, got: list[tuple[Message, str]], mode: str) -> None:
        self._principal = principal
        self._queue = queue
        self._got = deque(got)
        self._mode = mode

    def start(self) -> None:
        """Settle the first messages now, and the others as bulk work; this object is the lane of it."""
        if not self._got:
            return
        self._queue.returns += 1
        if self._mode in REQUEUES:
            self._queue.hold()
        self._queue.vhost.bulk_work.run(self, self._step, self._end)

    def _step(self, end: float) -> bool:
        """Settle messages until a time; return True if none is left."""
        queue, got = self._queue, self._got
        while got:
            if self._mode == "reject_requeue_false" and queue.vhost.dead_lettering.is_behind(queue):
                return False
            self._settle([got.popleft() for _ in range(min(CHUNK, len(got)))])
            if time.monotonic() >= end:
                break
        if got:
            return False
        if self._mode in REQUEUES and not queue.deleted:
            queue.after_requeue()
        return True

    def _settle(self, got: list[tuple[Message, str]]) -> None:
        queue, messages = self._queue, [message for message, _ in got]
        counts = queue.vhost.totals.ended_channels
        if queue.capture is not None:
            self._capture(queue.capture, [identity for _, identity in got])
        if self._mode == "ack_requeue_false":
            counts.acknowledged += len(messages)
            for message in messages:
                queue.acknowledge(message)
            return
        counts.given_back += len(messages)
        if self._mode in REQUEUES:
            queue.reinsert_all(messages, self._mode == "reject_requeue_true")
        else:
            queue.reject(messages)

    def _capture(self, capture: LifeCycleHook, identities: list[str]) -> None:
        """Record the life-cycle events of the settlement."""
        record = capture.requeued if self._mode in REQUEUES else capture.rejected
        if self._mode == "ack_requeue_false":
            record = capture.acknowledged
        for identity in identities:
            record(self._queue.basic_get_consumer, identity, self._principal.origin)

    def _end(self) -> None:
        """Let go of the queue, because the settlement has ended in any way."""
        self._queue.returns -= 1
        if self._mode in REQUEUES:
            self._queue.release()
