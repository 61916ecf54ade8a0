"""`Delay`: messages that arrive after any time or at a set time; with a store, cancelled by key and listed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from warren.patterns.argument_checks import check_object, check_store
from warren.patterns.delay import rules
from warren.patterns.delay.binary_delay_queues import BinaryDelayQueues
from warren.patterns.delay.rules import ArrivalDecision, Cancellation, DelayedMessage, DelayRecord, DelayState
from warren.patterns.delay.strategy import DelayStrategy, EntryPoint
from warren.patterns.delay.wait_queues import redelivery_headers, wait_queue
from warren.patterns.stores import (
    ListingStore,
    RuleResult,
    StoreReference,
    StoreUnavailable,
    apply_rule,
    apply_rule_with_retry,
    listed_key,
    record_key,
)
from warren.sdk import (
    App,
    ConfigError,
    DeadLetter,
    Declarable,
    Delivery,
    Exchange,
    Message,
    PublishError,
    Queue,
    TransportUnavailable,
    Unroutable,
    WarrenError,
)
from warren.sdk.extend import (
    ORIGIN_EXCHANGE,
    ORIGIN_KEY,
    Duration,
    IncludedComponent,
    duration,
    origin,
    uuid7,
)

log: logging.Logger = logging.getLogger("warren.patterns")

CANCEL_KEY: Final = "warren-cancel-key"
DUE: Final = "warren-due"
"""Header with the due time of a message that can be cancelled, in milliseconds since the epoch."""
PATIENCE: Final = 60.0
RETRY_AFTER: Final = timedelta(seconds=5)
NOW: Final = timedelta(0)

Answer = TypeVar("Answer")


@dataclass(slots=True)
class DelayStatistics:
    """Counters of one `Delay` in this process; other processes count their own.

    The counters from `passed` on count the due messages that had been published with a `cancel_key`. These first arrive
    in the queue `<name>.due`, whose handler looks their record up in the store.

    :ivar delayed: messages that were published with a delay, with or without a `cancel_key`.
    :ivar redelivered: messages that were delayed before a retry.
    :ivar passed: due messages that were forwarded to their target because they had not been cancelled.
    :ivar cancelled: due messages that were dropped because they had been cancelled.
    :ivar superseded: due messages that were dropped because another one had replaced them.
    :ivar unknown: due messages that were forwarded although the store had no record of them.
    :ivar forgotten: due messages that arrived more than `keep` late, when the store had no record of them any more;
        they were dead-lettered.
    :ivar postponed: due messages that were delayed again because the store or the broker failed.
    """

    delayed: int = 0
    redelivered: int = 0
    passed: int = 0
    cancelled: int = 0
    superseded: int = 0
    unknown: int = 0
    forgotten: int = 0
    postponed: int = 0


class Delay(IncludedComponent):
    """Publisher of messages that arrive after any delay, or at a set time.

    Use: `app.include(delay)`, then `await delay.after(message, timedelta(minutes=7))`. The delay starts when the broker
    has received the message. As `App(delay=Delay())` it also redelivers the messages that a retry policy delays.

    :param name: prefix of its exchanges and queues.
    :param strategy: mechanism that makes messages wait: `BinaryDelayQueues()` (default: resolution of 1 s, up to 8.5
        years, on any broker), or `DelayedExchange()`.
    :param store: keeps a record of each message that is published with a `cancel_key`, so that it can be cancelled and
        listed. When such a message is due, it first arrives in the queue `<name>.due`, from which any process with the
        store may forward it.
    :param keep: how long the record of such a message is kept after its due time. A message that arrives later, because
        the broker or all consumers were down, becomes a dead letter of `<name>.due`. Choose a time longer than any
        outage. Default one week.
    :raises ConfigError: a parameter of the strategy is out of range.
    """

    requires_durable_broker: ClassVar[bool] = True

    def __init__(
        self,
        name: str = "warren.delay",
        *,
        strategy: DelayStrategy | None = None,
        store: ListingStore | None = None,
        keep: Duration = timedelta(days=7),
    ) -> None:
        self.name: str = name
        self.statistics: DelayStatistics = DelayStatistics()
        """Counters of what this object has done in this process."""
        self._strategy: DelayStrategy = strategy or BinaryDelayQueues()
        if strategy is not None:
            methods = ("topology", "target_topology", "entry")
            check_object(
                f"Delay {name}",
                strategy,
                "a delay strategy",
                methods,
                "BinaryDelayQueues() or DelayedExchange()",
            )
        if store is not None:
            check_store(f"Delay {name}", store, lists_records=True)
        self._store = None if store is None else StoreReference(store)
        self._keep_ms = duration(keep, "Delay: keep") // timedelta(milliseconds=1)
        self._due = Queue(f"{name}.due")
        super().__init__()
        self._ensured: set[object] = set()
        """Message classes and addresses whose exchanges, queues and bindings have been declared. The App declares them again
        if they are missing later."""
        self._checked: set[tuple[str, str]] = set()
        """Addresses that existed when the first message for them was delayed."""
        self._declaring = asyncio.Lock()

    @property
    def longest(self) -> timedelta:
        """Longest delay that the strategy supports."""
        return self._strategy.longest

    def register(self, app: App) -> None:
        super().register(app)
        if self._store is not None:
            self._store.use_clock(app.clock)
        app.declare(*self.topology())
        if self._store is not None:
            app.handle(bytes, queue=self._due)(self._handle_due)

    async def on_start(self) -> None:
        """Create a new lock for declaring exchanges and queues, because the App may run in another event loop than
        before. Delayed messages wait in the broker, so nothing else has to start."""
        self._declaring = asyncio.Lock()

    async def on_stop(self) -> None:
        """Close the store. Delayed messages continue to wait in the broker."""
        if self._store is not None:
            await self._store.close()

    def topology(self) -> list[Declarable]:
        """Return the exchanges and queues to declare when the App starts. Those that only one target needs are declared
        when the first message for this target is delayed."""
        return [*self._strategy.topology(self.name), *([] if self._store is None else [self._due])]

    async def after(
        self,
        message: Message | bytes | Mapping[str, Any],
        delay: Duration,
        *,
        exchange: str | None = None,
        key: str | None = None,
        message_id: str | None = None,
        cancel_key: str | None = None,
    ) -> None:
        """Publish `message` so that it arrives after `delay`, at least once. Return when the broker has confirmed it.

        The target may be deleted during the delay. The message then waits in a queue of the strategy until the target is
        declared again; RabbitMQ tries it every three minutes.

        :param delay: a `timedelta`, seconds, or a text such as `7m`.
        :param exchange: target exchange, with the routing key `key`; empty for the queue `key`. By default the message
            goes to the address of its message class; a message without one needs a `key`.
        :param cancel_key: name, chosen by the caller, under which the message can be cancelled before it is due.
            Another message with the same `cancel_key` replaces it.
        :raises ConfigError: the delay is longer than `longest`, the address is too long or missing, or there is a
            `cancel_key` but no store.
        :raises TopologyMismatch: the target queue or exchange did not exist when this process delayed its first message
            for it.
        :raises StoreUnavailable: the store did not answer, so the message was not published; a record of it may exist.
        :raises PublishError: the broker did not confirm the message: it was refused or unroutable, or no confirm came.
        """
        app = self.included_in()
        delay = duration(delay, "delay")
        self._check(delay)
        if delay <= NOW and cancel_key is None:
            await app.publish(message, exchange=exchange, key=key, message_id=message_id)
            return
        target = await self._resolve_target(app, message, exchange, key)
        headers: dict[str, Any] = {ORIGIN_EXCHANGE: target[0], ORIGIN_KEY: target[1]}
        if target not in self._checked:
            if cancel_key is None:
                list(self._strategy.target_topology(self.name, *target))  # Refuses what cannot be delayed.
            await self._check_exists(app, *target)
        if cancel_key is None:
            entry = await self._entry_point(app, *target, delay)
            await self._publish(app, message, entry, headers, message_id)
        else:
            token = message_id or uuid7(self._now_ms())
            due_ms = await self._record(cancel_key, token, target, delay)
            entry = await self._entry_point(app, "", self._due.name, delay)
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
        """Publish `message` so that it arrives at `when`, or at once if that time is past. Errors are those of `after`.

        The delay is the difference between `when` and the publisher's clock.

        :param address: `exchange`, `key`, `message_id` and `cancel_key`, as for `after`.
        :raises ConfigError: `when` has no time zone.
        """
        if when.tzinfo is None:
            raise ConfigError(f"{when} has no time zone: use datetime(..., tzinfo=UTC)")
        now = datetime.fromtimestamp(self.included_in().clock.now(), UTC)
        await self.after(message, max(when - now, NOW), **address)

    async def cancel(self, cancel_key: str) -> Cancellation:
        """Cancel the message that was published with this `cancel_key`, and return the outcome.

        A broker cannot remove a message from the middle of a queue. The message therefore waits on, while its record in
        the store says that it is cancelled, and it is dropped when it is due. The outcomes `CANCELLED` and `TOO_LATE`
        are both final.

        :raises ConfigError: the key is empty, too long, or no text.
        :raises StoreUnavailable: it is unknown whether the message is cancelled; cancel again.
        """
        return await self._decide(cancel_key, rules.cancel)

    async def delayed(self) -> AsyncIterator[DelayedMessage]:
        """Yield the waiting messages that were published with a `cancel_key`, in no order.

        :raises StoreUnavailable: the store did not answer.
        """
        store = self._required_store()
        async for _, record in store.records(record_key("delay", self.name, "")):
            entry = rules.read(record)
            if entry is not None and entry.state is DelayState.WAITING:
                yield entry.delayed

    def reach(self, queue: str, delays: Collection[timedelta]) -> list[Declarable]:
        """Return the exchanges, queues and bindings that the App must declare so that messages of `queue` can be
        delayed before a retry.

        :param queue: queue to which the messages return after the delay.
        :param delays: durations that the queue's retry policy uses.
        :raises ConfigError: one of these delays is longer than `longest`.
        """
        for delay in delays:
            self._check(delay)
        return list(self._strategy.target_topology(self.name, "", queue))

    async def redeliver(
        self,
        delivery: Delivery,
        queue: str,
        after: timedelta,
        *,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        """Publish a copy of the delivery that arrives in `queue` after the delay `after`, for the next attempt to
        handle it. The delay is rounded up to the strategy's resolution.

        :param headers: headers to set on the copy; a value of None removes the header.
        :raises ConfigError: the delay is longer than `longest`.
        :raises PublishError: the broker has not confirmed the copy.
        """
        app = self.included_in()
        self._check(after)
        entry = EntryPoint("", queue, {}) if after <= NOW else await self._entry_point(app, "", queue, after)
        table = {**redelivery_headers(delivery), **(headers or {}), **entry.headers}
        with self._handling_returns():
            await app.forward(delivery, exchange=entry.exchange, key=entry.key, headers=table)
        self.statistics.redelivered += 1

    async def _handle_due(self, body: bytes, delivery: Delivery) -> None:
        """Handle a message that was published with a `cancel_key` and is now due: forward it to its target, or drop it
        if it was cancelled or replaced. The encoded `body` is not read.

        :raises DeadLetter: the message arrived so late that its record may be deleted, so it is unknown whether it was
            cancelled.
        """
        app = self.included_in()
        cancel_key = str(delivery.headers.get(CANCEL_KEY, ""))
        try:
            due_ms = delivery.headers.get(DUE)
            message = delivery.message_id or "", due_ms if isinstance(due_ms, int) else None
            arrival = await self._decide(cancel_key, rules.arrive, *message, patience=0)
            if arrival in (ArrivalDecision.CANCELLED, ArrivalDecision.SUPERSEDED):
                log.info(
                    "event=delay.message_dropped name=%s key=%s reason=%s", self.name, cancel_key, arrival
                )
            elif arrival is not ArrivalDecision.FORGOTTEN:
                exchange, key = origin(delivery)
                await app.forward(delivery, exchange=exchange, key=key, headers={CANCEL_KEY: None, DUE: None})
        except WarrenError as error:
            if error.outcome == "refused" and not error.retryable:
                raise  # Its target is gone: the dead letter queue keeps it with the reason.
            # Delayed and acknowledged, not requeued: a store that is down for an hour must not use up the
            # delivery limit.
            log.warning("event=delay.message_postponed name=%s key=%s error=%s", self.name, cancel_key, error)
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
                    f"the message arrived more than Delay(keep={timedelta(milliseconds=self._keep_ms)}) after its due time,"
                    " so it is unknown whether it was cancelled; replay it if it was not"
                )
            case ArrivalDecision.UNKNOWN:
                self.statistics.unknown += 1
                log.warning("event=delay.record_missed name=%s key=%s", self.name, cancel_key)

    async def _publish(
        self, app: App, message: Any, entry: EntryPoint, headers: Mapping[str, Any], message_id: str | None
    ) -> None:
        with self._handling_returns():
            await app.publish(
                message,
                exchange=entry.exchange,
                key=entry.key,
                headers={**headers, **entry.headers},
                message_id=message_id,
            )

    def _handling_returns(self) -> suppress:
        return suppress(*([Unroutable] if self._strategy.ignores_returns else []))

    def _check(self, delay: timedelta) -> None:
        if delay > self._strategy.longest:
            raise ConfigError(
                f"a delay of {delay} is too long: {self._strategy.longest} is the longest of {type(self._strategy).__name__}"
            )

    async def _resolve_target(
        self, app: App, message: object, exchange: str | None, key: str | None
    ) -> tuple[str, str]:
        """Return the exchange and routing key to which the message goes when it is due, after declaring what its
        message class needs on the broker."""
        if isinstance(message, Message) and key is None:
            kind = type(message)
            if kind.wire_key is not None:
                await self._ensure_declared(app, kind, kind.required_topology)
                self._checked.add((kind.wire_exchange, kind.wire_key))
                return kind.wire_exchange, kind.wire_key
        if key is None:
            raise ConfigError(
                "a delayed message needs an address: use a message class, or give key= (and exchange=)"
            )
        return exchange or "", key

    async def _check_exists(self, app: App, exchange: str, key: str) -> None:
        """Check that the target of delayed messages exists.

        :raises TopologyMismatch: it does not exist.
        """
        await app.check_now(Exchange(exchange) if exchange else Queue(key))
        self._checked.add((exchange, key))

    async def _entry_point(self, app: App, exchange: str, key: str, delay: timedelta) -> EntryPoint:
        """Return the exchange, routing key and headers with which to publish the message so that it is delayed. Before
        that, declare the strategy's exchanges, queues and bindings that lead from there to the target.

        :param exchange: target exchange, with the routing key `key`; empty for the queue `key`.
        """
        if delay <= NOW:
            return EntryPoint(exchange, key, {})
        await self._ensure_declared(
            app, (exchange, key), partial(self._strategy.target_topology, self.name, exchange, key)
        )
        return self._strategy.entry(self.name, exchange, key, delay)

    async def _ensure_declared(
        self, app: App, what: object, reach: Callable[[], Iterable[Declarable]]
    ) -> None:
        """Declare exchanges, queues and bindings unless this was done before, even if several tasks need them at the
        same time.

        :param what: identity of the group to declare, by which a repetition is recognised: a message class, or the
            exchange and routing key of a target.
        :param reach: returns the group; called only if it must be declared.
        """
        if what not in self._ensured:
            async with self._declaring:
                if what not in self._ensured:
                    await app.declare_now(*reach())
                    self._ensured.add(what)

    async def _record(self, cancel_key: str, token: str, target: tuple[str, str], delay: timedelta) -> int:
        """Record in the store that a message waits under its `cancel_key`, and return its due time in milliseconds
        since the epoch.

        :param token: id of the message.
        :param target: exchange and routing key to which the message goes when it is due.
        """
        due_ms = self._now_ms() + delay // timedelta(milliseconds=1)
        entry = DelayRecord(DelayState.WAITING, cancel_key, token, due_ms, *target)
        await self._decide(cancel_key, rules.schedule, entry)
        return due_ms

    async def _decide(
        self,
        cancel_key: str,
        rule: Callable[..., RuleResult[Answer]],
        *values: Any,
        patience: float = PATIENCE,
    ) -> Answer:
        store = self._required_store()
        key = listed_key("delay", self.name, cancel_key)

        def rule_now(record: bytes | None) -> RuleResult[Answer]:
            return partial(rule, record, *values)(now_ms=self._now_ms(), keep_ms=self._keep_ms)

        if not patience:
            return await apply_rule(store, key, rule_now)
        return await apply_rule_with_retry(
            store, key, rule_now, clock=self.included_in().clock, patience=patience
        )

    def _required_store(self) -> ListingStore:
        if self._store is None:
            raise ConfigError(
                f"the Delay {self.name} cannot cancel or list messages without a store: Delay(store=RedisStore(...))"
            )
        return self._store

    def _now_ms(self) -> int:
        return int(self.included_in().clock.now() * 1000)


__all__ = ["Delay", "DelayStatistics"]
