"""Routing slips: steps in order, and compensation when one fails."""

from __future__ import annotations

import pytest

from tests.patterns.conftest import NewApp
from tests.patterns.trip_booking import TripBooking
from tests.support.async_client import take_one
from warren.patterns import RoutingSlipEnded, RoutingSlips
from warren.sdk import Command, ConfigError, DeadLetter


async def test_all_steps_are_handled_and_the_end_message_has_their_results(
    new_app: NewApp, name: str
) -> None:
    booking = TripBooking(new_app(), name)
    async with booking.app:
        slip = await booking.start()
        end = await booking.wait_for_end()
    assert booking.actions == ["flight", "hotel", "car"]
    assert (end.slip, end.completed, end.reason) == (slip, True, None)
    assert end.results == {"flight": {"seat": "Rome-12A"}, "hotel": 217, "car": None}


@pytest.mark.parametrize("how", ["refused", "broken"])
async def test_a_failed_step_compensates_the_earlier_ones_in_reverse_order(
    new_app: NewApp, name: str, how: str
) -> None:
    booking = TripBooking(new_app(), name)
    getattr(booking, how).add("car")
    async with booking.app:
        await booking.start()
        end = await booking.wait_for_end()
    tried = ["car", "car"] if how == "broken" else []
    assert booking.actions == [
        "flight",
        "hotel",
        *tried,
        "no hotel in Rome, room 217 is free",
        "no flight to Rome, seat Rome-12A is free",
    ]
    reason = "there is no car" if how == "refused" else "RuntimeError: the car is broken"
    assert (end.completed, end.failed, end.reason, end.results) == (False, "car", reason, {})
    assert booking.slips.statistics.compensated == 2


async def test_a_dead_lettered_step_counts_as_failed(new_app: NewApp, name: str) -> None:
    booking = TripBooking(new_app(), name)

    async def no_car(what: str) -> None:
        if what == "car":
            raise DeadLetter("there is no such car")

    booking.before = no_car  # type: ignore[method-assign]
    async with booking.app:
        await booking.start()
        end = await booking.wait_for_end()
    assert (end.completed, end.failed, end.reason) == (False, "car", "there is no such car")
    assert booking.actions[2:] == [
        "no hotel in Rome, room 217 is free",
        "no flight to Rome, seat Rome-12A is free",
    ]


class Fatal(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_a_step_fails_whatever_it_raises(new_app: NewApp, name: str) -> None:
    booking = TripBooking(new_app(), name)

    async def no_car(what: str) -> None:
        if what == "car":
            raise Fatal

    booking.before = no_car  # type: ignore[method-assign]
    async with booking.app:
        await booking.start()
        end = await booking.wait_for_end()
    assert (end.completed, end.failed) == (False, "car")
    assert str(end.reason).startswith("Fatal: ")
    assert booking.slips.statistics.compensated == 2


async def test_a_step_whose_result_cannot_be_encoded_fails(new_app: NewApp, name: str) -> None:
    booking = TripBooking(new_app(), name)
    booking.room = "the blue one"  # type: ignore[assignment]
    async with booking.app:
        await booking.start()
        end = await booking.wait_for_end()
    assert (end.completed, end.failed) == (False, "hotel")
    assert "the result of the step does not fit its annotated type" in str(end.reason)
    assert booking.actions == ["flight", "hotel", "no flight to Rome, seat Rome-12A is free"]


async def test_a_slip_that_grows_too_large_is_compensated(new_app: NewApp, name: str) -> None:
    booking = TripBooking(new_app(), name)
    booking.seat = "x" * 70_000
    async with booking.app:
        await booking.start()
        end = await booking.wait_for_end()
    assert (end.completed, end.failed) == (False, "flight")
    assert "keep steps and results small" in str(end.reason)
    assert booking.actions == ["flight", f"no flight to Rome, seat Rome-{booking.seat} is free"]


async def test_a_failed_first_step_compensates_nothing(new_app: NewApp, name: str) -> None:
    booking = TripBooking(new_app(), name)
    booking.refused = {"flight"}
    async with booking.app:
        await booking.start()
        end = await booking.wait_for_end()
    assert (booking.actions, end.failed) == ([], "flight")


async def test_steps_are_handled_in_the_processes_that_have_their_functions(
    new_app: NewApp, name: str
) -> None:
    booking = TripBooking(new_app(), name)
    # Steps without a function in this process are handled elsewhere.
    starter = RoutingSlips(steps=[booking.flight, booking.hotel, booking.car], ends=[booking.ended])
    app = new_app()
    app.include(starter)
    async with booking.app, app:
        await starter.start([booking.car(size=2), booking.flight(to="Oslo")], end=booking.ended, slip_id="s1")
        end = await booking.wait_for_end()
    assert (booking.actions, end.slip) == (["car", "flight"], "s1")


async def test_a_message_without_a_routing_slip_is_dead_lettered(new_app: NewApp, name: str) -> None:
    booking = TripBooking(new_app(), name)
    async with booking.app as app:
        await app.publish(booking.flight(to="Rome"))
        dead = await take_one(app.url or "", f"{name}.flight.dead")
        assert "has no routing slip" in str(dead.headers["warren-dead-error"])
        await app.publish(booking.flight(to="Rome"), headers={"warren-slip": "[1,2]"})
        dead = await take_one(app.url or "", f"{name}.flight.dead")
        assert "cannot be read" in str(dead.headers["warren-dead-error"])
    assert booking.actions == []


async def test_invalid_arguments_raise_config_errors(new_app: NewApp, name: str) -> None:
    class UnlistedStep(Command, queue=f"{name}.lost"):
        pass

    class UnlistedEnd(RoutingSlipEnded, queue=f"{name}.lost.end"):
        pass

    booking = TripBooking(new_app(), name)
    with pytest.raises(ConfigError, match="UnlistedStep is not named in steps"):
        await booking.slips.start([UnlistedStep()], end=booking.ended)
    with pytest.raises(ConfigError, match="needs a step, and its end"):
        await booking.slips.start([], end=booking.ended)
    with pytest.raises(ConfigError, match="its end UnlistedEnd named"):
        await booking.slips.start([booking.car()], end=UnlistedEnd)
    with pytest.raises(ConfigError, match="Flight is not named in"):
        booking.slips.step(booking.flight)
    with pytest.raises(ConfigError, match="same type on the wire"):
        RoutingSlips(steps=[UnlistedStep, UnlistedStep], ends=[])
    async with booking.app:
        with pytest.raises(ConfigError, match="keep steps and results small"):
            await booking.slips.start(
                [booking.car(), *(booking.flight(to="x" * 9000) for _ in range(9))], end=booking.ended
            )
