"""Checker of a history: a pure function that returns the guarantees that a broker broke.

The guarantees are those of docs/storage.md. After a crash some things are uncertain: a publish without its confirm, an
acknowledgement that is not certainly on disk, a commit without its reply. Each may have happened or not, and all later
events must fit one of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.faults.chaos.history import Event, EventType, History, QueueRules, number, publisher
from tests.faults.chaos.message_state import Client, MessageCopy, Settlement, Transaction, TransactionState
from tests.faults.chaos.stream_state import StreamState

ACK_SECONDS: Final = 0.2
"""The log's `ack_delay`: an acknowledgement is on disk after this time and a sync."""
SYNC_SECONDS: Final = 10.0
"""Time allowed for a sync on a busy machine, unless the confirm of a later publish proves that it is done."""


class FaultKind(Enum):
    """Kinds of broken guarantees."""

    LOST = "a confirmed message is lost"
    RESURRECTED = "an acknowledged message came back"
    DUPLICATED = "a message exists twice"
    OUT_OF_ORDER = "messages of one publisher are out of order"
    NOT_FLAGGED = "a message that was delivered before, or recovered, lacks the redelivered flag"
    PARTIAL_TRANSACTION = "a transaction happened in part"
    UNKNOWN = "a message was delivered that was never published, or had ended"
    DEFINITIONS = "a queue exists or is missing against what the broker replied"


@dataclass(frozen=True)
class Fault:
    """A broken guarantee."""

    kind: FaultKind
    text: str
    at: int
    """Position of the event that shows it."""

    def __str__(self) -> str:
        return f"event {self.at}: {self.kind.value}: {self.text}"


@dataclass
class Tally:
    """Numbers of checked events, by which a run that proves nothing is recognized."""

    confirmed: int = 0
    delivered: int = 0
    read: int = 0
    """Messages delivered from streams."""
    settled: int = 0
    durable: int = 0
    """Messages whose acknowledgement or rejection was certainly on disk when the broker ended."""
    redelivered: int = 0
    committed: int = 0
    uncertain: int = 0
    """Transactions whose commit got no reply because of a crash."""
    crashes: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in vars(self).items())

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def find_faults(history: History) -> list[Fault]:
    """Return the faults in a history, in order of their events."""
    return check_history(history).faults


def has_missing_messages(history: History) -> bool:
    """Return whether a message would be missing if no further event came."""
    checker = check_history(history)
    before = len(checker.faults)
    checker.take(len(history.events), Event(EventType.DRAINED, 0.0))
    return any(fault.kind is FaultKind.LOST for fault in checker.faults[before:])


def check_history(history: History) -> HistoryChecker:
    """Read a history and return the checker with its faults and numbers."""
    checker = HistoryChecker(history.rules)
    for position, event in enumerate(history.events):
        checker.take(position, event)
    return checker


