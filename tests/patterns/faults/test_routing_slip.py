"""Routing slips in every fault, with workers that are killed."""

from __future__ import annotations

from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import restart
from tests.patterns.trip_booking import TripBooking
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import Once, RedisStore, RoutingSlips
from warren.sdk import App

MATRIX = Matrix("routing_slip", page="docs/patterns/routing_slip.md")


async def agent(worker: WorkerChannel, url: str, name: str, stop: str) -> None:
    """Book a trip in a worker that stops before or after the hotel."""
    booking = TripBooking(App(url), name, handles_end=False)

    async def before(what: str) -> None:
        if (what, stop) == ("hotel", "before"):
            await worker.report_and_wait("stopped")

    async def after(what: str) -> None:
        worker.report(f"booked {what}")
        if (what, stop) == ("hotel", "after"):
            await worker.report_and_wait("stopped")

    booking.before, booking.after = before, after  # type: ignore[method-assign]
    async with booking.app:
        await worker.report_and_wait("ready")


async def take_over(url: str, workers: Workers, new_app: NewApp, name: str, stop: str) -> TripBooking:
    doomed = await workers.start(agent, url=url, name=name, stop=stop)
    await workers.wait_for("ready")
    booking = TripBooking(new_app(), name)
    starter = RoutingSlips(steps=[booking.flight, booking.hotel, booking.car], ends=[booking.ended])
    app = new_app()
    app.include(starter)
    async with app:
        await starter.start(
            [booking.flight(to="Rome"), booking.hotel(town="Rome"), booking.car()], end=booking.ended
        )
        await workers.wait_for("stopped")
        doomed.kill()
    async with booking.app:
        assert (await booking.wait_for_end()).completed
    return booking


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "the message is redelivered, and the step runs again",
)
async def test_a_worker_dies_before_its_step(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    booking = await take_over(amqp_url, workers, new_app, name, "before")
    assert {"hotel", "car"} <= set(booking.actions)
    assert "booked hotel" not in workers.reports


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the step runs again; if the next message was published already, it arrives twice, with the same id",
)
async def test_a_worker_dies_after_its_step(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    booking = await take_over(amqp_url, workers, new_app, name, "after")
    assert workers.reports.count("booked hotel") == 1
    assert {"hotel", "car"} <= set(booking.actions)


@MATRIX.shows(
    Fault.LOST_ACK,
    "the step runs again, and the following messages arrive twice, with the same ids; with "
    "`once=Once(store)`, once",
)
async def test_the_acknowledgement_is_lost(amqp_url: str, redis_url: str, new_app: NewApp, name: str) -> None:
    once = Once(RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE))
    async with Proxy(amqp_url) as proxy:
        booking, successor = (TripBooking(app, name, once=once) for app in (new_app(proxy.url), new_app()))

        async def lose_acknowledgement(what: str) -> None:
            if what == "hotel":
                proxy.refuse()
                proxy.cut(b" consumer")

        booking.after = lose_acknowledgement  # type: ignore[method-assign]
        async with booking.app:
            await booking.start()
            await eventually(lambda: once.statistics.run == 2, "the hotel is booked")
            async with successor.app:
                await successor.wait_for_end()
                await eventually(lambda: once.statistics.duplicates > 0, "a step came again")
    actions = booking.actions + successor.actions
    assert [actions.count(what) for what in ("flight", "hotel", "car")] == [1, 1, 1]


@MATRIX.shows(
    Fault.DUPLICATE,
    "each copy runs through the itinerary, with the same ids; with `once=Once(store)`, one of them does",
)
@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the message of the next step may arrive twice, with the same id; with `once=Once(store)`, the step "
    "runs once",
)
async def test_a_slip_is_started_three_times(redis_url: str, new_app: NewApp, name: str) -> None:
    once = Once(RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE))
    booking = TripBooking(new_app(), name, once=once)
    async with booking.app:
        for _ in range(3):
            await booking.start(slip_id="s1")
        await booking.wait_for_end()
        await eventually(lambda: once.statistics.duplicates == 2, "two are known")
    assert booking.actions == ["flight", "hotel", "car"]
    assert len(booking.ended_events) == 1


MATRIX.spared(Fault.REORDERING, "nothing: a step is published when the one before it is done")
MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store, except that of `once`",
)
MATRIX.spared(
    Fault.CLOCK_SKEW,
    "no effect: the pattern reads no clock",
)


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "slips wait in durable queues and continue where they were",
)
async def test_the_broker_is_killed_in_a_step(mortal_broker: BrokerProcess, name: str) -> None:
    booking = TripBooking(App(mortal_broker.url), name)

    async def kill(what: str) -> None:
        if what == "hotel" and booking.actions.count("hotel") == 1:
            await restart(mortal_broker)

    booking.after = kill  # type: ignore[method-assign]
    async with booking.app:
        await booking.start()
        assert (await booking.wait_for_end()).completed
    assert booking.actions[:2] == ["flight", "hotel"]
