"""`Delay`: messages that arrive after any time, or at a set one; cancelled by key and listed where it has a store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from warren.patterns.delay import rules
from warren.patterns.delay.binary_delay_queues import BinaryDelayQueues
from warren.patterns.delay.rules import ArrivalDecision, Cancellation, DelayedMessage, DelayRecord, DelayState
from warren.patterns.delay.strategy import DelayStrategy, EntryPoint
from warren.patterns.delay.wait_queues import redelivery_headers, wait_queue
from warren.patterns.stores import (
    KEY_BYTES,
    ListingStore,
    RuleResult,
    StoreUnavailable,
    apply_rule,
    apply_rule_with_retry,
    record_key,
)
from warren.sdk import (
    App,
    ConfigError,
    DeadLetter,
    Declarable,
    Delivery,
    Message,
    PublishError,
    Queue,
    TransportUnavailable,
    Unroutable,
    WarrenError,
)
from warren.sdk.extend import ORIGIN_EXCHANGE, ORIGIN_KEY, origin, uuid7

log: logging.Logger = logging.getLogger("warren.patterns")

CANCEL_KEY: Final = "warren-cancel-key"
DUE: Final = "warren-due"
"""The header of what can be cancelled: when it is due, in milliseconds since the epoch."""
PATIENCE: Final = 60.0
RETRY_AFTER: Final = timedelta(seconds=5)
NOW: Final = timedelta(0)

Answer = TypeVar("Answer")


@dataclass(slots=True)
class DelayStatistics:
    """What this process has seen; other processes count their own.

    `passed` and what follows count the arrivals of messages that could be cancelled. `unknown` are those that the
    store knew nothing of (they passed); `forgotten` those that came later than their record is kept (they are dead
    letters); `postponed` those that came again later because store or broker failed.
    """

    delayed: int = 0
    redelivered: int = 0
    passed: int = 0
    cancelled: int = 0
    superseded: int = 0
    unknown: int = 0
    forgotten: int = 0
    postponed: int = 0


class Delay:
    """Publishes messages that arrive after any delay, or at a set time.

    `app.include(delay)`; then `await delay.after(message, timedelta(minutes=7))`. The delay counts from when
    the broker has the message. Given as `App(delay=Delay())`, it brings back what a retry policy puts off as well.

    :param name: the prefix of its exchanges and queues.
    :param way: how messages wait: `BinaryDelayQueues()` (default: steps of 1 s up to 8.5 years, on any broker), or `DelayedExchange()`.
    :param store: remembers what is delayed with a `cancel_key`, so that it can be cancelled and listed. Those
        messages come to the queue `<name>.due` first; each process with the store may pass them on from there.
    :param keep: how long after its time the record of such a message is kept, which must outlast an outage. What
        comes later, and has none any more, is a dead letter of `<name>.due`. Default one week.
    :raises ConfigError: a way's parameter is out of range.
    """

    def __init__(
        self,
        name: str = "warren.delay",
        *,
        way: DelayStrategy | None = None,
        store: ListingStore | None = None,
        keep: timedelta = timedelta(days=7),
    ) -> None:
        self.name: str = name
        self.statistics: DelayStatistics = DelayStatistics()
        self._way: DelayStrategy = way or BinaryDelayQueues()
        self._store = store
        self._keep_ms = keep // timedelta(milliseconds=1)
        self._due = Queue(f"{name}.due")
        self._app: App | None = None
        self._reached: set[object] = set()
        self._reaching = asyncio.Lock()

    @property
    def longest(self) -> timedelta:
        """The longest delay of its way."""
        return self._way.longest

    def register(self, app: App) -> None:
        self._app = app
        app.declare(*self.topology())
        if self._store is not None:
            app.handle(bytes, queue=self._due)(self._arrived)

    async def on_start(self) -> None:
        """The broker does the waiting."""
        self._reaching = asyncio.Lock()  # Of the event loop that the App runs on this time.

    async def on_stop(self) -> None:
        """What waits goes on waiting in the broker."""
        if self._store is not None:
            await self._store.close()

    def topology(self) -> list[Declarable]:
        """What it declares at start; each address that is delayed for adds its own."""
        return [*self._way.topology(self.name), *([] if self._store is None else [self._due])]

    async def after(
        self,
        message: Message | bytes | Mapping[str, Any],
        delay: timedelta,
        *,
        exchange: str | None = None,
        key: str | None = None,
        message_id: str | None = None,
        cancel_key: str | None = None,
    ) -> None:
        """Publish `message` so that it arrives after `delay`, at least once; returns when the broker has it.

        Whether its queue still exists then cannot be known now: what arrives nowhere is kept in the queue
        `<name>...lost`.

        :param exchange: with `key`, where a message without a class goes.
        :param cancel_key: by which it can be cancelled. Another message under the same key takes its place.
        :raises ConfigError: the delay is longer than `longest`, the address too long, or there is none; there is a
            `cancel_key` but no store.
        :raises TopologyMismatch: there is no such queue or exchange now.
        :raises StoreUnavailable: it is not known whether it is noted; nothing is delayed.
        :raises PublishError: as `app.publish`.
        """
        app = self._included()
        self._check(delay)
        if delay <= NOW and cancel_key is None:
            await app.publish(message, exchange=exchange, key=key, message_id=message_id)
            return
        target = await self._target(app, message, exchange, key)
        headers: dict[str, Any] = {ORIGIN_EXCHANGE: target[0], ORIGIN_KEY: target[1]}
        if cancel_key is None:
            entry = await self._entry(app, *target, delay)
            await self._publish(app, message, entry, headers, message_id)
        else:
            token = message_id or uuid7(self._now_ms())
            due_ms = await self._note(cancel_key, token, target, delay)
            entry = await self._entry(app, "", self._due.name, delay)
            try:
                headers |= {CANCEL_KEY: cancel_key, DUE: due_ms}
                await self._publish(app, message, entry, headers, token)
            except (PublishError, TransportUnavailable) as error:
                if error.outcome != "unknown":
                    with suppress(StoreUnavailable):
                        await self._decide(cancel_key, rules.withdraw, token)
                raise
        self.statistics.delayed += 1

    async def at(self, message: Message | bytes | Mapping[str, Any], when: datetime, **address: Any) -> None:
        """Publish `message` so that it arrives at `when`, or now if that is past; parameters and errors as
        for `after`.

        The time is the publisher's clock's: the broker is told the difference.

        :raises ConfigError: `when` has no time zone.
        """
        if when.tzinfo is None:
            raise ConfigError(f"{when} has no time zone: datetime(..., tzinfo=UTC)")
        now = datetime.fromtimestamp(self._included().clock.now(), UTC)
        await self.after(message, max(when - now, NOW), **address)

    async def cancel(self, cancel_key: str) -> Cancellation:
        """Keep the message that is delayed under this key from its target.

        A broker gives nothing back from the middle of a queue: what is left in the store is a tombstone, and the message
        goes on waiting and ends when it arrives. `CANCELLED` is certain, `TOO_LATE` as well.

        :raises StoreUnavailable: it is not known whether it is cancelled; cancel again.
        """
        return await self._decide(cancel_key, rules.cancel)

    async def delayed(self) -> AsyncIterator[DelayedMessage]:
        """What waits and can be cancelled, in no order.

        :raises StoreUnavailable: the store did not answer.
        """
        store = self._noting()
        async for _, record in store.records(record_key("delay", self.name, "")):
            ticket = rules.read(record)
            if ticket is not None and ticket.state is DelayState.WAITING:
                yield ticket.delayed

    def reach(self, queue: str, delays: Collection[timedelta]) -> list[Declarable]:
        """What must stand so that messages of `queue` can be put off (`DelayBackend`).

        :raises ConfigError: one of these delays is longer than `longest`.
        """
        for delay in delays:
            self._check(delay)
        return list(self._way.reach(self.name, "", queue))

    async def redeliver(self, delivery: Delivery, queue: str, after: timedelta) -> None:
        """Bring a copy back to its queue later (`DelayBackend`); a time below the way's step is rounded up to it.

        :raises ConfigError: the delay is longer than `longest`.
        :raises PublishError: the copy is not with the broker.
        """
        app = self._included()
        self._check(after)
        entry = EntryPoint("", queue, {}) if after <= NOW else await self._entry(app, "", queue, after)
        headers = {**redelivery_headers(delivery), **entry.headers}
        with self._heeding_returns():
            await app.forward(delivery, exchange=entry.exchange, key=entry.key, headers=headers)
        self.statistics.redelivered += 1

    async def _arrived(self, body: bytes, delivery: Delivery) -> None:
        """Pass on what can be cancelled and was not.

        :raises DeadLetter: nobody knows any more whether it was.
        """
        app = self._included()
        cancel_key = str(delivery.headers.get(CANCEL_KEY, ""))
        try:
            due_ms = delivery.headers.get(DUE)
            message = delivery.message_id or "", due_ms if isinstance(due_ms, int) else None
            arrival = await self._decide(cancel_key, rules.arrive, *message, patience=0)
            if arrival in (ArrivalDecision.CANCELLED, ArrivalDecision.SUPERSEDED):
                log.info("delayed message %s: name=%s key=%s", arrival, self.name, cancel_key)
            elif arrival is not ArrivalDecision.FORGOTTEN:
                exchange, key = origin(delivery)
                await app.forward(delivery, exchange=exchange, key=key, headers={CANCEL_KEY: None, DUE: None})
        except WarrenError as error:
            if error.outcome == "refused" and not error.retryable:
                raise  # Its target is gone: it is kept in the dead letter queue, and says why.
            # Put off and acknowledged, not requeued: a store that is down for an hour must not use up the
            # delivery limit.
            log.warning("delayed message postponed: name=%s key=%s error=%s", self.name, cancel_key, error)
            waiting = wait_queue(self._due.name, RETRY_AFTER)
            await app.declare_now(waiting)
            await app.forward(delivery, key=waiting.name)
            self.statistics.postponed += 1
            return
        match arrival:
            case ArrivalDecision.PASS:
                self.statistics.passed += 1
            case ArrivalDecision.CANCELLED:
                self.statistics.cancelled += 1
            case ArrivalDecision.SUPERSEDED:
                self.statistics.superseded += 1
            case ArrivalDecision.FORGOTTEN:
                self.statistics.forgotten += 1
                raise DeadLetter(
                    f"it comes later than Delay(keep={timedelta(milliseconds=self._keep_ms)}) after its time: nobody"
                    " knows any more whether it was cancelled; replay it if it was not"
                )
            case ArrivalDecision.UNKNOWN:
                self.statistics.unknown += 1
                log.warning(
                    "delayed message not in the store, passed on: name=%s key=%s", self.name, cancel_key
                )

    async def _publish(
        self, app: App, message: Any, entry: EntryPoint, headers: Mapping[str, Any], message_id: str | None
    ) -> None:
        with self._heeding_returns():
            await app.publish(
                message,
                exchange=entry.exchange,
                key=entry.key,
                headers={**headers, **entry.headers},
                message_id=message_id,
            )

    def _heeding_returns(self) -> suppress:
        return suppress(*([Unroutable] if self._way.silent else []))

    def _check(self, delay: timedelta) -> None:
        if delay > self._way.longest:
            raise ConfigError(
                f"a delay of {delay} is too long: {self._way.longest} is the longest of {type(self._way).__name__}"
            )

    async def _target(
        self, app: App, message: object, exchange: str | None, key: str | None
    ) -> tuple[str, str]:
        """Where the message goes in the end, with what its class must reach on the broker."""
        if isinstance(message, Message) and key is None:
            kind = type(message)
            if kind.wire_key is not None:
                exchange, key = kind.wire_exchange, kind.wire_key
                await self._stands(app, kind, kind.required_topology)
        if key is None:
            raise ConfigError("a delayed message needs an address: a message class, or key= (and exchange=)")
        return exchange or "", key

    async def _entry(self, app: App, exchange: str, key: str, delay: timedelta) -> EntryPoint:
        """Where to publish it, with what leads from there to its address."""
        if delay <= NOW:
            return EntryPoint(exchange, key, {})
        await self._stands(app, (exchange, key), partial(self._way.reach, self.name, exchange, key))
        return self._way.entry(self.name, exchange, key, delay)

    async def _stands(self, app: App, what: object, reach: Callable[[], Iterable[Declarable]]) -> None:
        """Declare it, once, however many ask for it at a time."""
        if what not in self._reached:
            async with self._reaching:
                if what not in self._reached:
                    await app.declare_now(*reach())
                    self._reached.add(what)

    async def _note(self, cancel_key: str, token: str, target: tuple[str, str], delay: timedelta) -> int:
        """:return: when it is due."""
        due_ms = self._now_ms() + delay // timedelta(milliseconds=1)
        ticket = DelayRecord(DelayState.WAITING, cancel_key, token, due_ms, *target)
        await self._decide(cancel_key, rules.schedule, ticket)
        return due_ms

    async def _decide(
        self,
        cancel_key: str,
        rule: Callable[..., RuleResult[Answer]],
        *values: Any,
        patience: float = PATIENCE,
    ) -> Answer:
        store = self._noting()
        key = record_key("delay", self.name, cancel_key)
        if not key.endswith(cancel_key):
            raise ConfigError(
                f"the cancel_key {cancel_key[:40]!r}... is too long: {KEY_BYTES} bytes with the name"
            )

        def bound(record: bytes | None) -> RuleResult[Answer]:
            return partial(rule, record, *values)(now_ms=self._now_ms(), keep_ms=self._keep_ms)

        if not patience:
            return await apply_rule(store, key, bound)
        return await apply_rule_with_retry(store, key, bound, clock=self._included().clock, patience=patience)

    def _noting(self) -> ListingStore:
        if self._store is None:
            raise ConfigError(f"the Delay {self.name} cannot cancel or list: Delay(store=RedisStore(...))")
        return self._store

    def _now_ms(self) -> int:
        return int(self._included().clock.now() * 1000)

    def _included(self) -> App:
        if self._app is None:
            raise ConfigError("this Delay belongs to no App: app.include(delay)")
        return self._app


__all__ = ["Delay", "DelayStatistics"]
