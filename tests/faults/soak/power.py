"""Deadlines on virtual time: 100,000 orders with random payment times, redeliveries, and three power cuts of the broker.

Broker, shop and customers are one process, and the broker's disk loses data that was not synced; Redis stores the
decisions. Time advances only by `advance`, so each order's outcome is known beforehand: it must have this outcome, at
its time, unless it falls into an outage.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.chaos.faulty_disk_broker import FaultyDiskBroker
from tests.support.processes import free_port
from tests.support.redis import redis_server
from warren.broker import BrokerConfig, VirtualClock
from warren.patterns import Deadline, DeadlineOutcome, Once, RedisStore
from warren.sdk import App, Command, Delivery, Event, Requeue
from warren.testing.clocks import HandlerClock

ORDERS = 100_000
RATE = 200
"""Orders per second of virtual time."""
TO_PAY = 300.0
LATEST = 1.5
PAYERS = 0.8
TWICE = 0.02
AGAIN = 0.03
"""Share of deliveries that are redelivered after they were handled."""
CUTS = 3
OUTAGE = 20.0
LATE = 1.0
"""Highest delay in seconds of a cancellation, outside of outages."""
STEP = 0.5
"""Orders are placed at full seconds, and paid half a second after one, so that no payment is exactly at a deadline."""


class Placed(Event, exchange="soak", key="placed", audience=["soak.placed"]):
    order: int


class Paid(Event, exchange="soak", key="paid", audience=["soak.paid"]):
    order: int
    at: float


class Cancel(Command, queue="soak.cancel"):
    order: int


@dataclass
class Story:
    """Recorded actions and outcomes, by the virtual clock."""

    placed: dict[int, float] = field(default_factory=dict)
    paid: dict[int, float] = field(default_factory=dict)
    outcomes: dict[int, set[DeadlineOutcome]] = field(default_factory=dict)
    cancelled: dict[int, list[float]] = field(default_factory=dict)
    outages: list[tuple[float, float]] = field(default_factory=list)
    came_again: int = 0


def soak(share: float, random: Random, folder: Path) -> list[str]:
    with redis_server(folder) as redis:
        return asyncio.run(_soak(share, random, folder, redis))


async def _soak(share: float, random: Random, folder: Path, redis: str) -> list[str]:
    clock = VirtualClock(patience=60.0)
    broker = FaultyDiskBroker(folder, random, "power", config=BrokerConfig(port=free_port()), clock=clock)
    await broker.start()
    story, store = Story(), RedisStore(redis)
    apps_clock = HandlerClock(clock)
    app, unpaid = _shop(broker.url, apps_clock, store, random, story)
    customers = App(broker.url, clock=apps_clock, first_retry=0.02, longest_retry=0.2)
    async with app, customers:
        unwatch = clock.watch(lambda: _unfinished(apps_clock, app, customers))
        count = round(ORDERS * share)
        seconds = count / RATE
        rest = LATEST * TO_PAY + 2 * OUTAGE
        """How much longer anything can happen to an order."""
        cuts = sorted(random.uniform(0.1, 0.9) * (seconds + TO_PAY) for _ in range(CUTS))
        coming: dict[float, list[int]] = {}
        began = clock.now()
        last = began + rest
        while (now := clock.now()) < last:
            batch = _events(story, coming, count, now, random)
            if len(story.placed) < count:
                last = now + rest
            cutting = bool(cuts) and now - began >= cuts[0]
            if cutting:
                cuts.pop(0)
                broker.arm()
            publishing = asyncio.ensure_future(_publish(customers, batch))
            await _unless_cut(publishing, broker, cutting)
            await _unless_cut(asyncio.ensure_future(clock.advance(STEP)), broker, cutting)
            if cutting:
                await _outage(broker, clock, story, app, customers)
            await publishing
        unwatch()
    await broker.end()
    figures = judge(story)
    assert unpaid.statistics.signalled >= len(story.cancelled)
    return figures


def _shop(
    url: str, clock: HandlerClock, store: RedisStore, random: Random, story: Story
) -> tuple[App, Deadline]:
    app = App(url, clock=clock, first_retry=0.02, longest_retry=0.2)
    unpaid = Deadline(
        "soak.unpaid",
        after=timedelta(seconds=TO_PAY),
        signal=lambda key: Cancel(order=int(key)),
        store=store,
        concurrency=100,
    )
    app.publishes(Cancel)
    app.include(unpaid)

    def now_and_then_again(delivery: Delivery) -> None:
        if not delivery.redelivered and random.random() < AGAIN:
            story.came_again += 1
            raise Requeue

    @app.handle(Placed, queue="soak.placed", concurrency=100)
    async def start(event: Placed, delivery: Delivery) -> None:
        await unpaid.start(str(event.order), at=datetime.fromtimestamp(story.placed[event.order], UTC))
        now_and_then_again(delivery)

    @app.handle(Paid, queue="soak.paid", concurrency=100)
    async def pay(event: Paid, delivery: Delivery) -> None:
        outcome = await unpaid.complete(str(event.order), by=f"payment {event.order}")
        story.outcomes.setdefault(event.order, set()).add(outcome)
        now_and_then_again(delivery)

    once = Once(store)

    @app.handle(Cancel, once=once, concurrency=100)
    async def cancel(command: Cancel) -> None:
        story.cancelled.setdefault(command.order, []).append(clock.now())

    return app, unpaid


def _events(
    story: Story, coming: dict[float, list[int]], count: int, now: float, random: Random
) -> list[Event]:
    """Return the customers' events of this moment: orders at full seconds, payments at half seconds."""
    batch: list[Event] = []
    if now == int(now):
        for _ in range(min(RATE, count - len(story.placed))):
            order = len(story.placed)
            story.placed[order] = now
            batch += [Placed(order=order)] * (1 + (random.random() < TWICE))
            if random.random() < PAYERS:
                coming.setdefault(now + 0.5 + random.randrange(int(LATEST * TO_PAY)), []).append(order)
    for when in [when for when in coming if when <= now]:
        for order in coming.pop(when):
            story.paid[order] = now
            batch += [Paid(order=order, at=now)] * (1 + (random.random() < TWICE))
    return batch


