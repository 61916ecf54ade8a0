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
from tests.patterns.faults.scenarios import (
    BROKER_KILLED_WHILE_HANDLING,
    CRASH_AFTER_EFFECT,
    CRASH_BEFORE_EFFECT,
    LOST_ACKNOWLEDGEMENT,
    LOST_CONFIRM,
    Process,
    handled_by_successor,
    recognised,
)
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.support.polling import eventually
from tests.support.processes import closed_port, free_port
from tests.support.redis import redis_server
from warren.patterns import Once, RedisStore
from warren.sdk import App, Command

MATRIX = Matrix("once", page="docs/patterns/once.md")

SHORT = 0.3
"""Seconds of the lease for tests that wait until a dead process's lease is over."""


class Charge(Command, queue="replaced"):
    order_id: str


@cache  # One class a queue: what it must reach is declared once.
def charge_in(queue_name: str) -> type[Charge]:
    class ChargeHere(Charge, queue=queue_name, type="charge"):
        pass

    return ChargeHere


class Till(Process):
    """A process that charges each order once."""

    servers = ("redis_url",)

    def __init__(
        self,
        app: App,
        name: str,
        redis_url: str,
        *,
        handles: bool = True,
        skew: float = 0.0,
        lease_seconds: float = 30.0,
        **settings: Any,
    ) -> None:
        super().__init__(app, name)
        self.store = RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE)
        self.once = Once(
            self.store,
            key=lambda command: str(command.order_id),
            lease=timedelta(seconds=lease_seconds),
            clock=SkewedClock(skew),
            **settings,
        )
        if handles:

            @app.handle(charge_in(name), once=self.once)
            async def charge(command: Any) -> None:
                await self.handle(int(command.order_id))

    async def publish(self, number: int) -> None:
        await self.app.publish(charge_in(self.name)(order_id=str(number)))

    @property
    def recognised(self) -> int:
        return self.once.statistics.duplicates


def result_is_stored(till: Till) -> bool:
    return till.once.statistics.run == 1


async def recognised_and_work_goes_on(till: Till) -> None:
    await till.publish(2)
    await till.has_handled(1, 2)
    await recognised(till)


CRASH_BEFORE_EFFECT.of(
    MATRIX,
    Till,
    "the message is redelivered; when the lease of the dead process has expired, the handler runs",
    handled_by_successor,
    lease_seconds=SHORT,
)
CRASH_AFTER_EFFECT.of(
    MATRIX,
    Till,
    "the effect is not recorded in the store: the message is redelivered, and the handler runs again when"
    " the lease has expired",
    handled_by_successor,
    lease_seconds=SHORT,
)
LOST_ACKNOWLEDGEMENT.of(
    MATRIX,
    Till,
    "the message is redelivered and gets the stored result; the handler does not run",
    recognised,
    handled=result_is_stored,
)
LOST_CONFIRM.of(
    MATRIX,
    Till,
    "the publisher sends the message again with the same id; the copy gets the stored result",
    recognised,
)
BROKER_KILLED_WHILE_HANDLING.of(
    MATRIX,
    Till,
    "unacknowledged messages are redelivered and get the stored result; if there is none, the handler runs",
    recognised_and_work_goes_on,
)


@MATRIX.shows(
    Fault.DUPLICATE,
    "the handler runs for one copy; a copy that arrives meanwhile waits for the result, a later one gets "
    "it at once",
)
async def test_three_copies_at_once_and_a_fourth_later(redis_url: str, new_app: NewApp, name: str) -> None:
    tills = [Till(new_app(), name, redis_url) for _ in range(2)]
    both_wait = asyncio.Event()

    async def wait(number: int) -> None:
        await both_wait.wait()

    for till in tills:
        till.before = wait  # type: ignore[method-assign]

    def count(figure: str) -> int:
        return sum(getattr(till.once.statistics, figure) for till in tills)

    async with tills[0].app, tills[1].app:
        await asyncio.gather(*(tills[0].publish(42) for _ in range(3)))
        await eventually(lambda: count("waited") == 2, "two wait for the first")
        both_wait.set()
        await eventually(lambda: count("duplicates") == 2, "both have its result")
        await tills[0].publish(42)
        await eventually(lambda: count("duplicates") == 3, "the fourth has it too")
    assert tills[0].handled + tills[1].handled == [42]


