"""Deadlines on a broker and a real Redis: short real delays, waited for by condition."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from tests.patterns.conftest import PATIENCE, NewApp, OpenStore
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.patterns.topology_cleanup import delete_topology
from tests.support.async_client import take_one
from tests.support.polling import eventually
from warren.patterns import Deadline, DeadlineOutcome, Once, RedisStore, SqliteStore, Store, StoreUnavailable
from warren.patterns.deadline.deadline import _delay_steps, _next_delay
from warren.patterns.stores import SwapResult
from warren.sdk import App, Command, ConfigError, Delivery, Event, Subscription

Answer = TypeVar("Answer")

AFTER = timedelta(seconds=1)
HOUR = timedelta(hours=1)


@pytest.fixture
async def open_store(redis_url: str) -> AsyncIterator[OpenStore]:
    """Redis alone: the rules are the same above every store, and each test here waits for its deadlines."""
    opened: list[RedisStore] = []
    prefix = f"{uuid4().hex}:"

    def open_one() -> RedisStore:
        opened.append(RedisStore(redis_url, prefix=prefix, timeout=PATIENCE))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


class Shop:
    """One process of a shop: it starts, completes and cancels, and writes down what it heard."""

    def __init__(
        self, app: App, store: Store, name: str, *, after: timedelta = AFTER, once: bool = True
    ) -> None:
        class OrderPlaced(Event, exchange=f"{name}.orders", key="order.placed", audience=[f"{name}.starts"]):
            order_id: str

        class OrderPaid(Event, exchange=f"{name}.orders", key="order.paid", audience=[f"{name}.payments"]):
            order_id: str

        class CancelOrder(Command, queue=f"{name}.cancel"):
            order_id: str

        self.placed, self.paid = OrderPlaced, OrderPaid
        self.app = app
        self.unpaid = Deadline(
            f"{name}.unpaid",
            after=after,
            signal=lambda key: CancelOrder(order_id=key),
            store=store,
            retry_after=timedelta(milliseconds=100),
            patience=timedelta(milliseconds=100),
        )
        self.app.include(self.unpaid)
        self.cancelled: Counter[str] = Counter()
        self.signals: list[str | None] = []
        self.outcomes: list[DeadlineOutcome] = []

        @self.app.handle(OrderPlaced, queue=f"{name}.starts")
        async def start(order: OrderPlaced) -> None:
            await self.unpaid.start(order.order_id)

        @self.app.handle(OrderPaid, queue=f"{name}.payments")
        async def pay(payment: OrderPaid) -> None:
            self.outcomes.append(await self.unpaid.complete(payment.order_id))

        @self.app.handle(CancelOrder, once=Once(store) if once else None)
        async def cancel(order: CancelOrder, delivery: Delivery) -> None:
            self.signals.append(delivery.message_id)
            self.cancelled[order.order_id] += 1

    @property
    def due(self) -> Subscription:
        """By which it takes what is due; paused where a payment has to be in time, however slow the machine is."""
        return self.app.subscriptions[f"{self.unpaid.name}.due"]

    async def place(self, order_id: str) -> None:
        await self.app.publish(self.placed(order_id=order_id))

    async def pay(self, order_id: str) -> DeadlineOutcome:
        heard = len(self.outcomes)
        await self.app.publish(self.paid(order_id=order_id))
        await eventually(lambda: len(self.outcomes) > heard, f"the payment of {order_id} is handled")
        return self.outcomes[-1]

    async def is_started(self, count: int) -> None:
        await eventually(lambda: self.unpaid.statistics.started == count, f"{count} orders are started")

    async def is_cancelled(self, order_id: str) -> None:
        await eventually(lambda: self.cancelled[order_id] > 0, f"order {order_id} is cancelled")

    async def is_settled(self, count: int) -> None:
        await eventually(lambda: self.unpaid.statistics.settled >= count, f"{count} due messages are settled")


async def test_an_unpaid_order_is_cancelled_once_and_a_paid_one_never(
    new_app: NewApp, store: Store, name: str
) -> None:
    shop = Shop(new_app(), store, name)
    async with shop.app:
        await shop.due.pause()
        began = asyncio.get_running_loop().time()
        await shop.place("unpaid")
        await shop.place("paid")
        await shop.is_started(2)
        assert await shop.pay("paid") is DeadlineOutcome.WON
        await shop.due.resume()
        await shop.is_cancelled("unpaid")
        assert asyncio.get_running_loop().time() - began >= AFTER.total_seconds() - 0.01
        await shop.is_settled(1)
        assert await shop.pay("unpaid") is DeadlineOutcome.LATE
        assert await shop.pay("paid") is DeadlineOutcome.REPEATED
    assert shop.cancelled == {"unpaid": 1}


async def test_a_payment_before_its_order_is_remembered_and_wins(
    new_app: NewApp, store: Store, name: str
) -> None:
    shop = Shop(new_app(), store, name)
    async with shop.app:
        assert await shop.pay("42") is DeadlineOutcome.WON
        await shop.place("42")
        await shop.place("last")
        await shop.is_cancelled("last")
    assert shop.cancelled == {"last": 1}


async def test_a_deadline_survives_a_restart_of_the_application(
    new_app: NewApp, open_store: OpenStore, name: str
) -> None:
    first = Shop(new_app(), open_store(), name)
    async with first.app:
        await first.due.pause()
        await first.place("unpaid")
        await first.place("paid")
        await first.is_started(2)
    assert not first.cancelled
    second = Shop(new_app(), open_store(), name)
    assert await second.unpaid.complete("paid") is DeadlineOutcome.WON
    async with second.app:
        await second.is_cancelled("unpaid")
        await second.is_settled(1)
    assert second.cancelled == {"unpaid": 1}


async def test_two_processes_that_share_the_queues_cancel_once(
    new_app: NewApp, open_store: OpenStore, name: str
) -> None:
    shops = [Shop(new_app(), open_store(), name), Shop(new_app(), open_store(), name)]
    orders = [f"order-{n}" for n in range(20)]
    async with shops[0].app, shops[1].app:
        for shop in shops:
            await shop.due.pause()  # An order that comes again after its signal makes no due message.
        for order in orders:
            await shops[0].place(order)
            await shops[1].place(order)  # The publisher lost its confirm: each order comes twice.
        await eventually(
            lambda: sum(shop.unpaid.statistics.started for shop in shops) == 40, "each is started twice"
        )
        for shop in shops:
            await shop.due.resume()

        def cancelled() -> int:
            return sum((shop.cancelled for shop in shops), Counter[str]()).total()

        await eventually(lambda: cancelled() >= 20, "all are cancelled")
        # Of two due messages at the same time both may publish the signal; its duplicate has the same id.
        done = [shop.unpaid.statistics for shop in shops]
        await eventually(
            lambda: sum(its.settled + its.signalled for its in done) >= 40, "all that is due is done"
        )
        assert cancelled() == 20


async def test_a_deadline_that_is_extended_is_due_later(amqp_url: str, store: Store, name: str) -> None:
    clock = SkewedClock(0)
    shop = Shop(App(amqp_url, clock=clock), store, name)
    async with shop.app:
        await shop.due.pause()
        until = datetime.now(UTC) + HOUR + 2 * AFTER
        await shop.unpaid.start("42")
        assert await shop.unpaid.extend("42", until)
        await shop.due.resume()
        await eventually(lambda: shop.unpaid.statistics.delayed_again >= 1, "it comes too early")
        clock.skew = HOUR.total_seconds()
        await shop.is_cancelled("42")
        assert datetime.now(UTC) + HOUR >= until
        assert not await shop.unpaid.extend("42", until + AFTER)
        assert not await shop.unpaid.extend("unknown", until)
    await delete_topology(amqp_url, [shop.app], name)


async def test_a_deadline_counts_from_the_given_start_time(new_app: NewApp, store: Store, name: str) -> None:
    shop = Shop(new_app(), store, name, after=timedelta(seconds=30))
    async with shop.app:
        now = datetime.now(UTC)
        await shop.unpaid.start("long past", at=now - timedelta(minutes=5))
        await shop.unpaid.start("nearly", at=now - timedelta(seconds=29.5))
        await shop.unpaid.start("just begun", at=now)
        await shop.is_cancelled("long past")
        await shop.is_cancelled("nearly")
        assert datetime.now(UTC) >= now + timedelta(seconds=0.5)
        assert (
            await shop.unpaid.complete("just begun", at=now + timedelta(seconds=31)) is DeadlineOutcome.LATE
        )
        with pytest.raises(ConfigError, match="no time zone"):
            await shop.unpaid.start("naive", at=datetime(2026, 1, 1))


async def test_a_redelivered_payment_gets_the_same_outcome_again(
    new_app: NewApp, store: Store, name: str
) -> None:
    shop = Shop(new_app(), store, name, after=HOUR)
    async with shop.app:
        await shop.place("42")
        await shop.is_started(1)
        for _ in range(2):
            await shop.app.publish(shop.paid(order_id="42"), message_id="payment-1")
        # Handlers run side by side: the other payment might be the first one at the store.
        await eventually(lambda: len(shop.outcomes) == 2, "the first payment is handled, twice")
        await shop.app.publish(shop.paid(order_id="42"), message_id="payment-2")
        await eventually(lambda: len(shop.outcomes) == 3, "the payments are handled")
    assert Counter(shop.outcomes) == {DeadlineOutcome.WON: 2, DeadlineOutcome.REPEATED: 1}


class Faulty:
    """A store some of whose answers are lost, after it has decided."""

    def __init__(self, store: Store, lose: Callable[[str, bytes | None], bool]) -> None:
        self._store = store
        self._lose = lose
        self.lost = 0

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        swap = await self._store.compare_and_set(key, expected, record, keep_ms=keep_ms)
        if key.startswith("deadline:") and self._lose(key, record):
            self.lost += 1
            raise StoreUnavailable("the answer was lost")
        return swap

    async def close(self) -> None:
        await self._store.close()


async def test_a_signal_whose_confirm_is_not_recorded_is_published_again_with_the_same_id(
    new_app: NewApp, store: Store, name: str
) -> None:
    """State after a crash between the signal's publish and its record: the due message comes again."""
    refuse = Refusing(store)
    shop = Shop(new_app(), refuse, name, once=False)
    async with shop.app:
        await shop.place("42")
        await eventually(lambda: shop.cancelled["42"] >= 2, "the signal comes again")
        refuse.refusing = False
        await eventually(lambda: shop.unpaid.statistics.postponed >= 1, "it was put off")
    assert len(set(shop.signals)) == 1


