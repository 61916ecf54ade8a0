"""Deadlines in real time: 1,000 orders per second for 100 s, with 20 s to pay; each has one correct and punctual outcome.

Two processes handle messages, a third one publishes; some orders and payments are sent twice. Redis stores the
decisions.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.soak.load import all_empty, processor_seconds
from tests.support.broker_process import BrokerProcess
from tests.support.redis import redis_server
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers, worker_host
from warren.patterns import Deadline, DeadlineOutcome, Once, RedisStore
from warren.sdk import App, Command, Event

RATE = 1000
SECONDS = 100
TIMEOUT = 20.0
PAYERS = 0.8
LATEST = 1.5
"""Latest payment after the order, as a multiple of the timeout."""
TWICE = 0.02
PROCESSES = 2
TICK = 0.02
LATE_MS = 100.0
CLOSE = 1.0
"""Seconds before the deadline within which a payment may lose, because the order expires while it is in transit."""
CLOSE_PART = 0.005
"""Highest share of orders that may lose in this way."""


class Placed(Event, exchange="soak", key="placed", audience=["soak.placed"]):
    order: int
    at: float


class Paid(Event, exchange="soak", key="paid", audience=["soak.paid"]):
    order: int
    at: float


class Cancel(Command, queue="soak.cancel"):
    order: int


async def shop(worker: WorkerChannel, url: str, redis: str, limit: float, notes: str) -> None:
    """Run a process of the shop, which records events and writes the records on request."""
    store = RedisStore(redis)
    unpaid = Deadline(
        "soak.unpaid",
        after=timedelta(seconds=limit),
        signal=lambda key: Cancel(order=int(key)),
        store=store,
        concurrency=50,
    )
    app = App(url)
    app.publishes(Cancel)
    app.include(unpaid)
    started: list[tuple[int, float]] = []
    outcomes: list[tuple[int, str, float, float]] = []
    cancelled: list[tuple[int, float]] = []

    @app.handle(Placed, queue="soak.placed", concurrency=50)
    async def start(event: Placed) -> None:
        await unpaid.start(str(event.order), at=datetime.fromtimestamp(event.at, UTC))
        started.append((event.order, time.time()))

    @app.handle(Paid, queue="soak.paid", concurrency=50)
    async def pay(event: Paid) -> None:
        asked = time.time()
        outcome = await unpaid.complete(str(event.order), at=datetime.fromtimestamp(event.at, UTC))
        outcomes.append((event.order, outcome, asked, time.time()))

    @app.handle(Cancel, once=Once(store), concurrency=50)
    async def cancel(command: Cancel) -> None:
        cancelled.append((command.order, time.time()))

    async with app:
        await worker.report_and_wait("ready")
        _write(notes, {"started": started, "outcomes": outcomes, "cancelled": cancelled})
        await worker.report_and_wait("noted")


def _write(path: str, notes: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(notes))


def soak(share: float, random: Random, folder: Path) -> list[str]:
    with (
        redis_server(folder) as redis,
        BrokerProcess(folder / "broker") as broker,
        worker_host("warren.patterns", "redis.asyncio", "aio_pika") as host,
    ):
        return asyncio.run(_soak(share, random, folder, broker, redis, host))


async def _soak(
    share: float, random: Random, folder: Path, broker: BrokerProcess, redis: str, host: Path
) -> list[str]:
    seconds, limit = max(4.0, SECONDS * share), max(2.0, TIMEOUT * share)
    notes = [folder / f"notes{number}" for number in range(PROCESSES)]
    async with Workers(host) as workers:
        shops = [
            await workers.start(shop, url=broker.url, redis=redis, limit=limit, notes=str(path))
            for path in notes
        ]
        await workers.wait_for("ready", PROCESSES)
        began = time.monotonic()
        async with App(broker.url) as app:
            placed, paid = await _publish(app, random, seconds, limit)
        took = time.monotonic() - began
        # In one look, with the queues of the halves and quarters in which what comes late waits for the rest of its time.
        await all_empty(broker.data_dir, "soak.", seconds=2 * limit + 120)
        for each in shops:
            each.resume()
        await workers.wait_for("noted", PROCESSES)
        used = [processor_seconds(pid) for pid in (broker.pid, *(each.pid for each in shops))]
    heard = [json.loads(path.read_text()) for path in notes]
    started = [tuple(entry) for its in heard for entry in its["started"]]
    outcomes = [tuple(entry) for its in heard for entry in its["outcomes"]]
    cancelled = [tuple(entry) for its in heard for entry in its["cancelled"]]
    figures = judge(placed, paid, started, outcomes, cancelled, limit, took, punctual=share >= 1)
    costs = [f"{its / len(placed) * 1e6:.0f}" for its in used]
    return [
        *figures,
        f"processor time an order: broker {costs[0]} µs, handling processes {' and '.join(costs[1:])} µs",
    ]


async def _publish(
    app: App, random: Random, seconds: float, limit: float
) -> tuple[dict[int, float], dict[int, float]]:
    """Publish orders at their rate and payments at their times; return both times by order."""
    placed: dict[int, float] = {}
    paid: dict[int, float] = {}
    coming: dict[int, list[int]] = {}
    """By tick, the orders that are paid then."""
    publishing: set[asyncio.Task[Any]] = set()
    beginning = time.time()
    ticks = round((seconds + LATEST * limit) / TICK)
    for tick in range(ticks):
        await asyncio.sleep(max(0.0, beginning + tick * TICK - time.time()))
        now, batch = time.time(), list[Event]()
        if tick * TICK < seconds:
            for _ in range(round(RATE * TICK)):
                order = len(placed)
                placed[order] = now
                batch += [Placed(order=order, at=now)] * (1 + (random.random() < TWICE))
                if random.random() < PAYERS:
                    coming.setdefault(tick + 1 + int(random.random() * LATEST * limit / TICK), []).append(
                        order
                    )
        for order in coming.pop(tick, ()):
            paid[order] = now
            batch += [Paid(order=order, at=now)] * (1 + (random.random() < TWICE))
        task = asyncio.create_task(app.publish_many(batch))
        publishing.add(task)
        task.add_done_callback(publishing.discard)
    while publishing:
        await asyncio.gather(*publishing)
    return placed, paid


def judge(
    placed: dict[int, float],
    paid: dict[int, float],
    started: list[tuple[int, float]],
    outcomes: list[tuple[int, str, float, float]],
    cancelled: list[tuple[int, float]],
    limit: float,
    took: float,
    punctual: bool,
) -> list[str]:
    """:param punctual: whether lateness counts: it does not where other work is on the machine
    :raises AssertionError: an order has no outcome, two, another than its times say, or lost though paid well in time"""
    won = {order for order, outcome, _, _ in outcomes if outcome == DeadlineOutcome.WON}
    late = {order for order, outcome, _, _ in outcomes if outcome == DeadlineOutcome.LATE}
    lost = Counter(order for order, _ in cancelled)
    assert max(lost.values(), default=1) == 1, "an order was cancelled twice"
    assert not won & set(lost), f"both paid and cancelled: {sorted(won & set(lost))[:10]}"
    assert won | set(lost) == set(placed), f"without outcome: {sorted(set(placed) - won - set(lost))[:10]}"
    assert late | won == set(paid), "a payment was not answered"
    assert late <= set(lost)
    close = 0
    answered = dict[int, float]()
    winning = dict[int, float]()
    known = dict[int, float]()
    """Time at which the first start of an order had returned."""
    for order, outcome, asked, at in outcomes:
        answered[order] = min(at, answered.get(order, at))
        if outcome == DeadlineOutcome.WON:
            winning[order] = min(asked, winning.get(order, asked))
    for order, at in started:
        known[order] = min(at, known.get(order, at))
    ahead = 0
    for order, at in placed.items():
        due = at + limit
        # What is asked in milliseconds may be cut by one.
        if order in won:
            if paid[order] > due + 0.001:
                # What is completed before it is started wins: the process that was to start it stood still.
                ahead += 1
                assert winning[order] <= known[order], (
                    f"order {order} was paid {paid[order] - due:.3f} s late and won"
                )
        elif order in paid and answered[order] < due - 0.001:
            raise AssertionError(f"order {order} was in time by {due - answered[order]:.3f} s and lost")
        elif order in paid and paid[order] <= due:
            close += 1
            # Where processes stand still it is on its way for as long as they do: `answered`, above, is the rule.
            assert not punctual or due - paid[order] < CLOSE, (
                f"order {order} was paid {due - paid[order]:.3f} s in time and lost: more than {CLOSE:g} s"
            )
    lateness = sorted((at - placed[order] - limit) * 1000 for order, at in cancelled)
    mean = sum(lateness) / len(lateness)
    assert lateness[0] >= -1.0, f"cancelled {-lateness[0]:.0f} ms before it was due"
    figures = [
        f"{len(placed):,} orders at {len(placed) / (took - LATEST * limit):,.0f} a second, {limit:g} s to pay: "
        f"{len(won):,} paid, {len(lost):,} cancelled, {len(late):,} paid too late, none without outcome or with two; "
        f"{close} paid in the last instant, while the expiry was decided",
        f"from due to the handler's start: mean {mean:.1f} ms, median {_quantile(lateness, 0.5):.1f}, "
        f"99 % {_quantile(lateness, 0.99):.1f}, longest {lateness[-1]:.1f}",
    ]
    if punctual:
        assert not ahead, f"{ahead} were paid late and won, before they were started; {'; '.join(figures)}"
        assert close <= CLOSE_PART * len(placed), f"{close} were paid in time and lost; {'; '.join(figures)}"
        assert mean < LATE_MS, "; ".join(figures)
    return figures


def _quantile(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
