"""Move of one queue's messages over one pair of connections: publish, confirm, acknowledge, in this order."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from warren.cli.migrate.journal import QueueJournal, Recognition
from warren.cli.migrate.moved_message import (
    MovedMessage,
    fingerprint_of_published,
    published_header,
    read_delivery,
)
from warren.wire import methods
from warren.wire.delivery_scanner import RETURN
from warren.wire.field_tables import TableError, field_of
from warren.wire.methods import DELIVER
from warren.wire.properties import Properties

if TYPE_CHECKING:
    from warren.cli.migrate.session import Session

SEEN_COPIES: Final = 4096
"""Newest messages of an earlier migration that are remembered, to recognise their copies."""
SELECTED_HEADERS: Final = frozenset(("CC", "BCC"))
"""Headers by which the default exchange routes to further queues."""


class MigrationRefused(Exception):
    """Error that a new attempt does not help against. The text is one line: what failed and what to do."""


@dataclass
class MoveCounts:
    """Numbers of one queue since the tool was started."""

    published: int = 0
    confirmed: int = 0
    republished: int = 0
    """Messages that were published again, as their confirm was lost: the target may have a copy."""
    recognised: int = 0
    """Messages that the source delivered again although the target had confirmed them: acknowledged only."""
    removed: int = 0
    """Copies that an earlier migration had made: acknowledged only."""
    restarted: int = 0
    """Messages with a TTL whose remaining time the source did not tell: the whole TTL begins again."""


@dataclass(slots=True)
class PendingMessage:
    """A message that is not acknowledged at the source yet."""

    tag: int
    sequence: int
    """Sequence in the journal; 0 if nothing has to be recorded."""
    size: int
    fingerprint: bytes
    """Fingerprint of the message as it was published."""
    is_confirmed: bool


@dataclass
class MovedQueue:
    """A queue that is moved, over all connections."""

    name: str
    number: int
    """Number of its files in the journal, and of its exchange."""
    journal: QueueJournal
    keeps_order: bool
    is_single_active: bool
    message_ttl: int | None
    counts: MoveCounts = field(default_factory=MoveCounts)
    seen_copies: OrderedDict[tuple[str, str, int], bytes] = field(default_factory=OrderedDict)


class QueueMove:
    """Listener of one channel on both connections, which have the same number.

    :param exchange: exchange of the target that routes to this queue only, with any routing key.
    :param on_copy: called with the sequence of each message that was published again.
    """

    def __init__(
        self,
        session: Session,
        queue: MovedQueue,
        channel: int,
        exchange: bytes,
        on_copy: Callable[[MovedQueue, int], None],
    ) -> None:
        self.queue = queue
        self.channel = channel
        self.pending: deque[PendingMessage] = deque()
        self.consumer_tag = b""
        self._session = session
        self._exchange = exchange
        self._name = queue.name.encode("utf-8", "surrogateescape")
        self._on_copy = on_copy
        self._recognition = Recognition(queue.journal, queue.keeps_order)
        self._unconfirmed: dict[int, PendingMessage] = {}
        self._published = 0
        self._settle_scheduled = False
        self._migration_header = field_of(session.migration_id)
        self._queue_header = field_of(queue.name)
        self._method_of: tuple[bytes, bytes, bytes] = (b"", b"", b"")

    # -- source

    def message(self, method: bytes, header: bytes, body: bytes) -> None:
        """Receive a delivery of the source, or a message that the target returns."""
        number = int.from_bytes(method[2:4], "big")
        if number == RETURN:
            self._session.fail(
                f"the target returned a message of queue {self.queue.name!r}: it has no such queue"
            )
        elif number == DELIVER and not self._session.has_failed:
            try:
                self._on_delivery(read_delivery(method, header, body))
            except (TableError, ValueError) as error:
                self._session.fail(
                    f"a message of queue {self.queue.name!r} has malformed properties: {error}"
                )

    def _on_delivery(self, message: MovedMessage) -> None:
        queue = self.queue
        sequence = self._recognition.sequence_of(message.fingerprint, message.redelivered)
        if sequence is not None and self._recognition.is_confirmed(sequence):
            queue.counts.recognised += 1
            self._acknowledge_only(message)
            return
        if sequence is None:
            if self._is_copy(message):
                queue.counts.removed += 1
                self._acknowledge_only(message)
                return
            sequence = queue.journal.append(message.fingerprint)
        else:
            queue.counts.republished += 1
            self._on_copy(queue, sequence)
        self._publish(message, sequence)

    def _acknowledge_only(self, message: MovedMessage) -> None:
        self.pending.append(PendingMessage(message.tag, 0, 0, b"", True))
        self._schedule_settle()

    def _is_copy(self, message: MovedMessage) -> bool:
        """Return True if an earlier migration has made this message as a copy of one that was moved before."""
        if message.copy_of is None:
            return False
        seen = self.queue.seen_copies
        if seen.get(message.copy_of) == message.fingerprint:
            return True
        seen[message.copy_of] = message.fingerprint
        if len(seen) > SEEN_COPIES:
            seen.popitem(last=False)
        return False

    # -- target

    def _publish(self, message: MovedMessage, sequence: int) -> None:
        found, session = message.properties, self._session
        user = found.data("user_id")
        if user is not None and not session.may_publish_as(user):
            session.fail(
                f"a message of queue {self.queue.name!r} has the user_id {user.decode(errors='replace')!r}:"
                " give the user of the target the tag `impersonator`"
            )
            return
        self._count_expiry(message, found)
        keeps_exchange = (
            not message.exchange
            and message.routing_key == self._name
            and SELECTED_HEADERS.isdisjoint(message.headers)
        )
        header = published_header(
            message, self._migration_header, self._queue_header, sequence, keeps_exchange
        )
        written = fingerprint_of_published(message, header, message.body)
        pending = PendingMessage(message.tag, sequence, len(message.body), written, False)
        self._published += 1
        self._unconfirmed[self._published] = pending
        self.pending.append(pending)
        self.queue.counts.published += 1
        session.publish(
            self.channel,
            self._method(b"" if keeps_exchange else self._exchange, message.routing_key),
            header,
            message.body,
        )

    def _count_expiry(self, message: MovedMessage, found: Properties) -> None:
        if not message.expires_at and ("expiration" in found or self.queue.message_ttl is not None):
            self.queue.counts.restarted += 1

    def _method(self, exchange: bytes, key: bytes) -> bytes:
        last_exchange, last_key, method = self._method_of
        if not method or last_exchange != exchange or last_key != key:
            method = methods.frame(self.channel, "basic.publish", 0, exchange, key, True, False)
            self._method_of = (exchange, key, method)
        return method

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        """Receive a publisher confirm of the target."""
        if not ack:
            self._session.end(f"the target refuses messages of queue {self.queue.name!r}: is it full?")
            return
        if multiple:
            numbers = [number for number in self._unconfirmed if number <= sequence]
        else:
            numbers = [sequence] if sequence in self._unconfirmed else []
        for number in numbers:
            self._unconfirmed.pop(number).is_confirmed = True
        if numbers:
            self._schedule_settle()

    # -- acknowledgements

    def _schedule_settle(self) -> None:
        if not self._settle_scheduled:
            self._settle_scheduled = True
            self._session.loop.call_soon(self._settle)

    def _settle(self) -> None:
        """Record what is confirmed, then acknowledge it at the source, in the order of the deliveries."""
        self._settle_scheduled = False
        if self._session.has_failed:
            return
        first, following, fingerprints, tag, size = 0, 0, bytearray(), 0, 0
        journal, counts = self.queue.journal, self.queue.counts
        while self.pending and self.pending[0].is_confirmed:
            done = self.pending.popleft()
            tag = done.tag
            size += done.size
            if not done.sequence:
                continue
            counts.confirmed += 1
            if done.sequence != following:
                if fingerprints:
                    journal.confirm(first, bytes(fingerprints))
                    fingerprints.clear()
                first = done.sequence
            fingerprints += done.fingerprint
            following = done.sequence + 1
        if fingerprints:
            journal.confirm(first, bytes(fingerprints))
        if tag:
            self._session.acknowledge(self.channel, tag, size)