MATRIX.spared(
    Fault.REORDERING,
    "each key is independent; the handler runs for the copy that arrives first",
)


@MATRIX.shows(
    Fault.STORE_DOWN,
    "`fail_closed` (default): the delivery waits, unacknowledged, up to `patience`",
)
async def test_redis_is_stopped_and_comes_back(new_app: NewApp, name: str, tmp_path: Path) -> None:
    port = free_port()
    till = Till(new_app(), name, f"redis://127.0.0.1:{port}/0")
    async with till.app:
        with redis_server(tmp_path, port=port):
            await till.publish(41)
            await eventually(lambda: till.once.statistics.run == 1, "it is charged")
        await till.publish(42)
        with redis_server(tmp_path, port=port):
            await eventually(lambda: till.once.statistics.run == 2, "the delivery waited for Redis")
    assert till.handled == [41, 42]


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
            await closed.publish(42)
            await opened.publish(42)
            await eventually(lambda: opened.handled == [42], "the open one charges")
            await eventually(
                lambda: closed.app.statistics().handlers[name].failed_attempts > 1,
                "the closed one fails, again",
            )
            assert opened.once.statistics.unprotected == 1
    assert closed.handled == []


@MATRIX.shows(
    Fault.STORE_DOWN,
    "after the handler: writing the result is retried up to `patience`",
)
async def test_redis_is_stopped_while_the_handler_runs(new_app: NewApp, name: str, tmp_path: Path) -> None:
    port = free_port()
    till = Till(new_app(), name, f"redis://127.0.0.1:{port}/0")
    about, go_on = asyncio.Event(), asyncio.Event()

    async def before(number: int) -> None:
        about.set()
        await go_on.wait()

    till.before = before  # type: ignore[method-assign]
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    async with till.app:
        with redis_server(tmp_path, *durable, port=port):
            await till.publish(42)
            await about.wait()
        go_on.set()
        await eventually(lambda: till.handled == [42], "it is charged")
        with redis_server(tmp_path, *durable, port=port):
            await eventually(lambda: till.once.statistics.run == 1, "it is recorded when Redis is back")
    assert till.handled == [42]


@MATRIX.shows(
    Fault.STORE_DOWN,
    "then the message is acknowledged, logged and counted as `unrecorded`, because an error would "
    "certainly run the handler again",
)
async def test_redis_does_not_come_back_after_the_handler(
    new_app: NewApp, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    till = Till(new_app(), name, f"redis://127.0.0.1:{port}/0", patience=timedelta(seconds=1))
    about, go_on = asyncio.Event(), asyncio.Event()

    async def before(number: int) -> None:
        about.set()
        await go_on.wait()

    till.before = before  # type: ignore[method-assign]
    async with till.app as app:
        with redis_server(tmp_path, port=port):
            await till.publish(42)
            await about.wait()
        go_on.set()
        await eventually(lambda: till.once.statistics.unrecorded == 1, "it is counted")
        await eventually(lambda: app.statistics().handlers[name].handled == 1, "it is acknowledged")
    assert till.handled == [42]
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

    async def hang(number: int) -> None:
        began.set()
        await go_on.wait()

    right.before = hang  # type: ignore[method-assign]
    async with right.app:
        await right.publish(42)
        await began.wait()
        async with ahead.app:
            # Until one of its copies meets the worker that is ahead.
            while not ahead.handled:
                await right.publish(42)
                await asyncio.sleep(0.01)
            go_on.set()
            await eventually(lambda: right.once.statistics.overtaken == 1, "the first hears of it")
    assert ahead.handled == [42]
