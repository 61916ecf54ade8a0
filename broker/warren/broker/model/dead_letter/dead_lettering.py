"""Dead-lettering: publish messages that are rejected, expired or dropped by a queue to its dead letter exchange.

Rules: https://www.rabbitmq.com/docs/dlx and, for the strategy at-least-once,
https://www.rabbitmq.com/docs/quorum-queues#dead-lettering. The removal from the queue and all copies in other queues
are in one atomic record of the broker's log.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.model.dead_letter.dead_letter_fan_out import DeadLetterFanOut
from warren.broker.model.dead_letter.dead_letter_source import DeadLetterSource
from warren.broker.model.dead_letter.death_history import REASONS, exclude_cycles
from warren.broker.model.deduplication import DUPLICATE
from warren.broker.model.exchange.delayed import release_delayed_message
from warren.broker.model.message import Message
from warren.broker.model.message_codec import message_mark
from warren.broker.model.vhost.bulk_publish import BULK_COPIES
from warren.broker.model.vhost.vhost_totals import CONFIRMED, DeathCause

if TYPE_CHECKING:
    from warren.broker.model.clock import Timer
    from warren.broker.model.queue.queue import Queue
    from warren.broker.model.vhost.vhost import VirtualHost

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Seconds between two attempts to publish dead letters that their targets did not accept (strategy at-least-once)."""

RETRY_LIMIT: Final = 100
"""Dead letters of one queue that one retry tries to publish at most."""
SOURCES: Final = 16
"""Number of `DeadLetterSource` objects that are kept at most: one for each queue and reason."""
LOAD_MESSAGES: Final = 256
"""Messages whose contents are read from disk in one step, before they are dead-lettered."""
LOAD_BYTES: Final = 512 * 1024
"""Bytes of message bodies after which a step of reading contents from disk ends early."""
MOST_BATCHES: Final = 4
"""Batches of one queue's dead letters from which on bulk work adds no more, until some are published."""
NO_LIMIT: Final = 1 << 62


class DeadLetters:
    """Batch of messages that have left a queue for one reason, and are dead-lettered one after the other.

    :param reason: why they have left: `rejected`, `expired`, `maxlen` or `delivery_limit`.
    """

    def __init__(self, queue: Queue, messages: list[Message], reason: str) -> None:
        self.queue = queue
        self.messages = messages
        self.reason = reason
        self.position = 0
        """Index of the next message."""
        self.loaded = 0
        """Index of the first message whose content may have to be read from disk."""
        self.fan_out: Optional[DeadLetterFanOut] = None  # noqa: UP045
        """The last dead letter for very many queues, which those behind it wait for; None if there was none."""

    @property
    def is_waiting(self) -> bool:
        """True while a dead letter is being put into very many queues."""
        return self.fan_out is not None and not self.fan_out.is_done

    @property
    def is_done(self) -> bool:
        """True if all messages of the batch are dead-lettered."""
        return self.position >= len(self.messages) and not self.is_waiting

    def next(self) -> Message | None:
        """Return the next message with its content; None if its content cannot be read, which is logged."""
        position = self.position
        # First of all, so that a message that cannot be read does not stop those behind it.
        self.position += 1
        message = self.messages[position]
        if not message.content and position >= self.loaded:
            self.load_contents(position)
        return message if message.content else None

    def load_contents(self, first: int) -> None:
        """Read the contents of the next messages that were paged out while they were unacknowledged.

        :param first: index of the first of them.
        """
        last, size = first, 0
        while last < len(self.messages) and last - first < LOAD_MESSAGES and size < LOAD_BYTES:
            size += int(self.messages[last].body_size)
            last += 1
        self.queue.load_contents(self.messages[first:last])
        self.loaded = last