async def _publish(customers: App, batch: list[Event]) -> None:
    """Publish until everything is confirmed: a broker with a failing disk refuses messages."""
    report = await customers.publish_many(batch, on_error="report")
    while report.failures:
        report = await customers.publish_again(report, on_error="report")


async def _unless_cut(work: asyncio.Future[Any], broker: FaultyDiskBroker, cutting: bool) -> None:
    """Wait for the work; if the power is about to fail, only until then or for a short time."""
    if not cutting:
        await work
        return
    failing = asyncio.ensure_future(asyncio.to_thread(broker.fault_happened.wait, 3))
    await asyncio.wait((work, failing), return_when=asyncio.FIRST_COMPLETED)


async def _outage(broker: FaultyDiskBroker, clock: VirtualClock, story: Story, *apps: App) -> None:
    down = clock.now() - STEP
    await broker.end()
    clock.jump(OUTAGE)
    await broker.start()
    async with asyncio.timeout(60):
        while not all(app.ready for app in apps):  # noqa: ASYNC110 - real time, and for once
            await asyncio.sleep(0.01)
    story.outages.append((down, clock.now() + 1.0))


def _unfinished(clock: HandlerClock, *apps: App) -> str:
    running = Counter[str]()
    for app in apps:
        statistics = app.statistics()
        if statistics.publisher.unconfirmed:
            return "a publish that is not confirmed"
        for queue, subscription in statistics.subscriptions.items():
            running[queue] += subscription.running
    awake = running - clock.asleep()
    return f"a handler of {min(awake)}" if awake else ""


def judge(story: Story) -> list[str]:
    """Check the outcome of every order.

    :raises AssertionError: an order has no outcome, two, or, outages excepted, another than its times say, or late
    """
    won = {order for order, outcomes in story.outcomes.items() if DeadlineOutcome.WON in outcomes}
    lost = set(story.cancelled)
    twice = [order for order, times in story.cancelled.items() if len(times) > 1]
    assert not twice, f"cancelled twice: {twice[:10]}"
    assert not won & lost, f"both paid and cancelled: {sorted(won & lost)[:10]}"
    assert won | lost == set(story.placed), f"without outcome: {sorted(set(story.placed) - won - lost)[:10]}"
    assert set(story.outcomes) == set(story.paid), "a payment was not answered"
    excepted, lateness = 0, Counter[bool]()
    latest = 0.0
    for order, at in story.placed.items():
        due, paid = at + TO_PAY, story.paid.get(order)
        if any(down <= instant <= up for down, up in story.outages for instant in (at, due, paid or at)):
            excepted += 1
            continue
        in_time = paid is not None and paid < due
        assert (order in won) == in_time, (
            f"order {order}: placed {at}, paid {paid}, due {due}: won {order in won}"
        )
        if not in_time:
            late = story.cancelled[order][0] - due
            lateness[late <= 0.001] += 1
            latest = max(latest, late)
            assert late >= -0.001, f"order {order} was cancelled {-late} s before it was due"
            assert late < LATE, f"order {order} was cancelled {late} s after it was due"
    return [
        f"{len(story.placed):,} orders, {len(story.outages)} power cuts with {OUTAGE:g} s without a broker, "
        f"{story.came_again:,} deliveries again: {len(won):,} paid, {len(lost):,} cancelled, none without outcome or "
        f"with two; each as its times say but for {excepted:,} in an outage",
        f"cancelled at the millisecond when they were due, by the virtual clock: {lateness[True]:,} of "
        f"{lateness.total():,}, the others at most {latest * 1000:.0f} ms later",
    ]
