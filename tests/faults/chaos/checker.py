"""Judges a history: a pure function from what the clients of a broker saw to what the broker must not have done.

The promises are those of docs/storage.md. What a crash leaves open (a publish without its confirm, an acknowledgement that
is not yet safe, a commit without its answer) may have happened or not; what is seen later has to fit one of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.faults.chaos.copies import Client, Copy, Settle, State, Transaction
from tests.faults.chaos.history import Event, History, Rules, What, number, publisher
from tests.faults.chaos.streams import Stream

ACK_SECONDS: Final = 0.2
"""After this time, and a sync, an acknowledgement is on the disk without more."""
SYNC_SECONDS: Final = 10.0
"""What the checker allows for a sync on a busy machine, unless a confirm of a later publish tells that it is over."""


class Kind(Enum):
    LOST = "a confirmed message is lost"
    RESURRECTED = "an acknowledged message is back"
    DOUBLED = "a message is in two places"
    DISORDER = "messages of one publisher are out of order"
    UNFLAGGED = "a message that was delivered before, or recovered, is not marked as redelivered"
    TRANSACTION = "a transaction is neither whole nor absent"
    UNKNOWN = "a message that nobody published, or that was over"
    DEFINITIONS = "a definition is not as its client was told"


@dataclass(frozen=True)
class Fault:
    kind: Kind
    text: str
    at: int
    """The position of the event that gave it away."""

    def __str__(self) -> str:
        return f"event {self.at}: {self.kind.value}: {self.text}"


@dataclass
class Tally:
    """What was checked, so that a run that proves nothing can be told."""

    confirmed: int = 0
    delivered: int = 0
    read: int = 0
    """Delivered from streams."""
    settled: int = 0
    safe: int = 0
    """Settled, and safe when the broker's life ended."""
    redelivered: int = 0
    committed: int = 0
    uncertain: int = 0
    """Transactions whose commit a crash left without an answer."""
    crashes: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in vars(self).items())

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def check(history: History) -> list[Fault]:
    """All that speaks against the broker, in the order in which it came up."""
    return judge(history).faults


def owed(history: History) -> bool:
    """Whether, were nothing more to come, a message would be missing."""
    judge_now = judge(history)
    before = len(judge_now.faults)
    judge_now.take(len(history.events), Event(What.EMPTIED, 0.0))
    return any(fault.kind is Kind.LOST for fault in judge_now.faults[before:])


def judge(history: History) -> Judge:
    judge = Judge(history.rules)
    for position, event in enumerate(history.events):
        judge.take(position, event)
    return judge


