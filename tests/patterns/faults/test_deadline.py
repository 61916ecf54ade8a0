"""Deadline in every fault, with a real Redis and workers that are killed."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import lose_connection
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.patterns.topology_cleanup import delete_topology
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.processes import free_port
from tests.support.proxy import Proxy
from tests.support.redis import redis_server
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import Deadline, DeadlineOutcome, Once, RedisStore, Store
from warren.patterns.stores import SwapResult
from warren.sdk import App, Command, Subscription

MATRIX = Matrix("deadline", page="docs/patterns/deadline.md")

AFTER = timedelta(milliseconds=300)
LONG = timedelta(minutes=5)
"""Duration for what must be in time, however slow the machine is."""


def soon_due() -> datetime:
    """Start of a deadline of `LONG` that is due in a moment."""
    return datetime.now(UTC) - LONG + AFTER


class Cancel(Command, queue="replaced"):
    order_id: str


@cache
def cancel_in(queue_name: str) -> type[Cancel]:
    class CancelHere(Cancel, queue=queue_name, type="cancel"):
        pass

    return CancelHere


class Watched:
    """A store at whose decisions a test looks before they are made."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def before(self, record: bytes) -> None:
        """Run before the record is written; tests override this."""

    async def after(self, record: bytes) -> None:
        """Run after the effect; tests override this."""

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        changed = record if key.startswith("deadline:") and record != expected else None
        if changed is not None:
            await self.before(changed)
        swap = await self._store.compare_and_set(key, expected, record, keep_ms=keep_ms)
        if changed is not None and swap.swapped:
            await self.after(changed)
        return swap

    async def close(self) -> None:
        await self._store.close()


class Shop:
    """An App whose orders are cancelled when they are not paid in time; another one, or itself, does it."""

    def __init__(
        self,
        app: App,
        name: str,
        redis: str,
        *,
        after: timedelta = AFTER,
        handles_due: bool = True,
        cancels: bool = True,
    ) -> None:
        self.app = app
        self.store = Watched(RedisStore(redis, prefix=f"{name}:", timeout=PATIENCE))
        self.signals: list[str] = []
        self.unpaid = Deadline(
            f"{name}.unpaid",
            after=after,
            signal=self._signal,
            store=self.store,
            retry_after=timedelta(milliseconds=100),
        )
        self.cancelled: list[str] = []
        self.once = Once(self.store)
        self._cancel = cancel_in(f"{name}.cancel")
        app.publishes(self._cancel)
        if handles_due:
            app.include(self.unpaid)
        if cancels:

            @app.handle(self._cancel, once=self.once)
            async def cancel(command: Any) -> None:
                self.cancelled.append(command.order_id)

    @property
    def due(self) -> Subscription:
        """By which it takes what is due."""
        return self.app.subscriptions[f"{self.unpaid.name}.due"]

    def _signal(self, key: str) -> Cancel:
        self.signals.append(key)
        self.on_signal()
        return self._cancel(order_id=key)

    def on_signal(self) -> None:
        """Run before a signal is published; tests override this."""

    async def cancels(self, *order_ids: str) -> None:
        await eventually(lambda: sorted(self.cancelled) == sorted(order_ids), f"{order_ids} are cancelled")

    async def settles(self, count: int) -> None:
        its = self.unpaid.statistics
        await eventually(lambda: its.settled + its.signalled >= count, f"{count} due messages are done")


