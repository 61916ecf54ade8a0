"""Routing slips in every fault, with workers that are killed."""

from __future__ import annotations

import asyncio

from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.trip_booking import Trip
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
    trip = Trip(App(url), name, hears_end=False)

    async def before(what: str) -> None:
        if (what, stop) == ("hotel", "before"):
            await worker.report_and_wait("stands still")

    async def after(what: str) -> None:
        worker.report(f"booked {what}")
        if (what, stop) == ("hotel", "after"):
            await worker.report_and_wait("stands still")

    trip.before, trip.after = before, after  # type: ignore[method-assign]
    async with trip.app:
        await worker.report_and_wait("ready")


async def succeeded(url: str, workers: Workers, new_app: NewApp, name: str, stop: str) -> Trip:
    doomed = await workers.start(agent, url=url, name=name, stop=stop)
    await workers.wait_for("ready")
    trip = Trip(new_app(), name)
    starter = RoutingSlips(steps=[trip.flight, trip.hotel, trip.car], ends=[trip.ended])
    app = new_app()
    app.include(starter)
    async with app:
        await starter.start([trip.flight(to="Rome"), trip.hotel(town="Rome"), trip.car()], end=trip.ended)
        await workers.wait_for("stands still")
        doomed.kill()
    async with trip.app:
        assert (await trip.is_over()).completed
    return trip


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "the message is redelivered, and the step runs again",
)
async def test_a_worker_dies_before_its_step(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    trip = await succeeded(amqp_url, workers, new_app, name, "before")
    assert {"hotel", "car"} <= set(trip.did)
    assert "booked hotel" not in workers.reports


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the step runs again; if the next message was published already, it arrives twice, with the same id",
)
async def test_a_worker_dies_after_its_step(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    trip = await succeeded(amqp_url, workers, new_app, name, "after")
    assert workers.reports.count("booked hotel") == 1
    assert {"hotel", "car"} <= set(trip.did)


@MATRIX.shows(
    Fault.LOST_ACK,
    "the step runs again, and the following messages arrive twice, with the same ids; with "
    "`once=Once(store)`, once",
)
async def test_the_acknowledgement_is_lost(amqp_url: str, redis_url: str, new_app: NewApp, name: str) -> None:
    once = Once(RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE))
    async with Proxy(amqp_url) as proxy:
        trip = Trip(new_app(proxy.url), name, once=once)

        async def deafen(what: str) -> None:
            if what == "hotel" and trip.did.count("hotel") == 1 and not once.statistics.duplicates:
                proxy.cut()

        trip.after = deafen  # type: ignore[method-assign]
        async with trip.app:
            await trip.start()
            await trip.is_over()
            await eventually(lambda: once.statistics.duplicates > 0, "a step came again")
    assert [trip.did.count(what) for what in ("flight", "hotel", "car")] == [1, 1, 1]


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
    trip = Trip(new_app(), name, once=once)
    async with trip.app:
        for _ in range(3):
            await trip.start(slip_id="s1")
        await trip.is_over()
        await eventually(lambda: once.statistics.duplicates == 2, "two are known")
    assert trip.did == ["flight", "hotel", "car"]
    assert len(trip.ends) == 1


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
async def test_the_broker_is_killed_between_steps(mortal_broker: BrokerProcess, name: str) -> None:
    trip = Trip(App(mortal_broker.url), name)

    async def kill(what: str) -> None:
        if what == "hotel" and trip.did.count("hotel") == 1:
            await asyncio.to_thread(mortal_broker.kill)
            await asyncio.to_thread(mortal_broker.start)

    trip.after = kill  # type: ignore[method-assign]
    async with trip.app:
        await trip.start()
        assert (await trip.is_over()).completed
    assert trip.did[:2] == ["flight", "hotel"]
