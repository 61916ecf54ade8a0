"""`Once` in every fault, with a real Redis and workers that are killed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.processes import closed_port, free_port
from tests.support.proxy import Proxy
from tests.support.redis import redis_server
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import Once, RedisStore
from warren.sdk import App, Command

MATRIX = Matrix("once", page="docs/patterns/once.md")

LEASE = timedelta(seconds=30)
SHORT = timedelta(milliseconds=300)
"""Lease for tests that wait until a dead worker's lease is over."""


class Charge(Command, queue="replaced"):
    order_id: str


@cache  # One class a queue: what it must reach is declared once.
def charge_in(queue_name: str) -> type[Charge]:
    class ChargeHere(Charge, queue=queue_name, type="charge"):
        pass

    return ChargeHere


class Till:
    """An App that charges each order once and writes down what it charged."""

    def __init__(
        self,
        app: App,
        queue: str,
        redis: str,
        *,
        skew: float = 0.0,
        lease: timedelta = LEASE,
        **settings: Any,
    ) -> None:
        self.app = app
        self.store = RedisStore(redis, prefix=f"{queue}:", timeout=PATIENCE)
        self.once = Once(
            self.store,
            key=lambda command: str(command.order_id),
            lease=lease,
            clock=SkewedClock(skew),
            **settings,
        )
        self.charged: list[str] = []

        @app.handle(charge_in(queue), once=self.once)
        async def charge(command: Any) -> None:
            await self.before()
            self.charged.append(command.order_id)
            await self.after()

    async def before(self) -> None:
        """Run before the effect; tests override this."""

    async def after(self) -> None:
        """Run after the effect; tests override this."""


async def till(worker: WorkerChannel, url: str, queue: str, redis: str, stop: str = "") -> None:
    """Charge in a worker that reports each charge, and stops before or after it."""
    its = Till(App(url), queue, redis, lease=SHORT)

    async def before() -> None:
        if stop == "before":
            await worker.report_and_wait("about to charge")

    async def after() -> None:
        worker.report("charged")
        if stop == "after":
            await worker.report_and_wait("not recorded yet")

    its.before, its.after = before, after  # type: ignore[method-assign]
    async with its.app:
        await worker.report_and_wait("ready")


async def place(app: App, queue: str, order_id: str = "42") -> None:
    await app.publish(charge_in(queue)(order_id=order_id))


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "the message is redelivered; when the lease of the dead process has expired, the handler runs",
)
async def test_a_worker_dies_before_its_effect(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    doomed = await workers.start(till, url=amqp_url, queue=name, redis=redis_url, stop="before")
    async with new_app() as app:
        await place(app, name)
        await workers.wait_for("about to charge")
        doomed.kill()
        await workers.start(till, url=amqp_url, queue=name, redis=redis_url)
        await workers.wait_for("charged")
    assert workers.reports.count("charged") == 1


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the effect is not recorded in the store: the message is redelivered, and the handler runs again when"
    " the lease has expired",
)
async def test_a_worker_dies_after_its_effect(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    doomed = await workers.start(till, url=amqp_url, queue=name, redis=redis_url, stop="after")
    async with new_app() as app:
        await place(app, name)
        await workers.wait_for("not recorded yet")
        doomed.kill()
        await workers.start(till, url=amqp_url, queue=name, redis=redis_url)
        await workers.wait_for("charged", times=2)


@MATRIX.shows(
    Fault.LOST_ACK,
    "the message is redelivered and gets the stored result; the handler does not run",
)
async def test_the_acknowledgement_never_arrives(
    amqp_url: str, redis_url: str, new_app: NewApp, name: str
) -> None:
    async with Proxy(amqp_url) as proxy:
        here = Till(new_app(proxy.url), name, redis_url)

        async def deafen() -> None:
            proxy.to_server.hold()

        here.after = deafen  # type: ignore[method-assign]
        async with here.app:
            await place(here.app, name)
            await eventually(lambda: here.once.statistics.run == 1, "its result is kept")
            proxy.cut()
            proxy.to_server.release()
            await eventually(lambda: here.once.statistics.duplicates >= 1, "it comes again")
    assert here.charged == ["42"]


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the publisher sends the message again with the same id; the copy gets the stored result",
)
async def test_the_confirm_never_arrives(amqp_url: str, redis_url: str, new_app: NewApp, name: str) -> None:
    here = Till(new_app(), name, redis_url)
    async with here.app, Proxy(amqp_url) as proxy, new_app(proxy.url) as publisher:
        await place(publisher, name, "first")
        proxy.to_client.hold()
        publishing = asyncio.ensure_future(place(publisher, name))
        await eventually(lambda: "42" in here.charged, "the broker has the message")
        proxy.cut()
        proxy.to_client.release()
        await publishing
        await eventually(lambda: here.once.statistics.duplicates >= 1, "the copy has arrived")
    assert here.charged == ["first", "42"]


@MATRIX.shows(
    Fault.DUPLICATE,
    "the handler runs for one copy; a copy that arrives meanwhile waits for the result, a later one gets "
    "it at once",
)
async def test_three_copies_at_once_and_a_fourth_later(redis_url: str, new_app: NewApp, name: str) -> None:
    tills = [Till(new_app(), name, redis_url) for _ in range(2)]
    both = asyncio.Event()
    for here in tills:
        here.before = both.wait  # type: ignore[assignment]

    def count(figure: str) -> int:
        return sum(getattr(here.once.statistics, figure) for here in tills)

    async with tills[0].app as app, tills[1].app:
        await asyncio.gather(*(place(app, name) for _ in range(3)))
        await eventually(lambda: count("waited") == 2, "two wait for the first")
        both.set()
        await eventually(lambda: count("duplicates") == 2, "both have its result")
        await place(app, name)
        await eventually(lambda: count("duplicates") == 3, "the fourth has it too")
    assert tills[0].charged + tills[1].charged == ["42"]


