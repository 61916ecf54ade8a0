"""Saga: a long conversation as a typed state machine, which survives crashes, duplicates and messages out of order, and
undoes its steps when it cannot reach its end.

Guarantees: each message is taken once for each saga, by its message id; the new state and the messages that it sends are
saved together, by one compare-and-set, so that a crash between saving and publishing repeats the publish (with the same
message id, for `Once` to recognise) and never loses it; of several messages for one saga at the same time each sees what
the one before it left. A timeout counts only while the saga is in the very entry of the state that it was made for.
Compensation undoes the steps in the reverse of their order.

A transition is a plain function of data and message: it must have no effect besides what it returns, because it is applied
again when somebody else was faster.

Costs: three or four decisions of the store a message, one publish and confirm for each message sent; a quorum queue for
its events, one for its timeouts, one that waits for each of both and for each length of timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from pydantic import BaseModel

from warren.patterns.delay import wait_queue
from warren.patterns.saga.history import SagaHistory, read_history
from warren.patterns.saga.rules import (
    TIMEOUT,
    Apply,
    MessageOutcome,
    PendingMessage,
    SagaInstance,
    SagaResult,
    SagaRules,
    write,
)
from warren.patterns.saga.transitions import COMPENSATED, COMPLETED, SagaTransition, TransitionTo
from warren.patterns.stores import (
    RuleResult,
    Store,
    StoreUnavailable,
    apply_rule,
    apply_rule_with_retry,
    record_key,
)
from warren.sdk import (
    App,
    Clock,
    Command,
    ConfigError,
    DeadLetter,
    Delivery,
    Event,
    Message,
    PublishError,
    Queue,
    SystemClock,
    TransportUnavailable,
)

log: logging.Logger = logging.getLogger("warren.patterns")

EARLY: Final = "warren-saga-early"
MILLISECOND: Final = timedelta(milliseconds=1)

Data = TypeVar("Data", bound=BaseModel)
Content = TypeVar("Content", bound=Message)
Key = str | Callable[[Any], str]


@dataclass(slots=True)
class SagaStatistics:
    """What this process has seen; other processes count their own."""

    begun: int = 0
    passed: int = 0
    """Messages that were taken, timeouts and starts among them."""
    repeated: int = 0
    """Messages that had been taken before."""
    put_aside: int = 0
    """Messages that came before the saga had a transition for them, and will come again."""
    unexpected: int = 0
    """Messages that were dead-lettered, because the saga never had a transition for them."""
    stale: int = 0
    """Timeouts of states that the saga had left."""
    postponed: int = 0
    """Messages that were put off because the store failed."""
    completed: int = 0
    compensated: int = 0
    sent: int = 0
    """Publishes that the broker confirmed; more than the messages if some were published again."""


class Saga(Generic[Data]):
    """A state machine for each key. `app.include(saga)` in every process that shall take part.

    Declare `starts`, `on` and `timeout` before. Events arrive in the queue `<name>.saga`, Commands in their own queues.

    :param name: of its queues and of the keys in the store.
    :param data: what a saga knows: a pydantic model.
    :param store: shared by all who take part.
    :param key: the field of every message that says which saga it is for; `on(..., key=...)` overrides it.
    :param sends: the classes of all messages that transitions send, `Compensation` included: their topology is declared at
        start, and they can be published again by a process that did not make them.
    :param keep: how long a saga that has ended is remembered, and its duplicates recognised. Default 7 days.
    :param longest: how long one that has not ended is kept after its last step. Default 365 days.
    :param early_after: when a message comes again for which there is no transition yet. Default 1 s.
    :param early_attempts: how often it comes again before it is dead-lettered. Default 10.
    :param patience: how long a message waits for a store that fails before it is put aside. Default 10 s.
    :param concurrency: messages at a time, on each of its queues. Default 10.
    :raises ConfigError: a duration is too short, or the name empty.
    """

    def __init__(
        self,
        name: str,
        data: type[Data],
        *,
        store: Store,
        key: Key,
        sends: Sequence[type[Message]] = (),
        keep: timedelta = timedelta(days=7),
        longest: timedelta = timedelta(days=365),
        early_after: timedelta = timedelta(seconds=1),
        early_attempts: int = 10,
        patience: timedelta = timedelta(seconds=10),
        concurrency: int = 10,
    ) -> None:
        if not name:
            raise ConfigError("a Saga needs a name: its queues and keys carry it")
        if min(keep, longest, early_after) < MILLISECOND:
            raise ConfigError(
                f"Saga {name}: keep ({keep}), longest ({longest}) and early_after ({early_after}) are at least a millisecond"
            )
        self.name: str = name
        self.statistics: SagaStatistics = SagaStatistics()
        self._data = data
        self._store = store
        self._key = key
        self._early_after = early_after
        self._early_attempts = early_attempts
        self._patience = patience.total_seconds()
        self._concurrency = concurrency
        self._queue = Queue(f"{name}.saga")
        self._due = _due_message(Queue(f"{name}.saga.timeout"))
        self._heard: dict[str, tuple[type[Message], Key]] = {}
        self._starts: dict[str, Callable[[Any], TransitionTo[Data]]] = {}
        self._transitions: dict[tuple[str, str], Callable[[Data, Any], SagaTransition[Data]]] = {}
        self._timeouts: dict[str, Callable[[Data], SagaTransition[Data]]] = {}
        self._timeouts_ms: dict[str, int] = {}
        self._rules = SagaRules(
            name=name,
            keep_ms=keep // MILLISECOND,
            longest_ms=longest // MILLISECOND,
            timeouts=self._timeouts_ms,
            sends={kind.wire_type: kind for kind in sends},
            hears=self._heard,
            dump=lambda known: known.model_dump_json(),
        )
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._app: App | None = None
        self._clock: Clock = SystemClock()

    def starts(
        self, message: type[Content], *, key: Callable[[Content], str] | None = None
    ) -> Callable[[Callable[[Content], TransitionTo[Data]]], Callable[[Content], TransitionTo[Data]]]:
        """Decorate the function that begins a saga; it returns `TransitionTo` with data.

        :raises ConfigError: there is one for this message already.
        """
        self.hears(message, key=key)

        def register(
            function: Callable[[Content], TransitionTo[Data]],
        ) -> Callable[[Content], TransitionTo[Data]]:
            if message.wire_type in self._starts:
                raise ConfigError(f"saga {self.name} has a start by {message.__name__} already")
            self._starts[message.wire_type] = function
            return function

        return register

    def on(
        self, state: str, message: type[Content], *, key: Callable[[Content], str] | None = None
    ) -> Callable[
        [Callable[[Data, Content], SagaTransition[Data]]], Callable[[Data, Content], SagaTransition[Data]]
    ]:
        """Decorate the transition for `message` in `state`. `COMPLETED`, `COMPENSATING` and `COMPENSATED` are states too:
        what must happen when a payment arrives after all was undone?

        :raises ConfigError: there is one already.
        """
        self.hears(message, key=key)

        def register(
            function: Callable[[Data, Content], SagaTransition[Data]],
        ) -> Callable[[Data, Content], SagaTransition[Data]]:
            place = (str(state), message.wire_type)
            if place in self._transitions:
                raise ConfigError(
                    f"saga {self.name} has a transition for {message.__name__} in {state} already"
                )
            self._transitions[place] = function
            return function

        return register

    def timeout(
        self, state: str, after: timedelta
    ) -> Callable[[Callable[[Data], SagaTransition[Data]]], Callable[[Data], SagaTransition[Data]]]:
        """Decorate what happens when the saga is still in this entry of `state` after that time (of the broker's clock,
        from when the broker has the message that entered it).

        :raises ConfigError: the state has one already, or the time is shorter than a millisecond.
        """

        def register(
            function: Callable[[Data], SagaTransition[Data]],
        ) -> Callable[[Data], SagaTransition[Data]]:
            if str(state) in self._timeouts:
                raise ConfigError(f"saga {self.name} has a timeout of {state} already")
            if after < MILLISECOND:
                raise ConfigError(f"saga {self.name}: the timeout of {state} is shorter than a millisecond")
            self._timeouts[str(state)] = function
            self._timeouts_ms[str(state)] = -(-after // MILLISECOND)
            return function

        return register

    def hears(self, message: type[Content], *, key: Callable[[Content], str] | None = None) -> None:
        """Receive these messages; needed only for those that end an `Compensation(until=...)` and have no transition.

        :raises ConfigError: another class has the same name on the wire.
        """
        known = self._heard.get(message.wire_type)
        if known is None or (known[0] is message and key is not None):
            self._heard[message.wire_type] = (message, key or self._key)
        elif known[0] is not message:
            raise ConfigError(f"saga {self.name} hears two messages of type {message.wire_type!r}")

    async def story(self, key: str) -> SagaHistory | None:
        """Where the saga stands and how it got there (`print` it); None if it never began, or was forgotten.

        :raises StoreUnavailable: the store did not answer.
        """
        return await read_history(self._store, self.name, key, now_ms=self._now_ms())

    def register(self, app: App) -> None:
        if not self._starts:
            raise ConfigError(f"saga {self.name} has no start: @saga.starts(...)")
        self._app = app
        self._clock = app.clock
        app.publishes(*self._rules.sends.values())
        for kind, _ in self._heard.values():
            own = kind.wire_key if issubclass(kind, Command) else None
            app.declare(wait_queue(own or self._queue.name, self._early_after))
            if own is not None:
                app.handle(kind, concurrency=self._concurrency)(self._arrived)
            elif issubclass(kind, Event):
                app.handle(kind, queue=self._queue, concurrency=self._concurrency)(self._arrived)
            else:
                raise ConfigError(
                    f"saga {self.name} cannot hear {kind.__name__}: it takes Events and Commands"
                )
        if self._timeouts_ms:
            due = self._due.wire_key or ""
            app.declare(wait_queue(due, self._early_after))
            app.declare(*(wait_queue(due, ms * MILLISECOND) for ms in set(self._timeouts_ms.values())))
            app.handle(self._due, concurrency=self._concurrency)(self._timed_out)

    async def on_start(self) -> None:
        """Nothing to begin: what happens comes as messages."""

    async def on_stop(self) -> None:
        """Close the store; the next use opens it again."""
        await self._store.close()

    async def _arrived(self, message: Message, delivery: Delivery) -> None:
        kind, message_id = message.wire_type, delivery.message_id
        if not message_id:
            raise DeadLetter(
                f"saga {self.name}: the message has no message_id, so that a duplicate is not known"
            )
        key = self._key_of(message)
        begin = self._starts.get(kind)
        rule = partial(
            self._rules.arrive,
            kind=kind,
            message_id=message_id,
            start=None if begin is None else partial(begin, message),
            apply=self._transition(message),
            now_ms=self._now_ms(),
        )
        await self._take(key, message, delivery, rule)

    async def _timed_out(self, due: _Due, delivery: Delivery) -> None:
        rule = partial(
            self._rules.time_out,
            visit=due.visit,
            born=due.born,
            message_id=delivery.message_id or "",
            apply=self._expiry,
            now_ms=self._now_ms(),
        )
        await self._take(due.key, due, delivery, rule)

    async def _take(
        self,
        key: str,
        message: Message,
        delivery: Delivery,
        rule: Callable[[bytes | None], RuleResult[SagaResult]],
    ) -> None:
        # The store decides also without the lock; with it, who comes next in this process does not publish again what who
        # came before is just publishing.
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                turn = await apply_rule_with_retry(
                    self._store, self._record_key(key), rule, clock=self._clock, patience=self._patience
                )
                self._count(turn, message)
                if (
                    turn.verdict in (MessageOutcome.PASSED, MessageOutcome.REPEATED)
                    and turn.instance is not None
                ):
                    await self._pay(key, turn.instance)
        except (StoreUnavailable, PublishError, TransportUnavailable) as error:
            # Put off and acknowledged, not requeued: a store that is down or a queue that is full for an hour must not use
            # up the delivery limit. It comes again as a repeated one, and then what is still owed is published.
            log.warning("saga.postponed name=%s key=%s error=%s", self.name, key, error)
            self.statistics.postponed += 1
            await self._put_aside(delivery, delivery.headers.get(EARLY, 0))
            return
        if turn.verdict is MessageOutcome.UNEXPECTED:
            await self._unexpected(key, turn.instance, message, delivery)

    async def _pay(self, key: str, held: SagaInstance) -> None:
        """Publish what is owed, in order, and record it; timeouts first, which nobody's full queue may stop."""
        if not held.owed:
            return
        app = self._included()
        published: set[str] = set()
        try:
            for owed in sorted(held.owed, key=lambda owed: owed.visit is None):
                message, address = self._message(key, held, owed)
                await app.publish(
                    message, exchange="" if address else None, key=address, message_id=owed.message_id
                )
                published.add(owed.message_id)
                self.statistics.sent += 1
        finally:
            # Also of what one that fails left behind: its repetition publishes the rest, not all of it again.
            if published:
                await apply_rule(
                    self._store,
                    self._record_key(key),
                    partial(self._rules.paid, published=published, now_ms=self._now_ms()),
                    guess=write(held),
                )

    def _message(self, key: str, held: SagaInstance, owed: PendingMessage) -> tuple[Message, str | None]:
        """What is owed as a message, and where it goes if not to its own address."""
        if owed.visit is not None:
            due = self._due.wire_key or ""
            after = self._timeouts_ms.get(owed.body, 1) * MILLISECOND
            return self._due(key=key, born=held.born, visit=owed.visit), wait_queue(due, after).name
        kind = self._rules.sends.get(owed.type)
        if kind is None:
            raise ConfigError(
                f"saga {self.name} owes a {owed.type}, which is not named in sends=[...] any more"
            )
        return kind.model_validate_json(owed.body), None

    async def _unexpected(
        self, key: str, held: SagaInstance | None, message: Message, delivery: Delivery
    ) -> None:
        attempt = int(delivery.headers.get(EARLY, 0)) + 1
        lost = held is None and isinstance(message, _Due)
        if attempt <= self._early_attempts and not lost and (held is None or not held.ended):
            self.statistics.put_aside += 1
            await self._put_aside(delivery, attempt)
            return
        self.statistics.unexpected += 1
        where = "has not begun" if held is None else f"is in state {held.state}"
        raise DeadLetter(f"saga {self.name} of {key!r} {where}: no transition for {message.wire_type}")

    async def _put_aside(self, delivery: Delivery, attempt: int) -> None:
        waiting = wait_queue(delivery.queue, self._early_after)
        await self._included().forward(delivery, key=waiting.name, headers={EARLY: attempt})

    def _transition(self, message: Message) -> Apply:
        def apply(held: SagaInstance) -> SagaTransition[Data] | None:
            function = self._transitions.get((held.state, message.wire_type))
            return None if function is None else function(self._known(held), message)

        return apply

    def _expiry(self, held: SagaInstance) -> SagaTransition[Data] | None:
        function = self._timeouts.get(held.state)
        return None if function is None else function(self._known(held))

    def _known(self, held: SagaInstance) -> Data:
        return self._data.model_validate_json(held.data)

    def _key_of(self, message: Message) -> str:
        key = self._heard[message.wire_type][1]
        return str(getattr(message, key) if isinstance(key, str) else key(message))

    def _count(self, turn: SagaResult, message: Message) -> None:
        counts = self.statistics
        if turn.verdict is MessageOutcome.REPEATED:
            counts.repeated += 1
        elif turn.verdict is MessageOutcome.STALE:
            counts.stale += 1
        elif turn.verdict is MessageOutcome.PASSED and turn.instance is not None:
            counts.passed += 1
            counts.begun += turn.instance.steps == 1
            entered = turn.instance.history[-1].before != turn.instance.state
            counts.completed += entered and turn.instance.state == COMPLETED
            counts.compensated += entered and turn.instance.state == COMPENSATED

    def _record_key(self, key: str) -> str:
        return record_key("saga", self.name, key)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)

    def _included(self) -> App:
        if self._app is None:
            raise ConfigError(f"the Saga {self.name} belongs to no App: app.include(saga)")
        return self._app


class _Due(Command):
    key: str
    born: str
    visit: int


def _due_message(queue: Queue) -> type[_Due]:
    class Due(_Due, queue=queue, type="saga_timeout"):
        """That a saga may have been in a state for too long; its record knows whether it still is."""

    return Due


__all__ = ["TIMEOUT", "Saga", "SagaStatistics"]