class Retry:
    """Attempt to publish the oldest dead letters of one queue that no target has accepted, at most 100."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.left = min(len(queue.pending_dead_letters), RETRY_LIMIT)
        """Number of dead letters that have yet to be tried."""
        self.has_progress = False
        """True if one was accepted."""


class DeadLettering:
    """Dead-lettering of one virtual host.

    Messages to dead-letter wait in a backlog and are handled in a loop, not by recursion: a dead letter may overflow
    its target queue, whose oldest message may in turn overflow the next queue. A long backlog is bulk work, which is
    done in slices. The dead letters of one queue stay in order; queues take turns. Messages in the backlog have left
    their queue for clients, but not for the log: after a crash, those without a dead letter are in their queue again.
    """

    def __init__(self, vhost: VirtualHost) -> None:
        self.vhost = vhost
        self.backlog: dict[Queue, deque[DeadLetters]] = {}
        """Batches of messages that wait to be dead-lettered, by the queue that they have left."""
        self.turns: deque[Queue] = deque()
        """Queues with a backlog, the one whose turn is next first."""
        self.time: i64 = 0
        """The second, counted from 1970, in which the messages that are handled now have died."""
        self.sources: dict[tuple[Queue, str], DeadLetterSource] = {}
        """Makers of dead letters by queue and reason. Those of an earlier second are replaced when they are needed."""
        self.fan_out: Optional[DeadLetterFanOut] = None  # noqa: UP045
        """Dead letter that the last `send` has begun to put into very many queues; None if it is finished."""
        self.busy = False
        """True while dead letters are published, or between `defer` and `resume`: new ones join the backlog."""
        self.has_slices = False
        """True while bulk work has the backlog to process."""
        self.queues_with_pending: dict[Queue, bool] = {}
        """Queues with dead letters that wait for a retry (strategy at-least-once): a dict as an ordered set."""
        self.timer: Timer | None = None
        """Timer of the next retry; it stays set while a retry is in progress."""
        self.retry_lane = object()
        """Lane of the bulk work of retries."""
        self.retry_delay = RETRY_SECONDS
        """Seconds from the retry in progress to the next one."""
        self.dropped = 0
        """Number of messages lost since the start.

        The causes: no dead letter exchange, no route, a cycle, a duplicate, or a target queue that rejected its copy.
        """

    def dead_letter(self, queue: Queue, messages: list[Message], reason: str) -> None:
        """Dead-letter messages that have left a queue; now, or after the dead-lettering that is in progress.

        Contents that were paged out are read from disk first. What takes too long is continued as bulk work. Rejected
        messages do not wait for the bulk work of other queues: a client may rely on its rejects once a later publish is
        confirmed.

        :param reason: why they have left: `rejected`, `expired`, `maxlen` or `delivery_limit`.
        """
        self.count(queue, reason, len(messages))
        batches = self.backlog.get(queue)
        is_first = batches is None
        if batches is None:
            batches = self.backlog[queue] = deque()
            self.turns.append(queue)
        batches.append(DeadLetters(queue, messages, reason))
        if is_first and reason == "rejected" and not self.busy:
            # Its turn comes now.
            self.turns.rotate(1)
            self.process_turns(self.vhost.bulk_work.slice_end(), 1)
        self.process()

    def count(self, queue: Queue, reason: str, messages: int) -> None:
        """Add messages that have died to the totals of the virtual host. Those of internal queues do not count."""
        if queue.delayed_exchange is None and queue.stored_window is None:
            arguments = queue.arguments
            strategy = "at_least_once" if arguments.at_least_once else "at_most_once"
            if arguments.dead_letter_exchange is None:
                strategy = "disabled"
            cause = DeathCause(queue.declared_arguments.type_name, strategy, reason)
            self.vhost.totals.add_dead_letters(cause, messages)

    def has_backlog(self, queue: Queue) -> bool:
        """Return True if messages that have left a queue still wait to be dead-lettered."""
        return queue in self.backlog

    def last_batch(self, queue: Queue) -> DeadLetters | None:
        """Return the last batch of messages that have left a queue and wait; None if none waits."""
        batches = self.backlog.get(queue)
        return batches[-1] if batches else None

    def is_behind(self, queue: Queue) -> bool:
        """Return True if bulk work must not let more messages leave a queue before some are dead-lettered."""
        batches = self.backlog.get(queue)
        return batches is not None and len(batches) >= MOST_BATCHES

    def discard_backlog(self) -> None:
        """Drop the messages that wait to be dead-lettered, because the virtual host is deleted."""
        for batches in self.backlog.values():
            for batch in batches:
                batch.position = len(batch.messages)
        self.backlog.clear()
        self.turns.clear()

    def process(self) -> None:
        """Dead-letter the messages in the backlog: now for the time of a slice, then in the slices of bulk work.

        Do nothing if a call is already in progress, which handles new messages as well, or between `defer` and
        `resume`, or while slices are left to do.
        """
        if not self.busy and not self.has_slices and self.turns:
            self.has_slices = True
            self.vhost.bulk_work.run(self, self.process_slice)

    def process_slice(self, end: float) -> bool:
        """Dead-letter messages in the backlog until a time; return True if none is left.

        :param end: the time by `time.monotonic()`.
        """
        self.has_slices = False
        self.process_turns(end, NO_LIMIT)
        self.has_slices = bool(self.turns)
        return not self.has_slices

    def process_turns(self, end: float, most: i64) -> None:
        """Dead-letter messages in the backlog, until a time or for a number of turns of queues, at least one.

        :param end: the time by `time.monotonic()`.
        :param most: the number of turns.
        """
        self.busy = True
        served: dict[Queue, bool] = {}
        count: i64 = 0
        waiting: i64 = 0
        try:
            while waiting < len(self.turns) and count < most:
                count += 1
                queue = self.turns.popleft()
                batches = self.backlog[queue]
                if batches[0].is_waiting:
                    waiting += 1
                    self.turns.append(queue)
                    continue
                waiting = 0
                served[queue] = True
                if self.process_batch(batches[0], end):
                    batches.popleft()
                if batches:
                    self.turns.append(queue)
                else:
                    del self.backlog[queue]
                if time.monotonic() >= end:
                    break
        finally:
            self.busy = False
            self.vhost.end_transfers(served)

    def process_batch(self, batch: DeadLetters, end: float) -> bool:
        """Dead-letter messages of one batch until a time, and at least one; return True if none is left.

        :param end: the time by `time.monotonic()`.
        """
        self.time = int(self.vhost.clock.wall())
        while not batch.is_done:
            try:
                message = batch.next()
            except Exception:
                self.log_failure(batch.queue, batch.messages[batch.position - 1])
                message = None
            if message is not None:
                self.send(batch.queue, message, batch.reason)
                if self.fan_out is not None:
                    batch.fan_out = self.fan_out
                    self.fan_out = None
                    break
            if time.monotonic() >= end:
                break
        return batch.is_done

    def defer(self) -> None:
        """Hold back dead-lettering until `resume` is called: messages to dead-letter wait in the backlog.

        The caller is putting one message into several queues, and a full one may drop its oldest message. That message
        is dead-lettered only after the new one is in all of its queues.
        """
        self.busy = True

    def resume(self) -> None:
        """End the wait that `defer` began, and dead-letter all messages in the backlog."""
        self.busy = False
        self.process()

    def send(self, queue: Queue, message: Message, reason: str) -> None:
        """Dead-letter one message. If that fails with an exception, log it once and keep the message for a retry.

        :param reason: why the message leaves the queue: `rejected`, `expired`, `maxlen` or `delivery_limit`.
        """
        try:
            self.transfer(queue, message, reason)
        except Exception:
            if queue.failed_dead_letters is None:
                queue.failed_dead_letters = {}
            if int(message.sequence) not in queue.failed_dead_letters:
                queue.failed_dead_letters[int(message.sequence)] = True
                self.log_failure(queue, message)
            self.hold_for_retry(queue, message, reason)

    def log_failure(self, queue: Queue, message: Message) -> None:
        """Write the log line about the exception that is being handled: a message could not be dead-lettered."""
        logger.exception(
            "event=dead_letter.failed queue=%r sequence=%d",
            queue.name.decode(errors="replace"),
            int(message.sequence),
        )

    def transfer(self, queue: Queue, message: Message, reason: str) -> None:
        """Publish one message to the queue's dead letter exchange, or drop it, or keep it for a retry.

        With the strategy at-least-once, a message is kept for a retry if the exchange routes it to no queue, or to a
        full one. A message that expires in an internal queue is not dead-lettered: in the queue of a delayed exchange,
        its delay has ended and it is routed now; in a queue of deduplication keys, the key in it is forgotten.

        :param reason: why the message leaves the queue: `rejected`, `expired`, `maxlen` or `delivery_limit`.
        """
        vhost = self.vhost
        arguments = queue.arguments
        if queue.delayed_exchange is not None:
            release_delayed_message(queue, queue.delayed_exchange, message)
            return
        if queue.stored_window is not None:
            queue.stored_window.remove(message)
            if message.stored:
                queue.remove_from_log(message)
            return
        if arguments.dead_letter_exchange is None:
            self.drop(queue, message, reason, "")
            return
        source = self.source(queue, reason)
        if source.epoch != vhost.routing_epoch:
            source.find_exchange()
        headers = source.read_headers(message)
        letter = source.make_letter(message, headers)
        known = headers.targets
        if known is not None and not vhost.window_count:
            targets = known
        else:
            found = source.find_targets(message, headers, letter)
            if found is DUPLICATE:
                self.drop(queue, message, reason, "it is a duplicate")
                return
            targets = found if reason == "rejected" else exclude_cycles(found, headers.deaths)
            if found and not targets:
                self.drop(queue, message, reason, "it would make a dead-letter cycle")
                return
            if targets and source.may_share_targets(headers):
                headers.targets = targets
        if arguments.at_least_once and (
            not targets
            or any(target.rejects_publishes and target.limit.would_exceed(letter) for target in targets)
        ):
            self.hold_for_retry(queue, message, reason)
            return
        if not targets:
            name = arguments.dead_letter_exchange.decode(errors="replace")
            self.drop(
                queue,
                message,
                reason,
                f"exchange '{name}' did not route key {source.key or message.routing_key!r}",
            )
            return
        if len(targets) > BULK_COPIES and not arguments.at_least_once and queue.capture is None:
            fan_out = DeadLetterFanOut(self, queue, message, reason, targets, letter)
            vhost.bulk_work.run(vhost.publish_lane, fan_out.step, fan_out.end)
            if not fan_out.is_done:
                self.fan_out = fan_out
            return
        if vhost.transfer(queue, message, targets, letter):
            self.record_drop(queue, message, reason, "a full queue rejected its copy")
            return
        if arguments.at_least_once:
            self.count(queue, CONFIRMED, 1)
        if queue.capture is not None:
            queue.capture.dead_lettered(queue, message, reason)

    def source(self, queue: Queue, reason: str) -> DeadLetterSource:
        """Return the maker of the dead letters of a queue that die for one reason in the present second.

        :param reason: why messages leave the queue: `rejected`, `expired`, `maxlen` or `delivery_limit`.
        """
        found = self.sources.get((queue, reason))
        arguments = queue.arguments
        if found is None or found.time != self.time or found.arguments is not arguments:
            if len(self.sources) >= SOURCES:
                self.sources.clear()
            found = DeadLetterSource(queue, arguments, reason, self.time)
            self.sources[queue, reason] = found
        return found

    def drop(self, queue: Queue, message: Message, reason: str, cause: str) -> None:
        """Drop a message that cannot be dead-lettered: record the loss, and remove the message from the broker's log.

        :param reason: why the message leaves the queue: `rejected`, `expired`, `maxlen` or `delivery_limit`.
        :param cause: why it could not be dead-lettered, for the log line; empty if its queue has no dead letter
            exchange.
        """
        self.record_drop(queue, message, reason, cause)
        if message.stored:
            queue.remove_from_log(message)

    def record_drop(self, queue: Queue, message: Message, reason: str, cause: str) -> None:
        """Count a dropped message, record it as a life-cycle event, and write a log line.

        :param reason: why the message leaves the queue: `rejected`, `expired`, `maxlen` or `delivery_limit`.
        :param cause: why it could not be dead-lettered; empty if its queue has no dead letter exchange, which is not
            logged.
        """
        self.dropped += 1
        if queue.capture is not None:
            queue.capture.dropped(queue, message, reason)
        if cause:
            logger.info(
                "event=dead_letter.dropped queue=%r reason=%s cause=%r",
                queue.name.decode(errors="replace"),
                reason,
                cause,
            )

    # -- strategy at-least-once: pending dead letters

    def hold_for_retry(self, queue: Queue, message: Message, reason: str) -> None:
        """Keep a message that cannot be dead-lettered now in its queue's `pending_dead_letters`, and schedule a retry.

        The log records the reason of the dead-lettering, so that the message waits for a retry after a restart, too.
        """
        if message.stored and queue.log is not None and queue.queue_log is not None:
            mark = message_mark(message, REASONS.index(reason) + 1)
            queue.log.record_delivery_count(queue.queue_log, message.sequence, mark)
        queue.pending_dead_letters.append((message, reason))
        queue.pending_dead_letter_bytes += message.body_size
        self.queues_with_pending[queue] = True
        self.retry_in(RETRY_SECONDS)

    def retry_in(self, seconds: float) -> None:
        """Schedule the next attempt to publish dead letters that no target has accepted, unless one is scheduled.

        :param seconds: the time until then.
        """
        if self.timer is None:
            self.timer = self.vhost.clock.call_at(self.vhost.clock.now() + seconds, self.retry)

    def stop(self) -> None:
        """Cancel the next attempt to publish dead letters that no target has accepted.

        The broker stops, or the virtual host is deleted.
        """
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def retry(self) -> None:
        """Try again to publish dead letters that no target has accepted yet: of each queue the oldest 100 at most."""
        retries = deque(Retry(queue) for queue in self.queues_with_pending if not queue.deleted)
        self.queues_with_pending.clear()
        self.retry_delay = RETRY_SECONDS
        self.vhost.bulk_work.run(self.retry_lane, lambda end: self.retry_slice(retries, end))

    def retry_slice(self, retries: deque[Retry], end: float) -> bool:
        """Try again to publish dead letters of some queues until a time; return True when all have been tried.

        :param end: the time by `time.monotonic()`.
        """
        while retries:
            if not self.retry_queue(retries[0], end):
                return False
            retry = retries.popleft()
            if retry.queue.pending_dead_letters:
                self.queues_with_pending[retry.queue] = True
                if retry.has_progress:
                    self.retry_delay = 0.0
            if retries and time.monotonic() >= end:
                return False
        self.timer = None
        if self.queues_with_pending:
            self.retry_in(self.retry_delay)
        return True

    def retry_queue(self, retry: Retry, end: float) -> bool:
        """Try again to publish dead letters of one queue until a time; return True when all have been tried.

        :param end: the time by `time.monotonic()`.
        """
        queue = retry.queue
        pending = queue.pending_dead_letters
        self.busy = True
        self.time = int(self.vhost.clock.wall())
        try:
            while retry.left and pending:
                retry.left -= 1
                message, reason = pending.popleft()
                queue.pending_dead_letter_bytes -= message.body_size
                before = len(pending)
                self.send(queue, message, reason)
                if len(pending) == before:
                    retry.has_progress = True
                    if queue.failed_dead_letters is not None:
                        queue.failed_dead_letters.pop(int(message.sequence), None)
                if time.monotonic() >= end:
                    break
        finally:
            self.busy = False
            self.vhost.end_transfers({queue: True})
        self.process()
        return not retry.left or not pending
