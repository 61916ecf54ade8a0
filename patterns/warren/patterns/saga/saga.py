"""Saga: a long process of many messages as a typed state machine, which survives crashes, duplicates and reordering,
and compensates its steps when it cannot be completed.

Guarantees: each message is handled once for each saga, by its message id. The new state and the messages to send are
saved together, by one compare-and-set, so a crash between saving and publishing repeats the publish (with the same
message id, for `Once` to recognise) and never loses it. Several messages that arrive for one saga at the same time take
effect one after the other. A timeout counts only while the saga is in the state entry in which it was created.
Compensation runs in the reverse order of the steps.

A transition is a plain function of data and message. It must have no effect besides its result, because it is called
again if another process has changed the saga meanwhile.

Costs: three or four store operations per message, and one publish and confirm for each message sent; a quorum queue for
its events and one for its timeouts, a wait queue for each queue with its messages (for those that arrive too early),
and one for each length of timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from pydantic import BaseModel

from warren.patterns.argument_checks import check_store
from warren.patterns.delay import wait_queue
from warren.patterns.message_keys import key_text
from warren.patterns.saga.history import SagaHistory, read_history
from warren.patterns.saga.rules import (
    TIMEOUT,
    ApplyTransition,
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
    StoreReference,
    StoreUnavailable,
    apply_rule,
    apply_rule_with_retry,
    listed_key,
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
    State,
    SystemClock,
    TransportUnavailable,
)
from warren.sdk.extend import (
    Duration,
    IncludedComponent,
    as_json_text,
    by_wire_name,
    check_decorated,
    check_whole_number,
    count_in,
    duration,
    from_json_text,
    seconds,
)

log: logging.Logger = logging.getLogger("warren.patterns")

EARLY: Final = "warren-saga-early"
MILLISECOND: Final = timedelta(milliseconds=1)

Data = TypeVar("Data", bound=BaseModel)
Content = TypeVar("Content", bound=Message)
Key = str | Callable[[Any], str]


@dataclass(slots=True)
class SagaStatistics:
    """Counters of one kind of saga in this process; other processes count their own."""

    started: int = 0
    passed: int = 0
    """Messages that caused a transition, including timeouts and messages that started a saga."""
    repeated: int = 0
    """Messages that their saga had handled before, and that caused no transition."""
    delayed: int = 0
    """Messages that were delayed because their saga had no transition for them yet."""
    unexpected: int = 0
    """Messages that were dead-lettered because their saga still had no transition for them after the last delay."""
    stale: int = 0
    """Timeouts without effect, because the saga had left their state."""
    postponed: int = 0
    """Messages that were delayed because the store or the publishing of the saga's messages failed."""
    completed: int = 0
    compensated: int = 0
    sent: int = 0
    """Publishes that the broker confirmed. The number exceeds that of messages if some were published again."""


