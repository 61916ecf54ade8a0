"""Dead-lettering: move messages that a queue gives up to its dead letter exchange, with their history.

Rules: https://www.rabbitmq.com/docs/dlx and, for the strategy at-least-once,
https://www.rabbitmq.com/docs/quorum-queues#dead-lettering. The removal and all copies are one atomic record of the log.
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
"""Seconds between two attempts to publish the pending dead letters of a queue (strategy at-least-once)."""

RETRY_SLICE: Final = 100
"""Pending dead letters of one queue that are tried before other work gets its turn on the event loop: about 5 ms."""


class DeadLettering:
    """The dead-lettering of one virtual host.

    Dead letters are worked off from a backlog and not recursively: a copy may overflow its target, whose own dead letter may
    overflow the next queue.
    """

    def __init__(self, vhost: VirtualHost) -> None:
        self.vhost = vhost
        self.backlog: deque[tuple[Queue, list[Message], str]] = deque()
        """Messages to dead-letter: their queue, the messages, the reason."""
        self.busy = False
        """The backlog is being worked off, or has to wait until `resume`."""
        self.queues_with_pending: dict[Queue, bool] = {}
        """Queues that hold pending dead letters; a dict in the place of an ordered set."""
        self.timer: Timer | None = None
        self.dropped = 0
        """Messages lost since the start: no dead letter exchange, no route, a cycle, or a target that rejected the copy."""

    def dead_letter(self, queue: Queue, messages: list[Message], reason: str) -> None:
        """Dead-letter messages that have left a queue.

        :param reason: one of `REASONS`.
        """
        self.backlog.append((queue, messages, reason))
        self.process()

    def process(self) -> None:
        """Work off the backlog, unless an outer call does so already or it is deferred."""
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
        """Let the backlog wait until `resume`, because a record of the log is being put together."""
        self.busy = True

    def resume(self) -> None:
        """Work off the backlog that has waited since `defer`."""
        self.busy = False
        self.process()

    def send(self, queue: Queue, message: Message, reason: str) -> None:
        """Transfer one message; an error drops this message and no other."""
        try:
            self.transfer(queue, message, reason)
        except Exception:
            logger.exception("event=dead_letter.failed queue=%r", queue.name.decode(errors="replace"))
            self.drop(queue, message, reason, "an internal error")

    def transfer(self, queue: Queue, message: Message, reason: str) -> None:
        """Route one message to its targets, hold it as a pending dead letter, or drop it.

        In an internal queue the expiry of a message has another meaning: a delayed message is due, or a deduplication key
        leaves its window.
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
        """Drop a message that cannot be dead-lettered, and remove it from the log."""
        self.record_drop(queue, message, reason, cause)
        if message.stored:
            queue.remove_from_log(message)

    def record_drop(self, queue: Queue, message: Message, reason: str, cause: str) -> None:
        """Count, capture and log a dropped message.

        :param cause: why it could not be dead-lettered; empty if its queue has no dead letter exchange, which is not logged.
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
        """Keep a message as a pending dead letter of its queue, in the log as well, and try again later."""
        if message.stored and queue.log is not None and queue.queue_log is not None:
            mark = message_mark(message, REASONS.index(reason) + 1)
            queue.log.record_delivery_count(queue.queue_log, message.sequence, mark)
        queue.pending_dead_letters.append((message, reason))
        queue.pending_dead_letter_bytes += message.body_size
        self.queues_with_pending[queue] = True
        self.retry_in(RETRY_SECONDS)

    def retry_in(self, seconds: float) -> None:
        """Schedule the next retry, unless one is scheduled."""
        if self.timer is None:
            self.timer = self.vhost.clock.call_at(self.vhost.clock.now() + seconds, self.retry)

    def stop(self) -> None:
        """Cancel the retries, because the broker stops."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def retry(self) -> None:
        """Dead-letter the oldest pending messages of each queue again, in turn."""
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
        """Return the message that is published to the dead letter exchange: with x-death, and without an expiration."""
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
    """Return the routing keys of a dead letter: the queue's own key, or all keys that the message was published with."""
    if override is not None:
        return [override]
    return [
        letter.routing_key,
        *(key for name in ("CC", "BCC") for key in stored_keys(original.headers, name)),
    ]