MATRIX.spared(
    Fault.REORDERING,
    "each key is independent; the handler runs for the copy that arrives first",
)


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "unacknowledged messages are redelivered and get the stored result; if there is none, the handler runs",
)
async def test_the_broker_is_killed_while_the_handler_runs(
    mortal_broker: BrokerProcess, redis_url: str, name: str
) -> None:
    here = Till(App(mortal_broker.url), name, redis_url)

    async def kill() -> None:
        if here.charged == ["42"]:
            await asyncio.to_thread(mortal_broker.kill)
            await asyncio.to_thread(mortal_broker.start)

    here.after = kill  # type: ignore[method-assign]
    async with here.app:
        await place(here.app, name)
        await eventually(lambda: here.once.statistics.duplicates >= 1, "the message comes again")
        await place(here.app, name, "43")
        await eventually(lambda: "43" in here.charged, "work goes on")
    assert here.charged == ["42", "43"]


@MATRIX.shows(
    Fault.STORE_DOWN,
    "`fail_closed` (default): the delivery waits, unacknowledged, up to `patience`",
)
async def test_redis_is_stopped_and_comes_back(new_app: NewApp, name: str, tmp_path: Path) -> None:
    port = free_port()
    here = Till(new_app(), name, f"redis://127.0.0.1:{port}/0")
    async with here.app:
        with redis_server(tmp_path, port=port):
            await place(here.app, name, "41")
            await eventually(lambda: here.once.statistics.run == 1, "it is charged")
        await place(here.app, name)
        with redis_server(tmp_path, port=port):
            await eventually(lambda: here.once.statistics.run == 2, "the delivery waited for Redis")
    assert here.charged == ["41", "42"]


@MATRIX.shows(
    Fault.STORE_DOWN,
    "then it fails with `StoreUnavailable`, for its retry policy; `fail_open`: the handler runs unprotected",
)
async def test_there_is_no_redis(new_app: NewApp, name: str) -> None:
    with closed_port() as port:
        url, opened_name = f"redis://127.0.0.1:{port}/0", f"{name}.open"
        closed = Till(new_app(), name, url, patience=timedelta(milliseconds=50))
        opened = Till(new_app(), opened_name, url, on_store_failure="fail_open")
        async with closed.app, opened.app:
            await place(closed.app, name)
            await place(opened.app, opened_name)
            await eventually(lambda: opened.charged == ["42"], "the open one charges")
            await eventually(
                lambda: closed.app.statistics().handlers[name].failed_attempts > 1,
                "the closed one fails, again",
            )
            assert opened.once.statistics.unprotected == 1
    assert closed.charged == []


@MATRIX.shows(
    Fault.STORE_DOWN,
    "after the handler: writing the result is retried up to `patience`",
)
async def test_redis_is_stopped_while_the_handler_runs(new_app: NewApp, name: str, tmp_path: Path) -> None:
    port = free_port()
    here = Till(new_app(), name, f"redis://127.0.0.1:{port}/0")
    about, go_on = asyncio.Event(), asyncio.Event()

    async def before() -> None:
        about.set()
        await go_on.wait()

    here.before = before  # type: ignore[method-assign]
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    async with here.app:
        with redis_server(tmp_path, *durable, port=port):
            await place(here.app, name)
            await about.wait()
        go_on.set()
        await eventually(lambda: here.charged == ["42"], "it is charged")
        with redis_server(tmp_path, *durable, port=port):
            await eventually(lambda: here.once.statistics.run == 1, "it is recorded when Redis is back")
    assert here.charged == ["42"]


@MATRIX.shows(
    Fault.STORE_DOWN,
    "then the message is acknowledged, logged and counted as `unrecorded`, because an error would "
    "certainly run the handler again",
)
async def test_redis_does_not_come_back_after_the_handler(
    new_app: NewApp, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    here = Till(new_app(), name, f"redis://127.0.0.1:{port}/0", patience=timedelta(seconds=1))
    about, go_on = asyncio.Event(), asyncio.Event()

    async def before() -> None:
        about.set()
        await go_on.wait()

    here.before = before  # type: ignore[method-assign]
    async with here.app as app:
        with redis_server(tmp_path, port=port):
            await place(app, name)
            await about.wait()
        go_on.set()
        await eventually(lambda: here.once.statistics.unrecorded == 1, "it is counted")
        await eventually(lambda: app.statistics().handlers[name].handled == 1, "it is acknowledged")
    assert here.charged == ["42"]
    assert "event=once.result_lost" in caplog.text


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect while they differ by less than a lease; if they differ by more, the process whose clock is"
    " ahead may begin before the other has ended: the other is `overtaken`, which is counted and logged, "
    "and cannot overwrite the newer result (fencing token)",
)
async def test_a_worker_whose_clock_is_ahead_by_more_than_a_lease(
    redis_url: str, new_app: NewApp, name: str
) -> None:
    right = Till(new_app(), name, redis_url)
    ahead = Till(new_app(), name, redis_url, skew=31.0)
    began, go_on = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        began.set()
        await go_on.wait()

    right.before = hang  # type: ignore[method-assign]
    async with right.app:
        await place(right.app, name)
        await began.wait()
        async with ahead.app:
            # Until one of its copies meets the worker that is ahead.
            while not ahead.charged:
                await place(right.app, name)
                await asyncio.sleep(0.01)
            go_on.set()
            await eventually(lambda: right.once.statistics.overtaken == 1, "the first hears of it")
    assert ahead.charged == ["42"]