class Judge:
    """Goes through a history once."""

    def __init__(self, rules: dict[str, Rules]) -> None:
        self.rules = rules
        self.faults: list[Fault] = []
        self.tally = Tally()
        self._sources = {rule.dead_letters_to: name for name, rule in rules.items() if rule.dead_letters_to}
        self._life = 0
        self._unclean = 0
        """Lives before this one ended in a crash, or before one that did."""
        self._proof = 0.0
        """When the latest message was sent that is on the disk: what was to be there before it, is."""
        self._position = 0
        self._copies: dict[tuple[str, str], Copy] = {}
        self._published: dict[str, list[Copy]] = {}
        self._clients: dict[str, Client] = {}
        self._transactions: dict[str, Transaction] = {}
        self._last: dict[tuple[str, str, str, int], int] = {}
        self._alone = ""
        self._level: dict[str, int] = {}
        self._definitions: dict[str, set[bool]] = {}
        self._streams = {name: Stream() for name, rule in rules.items() if rule.stream}
        self._handlers: dict[What, Callable[[Event], None]] = {
            What.PUBLISH: self._publish,
            What.CONFIRMED: self._confirmed,
            What.DELIVERED: self._delivered,
            What.READ: self._read,
            What.ACK: self._settle,
            What.REJECT: self._settle,
            What.REQUEUE: self._requeue,
            What.FENCE: self._fence,
            What.FENCED: self._fenced,
            What.COMMIT: self._commit,
            What.COMMITTED: self._committed,
            What.ROLLBACK: self._rollback,
            What.CLOSED: self._closed,
            What.KILLED: self._ended,
            What.STOPPED: self._ended,
            What.ALONE: self._is_alone,
            What.EMPTIED: self._emptied,
            What.DECLARE: self._define,
            What.DECLARED: self._define,
            What.DELETE: self._define,
            What.DELETED: self._define,
            What.EXISTS: self._looked_for,
            What.MISSING: self._looked_for,
        }

    def take(self, position: int, event: Event) -> None:
        self._position = position
        handler = self._handlers.get(event.what)
        if handler is not None:
            handler(event)

    def _fault(self, kind: Kind, text: str) -> None:
        self.faults.append(Fault(kind, text, self._position))

    def _client(self, name: str) -> Client:
        return self._clients.setdefault(name, Client())

    # -- publishing

    def _publish(self, event: Event) -> None:
        copies = [
            Copy(event.message, queue, self._life, event.transaction, event.priority)
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
        self._make_safe(client, position)
        if self._published[event.message]:
            self._proof = max(self._proof, at)

    def _make_safe(self, client: Client, before: int) -> None:
        """What the client has settled before it sent this is on the disk, as that is."""
        for settle in client.settles:
            if settle.position < before:
                settle.safe = True
        client.settles = [settle for settle in client.settles if not settle.safe]

    # -- delivering

    def _delivered(self, event: Event) -> None:
        self.tally.delivered += 1
        self.tally.redelivered += event.redelivered
        copy = self._copies.get((event.message, event.queue))
        source = self._source(event)
        if copy is None and source is not None:
            copy = self._copies[event.message, event.queue] = Copy(
                event.message, event.queue, self._life, priority=source.priority
            )
        if copy is None:
            self._fault(Kind.UNKNOWN, f"{event.message} in {event.queue}")
            return
        if source is not None:
            self._died(source, copy)
        self._came_back(copy)
        if copy.holder:
            self._fault(Kind.DOUBLED, f"{copy} went to {copy.holder} and to {event.client}")
        self._in_transaction(copy)
        self._flag(copy, event)
        self._order(copy, event)
        copy.delivered = self._life
        copy.holder = event.client
        self._client(event.client).holding[copy.message, copy.queue] = copy

    def _read(self, event: Event) -> None:
        self.tally.read += 1
        if (event.message, event.queue) not in self._copies:
            self._fault(Kind.UNKNOWN, f"{event.message} in {event.queue}")
            return
        kinds = {"place": Kind.DOUBLED, "order": Kind.DISORDER}
        self._streams[event.queue].read(
            event.client, event.message, event.offset, lambda kind, text: self._fault(kinds[kind], text)
        )

    def _source(self, event: Event) -> Copy | None:
        queue = self._sources.get(event.queue)
        return None if queue is None else self._copies.get((event.message, queue))

    def _died(self, source: Copy, letter: Copy) -> None:
        """A dead letter came: its original is gone for the same reason."""
        settle = source.settle
        if source.holder:
            self._fault(Kind.DOUBLED, f"{source} is with {source.holder}, and {letter} came")
        elif settle is None:
            if not self.rules[source.queue].ttl:
                self._fault(Kind.DOUBLED, f"{letter} came, but nobody rejected {source}")
        elif settle.what is What.ACK:
            if settle.safe or settle.life == self._life:
                self._fault(Kind.RESURRECTED, f"{source} was acknowledged, and {letter} came")
            source.settle = None

    def _came_back(self, copy: Copy) -> None:
        settle = copy.settle
        if settle is not None:
            if settle.safe:
                self._fault(Kind.RESURRECTED, f"{copy}: its {settle.what.value} was safe")
            elif settle.life == self._life:
                self._fault(
                    Kind.RESURRECTED, f"{copy}: the broker has not ended since its {settle.what.value}"
                )
            elif settle.transaction:
                self._transaction(settle.transaction).undone.append(copy)
            copy.settle = None
        letter = self._letter(copy)
        if letter is None:
            return
        if (letter.settle is not None and letter.settle.safe) or letter.delivered == self._life:
            self._fault(Kind.DOUBLED, f"{copy} came after {letter} had")
        # Its death was undone by a crash, and with it whatever became of the letter.
        letter.settle = None

    def _letter(self, copy: Copy) -> Copy | None:
        target = self.rules[copy.queue].dead_letters_to
        return self._copies.get((copy.message, target)) if target else None

    def _in_transaction(self, copy: Copy) -> None:
        if copy.transaction and self._transaction(copy.transaction).state in (State.OPEN, State.ROLLED_BACK):
            self._fault(Kind.TRANSACTION, f"{copy} of {copy.transaction} was never committed")

    def _flag(self, copy: Copy, event: Event) -> None:
        # A dead letter whose death was undone by a crash dies again, and is new then.
        original = copy.queue not in self._sources
        before = copy.delivered == self._life or (original and copy.delivered >= 0)
        recovered = original and copy.life < self._unclean
        if (before or recovered) and not event.redelivered:
            why = "was delivered before" if before else "was recovered after a crash"
            self._fault(Kind.UNFLAGGED, f"{copy} {why}")

    def _order(self, copy: Copy, event: Event) -> None:
        rules = self.rules[copy.queue]
        alone = event.client == self._alone
        if not rules.ordered or (event.redelivered and not alone):
            return
        level = min(copy.priority, rules.priorities)
        if alone:
            if level > self._level.get(copy.queue, level):
                self._fault(Kind.DISORDER, f"{copy} of priority {level} came after a lower one")
            self._level[copy.queue] = level
        key = event.client, copy.queue, publisher(copy.message), level
        mine = number(copy.message)
        if mine < self._last.get(key, 0):
            self._fault(Kind.DISORDER, f"{copy} came after number {self._last[key]}")
        self._last[key] = mine

    # -- settling

    def _settle(self, event: Event) -> None:
        copy = self._copies.get((event.message, event.queue))
        if copy is None or copy.holder != event.client:
            return
        self.tally.settled += 1
        settle = Settle(event.what, self._position, self._life, event.transaction)
        if event.transaction:
            self._transaction(event.transaction).settled.append((copy, settle))
            return
        self._client(event.client).settles.append(settle)
        self._take_off(copy, settle)

    def _take_off(self, copy: Copy, settle: Settle) -> None:
        copy.settle = settle
        self._release(copy)

    def _release(self, copy: Copy) -> None:
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
            if settle.position < client.fence and not settle.worked_off:
                settle.worked_off = event.at

    def _closed(self, event: Event) -> None:
        client = self._client(event.client)
        for settle in client.settles:
            settle.worked_off = settle.worked_off or event.at
        for copy in list(client.holding.values()):
            self._release(copy)

    # -- transactions

    def _transaction(self, name: str) -> Transaction:
        return self._transactions.setdefault(name, Transaction(self._life))

    def _commit(self, event: Event) -> None:
        transaction = self._transaction(event.transaction)
        transaction.state = State.SENT
        client = self._client(event.client)
        client.commit = self._position
        for copy, settle in transaction.settled:
            client.settles.append(settle)
            self._take_off(copy, settle)

    def _committed(self, event: Event) -> None:
        self.tally.committed += 1
        transaction = self._transaction(event.transaction)
        transaction.state = State.COMMITTED
        for copy in transaction.copies:
            copy.due = True
        client = self._client(event.client)
        self._make_safe(client, client.commit)

    def _rollback(self, event: Event) -> None:
        self._transaction(event.transaction).state = State.ROLLED_BACK

    # -- the broker's lives

    def _ended(self, event: Event) -> None:
        crashed = event.what is What.KILLED
        for client in self._clients.values():
            for settle in client.settles:
                due = settle.worked_off + ACK_SECONDS
                settle.safe = settle.worked_off > 0 and (
                    not crashed or due <= self._proof or due + SYNC_SECONDS <= event.at
                )
        for copy in self._copies.values():
            copy.holder = ""
            if copy.settle is not None and copy.settle.life == self._life:
                self.tally.safe += copy.settle.safe
        self._clients.clear()
        self._proof = 0.0
        self._last.clear()
        self._level.clear()
        self._alone = ""
        self._life += 1
        if crashed:
            self.tally.crashes += 1
            self._unclean = self._life

    def _is_alone(self, event: Event) -> None:
        if event.queues:
            self._streams[event.queue].whole = event.client
        else:
            self._alone = event.client

    def _emptied(self, event: Event) -> None:
        """Nothing is left: what was confirmed has ended as somebody wanted, and each transaction is whole."""
        for name, transaction in self._transactions.items():
            if transaction.state is State.SENT and transaction.life < self._life:
                self.tally.uncertain += 1
                self._weigh(name, transaction)
        for copy in self._copies.values():
            if copy.due and copy.queue not in self._streams and not self._has_ended(copy):
                self._fault(Kind.LOST, f"{copy}, published in life {copy.life}")
        for name, stream in self._streams.items():
            due = [copy.message for copy in self._copies.values() if copy.queue == name and copy.due]
            for message in stream.missing(due):
                self._fault(Kind.LOST, f"{message} in {name}")
            self._streams[name] = Stream()
        self._copies.clear()
        self._published.clear()
        self._transactions.clear()

    def _has_ended(self, copy: Copy) -> bool:
        rules = self.rules[copy.queue]
        if copy.settle is not None and copy.settle.what is What.ACK:
            return True
        if copy.settle is None and not rules.ttl:
            return False
        letter = self._letter(copy)
        return not rules.dead_letters_to or (letter is not None and self._has_ended(letter))

    def _weigh(self, name: str, transaction: Transaction) -> None:
        """A commit without an answer: all of it has happened, or nothing."""
        happened, not_happened = [], [f"{copy}, acknowledged in it, came back" for copy in transaction.undone]
        for copy in transaction.copies:
            if copy.delivered > transaction.life or (copy.settle is not None and copy.settle.safe):
                happened.append(f"{copy} came")
            elif copy.settle is None:
                not_happened.append(f"{copy} did not come")
        for copy, settle in transaction.settled:
            # What was never confirmed may be gone for another reason.
            if copy.settle is settle and (copy.due or copy.life < transaction.life):
                happened.append(f"{copy}, acknowledged in it, is gone")
        if happened and not_happened:
            self._fault(Kind.TRANSACTION, f"{name}: {happened[0]}, but {not_happened[0]}")

    # -- definitions

    def _define(self, event: Event) -> None:
        before = self._definitions.get(event.message, {False})
        after = event.what in (What.DECLARE, What.DECLARED)
        certain = event.what in (What.DECLARED, What.DELETED)
        self._definitions[event.message] = {after} if certain else before | {after}

    def _looked_for(self, event: Event) -> None:
        found = event.what is What.EXISTS
        if found not in self._definitions.get(event.message, {False}):
            told = "deleted" if found else "declared"
            self._fault(Kind.DEFINITIONS, f"{event.message} is {event.what.value}, but was {told}")
        self._definitions[event.message] = {found}
