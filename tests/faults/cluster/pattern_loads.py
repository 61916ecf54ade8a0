"""Loads of the patterns: one App that publishes, one that handles, and the stores beside the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel
from sqlalchemy import text

from tests.faults.cluster.loads import Load
from tests.patterns.sql_sessions import open_sessions, sqlite_url
from warren.patterns import (
    ClaimCheck,
    CompleteSaga,
    DateSchedule,
    Deadline,
    DeadlineOutcome,
    Delay,
    FolderBlobStore,
    LocalRateLimiter,
    Once,
    Outbox,
    RateLimit,
    Resequencer,
    RoutingSlipEnded,
    RoutingSlips,
    Saga,
    SqliteStore,
    Timers,
    TransactionalOnce,
    TransitionTo,
    WorkQueue,
    current_session,
)
from warren.sdk import (
    App,
    Command,
    Event,
    Message,
    PublishError,
    Request,
    Retry,
    TransportUnavailable,
    WarrenError,
)

STORE_SECONDS = 60.0
"""Patience of the stores: the machine may be busy."""
BLOB = "#" * 20_000


class Charge(Command, queue="once"):
    number: int


class Pay(Command, queue="transactional"):
    number: int


class Added(Event, exchange="load", key="outbox", audience=["outbox"]):
    number: int


class Switch(Command, queue="delayed"):
    number: int


class Cancel(Command, queue="cancelling"):
    number: int


class Remind(Command, queue="reminders"):
    number: int


class Fail(Command, queue="failing"):
    number: int


class Render(Message):
    number: int


class Limited(Command, queue="limited"):
    number: int


class Changed(Event, exchange="load", key="changed"):
    number: int


class BookFlight(Command, queue="flights"):
    number: int


class BookHotel(Command, queue="hotels"):
    number: int


class TripEnded(RoutingSlipEnded, queue="trips"):
    pass


class Show(Command, queue="pictures"):
    number: int
    pixels: str


class Twice(Request[int], queue="doubling"):
    number: int


class Placed(Event, exchange="load", key="saga.placed", audience=["checkout.saga"]):
    order_id: str


class Charged(Event, exchange="load", key="saga.charged", audience=["checkout.saga"]):
    order_id: str


class ChargeCard(Command, queue="cards"):
    order_id: str


class SagaState(StrEnum):
    PAYING = "paying"


class Order(BaseModel):
    order_id: str


@asynccontextmanager
async def pattern_loads(url: str, folder: Path) -> AsyncIterator[tuple[list[Load], list[App]]]:
    """Run the Apps of all patterns; yield their loads and the Apps."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(SqliteStore(folder / "store.sqlite", timeout=STORE_SECONDS))
        sessions = await stack.enter_async_context(open_sessions(sqlite_url(folder)))
        async with sessions.begin() as session:
            for table in ("payments", "additions"):
                await session.execute(text(f"CREATE TABLE {table} (number int)"))
        apps = [App(url, name="load-publisher"), App(url, name="load-handler")]
        publisher, handler = apps
        once = Once(store, key=lambda message: str(message.number))

        async def charge(number: int) -> bool:
            await publisher.publish(Charge(number=number))
            return True

        once_load = Load("Once", charge, once=True)

        @handler.handle(Charge, once=once)
        async def charged(message: Charge) -> None:
            once_load.effect(message.number)

        async def pay(number: int) -> bool:
            await publisher.publish(Pay(number=number))
            return True

        transactional_load = Load("TransactionalOnce", pay, once=True)

        @handler.handle(
            Pay, once=TransactionalOnce(sessions, key=lambda message: str(message.number)), concurrency=1
        )
        async def paid(message: Pay) -> None:
            await current_session().execute(
                text("INSERT INTO payments VALUES (:number)"), {"number": message.number}
            )

        outbox = Outbox(sessions)
        publisher.publishes(Added)
        publisher.include(outbox)

        async def add(number: int) -> bool:
            async with sessions.begin() as session:
                await outbox.add(session, Added(number=number))
            return True

        outbox_load = Load("Outbox, with Once", add, once=True)

        @handler.handle(Added, queue="outbox", once=once)
        async def added(message: Added) -> None:
            outbox_load.effect(message.number)

        delay = Delay()
        publisher.include(delay)

        async def switch(number: int) -> bool:
            await delay.after(Switch(number=number), timedelta(seconds=2))
            return True

        delay_load = Load("Delay, with Once", switch, once=True)

        @handler.handle(Switch, once=once)
        async def switched(message: Switch) -> None:
            delay_load.effect(message.number)

        deadline = Deadline(
            "unpaid",
            after=timedelta(seconds=4),
            signal=lambda key: Cancel(number=int(key)),
            store=store,
        )
        handler.include(deadline)

        async def begin(number: int) -> bool:
            await deadline.start(str(number))
            if number % 2:
                return True
            return await deadline.complete(str(number)) is not DeadlineOutcome.WON

        deadline_load = Load("Deadline, with Once", begin, once=True)

        @handler.handle(Cancel, once=once)
        async def cancelled(message: Cancel) -> None:
            deadline_load.effect(message.number)

        timers = Timers("load", store=store, sends=[Remind])
        handler.include(timers)

        async def plan(number: int) -> bool:
            due = datetime.now(UTC) + timedelta(seconds=2)
            await timers.put(DateSchedule(f"remind-{number}", due, Remind(number=number)))
            return True

        timer_load = Load("Timers, with Once", plan, once=True)

        @handler.handle(Remind, once=once)
        async def reminded(message: Remind) -> None:
            timer_load.effect(message.number)

        async def fail(number: int) -> bool:
            await publisher.publish(Fail(number=number))
            return True

        dead_load = Load("Dead letters", fail, once=False)

        @handler.handle(Fail, retry=Retry(1))
        async def failing(message: Fail) -> None:
            raise LookupError("it always fails")

        async def read_dead_letters() -> None:
            """Take the dead letters from their queue, as an operator's tool would."""
            while True:
                with contextlib.suppress(WarrenError):
                    letter = await handler.get("failing.dead", timeout=5)
                    if letter is not None:
                        async with letter:
                            dead_load.effect(json.loads(letter.body)["number"])

        work = WorkQueue("render", priorities=3, concurrency=2)
        putting = WorkQueue("render", priorities=3, concurrency=2)
        handler.include(work)
        publisher.include(putting)

        async def put(number: int) -> bool:
            await putting.put(Render(number=number), priority=number % 3)
            return True

        work_load = Load("WorkQueue", put, once=False)

        @work.handle(Render)
        async def render(message: Render) -> None:
            work_load.effect(message.number)

        handler.include(RateLimit(LocalRateLimiter(50, per=timedelta(seconds=1)), queues=["limited"]))

        async def limit(number: int) -> bool:
            await publisher.publish(Limited(number=number))
            return True

        limit_load = Load("RateLimit", limit, once=False)

        @handler.handle(Limited)
        async def limited(message: Limited) -> None:
            limit_load.effect(message.number)

        resequencer = Resequencer(
            "history",
            store=store,
            key=lambda message: "one",
            number=lambda message: message.number,
            gap_timeout=None,
        )

        async def change(number: int) -> bool:
            while True:
                # A number that is missing would hold back all later ones: publish it until it is confirmed.
                try:
                    await publisher.publish(Changed(number=number))
                    return True
                except (TransportUnavailable, PublishError) as error:
                    resequencer_load.errors[f"again after {type(error).__name__}: {error}"[:160]] += 1

        resequencer_load = OrderedLoad("Resequencer", change, once=True)

        @resequencer.handle(Changed)
        async def write(message: Changed) -> None:
            resequencer_load.effect(message.number)

        handler.include(resequencer)

        slips = RoutingSlips(steps=[BookFlight, BookHotel], ends=[TripEnded])

        @slips.step(BookFlight)
        async def book_flight(step: BookFlight) -> int:
            return step.number

        @slips.step(BookHotel)
        async def book_hotel(step: BookHotel) -> int:
            return step.number

        handler.include(slips)

        async def book(number: int) -> bool:
            steps = [BookFlight(number=number), BookHotel(number=number)]
            await slips.start(steps, end=TripEnded, slip_id=str(number))
            return True

        slip_load = Load("RoutingSlips, with Once", book, once=True)

        @handler.handle(TripEnded, once=Once(store, key=lambda trip: trip.slip))
        async def ended(trip: TripEnded) -> None:
            slip_load.effect(int(trip.slip))

        claims = folder / "claims"
        claims.mkdir()
        for app in apps:
            app.include(ClaimCheck(FolderBlobStore(claims), threshold_bytes=10_000, keep=timedelta(days=1)))

        async def show(number: int) -> bool:
            await publisher.publish(Show(number=number, pixels=BLOB))
            return True

        claim_load = Load("ClaimCheck", show, once=False)

        @handler.handle(Show)
        async def shown(message: Show) -> None:
            assert message.pixels == BLOB
            claim_load.effect(message.number)

        async def call(number: int) -> bool:
            assert await publisher.call(Twice(number=number)) == 2 * number
            return True

        call_load = Load("call (RPC)", call, once=False)

        @handler.handle(Twice)
        async def twice(message: Twice) -> int:
            call_load.effect(message.number)
            return 2 * message.number

        saga = Saga("checkout", Order, store=store, key="order_id", sends=[ChargeCard])

        @saga.starts(Placed)
        def placed(event: Placed) -> TransitionTo[Order]:
            return TransitionTo(
                SagaState.PAYING,
                Order(order_id=event.order_id),
                send=[ChargeCard(order_id=event.order_id)],
            )

        @saga.on(SagaState.PAYING, Charged)
        def completed(order: Order, event: Charged) -> CompleteSaga[Order]:
            saga_load.effect(int(order.order_id))
            return CompleteSaga()

        handler.include(saga)

        async def place(number: int) -> bool:
            await publisher.publish(Placed(order_id=str(number)))
            return True

        saga_load = Load("Saga", place, once=False)

        @handler.handle(ChargeCard, once=Once(store, key=lambda command: command.order_id))
        async def charge_card(command: ChargeCard) -> None:
            await handler.publish(Charged(order_id=command.order_id))

        loads = [
            once_load,
            transactional_load,
            outbox_load,
            delay_load,
            deadline_load,
            timer_load,
            dead_load,
            work_load,
            limit_load,
            resequencer_load,
            slip_load,
            claim_load,
            call_load,
            saga_load,
        ]

        async def read_payments() -> None:
            """Take the effects of the database over: the rows that were committed."""
            seen = 0
            while True:
                async with sessions() as session:
                    rows = (await session.execute(text("SELECT number FROM payments ORDER BY rowid"))).all()
                for row in rows[seen:]:
                    transactional_load.effect(row.number)
                seen = len(rows)
                await asyncio.sleep(0.5)

        for app in reversed(apps):
            await stack.enter_async_context(app)
        for reading in (read_payments(), read_dead_letters()):
            stack.callback(asyncio.create_task(reading).cancel)
        yield loads, apps


class OrderedLoad(Load):
    """A load whose effects must happen in the order of their numbers."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        super().__init__(*arguments, **settings)  # type: ignore[arg-type]
        self._last = 0
        self._out_of_order: list[tuple[int, int]] = []

    def effect(self, number: int) -> None:
        """Record an effect, and whether it comes in order."""
        if number != self._last + 1:
            self._out_of_order.append((self._last, number))
        self._last = number
        super().effect(number)

    def faults(self) -> list[str]:
        """Return what is wrong, including effects out of order."""
        pairs = self._out_of_order[:5]
        return super().faults() + ([f"{self.name}: effects out of order: {pairs}"] if pairs else [])
