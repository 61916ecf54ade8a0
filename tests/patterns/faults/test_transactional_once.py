"""TransactionalOnce in every fault, with a real PostgreSQL in which the effects are counted."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import cache
from typing import Any, Self

from sqlalchemy import text

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import (
    BROKER_KILLED_WHILE_HANDLING,
    CRASH_AFTER_EFFECT,
    CRASH_BEFORE_EFFECT,
    LOST_ACKNOWLEDGEMENT,
    Process,
)
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.patterns.sql_sessions import open_sessions
from tests.support.polling import eventually
from tests.support.postgres import PostgreSQL
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


class Books(Process):
    """A process that enters each payment into the database once."""

    servers = ("database",)

    def __init__(
        self, app: App, name: str, database: str, *, handles: bool = True, skew: float = 0.0
    ) -> None:
        super().__init__(app, name)
        self._database, self._handles, self._clock = database, handles, SkewedClock(skew)
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.sessions = await self._running.enter_async_context(open_sessions(self._database, self.name))
        async with self.sessions.begin() as session:
            await session.execute(text("CREATE TABLE IF NOT EXISTS payments (order_id text)"))
        self.once = TransactionalOnce(
            self.sessions, key=lambda command: str(command.order_id), clock=self._clock
        )
        if self._handles:
            self.app.handle(pay_in(self.name), once=self.once)(self._pay)
        await self._running.enter_async_context(self.app)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._running.__aexit__(*error)

    async def _pay(self, command: Any) -> None:
        number = int(command.order_id)
        await self.before(number)
        await current_session().execute(text("INSERT INTO payments VALUES (:id)"), {"id": command.order_id})
        self.handled.append(number)
        await self.after(number)

    async def publish(self, number: int) -> None:
        await self.app.publish(pay_in(self.name)(order_id=str(number)))

    @property
    def recognised(self) -> int:
        return self.once.statistics.duplicates

    async def has_paid(self, *numbers: int) -> None:
        async def paid() -> bool:
            return await self.payments() == list(numbers)

        await eventually(paid, f"payments {numbers} are in the database")

    async def payments(self) -> list[int]:
        async with self.sessions() as session:
            return sorted(map(int, (await session.execute(text("SELECT order_id FROM payments"))).scalars()))


async def paid_by_successor(books: Books) -> None:
    await books.has_paid(1)
    await books.app.stop()
    assert (books.handled, await books.payments()) == ([1], [1])


async def recognised_and_paid_once(books: Books) -> None:
    await eventually(lambda: books.recognised >= 1, "the message comes again")
    await books.app.stop()
    assert await books.payments() == [1]


CRASH_BEFORE_EFFECT.of(
    MATRIX,
    Books,
    "nothing is in the database; the message is redelivered and the handler runs at once, because there "
    "is no lease",
    paid_by_successor,
)
CRASH_AFTER_EFFECT.of(
    MATRIX,
    Books,
    "before the commit, the effect is rolled back with the claim, the message is redelivered and the "
    "handler runs at once; after the commit, the message gets the stored result: the effect is in the "
    "database once, at whatever moment the process dies",
    paid_by_successor,
)
LOST_ACKNOWLEDGEMENT.of(
    MATRIX,
    Books,
    "the message is redelivered and gets the stored result; the handler does not run",
    recognised_and_paid_once,
    handled=lambda books: books.once.statistics.run == 1,
)


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the publisher sends the message again with the same id; the copy gets the stored result",
)
@MATRIX.shows(
    Fault.DUPLICATE,
    "the handler runs for one copy; a copy that arrives meanwhile waits for the commit, a later one gets "
    "the result at once",
)
async def test_three_copies_at_once_and_a_fourth_later(database: str, new_app: NewApp, name: str) -> None:
    first, second = Books(new_app(), name, database), Books(new_app(), name, database)

    def duplicates() -> int:
        return first.recognised + second.recognised

    async with first, second:
        await asyncio.gather(*(first.publish(42) for _ in range(3)))
        await eventually(lambda: duplicates() == 2, "two have the first's result")
        await first.publish(42)
        await eventually(lambda: duplicates() == 3, "the fourth has it too")
        await first.app.stop()
        await second.app.stop()
        assert await first.payments() == [42]


MATRIX.spared(
    Fault.REORDERING,
    "each key is independent; the handler runs for the copy that arrives first",
)


BROKER_KILLED_WHILE_HANDLING.of(
    MATRIX,
    Books,
    "unacknowledged messages are redelivered and get the stored result; if there is none, the handler runs",
    recognised_and_paid_once,
)


@MATRIX.shows(
    Fault.STORE_DOWN,
    "before the handler: the delivery waits, unacknowledged, up to `patience`; in the handler or in the "
    "commit: an error is raised for the handler's retry policy, and the next attempt checks whether the "
    "transaction was committed",
)
async def test_postgres_crashes_under_the_handler_and_is_down_for_the_next(
    mortal_postgres: PostgreSQL, new_app: NewApp, name: str
) -> None:
    books = Books(new_app(), name, mortal_postgres.url)

    async def crash(number: int) -> None:
        if mortal_postgres.running and books.once.statistics.failed == 0:
            await asyncio.to_thread(mortal_postgres.crash)

    books.after = crash  # type: ignore[method-assign]
    async with books:
        await books.publish(42)
        await eventually(lambda: books.once.statistics.failed == 1, "the handler has failed")
        await asyncio.to_thread(mortal_postgres.start)
        await books.has_paid(42)


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect except on how long results are kept: locks decide which handler runs, not time",
)
async def test_a_worker_whose_clock_is_an_hour_ahead(database: str, new_app: NewApp, name: str) -> None:
    right, ahead = Books(new_app(), name, database), Books(new_app(), name, database, skew=3600)
    async with right, ahead:
        for _ in range(4):
            await right.publish(42)
        await eventually(lambda: right.recognised + ahead.recognised == 3, "all but one are duplicates")
        await right.app.stop()
        await ahead.app.stop()
        assert await right.payments() == [42]
