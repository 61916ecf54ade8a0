"""TransactionalOnce in every fault, with a real PostgreSQL in which the effects are counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import pytest
from sqlalchemy import text

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import lose_connection, restart
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.patterns.sql_sessions import Sessions, open_sessions
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.postgres import PostgreSQL
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import TransactionalOnce, current_session
from warren.sdk import App, Command

MATRIX = Matrix("transactional once", page="docs/patterns/once.md")


class Pay(Command, queue="replaced"):
    order_id: str


@cache
def pay_in(queue_name: str) -> type[Pay]:
    class PayHere(Pay, queue=queue_name, type="pay"):
        pass

    return PayHere


class Books:
    """An App that enters each payment into the database once."""

    def __init__(self, app: App, queue: str, sessions: Sessions, *, skew: float = 0.0) -> None:
        self.app, self.sessions = app, sessions
        self.once = TransactionalOnce(
            sessions, key=lambda command: str(command.order_id), clock=SkewedClock(skew)
        )

        @app.handle(pay_in(queue), once=self.once)
        async def pay(command: Any) -> None:
            await self.before()
            await current_session().execute(
                text("INSERT INTO payments VALUES (:id)"), {"id": command.order_id}
            )
            await self.after()

    async def before(self) -> None:
        """Run before the effect; tests override this."""

    async def after(self) -> None:
        """Run after the effect; tests override this."""


async def place(app: App, queue: str, order_id: str = "42") -> None:
    await app.publish(pay_in(queue)(order_id=order_id))


async def payments(sessions: Sessions) -> list[str]:
    async with sessions() as session:
        return sorted((await session.execute(text("SELECT order_id FROM payments"))).scalars())


async def paid(sessions: Sessions, *order_ids: str) -> None:
    async def there() -> bool:
        return await payments(sessions) == sorted(order_ids)

    await eventually(there, f"payments {order_ids} are in the database")


async def bookkeeper(worker: WorkerChannel, url: str, queue: str, database: str, stop: str = "") -> None:
    """Handle messages in a worker that stops before or after its effect."""
    async with open_sessions(database, queue) as sessions:
        its = Books(App(url), queue, sessions)

        async def before() -> None:
            if stop == "before":
                await worker.report_and_wait("about to pay")

        async def after() -> None:
            if stop == "after":
                await worker.report_and_wait("not committed yet")

        its.before, its.after = before, after  # type: ignore[method-assign]
        async with its.app:
            await worker.report_and_wait("ready")


@pytest.fixture
async def sessions(mortal_postgres: PostgreSQL, name: str) -> AsyncIterator[Sessions]:
    async with open_sessions(mortal_postgres.url, name) as opened:
        async with opened.begin() as session:
            await session.execute(text("CREATE TABLE payments (order_id text)"))
        yield opened


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "nothing is in the database; the message is redelivered and the handler runs at once, because there "
    "is no lease",
)
@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "before the commit, the effect is rolled back with the claim, the message is redelivered and the "
    "handler runs at once; after the commit, the message gets the stored result: the effect is in the "
    "database once, at whatever moment the process dies",
)
@pytest.mark.parametrize("stop", ["before", "after"])
async def test_a_worker_dies_before_the_commit(
    stop: str,
    amqp_url: str,
    mortal_postgres: PostgreSQL,
    sessions: Sessions,
    workers: Workers,
    new_app: NewApp,
    name: str,
) -> None:
    place_of = {"before": "about to pay", "after": "not committed yet"}
    settings = {"url": amqp_url, "queue": name, "database": mortal_postgres.url}
    doomed = await workers.start(bookkeeper, **settings, stop=stop)
    async with new_app() as app:
        await place(app, name)
        await workers.wait_for(place_of[stop])
        doomed.kill()
        await workers.start(bookkeeper, **settings)
        await paid(sessions, "42")


@MATRIX.shows(
    Fault.LOST_ACK,
    "the message is redelivered and gets the stored result; the handler does not run",
)
async def test_the_acknowledgement_never_arrives(
    amqp_url: str, sessions: Sessions, new_app: NewApp, name: str
) -> None:
    async with Proxy(amqp_url) as proxy:
        books = Books(new_app(proxy.url), name, sessions)

        async def deafen() -> None:
            proxy.to_server.hold()

        books.after = deafen  # type: ignore[method-assign]
        async with books.app:
            await place(books.app, name)
            await eventually(lambda: books.once.statistics.run == 1, "it is committed")
            lose_connection(proxy)
            await eventually(lambda: books.once.statistics.duplicates >= 1, "it comes again")
    assert await payments(sessions) == ["42"]


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the publisher sends the message again with the same id; the copy gets the stored result",
)
@MATRIX.shows(
    Fault.DUPLICATE,
    "the handler runs for one copy; a copy that arrives meanwhile waits for the commit, a later one gets "
    "the result at once",
)
async def test_copies_at_once_and_later(sessions: Sessions, new_app: NewApp, name: str) -> None:
    both = [Books(new_app(), name, sessions), Books(new_app(), name, sessions)]

    def duplicates() -> int:
        return sum(books.once.statistics.duplicates for books in both)

    async with both[0].app as app, both[1].app:
        await asyncio.gather(*(place(app, name) for _ in range(3)))
        await eventually(lambda: duplicates() == 2, "two have the first's result")
        await place(app, name)
        await eventually(lambda: duplicates() == 3, "the fourth has it too")
    assert await payments(sessions) == ["42"]


MATRIX.spared(
    Fault.REORDERING,
    "each key is independent; the handler runs for the copy that arrives first",
)


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "unacknowledged messages are redelivered and get the stored result; if there is none, the handler runs",
)
async def test_the_broker_is_killed_while_the_handler_runs(
    mortal_broker: BrokerProcess, sessions: Sessions, name: str
) -> None:
    books = Books(App(mortal_broker.url), name, sessions)

    async def kill() -> None:
        if books.once.statistics.run == 0:
            await restart(mortal_broker)

    books.after = kill  # type: ignore[method-assign]
    async with books.app:
        await place(books.app, name)
        await eventually(lambda: books.once.statistics.duplicates >= 1, "the message comes again")
    assert await payments(sessions) == ["42"]


@MATRIX.shows(
    Fault.STORE_DOWN,
    "before the handler: the delivery waits, unacknowledged, up to `patience`; in the handler or in the "
    "commit: an error is raised for the handler's retry policy, and the next attempt checks whether the "
    "transaction was committed",
)
async def test_postgres_crashes_under_the_handler_and_is_down_for_the_next(
    mortal_postgres: PostgreSQL, sessions: Sessions, new_app: NewApp, name: str
) -> None:
    books = Books(new_app(), name, sessions)

    async def crash() -> None:
        if mortal_postgres.running and books.once.statistics.failed == 0:
            await asyncio.to_thread(mortal_postgres.crash)

    books.after = crash  # type: ignore[method-assign]
    async with books.app:
        await place(books.app, name)
        await eventually(lambda: books.once.statistics.failed == 1, "the handler has failed")
        await asyncio.to_thread(mortal_postgres.start)
        await paid(sessions, "42")


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect except on how long results are kept: locks decide which handler runs, not time",
)
async def test_a_worker_whose_clock_is_an_hour_ahead(sessions: Sessions, new_app: NewApp, name: str) -> None:
    right, ahead = Books(new_app(), name, sessions), Books(new_app(), name, sessions, skew=3600)
    async with right.app as app, ahead.app:
        for _ in range(4):
            await place(app, name)
        await eventually(
            lambda: right.once.statistics.duplicates + ahead.once.statistics.duplicates == 3,
            "all but one are duplicates",
        )
    assert await payments(sessions) == ["42"]