class HistoryChecker:
    """Reads a history once, event by event, and collects its faults."""

    def __init__(self, rules: dict[str, QueueRules]) -> None:
        self.rules = rules
        self.faults: list[Fault] = []
        self.tally = Tally()
        self._sources = {rule.dead_letters_to: name for name, rule in rules.items() if rule.dead_letters_to}
        self._life = 0
        self._unclean = 0
        """Number of the first life after the last crash: messages of earlier lives were recovered."""
        self._proof = 0.0
        """Time at which the latest message was sent that is certainly on disk: all that was due before is on disk too."""
        self._position = 0
        self._copies: dict[tuple[str, str], MessageCopy] = {}
        self._published: dict[str, list[MessageCopy]] = {}
        self._clients: dict[str, Client] = {}
        self._transactions: dict[str, Transaction] = {}
        self._last: dict[tuple[str, str, str, int], int] = {}
        self._draining_client = ""
        self._level: dict[str, int] = {}
        self._definitions: dict[str, set[bool]] = {}
        self._streams = {name: StreamState() for name, rule in rules.items() if rule.stream}
        self._handlers: dict[EventType, Callable[[Event], None]] = {
            EventType.PUBLISH: self._publish,
            EventType.CONFIRMED: self._confirmed,
            EventType.DELIVERED: self._delivered,
            EventType.READ: self._read,
            EventType.ACK: self._settle,
            EventType.REJECT: self._settle,
            EventType.REQUEUE: self._requeue,
            EventType.FENCE: self._fence,
            EventType.FENCED: self._fenced,
            EventType.COMMIT: self._commit,
            EventType.COMMITTED: self._committed,
            EventType.ROLLBACK: self._rollback,
            EventType.CLOSED: self._closed,
            EventType.KILLED: self._broker_ended,
            EventType.STOPPED: self._broker_ended,
            EventType.DISTURBED: self._disturbed,
            EventType.DRAIN_STARTED: self._drain_started,
            EventType.DRAINED: self._drained,
            EventType.DECLARE: self._define,
            EventType.DECLARED: self._define,
            EventType.DELETE: self._define,
            EventType.DELETED: self._define,
            EventType.EXISTS: self._definition_checked,
            EventType.MISSING: self._definition_checked,
        }

    def take(self, position: int, event: Event) -> None:
        """Take the next event."""
        self._position = position
        handler = self._handlers.get(event.type)
        if handler is not None:
            handler(event)

    def _fault(self, kind: FaultKind, text: str) -> None:
        self.faults.append(Fault(kind, text, self._position))

    def _client(self, name: str) -> Client:
        return self._clients.setdefault(name, Client())

    # Publishing

    def _publish(self, event: Event) -> None:
        copies = [
            MessageCopy(event.message, queue, self._life, event.transaction, event.priority)
            for queue in event.queues
        ]
        for copy in copies:
            self._copies[copy.message, copy.queue] = copy
        self._published[event.message] = copies
        self._client(event.client).publishes[event.message] = self._position, event.at
        if event.transaction:
            self._transaction(event.transaction).copies += copies

    def _confirmed(self, event: Event) -> None:
        self.tally.confirmed += 1
        for copy in self._published[event.message]:
            copy.due = True
        client = self._client(event.client)
        position, at = client.publishes.pop(event.message)
        self._mark_durable(client, position)
        if self._published[event.message]:
            self._proof = max(self._proof, at)

    def _mark_durable(self, client: Client, before: int) -> None:
        """Mark the settlements that the client sent before an event as on disk: the event itself is."""
        for settle in client.settles:
            if settle.position < before:
                settle.durable = True
        client.settles = [settle for settle in client.settles if not settle.durable]

    # Deliveries

    def _delivered(self, event: Event) -> None:
        self.tally.delivered += 1
        self.tally.redelivered += event.redelivered
        copy = self._copies.get((event.message, event.queue))
        source = self._source(event)
        if copy is None and source is not None:
            copy = self._copies[event.message, event.queue] = MessageCopy(
                event.message, event.queue, self._life, priority=source.priority
            )
        if copy is None:
            self._fault(FaultKind.UNKNOWN, f"{event.message} in {event.queue}")
            return
        if source is not None:
            self._check_dead_letter(source, copy)
        self._check_return(copy)
        if copy.holder:
            self._fault(FaultKind.DUPLICATED, f"{copy} was delivered to {copy.holder} and to {event.client}")
        self._check_committed(copy)
        self._check_redelivered_flag(copy, event)
        self._check_order(copy, event)
        copy.delivered = self._life
        copy.holder = event.client
        self._client(event.client).holding[copy.message, copy.queue] = copy

    def _read(self, event: Event) -> None:
        self.tally.read += 1
        if (event.message, event.queue) not in self._copies:
            self._fault(FaultKind.UNKNOWN, f"{event.message} in {event.queue}")
            return
        kinds = {"offset": FaultKind.DUPLICATED, "order": FaultKind.OUT_OF_ORDER}
        self._streams[event.queue].read(
            event.client, event.message, event.offset, lambda kind, text: self._fault(kinds[kind], text)
        )

    def _source(self, event: Event) -> MessageCopy | None:
        queue = self._sources.get(event.queue)
        return None if queue is None else self._copies.get((event.message, queue))

    def _check_dead_letter(self, source: MessageCopy, letter: MessageCopy) -> None:
        """Check that a delivered dead letter has an original that was rejected or expired."""
        settle = source.settle
        if source.holder:
            self._fault(
                FaultKind.DUPLICATED, f"{source} is held by {source.holder}, and {letter} was delivered"
            )
        elif settle is None:
            if not self.rules[source.queue].ttl:
                self._fault(FaultKind.DUPLICATED, f"{letter} was delivered, but no client rejected {source}")
        elif settle.type is EventType.ACK:
            if settle.durable or settle.life == self._life:
                self._fault(FaultKind.RESURRECTED, f"{source} was acknowledged, and {letter} was delivered")
            source.settle = None

    def _check_return(self, copy: MessageCopy) -> None:
        settle = copy.settle
        if settle is not None:
            if settle.durable:
                self._fault(FaultKind.RESURRECTED, f"{copy}: its {settle.type.value} was on disk")
            elif settle.life == self._life:
                self._fault(
                    FaultKind.RESURRECTED,
                    f"{copy}: the broker was not restarted since its {settle.type.value}",
                )
            elif settle.transaction:
                self._transaction(settle.transaction).undone.append(copy)
            copy.settle = None
        letter = self._dead_letter_of(copy)
        if letter is None:
            return
        if (letter.settle is not None and letter.settle.durable) or letter.delivered == self._life:
            self._fault(FaultKind.DUPLICATED, f"{copy} was delivered after {letter}")
        # A crash undid the dead-lettering, and with it the settlement of the dead letter.
        letter.settle = None

    def _dead_letter_of(self, copy: MessageCopy) -> MessageCopy | None:
        target = self.rules[copy.queue].dead_letters_to
        return self._copies.get((copy.message, target)) if target else None

    def _check_committed(self, copy: MessageCopy) -> None:
        if copy.transaction and self._transaction(copy.transaction).state in (
            TransactionState.OPEN,
            TransactionState.ROLLED_BACK,
        ):
            self._fault(FaultKind.PARTIAL_TRANSACTION, f"{copy} of {copy.transaction} was never committed")

    def _check_redelivered_flag(self, copy: MessageCopy, event: Event) -> None:
        # A crash may undo a dead-lettering. The message is dead-lettered again then, and the dead letter is new.
        original = copy.queue not in self._sources
        before = copy.delivered == self._life or (original and copy.delivered >= 0)
        recovered = original and copy.life < self._unclean
        if (before or recovered) and not event.redelivered:
            why = "was delivered before" if before else "was recovered after a crash"
            self._fault(FaultKind.NOT_FLAGGED, f"{copy} {why}")

    def _check_order(self, copy: MessageCopy, event: Event) -> None:
        rules = self.rules[copy.queue]
        alone = event.client == self._draining_client
        if not rules.ordered or (event.redelivered and not alone):
            return
        level = min(copy.priority, rules.priorities)
        if alone:
            if level > self._level.get(copy.queue, level):
                self._fault(
                    FaultKind.OUT_OF_ORDER,
                    f"{copy} of priority {level} was delivered after one of a lower priority",
                )
            self._level[copy.queue] = level
        key = event.client, copy.queue, publisher(copy.message), level
        mine = number(copy.message)
        if mine < self._last.get(key, 0):
            self._fault(FaultKind.OUT_OF_ORDER, f"{copy} was delivered after number {self._last[key]}")
        self._last[key] = mine

    # Acknowledgements and rejections

    def _settle(self, event: Event) -> None:
        copy = self._copies.get((event.message, event.queue))
        if copy is None or copy.holder != event.client:
            return
        self.tally.settled += 1
        settle = Settlement(event.type, self._position, self._life, event.transaction)
        if event.transaction:
            self._transaction(event.transaction).settled.append((copy, settle))
            return
        self._client(event.client).settles.append(settle)
        self._settle_copy(copy, settle)

    def _settle_copy(self, copy: MessageCopy, settle: Settlement) -> None:
        copy.settle = settle
        self._release(copy)

    def _release(self, copy: MessageCopy) -> None:
        self._client(copy.holder).holding.pop((copy.message, copy.queue), None)
        copy.holder = ""

    def _requeue(self, event: Event) -> None:
        copy = self._copies.get((event.message, event.queue))
        if copy is not None and copy.holder == event.client:
            self._release(copy)

    def _fence(self, event: Event) -> None:
        self._client(event.client).fence = self._position

    def _fenced(self, event: Event) -> None:
        client = self._client(event.client)
        for settle in client.settles:
            if settle.position < client.fence and not settle.processed_at:
                settle.processed_at = event.at

    def _closed(self, event: Event) -> None:
        client = self._client(event.client)
        for settle in client.settles:
            settle.processed_at = settle.processed_at or event.at
        for copy in list(client.holding.values()):
            self._release(copy)

    # Transactions

    def _transaction(self, name: str) -> Transaction:
        return self._transactions.setdefault(name, Transaction(self._life))

    def _commit(self, event: Event) -> None:
        transaction = self._transaction(event.transaction)
        transaction.state = TransactionState.SENT
        client = self._client(event.client)
        client.commit = self._position
        for copy, settle in transaction.settled:
            client.settles.append(settle)
            self._settle_copy(copy, settle)

    def _committed(self, event: Event) -> None:
        self.tally.committed += 1
        transaction = self._transaction(event.transaction)
        transaction.state = TransactionState.COMMITTED
        for copy in transaction.copies:
            copy.due = True
        client = self._client(event.client)
        self._mark_durable(client, client.commit)

    def _rollback(self, event: Event) -> None:
        self._transaction(event.transaction).state = TransactionState.ROLLED_BACK

    # Starts and ends of the broker

    def _broker_ended(self, event: Event) -> None:
        crashed = event.type is EventType.KILLED
        for client in self._clients.values():
            for settle in client.settles:
                due = settle.processed_at + ACK_SECONDS
                settle.durable = settle.processed_at > 0 and (
                    not crashed or due <= self._proof or due + SYNC_SECONDS <= event.at
                )
        for copy in self._copies.values():
            copy.holder = ""
            if copy.settle is not None and copy.settle.life == self._life:
                self.tally.durable += copy.settle.durable
        self._clients.clear()
        self._proof = 0.0
        self._last.clear()
        self._level.clear()
        self._draining_client = ""
        self._life += 1
        if crashed:
            for stream in self._streams.values():
                stream.has_crashed = True
            self.tally.crashes += 1
            self._unclean = self._life

    def _disturbed(self, event: Event) -> None:
        """Begin a life in which messages may come again that were acknowledged in the last one."""
        for client in self._clients.values():
            for copy in list(client.holding.values()):
                self._release(copy)
        self._last.clear()
        self._life += 1

    def _drain_started(self, event: Event) -> None:
        if event.queues:
            self._streams[event.queue].whole = event.client
        else:
            self._draining_client = event.client

    def _drained(self, event: Event) -> None:
        """Check at the end that every confirmed message was settled or has expired, and that each transaction is whole."""
        for name, transaction in self._transactions.items():
            if transaction.state is TransactionState.SENT and transaction.life < self._life:
                self.tally.uncertain += 1
                self._check_uncertain_commit(name, transaction)
        for copy in self._copies.values():
            if copy.due and copy.queue not in self._streams and not self._has_ended(copy):
                self._fault(FaultKind.LOST, f"{copy}, published in life {copy.life}")
        for name, stream in self._streams.items():
            due = [copy.message for copy in self._copies.values() if copy.queue == name and copy.due]
            for message in stream.missing(due):
                self._fault(FaultKind.LOST, f"{message} in {name}")
            for text in stream.skipped():
                self._fault(FaultKind.OUT_OF_ORDER, text)
            self._streams[name] = StreamState()
        self._copies.clear()
        self._published.clear()
        self._transactions.clear()

    def _has_ended(self, copy: MessageCopy) -> bool:
        rules = self.rules[copy.queue]
        if copy.settle is not None and copy.settle.type is EventType.ACK:
            return True
        if copy.settle is None and not rules.ttl:
            return False
        letter = self._dead_letter_of(copy)
        return not rules.dead_letters_to or (letter is not None and self._has_ended(letter))

    def _check_uncertain_commit(self, name: str, transaction: Transaction) -> None:
        """Check a commit without a reply: all of it has happened, or nothing."""
        happened, not_happened = (
            [],
            [f"{copy}, acknowledged in it, was delivered again" for copy in transaction.undone],
        )
        for copy in transaction.copies:
            if copy.delivered > transaction.life or (copy.settle is not None and copy.settle.durable):
                happened.append(f"{copy} was delivered")
            elif copy.settle is None:
                not_happened.append(f"{copy} was not delivered")
        for copy, settle in transaction.settled:
            # A message that was never confirmed may be missing for another reason.
            if copy.settle is settle and (copy.due or copy.life < transaction.life):
                happened.append(f"{copy}, acknowledged in it, is gone")
        if happened and not_happened:
            self._fault(FaultKind.PARTIAL_TRANSACTION, f"{name}: {happened[0]}, but {not_happened[0]}")

    # Definitions

    def _define(self, event: Event) -> None:
        before = self._definitions.get(event.message, {False})
        after = event.type in (EventType.DECLARE, EventType.DECLARED)
        certain = event.type in (EventType.DECLARED, EventType.DELETED)
        self._definitions[event.message] = {after} if certain else before | {after}

    def _definition_checked(self, event: Event) -> None:
        found = event.type is EventType.EXISTS
        if found not in self._definitions.get(event.message, {False}):
            replied = "deleted" if found else "declared"
            self._fault(
                FaultKind.DEFINITIONS,
                f"{event.message} is {event.type.value}, but the broker replied {replied}",
            )
        self._definitions[event.message] = {found}