async def clerk(worker: WorkerChannel, url: str, name: str, redis: str, stop: str) -> None:
    """Handle due deadlines in a worker that stops before or after it publishes the signal."""
    shop = Shop(App(url), name, redis, cancels=False)

    def on_signal() -> None:
        if stop == "before":
            worker.report("expired")
            time.sleep(60)

    async def before(record: bytes) -> None:
        if stop == "after" and b"signalled" in record:
            await worker.report_and_wait("signal confirmed")

    shop.on_signal, shop.store.before = on_signal, before  # type: ignore[method-assign]
    async with shop.app:
        await shop.unpaid.start("42")
        await worker.report_and_wait("started")


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "after *pending* is written: the message that started the deadline was not acknowledged, is "
    "redelivered and starts it again",
)
async def test_a_process_dies_between_pending_and_the_due_message(
    amqp_url: str, redis_url: str, new_app: NewApp, name: str
) -> None:
    dying = Shop(new_app(), name, redis_url)
    dying.app.middleware(publish=_never)
    async with dying.app:
        died = asyncio.ensure_future(dying.unpaid.start("42"))
        await eventually(lambda: dying.unpaid.statistics.started == 1, "pending is written")
        died.cancel()
        await asyncio.wait((died,))
    shop = Shop(new_app(), name, redis_url)
    async with shop.app:
        await shop.unpaid.start("42")
        await shop.cancels("42")


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "after *expired* is written, before the signal: the due message is redelivered, and the signal is "
    "published",
)
async def test_a_worker_dies_before_the_signal(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    doomed = await workers.start(clerk, url=amqp_url, name=name, redis=redis_url, stop="before")
    await workers.wait_for("expired")
    doomed.kill()
    shop = Shop(new_app(), name, redis_url)
    async with shop.app:
        assert await shop.unpaid.complete("42") is DeadlineOutcome.LATE
        await shop.cancels("42")


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the due message is redelivered, and the signal is published again with the same message id, for the "
    "consumer's `Once`",
)
async def test_a_worker_dies_after_the_signal(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    doomed = await workers.start(clerk, url=amqp_url, name=name, redis=redis_url, stop="after")
    await workers.wait_for("signal confirmed")
    doomed.kill()
    shop = Shop(new_app(), name, redis_url)
    async with shop.app:
        await eventually(lambda: shop.once.statistics.duplicates == 1, "the signal comes again")
    assert shop.cancelled == ["42"]


@MATRIX.shows(
    Fault.LOST_ACK,
    "the due message is redelivered; the decision is recorded already",
)
async def test_the_acknowledgement_of_a_due_message_is_lost(
    amqp_url: str, redis_url: str, new_app: NewApp, name: str
) -> None:
    async with Proxy(amqp_url) as proxy:
        shop = Shop(new_app(proxy.url), name, redis_url, cancels=False)

        async def lose_acknowledgement(record: bytes) -> None:
            if b"signalled" in record:
                proxy.to_server.hold()

        shop.store.after = lose_acknowledgement  # type: ignore[method-assign]
        async with shop.app:
            await shop.unpaid.start("42")
            await eventually(lambda: proxy.to_server.held, "the signal is published, and recorded")
            proxy.refuse()
            lose_connection(proxy)
            successor = Shop(new_app(), name, redis_url, cancels=False)
            async with successor.app:
                its = successor.unpaid.statistics
                await eventually(lambda: its.settled == 1, "the due message comes again")
    assert (shop.signals, successor.signals) == (["42"], [])


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the due message or the signal is published again; for a due message the recorded decision stands, "
    "and the signal has the same message id",
)
async def test_the_confirm_of_the_signal_is_lost(
    amqp_url: str, redis_url: str, new_app: NewApp, name: str
) -> None:
    reader = Shop(new_app(), name, redis_url, handles_due=False)
    async with Proxy(amqp_url) as proxy, reader.app:
        shop = Shop(new_app(proxy.url), name, redis_url, cancels=False)
        shop.on_signal = proxy.to_client.hold  # type: ignore[method-assign]
        async with shop.app:
            await shop.due.pause()  # Until the start is confirmed: nothing comes back from the signal on.
            await shop.unpaid.start("42")
            await shop.due.resume()
            await reader.cancels("42")
            shop.on_signal = lambda: None  # type: ignore[method-assign]
            proxy.cut()
            proxy.to_client.release()
            await eventually(lambda: reader.once.statistics.duplicates >= 1, "the signal comes again")
    assert reader.cancelled == ["42"]


@MATRIX.shows(
    Fault.DUPLICATE,
    "a second start changes nothing; after a second due message the recorded decision stands; the same "
    "completion gets `WON` again, another one `REPEATED`",
)
async def test_starts_and_completions_come_twice(redis_url: str, new_app: NewApp, name: str) -> None:
    shop = Shop(new_app(), name, redis_url, after=LONG)
    async with shop.app:
        await asyncio.gather(*(shop.unpaid.start("unpaid", at=soon_due()) for _ in range(2)))
        await asyncio.gather(*(shop.unpaid.start("paid") for _ in range(2)))
        answers = [await shop.unpaid.complete("paid", by=who) for who in ("a", "a", "b")]
        assert answers == [DeadlineOutcome.WON, DeadlineOutcome.WON, DeadlineOutcome.REPEATED]
        await shop.settles(2)
        await shop.cancels("unpaid")


