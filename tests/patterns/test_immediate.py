"""Immediate: a message is handled at once, or its publisher gets an error."""

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


class Doorbell:
    """App with the pattern Immediate: a publisher, and also a consumer unless `consumes` is false."""

    def __init__(self, app: App, name: str, *, concurrency: int = 1, consumes: bool = True) -> None:
        self.app = app
        self.bell = Immediate(f"{name}.bell", timeout=60)
        self.handled: list[int] = []
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        app.include(self.bell)
        if consumes:

            @self.bell.handle(Ring, concurrency=concurrency)
            async def handle(ring: Ring) -> None:
                self.handled.append(ring.number)
                await self.may_finish.wait()
                if ring.number < 0:
                    raise DeadLetter("rejected by the handler")


async def test_a_message_is_delivered_to_a_consumer_or_raises_no_consumer(new_app: NewApp, name: str) -> None:
    publisher = Doorbell(new_app(), name, consumes=False)
    async with publisher.app:
        with pytest.raises(NoConsumer, match="could take the message now") as caught:
            await publisher.bell.publish(Ring(number=1))
        assert (caught.value.outcome, caught.value.retryable) == ("refused", True)
        consumer = Doorbell(new_app(), name)
        async with consumer.app:
            await publisher.bell.publish(Ring(number=2))
            await eventually(lambda: consumer.handled == [2], "it is handled")
        with pytest.raises(NoConsumer):
            await publisher.bell.publish(Ring(number=3))
    assert consumer.handled == [2]


async def test_a_consumer_with_a_full_prefetch_window_takes_no_message(new_app: NewApp, name: str) -> None:
    publisher, consumer = Doorbell(new_app(), name, consumes=False), Doorbell(new_app(), name)
    consumer.may_finish.clear()
    async with consumer.app, publisher.app:
        await publisher.bell.publish(Ring(number=1))
        # The consumer has prefetched the second message, and has not started to handle it.
        second = asyncio.ensure_future(publisher.bell.publish(Ring(number=2)))
        await eventually(
            lambda: consumer.app.statistics().subscriptions[f"{name}.bell"].waiting == 1, "it is prefetched"
        )
        with pytest.raises(NoConsumer):
            await publisher.bell.publish(Ring(number=3))
        consumer.may_finish.set()
        await second
    assert consumer.handled == [1, 2]


async def test_each_of_several_publishers_gets_the_errors_of_its_own_messages(
    new_app: NewApp, name: str
) -> None:
    publishers = [Doorbell(new_app(), name, consumes=False) for _ in range(2)]
    async with publishers[0].app, publishers[1].app:
        answers = await asyncio.gather(
            *(publishers[n % 2].bell.publish(Ring(number=n)) for n in range(20)), return_exceptions=True
        )
    assert all(isinstance(answer, NoConsumer) for answer in answers)


async def test_a_message_whose_handler_fails_is_dead_lettered(
    new_app: NewApp, amqp_url: str, name: str
) -> None:
    publisher, consumer = Doorbell(new_app(), name, consumes=False), Doorbell(new_app(), name)
    async with consumer.app:
        async with publisher.app:
            await publisher.bell.publish(Ring(number=-1), message_id="m1")
            dead = await take_one(amqp_url, f"{name}.bell.dead")
            assert (dead.message_id, dead.headers["warren-dead-error"]) == (
                "m1",
                "DeadLetter: rejected by the handler",
            )
            consumer.may_finish.clear()
            await publisher.bell.publish(Ring(number=-2), message_id="m2")
        # The same after its publisher has stopped.
        consumer.may_finish.set()
        assert (await take_one(amqp_url, f"{name}.bell.dead")).message_id == "m2"


async def test_publishing_without_an_app_raises_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match=r"Immediate .* belongs to no App: call app.include\(\.\.\.\)"):
        await Immediate(name).publish(Ring(number=1))
