"""Immediate: a message is handled now, or its publisher gets an error."""

from __future__ import annotations

import asyncio

import pytest

from tests.patterns.conftest import NewApp
from tests.support.async_client import take_one
from tests.support.polling import eventually
from warren.patterns import Immediate, NoConsumer
from warren.sdk import App, ConfigError, DeadLetter, Message


class Ring(Message):
    number: int


class Door:
    """A bell that somebody hears, or nobody."""

    def __init__(self, app: App, name: str, *, concurrency: int = 1, hears: bool = True) -> None:
        self.app = app
        self.bell = Immediate(f"{name}.bell", timeout=60)
        self.heard: list[int] = []
        self.open = asyncio.Event()
        self.open.set()
        app.include(self.bell)
        if hears:

            @self.bell.handle(Ring, concurrency=concurrency)
            async def hear(ring: Ring) -> None:
                self.heard.append(ring.number)
                await self.open.wait()
                if ring.number < 0:
                    raise DeadLetter("not so loud")


async def test_delivered_where_somebody_listens_else_the_publisher_hears_it(
    new_app: NewApp, name: str
) -> None:
    street = Door(new_app(), name, hears=False)
    async with street.app:
        with pytest.raises(NoConsumer, match="could take the message now") as caught:
            await street.bell.publish(Ring(number=1))
        assert (caught.value.outcome, caught.value.retryable) == ("refused", True)
        house = Door(new_app(), name)
        async with house.app:
            await street.bell.publish(Ring(number=2))
            await eventually(lambda: house.heard == [2], "it is heard")
        with pytest.raises(NoConsumer):
            await street.bell.publish(Ring(number=3))
    assert house.heard == [2]


async def test_who_is_busy_takes_no_more(new_app: NewApp, name: str) -> None:
    street, house = Door(new_app(), name, hears=False), Door(new_app(), name)
    house.open.clear()
    async with house.app, street.app:
        await street.bell.publish(Ring(number=1))
        # Prefetched behind the first, it is with a consumer, but has not begun.
        second = asyncio.ensure_future(street.bell.publish(Ring(number=2)))
        await eventually(
            lambda: house.app.statistics().subscriptions[f"{name}.bell"].waiting == 1, "it is prefetched"
        )
        with pytest.raises(NoConsumer):
            await street.bell.publish(Ring(number=3))
        house.open.set()
        await second
    assert house.heard == [1, 2]


async def test_several_publishers_hear_each_of_their_own(new_app: NewApp, name: str) -> None:
    streets = [Door(new_app(), name, hears=False) for _ in range(2)]
    async with streets[0].app, streets[1].app:
        answers = await asyncio.gather(
            *(streets[n % 2].bell.publish(Ring(number=n)) for n in range(20)), return_exceptions=True
        )
    assert all(isinstance(answer, NoConsumer) for answer in answers)


async def test_what_dies_in_a_handler_is_a_dead_letter_like_any_other(
    new_app: NewApp, amqp_url: str, name: str
) -> None:
    street, house = Door(new_app(), name, hears=False), Door(new_app(), name)
    async with house.app:
        async with street.app:
            await street.bell.publish(Ring(number=-1), message_id="m1")
            dead = await take_one(amqp_url, f"{name}.bell.dead")
            assert (dead.message_id, dead.headers["warren-dead-error"]) == ("m1", "DeadLetter: not so loud")
            house.open.clear()
            await street.bell.publish(Ring(number=-2), message_id="m2")
        # Its publisher has gone: it is no less dead.
        house.open.set()
        assert (await take_one(amqp_url, f"{name}.bell.dead")).message_id == "m2"


async def test_a_pattern_that_no_app_includes_says_so(name: str) -> None:
    with pytest.raises(ConfigError, match=r"call app.include\(.*\) first"):
        await Immediate(name).publish(Ring(number=1))