class Saga(IncludedComponent, Generic[Data]):
    """Kind of saga: a state machine with one instance for each key, such as an order's id. Call `app.include(saga)` in
    every process that handles its messages.

    Before that, declare its transitions with `starts`, `on` and `timeout`. Events arrive in the queue `<name>.saga`,
    Commands in their own queues.

    :param name: name of the kind of saga; part of its queues and of its keys in the store.
    :param data: pydantic model of the saga's data.
    :param store: shared by all processes that take part.
    :param key: name of the field that contains the saga's key in each message; `on(..., key=...)` overrides it.
    :param sends: classes of all messages that transitions send, including compensations: their topology is declared at
        start, and any process can publish them again after a crash, also one that did not create them.
    :param keep: how long a saga that has ended is remembered, and its duplicates recognised. Default 7 days.
    :param longest: how long a saga that has not ended is kept after its last transition. Default 365 days.
    :param early_after: delay of a message for which the saga has no transition in its present state. Default 1 s.
    :param early_attempts: how often such a message is delayed before it is dead-lettered. Default 10.
    :param patience: how long a message waits for a store that fails before it is delayed. Default 10 s.
    :param concurrency: largest number of messages handled at a time, for each queue of the saga. Default 10.
    :raises ConfigError: a duration is too short, or the name is empty.
    """

    requires_durable_broker: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        data: type[Data],
        *,
        store: Store,
        key: Key,
        sends: Sequence[type[Message]] = (),
        keep: Duration = timedelta(days=7),
        longest: Duration = timedelta(days=365),
        early_after: Duration = timedelta(seconds=1),
        early_attempts: int = 10,
        patience: Duration = timedelta(seconds=10),
        concurrency: int = 10,
    ) -> None:
        if not name:
            raise ConfigError("a Saga needs a name, because its queues and keys contain it")
        keep, longest = duration(keep, "Saga: keep"), duration(longest, "Saga: longest")
        early_after = duration(early_after, "Saga: early_after")
        if min(keep, longest, early_after) < MILLISECOND:
            raise ConfigError(
                f"Saga {name}: keep ({keep}), longest ({longest}) and early_after ({early_after}) must be at least 1 ms"
            )
        check_whole_number(f"Saga {name}: early_attempts", early_attempts, 0)
        check_whole_number(f"Saga {name}: concurrency", concurrency)
        self.name: str = name
        self.statistics: SagaStatistics = SagaStatistics()
        """Counters of what this object has done in this process."""
        self._data = data
        check_store(f"Saga {name}", store)
        self._store = StoreReference(store)
        self._key = key
        self._early_after = early_after
        self._early_attempts = early_attempts
        self._patience = seconds(patience, "Saga: patience")
        self._concurrency = concurrency
        self._queue = Queue(f"{name}.saga")
        self._due = _due_message(Queue(f"{name}.saga.timeout"))
        self._received: dict[str, tuple[type[Message], Key]] = {}
        self._starts: dict[str, Callable[[Any], TransitionTo[Data]]] = {}
        self._transitions: dict[tuple[str, str], Callable[[Data, Any], SagaTransition[Data]]] = {}
        self._timeouts: dict[str, Callable[[Data], SagaTransition[Data]]] = {}
        self._timeouts_ms: dict[str, int] = {}
        self._rules = SagaRules(
            name=name,
            keep_ms=keep // MILLISECOND,
            longest_ms=longest // MILLISECOND,
            timeouts=self._timeouts_ms,
            sends=by_wire_name(f"saga {name}", sends),
            receives=self._received,
            dump=as_json_text,
        )
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        super().__init__()
        self._clock: Clock = SystemClock()

    def starts(
        self, message: type[Content], *, key: Callable[[Content], str] | None = None
    ) -> Callable[[Callable[[Content], TransitionTo[Data]]], Callable[[Content], TransitionTo[Data]]]:
        """Decorate the function that starts a saga when a `message` of this class arrives; it returns `TransitionTo`
        with data.

        :param key: returns the saga's key for a message of this class; by default the field that the Saga's
            own `key` names.
        :raises ConfigError: there is a function for this message already.
        """
        check_decorated("Saga.starts", message, example="saga.starts")
        self.receives(message, key=key)

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
        """Decorate the function that returns the transition for a `message` of this class in `state`.

        `COMPLETED`, `COMPENSATING` and `COMPENSATED` are states too: a payment may arrive after the saga was
        compensated.

        :param key: returns the saga's key for a message of this class; by default the field that the Saga's
            own `key` names.
        :raises ConfigError: there is a function for this state and message already.
        """
        self.receives(message, key=key)

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
        self, state: str, after: Duration
    ) -> Callable[[Callable[[Data], SagaTransition[Data]]], Callable[[Data], SagaTransition[Data]]]:
        """Decorate the function that returns the transition for a saga that has stayed in `state` for the time `after`
        without entering it anew.

        The broker measures the time, from the arrival of the timeout message that is published when the saga enters the
        state.

        :raises ConfigError: the state has a timeout already, or `after` is shorter than a millisecond.
        """

        length = duration(after, "after")

        def register(
            function: Callable[[Data], SagaTransition[Data]],
        ) -> Callable[[Data], SagaTransition[Data]]:
            if str(state) in self._timeouts:
                raise ConfigError(f"saga {self.name} has a timeout of {state} already")
            if length < MILLISECOND:
                raise ConfigError(f"saga {self.name}: the timeout of {state} is shorter than a millisecond")
            is_first = not self._timeouts_ms
            if self._app is not None and self._app.state is not State.CLOSED:
                raise ConfigError(f"saga {self.name}: the App runs already: add a timeout before it starts")
            self._timeouts[str(state)] = function
            self._timeouts_ms[str(state)] = -(-length // MILLISECOND)
            if self._app is not None:
                self._register_timeouts(self._app, is_first=is_first)
            return function

        return register

    def receives(self, message: type[Content], *, key: Callable[[Content], str] | None = None) -> None:
        """Declare that the saga receives this message class. Needed only for answers that a `Compensation(until=...)`
        awaits and that have no transition.

        :param key: returns the saga's key for a message of this class; by default the field that the Saga's
            own `key` names.
        :raises ConfigError: another class has the same name on the wire.
        """
        known = self._received.get(message.wire_type)
        if known is None or (known[0] is message and key is not None):
            if known is None and self._app is not None:
                self._register_message(self._app, message)
            self._received[message.wire_type] = (message, key or self._key)
        elif known[0] is not message:
            raise ConfigError(f"saga {self.name} receives two classes with the type {message.wire_type!r}")

    async def history(self, key: str) -> SagaHistory | None:
        """Return the state and the past transitions of the saga with this key, for example to print them; None if the
        saga was never started, or was forgotten after `keep`.

        :raises StoreUnavailable: the store did not answer.
        """
        return await read_history(self._store, self.name, key, now_ms=self._now_ms())

    @property
    def lost_without_app(self) -> str:
        return "its messages are not handled" if self._starts else ""

    def register(self, app: App) -> None:
        self._store.use_clock(app.clock)
        if not self._starts:
            raise ConfigError(f"saga {self.name} has no start: declare one with @saga.starts(...)")
        super().register(app)
        self._clock = app.clock
        app.publishes(*self._rules.sends.values())
        for kind, _ in self._received.values():
            self._register_message(app, kind)
        if self._timeouts_ms:
            self._register_timeouts(app, is_first=True)

    def _register_message(self, app: App, kind: type[Message]) -> None:
        """Register the handler of a message class that the saga receives.

        :raises ConfigError: the class is neither an Event nor a Command, or the App is running.
        """
        own = kind.wire_key if issubclass(kind, Command) else None
        if own is not None:
            app.handle(kind, concurrency=self._concurrency)(self._arrived)
        elif issubclass(kind, Event):
            app.handle(kind, queue=self._queue, concurrency=self._concurrency)(self._arrived)
        else:
            raise ConfigError(f"saga {self.name} cannot receive {kind.__name__}: only Events and Commands")
        app.declare(wait_queue(own or self._queue.name, self._early_after))

    def _register_timeouts(self, app: App, *, is_first: bool) -> None:
        """Declare the wait queues of the timeouts.

        :param is_first: no timeout is registered yet, so that the handler of due messages is still missing.
        :raises ConfigError: the App is running.
        """
        due = self._due.wire_key or ""
        if is_first:
            app.handle(self._due, concurrency=self._concurrency)(self._timed_out)
            app.declare(wait_queue(due, self._early_after))
        app.declare(*(wait_queue(due, ms * MILLISECOND) for ms in set(self._timeouts_ms.values())))

    async def on_start(self) -> None:
        """Do nothing when the App starts: the App's own consumers read the saga's messages and timeouts."""

    async def on_stop(self) -> None:
        """Close the store; the next use opens it again."""
        await self._store.close()

    async def _arrived(self, message: Message, delivery: Delivery) -> None:
        kind, message_id = message.wire_type, delivery.message_id
        if not message_id:
            raise DeadLetter(
                f"saga {self.name}: the message has no message_id, so a duplicate could not be recognised"
            )
        key = self._instance_key(message)
        begin = self._starts.get(kind)
        if begin is not None:
            # One with a longer key goes on if it was started by an older version.
            try:
                listed_key("saga", self.name, key)
            except ConfigError as error:
                raise DeadLetter(str(error)) from error
        rule = partial(
            self._rules.arrive,
            kind=kind,
            message_id=message_id,
            start=None if begin is None else partial(begin, message),
            apply=self._transition(message),
            now_ms=self._now_ms(),
        )
        await self._handle(key, message, delivery, rule)

    async def _timed_out(self, due: _Due, delivery: Delivery) -> None:
        rule = partial(
            self._rules.time_out,
            entry=due.visit,
            started_by=due.born,
            message_id=delivery.message_id or "",
            apply=self._timeout_transition,
            now_ms=self._now_ms(),
        )
        await self._handle(due.key, due, delivery, rule)

    async def _handle(
        self,
        key: str,
        message: Message,
        delivery: Delivery,
        rule: Callable[[bytes | None], RuleResult[SagaResult]],
    ) -> None:
        # The store guarantees consistency even without the lock. It only keeps the next message in this process from
        # publishing pending messages again while the one before is publishing them.
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                result = await apply_rule_with_retry(
                    self._store, self._record_key(key), rule, clock=self._clock, patience=self._patience
                )
                self._count(result, message)
                if (
                    result.outcome in (MessageOutcome.PASSED, MessageOutcome.REPEATED)
                    and result.instance is not None
                ):
                    await self._publish_pending(key, result.instance)
        except (StoreUnavailable, PublishError, TransportUnavailable) as error:
            # Delayed and acknowledged, not requeued: a store that is down or a queue that is full for an hour must not use
            # up the delivery limit. The message returns as a repeated one, and then pending messages are published.
            log.warning("event=saga.message_postponed name=%s key=%s error=%s", self.name, key, error)
            self.statistics.postponed += 1
            await self._delay(delivery, count_in(delivery.headers.get(EARLY), 0))
            return
        if result.outcome is MessageOutcome.UNEXPECTED:
            await self._unexpected(key, result.instance, message, delivery)

    async def _publish_pending(self, key: str, held: SagaInstance) -> None:
        """Publish the messages that are saved with the state of the saga `key`, in order, and record which ones the
        broker has confirmed. Timeouts are published first, because the publish of another message may fail, for example
        if its queue is full.

        :param held: stored state of the saga.
        :raises WarrenError: a message could not be published, or the store did not answer; the next attempt publishes
            again what is not recorded as confirmed.
        """
        if not held.pending:
            return
        app = self.included_in()
        published: set[str] = set()
        try:
            for pending in sorted(held.pending, key=lambda pending: pending.entry is None):
                message, address = self._rebuild(key, held, pending)
                await app.publish(
                    message, exchange="" if address else None, key=address, message_id=pending.message_id
                )
                published.add(pending.message_id)
                self.statistics.sent += 1
        finally:
            # Also after a failure: the next attempt then publishes the rest, not all messages again.
            if published:
                await apply_rule(
                    self._store,
                    self._record_key(key),
                    partial(self._rules.confirm, published=published, now_ms=self._now_ms()),
                    guess=write(held),
                )

    def _rebuild(self, key: str, held: SagaInstance, pending: PendingMessage) -> tuple[Message, str | None]:
        """Return the message object for a pending message of the saga's record, and the name of the queue to publish it
        to: the wait queue of a timeout, or None if the message's class determines the address.

        :param key: key of the saga, which the message of a timeout contains.
        :param held: stored state of the saga.
        :raises ConfigError: the type of the message is no longer in `sends`.
        """
        if pending.entry is not None:
            due = self._due.wire_key or ""
            after = self._timeouts_ms.get(pending.body, 1) * MILLISECOND
            return self._due(key=key, born=held.started_by, visit=pending.entry), wait_queue(due, after).name
        kind = self._rules.sends.get(pending.type)
        if kind is None:
            raise ConfigError(
                f"saga {self.name} has yet to publish a {pending.type}, which is no longer named in sends=[...]"
            )
        return from_json_text(kind, pending.body), None

    async def _unexpected(
        self, key: str, held: SagaInstance | None, message: Message, delivery: Delivery
    ) -> None:
        attempt = count_in(delivery.headers.get(EARLY), 0) + 1
        lost = held is None and isinstance(message, _Due)
        if attempt <= self._early_attempts and not lost and (held is None or not held.ended):
            self.statistics.delayed += 1
            await self._delay(delivery, attempt)
            return
        self.statistics.unexpected += 1
        where = "has not begun" if held is None else f"is in state {held.state}"
        raise DeadLetter(f"saga {self.name} of {key!r} {where}: no transition for {message.wire_type}")

    async def _delay(self, delivery: Delivery, attempt: int) -> None:
        waiting = wait_queue(delivery.queue, self._early_after)
        await self.included_in().forward(delivery, key=waiting.name, headers={EARLY: attempt})

    def _transition(self, message: Message) -> ApplyTransition:
        def apply(held: SagaInstance) -> SagaTransition[Data] | None:
            function = self._transitions.get((held.state, message.wire_type))
            return None if function is None else function(self._parsed_data(held), message)

        return apply

    def _timeout_transition(self, held: SagaInstance) -> SagaTransition[Data] | None:
        function = self._timeouts.get(held.state)
        return None if function is None else function(self._parsed_data(held))

    def _parsed_data(self, held: SagaInstance) -> Data:
        return from_json_text(self._data, held.data)

    def _instance_key(self, message: Message) -> str:
        key = self._received[message.wire_type][1]
        owner = f"saga {self.name}"
        if isinstance(key, str):
            return key_text(getattr(message, key), owner, f"field {key!r}")
        return key_text(key(message), owner, "key function's result")

    def _count(self, result: SagaResult, message: Message) -> None:
        counts = self.statistics
        if result.outcome is MessageOutcome.REPEATED:
            counts.repeated += 1
        elif result.outcome is MessageOutcome.STALE:
            counts.stale += 1
        elif result.outcome is MessageOutcome.PASSED and result.instance is not None:
            counts.passed += 1
            counts.started += result.instance.transitions == 1
            entered = result.instance.history[-1].before != result.instance.state
            counts.completed += entered and result.instance.state == COMPLETED
            counts.compensated += entered and result.instance.state == COMPENSATED

    def _record_key(self, key: str) -> str:
        return record_key("saga", self.name, key)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


class _Due(Command):
    key: str
    born: str
    visit: int


def _due_message(queue: Queue) -> type[_Due]:
    class Due(_Due, queue=queue, type="saga_timeout"):
        """Message that the broker delivers at the end of a state's timeout. The timeout has no effect if the saga's
        record says that the saga has left the state since."""

    return Due


__all__ = ["TIMEOUT", "Saga", "SagaStatistics"]
