"""Dead-lettering: publish messages that are rejected, expired or dropped by a queue to its dead letter exchange.

Rules: https://www.rabbitmq.com/docs/dlx and, for the strategy at-least-once,
https://www.rabbitmq.com/docs/quorum-queues#dead-lettering. The removal from the queue and all copies in other queues
are one atomic record of the broker's log.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from warren.broker.model.dead_letter.death_history import REASONS, exclude_cycles, record_death
from warren.broker.model.deduplication import DUPLICATE
from warren.broker.model.exchange.delayed import release_delayed_message
from warren.broker.model.exchange.headers import stored_keys
from warren.broker.model.message import Message
from warren.broker.model.message_codec import message_mark
from warren.wire.content import body_payload, header_payload, join_content
from warren.wire.properties import Properties, decode, encode

if TYPE_CHECKING:
    from warren.broker.model.clock import Timer
    from warren.broker.model.queue.queue import Queue
    from warren.broker.model.vhost.vhost import VirtualHost

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Seconds between two attempts to publish dead letters that their targets did not accept (strategy at-least-once)."""

RETRY_SLICE: Final = 100
"""Dead letters of one queue that one retry tries to publish at most.

They take about 5 ms; then the event loop runs other callbacks.
"""


class DeadLettering:
    """Dead-lettering of one virtual host.

    Messages to dead-letter wait in a backlog and are handled in a loop, not by recursion: a dead letter may overflow
    its target queue, whose oldest message may in turn overflow the next queue.
    """

    def __init__(self, vhost: VirtualHost) -> None:
        self.vhost = vhost
        self.backlog: deque[tuple[Queue, list[Message], str]] = deque()
        """Messages that wait to be dead-lettered: (queue that they have left, messages, reason)."""
        self.busy = False
        """True while `process` runs, or between `defer` and `resume`: new entries of the backlog wait."""
        self.queues_with_pending: dict[Queue, bool] = {}
        """Queues with dead letters that wait for a retry (strategy at-least-once): a dict as an ordered set."""
        self.timer: Timer | None = None
        self.dropped = 0
        """Number of messages lost since the start.

        The causes: no dead letter exchange, no route, a cycle, a duplicate, or a target queue that rejected its copy.
        """

    def dead_letter(self, queue: Queue, messages: list[Message], reason: str) -> None:
        """Dead-letter messages that have left a queue; now, or after the dead-lettering that is in progress.

        :param reason: why they have left: `rejected`, `expired`, `maxlen` or `delivery_limit`.
        """
        self.backlog.append((queue, messages, reason))
        self.process()

    def process(self) -> None:
        """Dead-letter all messages in the backlog.

        Do nothing if a call is already in progress, which handles new messages as well, or between `defer` and
        `resume`.
        """
        if self.busy:
            return
        self.busy = True
        try:
            while self.backlog:
                source, messages, reason = self.backlog.popleft()
                for message in messages:
                    self.send(source, message, reason)
        finally:
            self.busy = False

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
        """Dead-letter one message. If that fails with an exception, log it and drop the message.

        :param reason: why the message leaves the queue: `rejected`, `expired`, `maxlen` or `delivery_limit`.
        """
        try:
            self.transfer(queue, message, reason)
        except Exception:
            logger.exception("event=dead_letter.failed queue=%r", queue.name.decode(errors="replace"))
            self.drop(queue, message, reason, "an internal error")

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
        exchange = vhost.exchanges.get(arguments.dead_letter_exchange)
        key = arguments.dead_letter_routing_key
        # x-death may be long and is not decoded, unless an exchange on the way may match headers.
        by_message = exchange is not None and vhost.routes_by_message(exchange)
        properties = decode(header_payload(message.content), None if by_message else "x-death")
        letter = self.make_dead_letter(queue, message, reason, properties)
        targets: list[Queue] = []
        if exchange is not None:
            found = vhost.find_queues(
                exchange, dead_letter_keys(letter, key, properties), properties.headers, letter
            )
            if found is DUPLICATE:
                self.drop(queue, message, reason, "it is a duplicate")
                return
            targets = found if reason == "rejected" else exclude_cycles(found, letter)
            if found and not targets:
                self.drop(queue, message, reason, "it would make a dead-letter cycle")
                return
        if arguments.at_least_once and (
            not targets
            or any(target.rejects_publishes and target.limit.would_exceed(letter) for target in targets)
        ):
            self.hold_for_retry(queue, message, reason)
            return
        if not targets:
            name = arguments.dead_letter_exchange.decode(errors="replace")
            self.drop(
                queue, message, reason, f"exchange '{name}' did not route key {key or message.routing_key!r}"
            )
            return
        if vhost.transfer(queue, message, targets, letter):
            self.record_drop(queue, message, reason, "a full queue rejected its copy")
        elif queue.capture is not None:
            queue.capture.dead_lettered(queue, message, reason)

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
        """Cancel the next attempt to publish dead letters that no target has accepted, because the broker stops."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def retry(self) -> None:
        """Try again to publish dead letters that no target has accepted yet: of each queue the oldest 100 at most."""
        queues = [queue for queue in self.queues_with_pending if not queue.deleted]
        self.queues_with_pending.clear()
        delay = RETRY_SECONDS
        for queue in queues:
            before = len(queue.pending_dead_letters)
            for _ in range(min(before, RETRY_SLICE)):
                message, reason = queue.pending_dead_letters.popleft()
                queue.pending_dead_letter_bytes -= message.body_size
                self.dead_letter(queue, [message], reason)
            if queue.pending_dead_letters:
                self.queues_with_pending[queue] = True
                if len(queue.pending_dead_letters) < before:
                    delay = 0.0
        self.timer = None
        if self.queues_with_pending:
            self.retry_in(delay)

    # -- the dead letter

    def make_dead_letter(self, queue: Queue, message: Message, reason: str, original: Properties) -> Message:
        """Return the message that is published to the dead letter exchange: with x-death, and without an expiration.

        :param message: the message that has left the queue.
        :param reason: why it has left: `rejected`, `expired`, `maxlen` or `delivery_limit`.
        :param original: the decoded properties of `message`.
        """
        properties = Properties(original)
        headers = dict(original.headers)
        override = queue.arguments.dead_letter_routing_key
        keys = [message.routing_key, *stored_keys(headers, "CC")]
        if override is not None:
            headers.pop("CC", None)
        headers.pop("BCC", None)
        record_death(
            headers,
            trusts_history=message.dead_lettered,
            queue=queue.name,
            reason=reason,
            time=int(self.vhost.clock.now()),
            exchange=message.exchange,
            keys=keys,
            expiration=properties.data("expiration"),
            sets_last_death=self.vhost.compat.sets_last_death_headers,
        )
        properties.pop("expiration", None)
        properties["headers"] = headers
        body = body_payload(message.content)
        letter = Message(
            queue.arguments.dead_letter_exchange or b"",
            message.routing_key if override is None else override,
            join_content(message.channel, encode(properties, len(body)), body),
            len(body),
            message.channel,
        )
        letter.priority = message.priority
        letter.persistent = message.persistent
        letter.dead_lettered = True
        return letter


def dead_letter_keys(letter: Message, override: bytes | None, original: Properties) -> list[bytes]:
    """Return the routing keys under which a dead letter is published.

    :param override: the queue's x-dead-letter-routing-key, which is then the only key; None to use the original keys.
    :param original: the properties of the message, whose CC and BCC are used as well.
    """
    if override is not None:
        return [override]
    return [
        letter.routing_key,
        *(key for name in ("CC", "BCC") for key in stored_keys(original.headers, name)),
    ]