@MATRIX.shows(
    Fault.REORDERING,
    "a completion before its start is recorded and wins; one after the expiry gets `LATE`, each time",
)
async def test_a_completion_comes_before_its_start(redis_url: str, new_app: NewApp, name: str) -> None:
    shop = Shop(new_app(), name, redis_url)
    async with shop.app:
        assert await shop.unpaid.complete("early") is DeadlineOutcome.WON
        await shop.unpaid.start("early")
        await shop.unpaid.start("late")
        await shop.cancels("late")
        assert [await shop.unpaid.complete("late") for _ in range(2)] == [DeadlineOutcome.LATE] * 2
    assert shop.signals == ["late"]


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "the due message waits in a durable, replicated queue; deadlines that expire meanwhile are late by "
    "the outage",
)
async def test_the_broker_is_killed_while_deadlines_wait(
    mortal_broker: BrokerProcess, redis_url: str, name: str
) -> None:
    shop = Shop(App(mortal_broker.url), name, redis_url, after=LONG)
    async with shop.app:
        orders = [f"{number}" for number in range(1, 10)]
        await shop.unpaid.start("paid")
        await asyncio.gather(*(shop.unpaid.start(order, at=soon_due()) for order in orders))
        await asyncio.to_thread(mortal_broker.kill)
        assert await shop.unpaid.complete("paid") is DeadlineOutcome.WON
        await asyncio.to_thread(mortal_broker.start)
        await shop.cancels(*orders)


@MATRIX.shows(
    Fault.STORE_DOWN,
    "`start`, `complete` and `extend` wait up to `patience` (one minute), then raise `StoreUnavailable`: "
    "the handler fails, and its message follows its retry policy; a due message is acknowledged and "
    "delayed by `retry_after`, so that an outage uses up no delivery limit",
)
async def test_redis_is_stopped_when_a_deadline_is_due(new_app: NewApp, name: str, tmp_path: Path) -> None:
    port = free_port()
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    shop = Shop(new_app(), name, f"redis://127.0.0.1:{port}/0", after=LONG)
    async with shop.app:
        with redis_server(tmp_path, *durable, port=port):
            await shop.due.pause()  # Until Redis is down.
            await shop.unpaid.start("unpaid", at=soon_due())
            await shop.unpaid.start("paid")
            assert await shop.unpaid.complete("paid") is DeadlineOutcome.WON
        await shop.due.resume()
        await eventually(lambda: shop.unpaid.statistics.postponed >= 3, "due messages are put off")
        with redis_server(tmp_path, *durable, port=port):
            await shop.cancels("unpaid")


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "a deadline is late by as much as the clock of the starting process is ahead of the clock of the "
    "process that handles the due message; it is never decided twice",
)
async def test_the_starting_process_is_half_a_second_ahead(amqp_url: str, redis_url: str, name: str) -> None:
    clock = SkewedClock(-3600)  # At first, so that it is too early however late what is due is handled.
    right = Shop(App(amqp_url, clock=clock), name, redis_url)

    async def put_right() -> None:
        await eventually(lambda: right.unpaid.statistics.delayed_again >= 1, "it came too early")
        clock.skew = 0

    elapsed, _ = await asyncio.gather(started_elsewhere(amqp_url, redis_url, name, right, 0.5), put_right())
    assert elapsed >= AFTER.total_seconds() + 0.45
    await delete_topology(amqp_url, [right.app], name)


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "if the starting process's clock is behind, the deadline is decided when the due message arrives, "
    "after the whole delay",
)
async def test_the_starting_process_is_an_hour_behind(
    amqp_url: str, redis_url: str, new_app: NewApp, name: str
) -> None:
    right = Shop(new_app(), name, redis_url)
    assert await started_elsewhere(amqp_url, redis_url, name, right, -3600) >= AFTER.total_seconds() - 0.01
    assert right.unpaid.statistics.delayed_again == 0


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "this also holds if the store took most of that delay to answer `start`",
)
async def test_the_starting_process_is_an_hour_behind_and_its_store_is_slow(
    amqp_url: str, redis_url: str, new_app: NewApp, name: str
) -> None:
    right = Shop(new_app(), name, redis_url)
    assert (
        await started_elsewhere(amqp_url, redis_url, name, right, -3600, store=0.2)
        >= AFTER.total_seconds() - 0.01
    )
    assert right.unpaid.statistics.delayed_again == 0


async def started_elsewhere(
    amqp_url: str, redis_url: str, name: str, right: Shop, skew: float, *, store: float = 0
) -> float:
    """Start a deadline on a machine with another clock; return the seconds until `right` has cancelled the order.

    :param store: the seconds that pass by that clock while the store is asked.
    """
    clock = SkewedClock(skew)

    async def take_time(record: bytes) -> None:
        clock.skew += store

    other = Shop(App(amqp_url, clock=clock), name, redis_url, cancels=False)
    other.store.before = take_time  # type: ignore[method-assign]
    async with right.app, other.app:
        await other.due.pause()  # What is due is handled by the right one.
        began = time.monotonic()
        await other.unpaid.start("42")
        await right.cancels("42")
        elapsed = time.monotonic() - began
    assert right.signals + other.signals == ["42"]
    return elapsed


async def _never(*_: object) -> None:
    """Block every message, as a middleware."""
    await asyncio.Event().wait()