class Refusing:
    """A store that takes every decision but *signalled*."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.refusing = True

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        if self.refusing and record is not None and b"signalled" in record:
            raise StoreUnavailable("refused")
        return await self._store.compare_and_set(key, expected, record, keep_ms=keep_ms)

    async def close(self) -> None:
        await self._store.close()


async def until_answered(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Call again while the store does not answer, as the documentation tells callers to."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            continue


async def test_any_lost_answer_of_the_store_leaves_one_outcome(
    new_app: NewApp, store: Store, name: str
) -> None:
    """Each answer is lost twice, after the store decided; handlers and due messages come again until all is
    settled."""
    seen: Counter[tuple[str, bytes]] = Counter()

    def lose(key: str, record: bytes | None) -> bool:
        asked = key, (record or b"").partition(b",")[0]
        seen[asked] += 1
        return seen[asked] <= 2

    faulty = Faulty(store, lose)
    shop = Shop(new_app(), faulty, name)
    async with shop.app:
        await shop.due.pause()
        await until_answered(lambda: shop.unpaid.start("paid"))
        await until_answered(lambda: shop.unpaid.start("unpaid"))
        completed = await until_answered(lambda: shop.unpaid.complete("paid", by="payment"))
        assert completed is DeadlineOutcome.WON
        await shop.due.resume()
        await shop.is_cancelled("unpaid")
        await shop.is_settled(1)
        assert await until_answered(lambda: shop.unpaid.complete("unpaid")) is DeadlineOutcome.LATE
    assert shop.cancelled == {"unpaid": 1}
    assert faulty.lost > 4


async def test_a_due_message_without_a_record_is_dead_lettered_with_the_reason(
    new_app: NewApp, tmp_path: Path, name: str
) -> None:
    store = SqliteStore(tmp_path / "decisions.sqlite")
    shop = Shop(new_app(), store, name)
    async with shop.app:
        await shop.due.pause()
        await shop.unpaid.start("42")
        await store.compare_and_set("k", None, b"x", keep_ms=1)
        await store.close()
        (tmp_path / "decisions.sqlite").unlink()
        await shop.due.resume()
        dead = await take_one(str(shop.app.url), f"{name}.unpaid.due.dead")
        assert "has no record of '42'" in str(dead.headers)
    assert not shop.cancelled


async def test_fifteen_hundred_deadlines_are_decided_in_time(
    new_app: NewApp, store: Store, name: str
) -> None:
    """The pace of a busy shop: 1,500 orders, half of them paid, decided within seconds."""
    shop = Shop(new_app(), store, name)
    async with shop.app, asyncio.timeout(250):
        await shop.due.pause()
        for start in range(0, 1500, 100):
            await asyncio.gather(*(shop.unpaid.start(f"{n}") for n in range(start, start + 100)))
            outcomes = await asyncio.gather(*(shop.unpaid.complete(f"{n}") for n in range(start, start + 50)))
            assert set(outcomes) == {DeadlineOutcome.WON}
        await shop.due.resume()
        await eventually(lambda: len(shop.cancelled) == 750, "all others are cancelled", seconds=200)
        await shop.is_settled(750)
    assert shop.cancelled.total() == 750


def test_a_remaining_delay_is_divided_into_few_and_precise_steps() -> None:
    for after_ms in (1, 2, 3, 50, 1000, 2500, 1_800_000):
        precision_ms = max(1, min(1000, after_ms // 20))
        steps = list(_delay_steps(after_ms, precision_ms))
        for rest_ms in range(1, after_ms + 1, max(1, after_ms // 997)):
            left, hops = rest_ms, 0
            while left > 0:
                left -= _next_delay(steps, left, precision_ms)
                hops += 1
            assert -precision_ms <= left
            assert hops <= len(steps) + 1


async def test_invalid_arguments_raise_config_errors() -> None:
    store = RedisStore("redis://127.0.0.1:1/0")
    with pytest.raises(ConfigError, match="at least 1 ms"):
        Deadline("d", after=timedelta(0), signal=str, store=store)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a name"):
        Deadline("", after=AFTER, signal=str, store=store)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"app\.include"):
        await Deadline("d", after=AFTER, signal=str, store=store).start(uuid4().hex)  # type: ignore[arg-type]
