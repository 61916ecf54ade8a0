"""Resequencer: messages in the order of their numbers, with gaps, duplicates and full buffers."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.patterns.conftest import NewApp, OpenStore
from tests.support.async_client import take_one
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.patterns import ListingStore, Resequencer, SequenceNumbers, SqliteStore, Store
from warren.sdk import App, Command, ConfigError, Delivery, Event, Queue
from warren.testing import Warren


class StepHandler:
    """App that handles numbered steps through a resequencer, and records the keys and numbers that it handled."""

    def __init__(self, app: App, store: Store, name: str, **settings: Any) -> None:
        class OrderStep(Command, queue=Queue(f"{name}.steps", single_active_consumer=True), type="step"):
            key: str = "a"
            number: int

        self.app = app
        self.step = OrderStep
        self.done: list[tuple[str, int]] = []
        self.running = self.most_at_once = 0
        self.failing: set[int] = set()
        self.resequencer = Resequencer(
            f"{name}.steps",
            store=store,
            key=lambda step: str(step.key),
            number=lambda step: int(step.number),
            **{"again_after": timedelta(milliseconds=50), "gap_timeout": timedelta(minutes=10), **settings},
        )

        @self.resequencer.handle(OrderStep)
        async def step(step: OrderStep) -> None:
            self.running += 1
            self.most_at_once = max(self.most_at_once, self.running)
            await asyncio.sleep(0)
            self.running -= 1
            if step.number in self.failing:
                raise RuntimeError("this step fails")
            self.done.append((step.key, step.number))

        app.include(self.resequencer)

    async def send(self, *numbers: int, key: str = "a") -> None:
        await self.app.publish_many([self.step(key=key, number=number) for number in numbers])

    async def wait_until_done(self, *numbers: int, key: str = "a") -> None:
        await eventually(
            lambda: self.numbers_of(key) == list(numbers),
            f"{numbers} are done in order, not {self.numbers_of(key)}",
        )

    def numbers_of(self, key: str) -> list[int]:
        return [number for own, number in self.done if own == key]


async def test_numbers_are_handled_in_order_and_keys_do_not_wait_for_each_other(
    new_app: NewApp, one_store: ListingStore, name: str
) -> None:
    handler = StepHandler(new_app(), one_store, name)
    async with handler.app:
        await handler.send(3, 2, 4)
        await handler.send(1, 2, key="b")
        await handler.wait_until_done(1, 2, key="b")
        assert handler.numbers_of("a") == []
        await handler.send(1)
        await handler.wait_until_done(1, 2, 3, 4)
        assert handler.resequencer.statistics.waited >= 3


async def test_shuffled_messages_of_several_keys_are_handled_in_order(
    new_app: NewApp, store: Store, name: str
) -> None:
    handler = StepHandler(new_app(), store, name, window=60)
    messages = [handler.step(key=f"{n % 5}", number=n // 5 + 1) for n in range(200)]
    random.Random(4).shuffle(messages)
    async with handler.app as app:
        await app.publish_many(messages)
        await eventually(lambda: len(handler.done) == 200, "all are done", seconds=200)
        assert all(handler.numbers_of(f"{key}") == list(range(1, 41)) for key in range(5))
        assert handler.resequencer.statistics.delayed > 0
        assert handler.most_at_once <= 10


async def test_a_duplicate_is_handled_once_also_after_a_restart(
    new_app: NewApp, open_store: OpenStore, name: str
) -> None:
    first = StepHandler(new_app(), open_store(), name)
    async with first.app:
        await first.send(1, 2, 2, 1)
        await first.wait_until_done(1, 2)
        await eventually(lambda: first.resequencer.statistics.repeated == 2, "two are recognised")
    second = StepHandler(new_app(), open_store(), name)
    async with second.app:
        await second.send(2, 3)
        await second.wait_until_done(3)
        await eventually(lambda: second.resequencer.statistics.repeated == 1, "one is recognised")


async def test_messages_that_wait_in_a_disconnected_process_are_handled_by_the_next_one(
    new_app: NewApp, amqp_url: str, open_store: OpenStore, name: str
) -> None:
    async with Proxy(amqp_url) as proxy:
        first = StepHandler(new_app(proxy.url), open_store(), name)
        second = StepHandler(new_app(), open_store(), name)
        async with first.app, second.app:
            await second.send(2, 3)
            await eventually(lambda: first.resequencer.statistics.waiting == 2, "two wait for the first one")
            proxy.cut()
            await eventually(lambda: first.resequencer.statistics.waiting == 0, "nobody waits there")
            await second.send(1)
            await second.wait_until_done(1, 2, 3)
            await eventually(lambda: first.app.ready, "it is connected again")
        assert (first.done, first.resequencer.statistics.gaps) == ([], 0)


async def test_a_process_that_becomes_active_again_continues_after_the_last_handled_number(
    new_app: NewApp, amqp_url: str, one_store: ListingStore, name: str
) -> None:
    async with Proxy(amqp_url) as proxy:
        first = StepHandler(new_app(proxy.url), one_store, name)
        async with first.app:
            await first.send(1, 2)
            await first.wait_until_done(1, 2)
            second = StepHandler(new_app(), one_store, name)
            async with second.app:
                proxy.cut()
                await eventually(lambda: first.app.ready, "it is connected again")
                await second.send(3, 4, 5)
                await second.wait_until_done(3, 4, 5)
            await first.send(3, 7, 6)
            await first.wait_until_done(1, 2, 6, 7)
            await eventually(lambda: first.resequencer.statistics.repeated == 1, "one is recognised")
        assert first.resequencer.statistics.gaps == 0


async def test_a_missing_number_is_skipped_after_the_gap_timeout_and_dead_lettered_later(
    warren: Warren, tmp_path: Path
) -> None:
    handler = StepHandler(
        App(), SqliteStore(tmp_path / "s.sqlite"), "virtual", gap_timeout=timedelta(minutes=5)
    )
    async with warren.running(handler.app):
        for number in (1, 3):
            await warren.publish(handler.step(number=number))
        await warren.advance(minutes=3)
        await warren.publish(handler.step(number=6))
        await warren.advance(minutes=1, seconds=59)
        assert handler.numbers_of("a") == [1]
        await warren.advance(seconds=2)
        assert handler.numbers_of("a") == [1, 3]
        await warren.advance(minutes=4, seconds=50)
        assert handler.numbers_of("a") == [1, 3]
        await warren.advance(minutes=1)
        assert handler.numbers_of("a") == [1, 3, 6]
        await warren.publish(handler.step(number=5))
        (dead,) = warren.dead_letters
        assert "number 5 of 'a' arrived after it was skipped: number 7 is next" in str(dead)
    assert (handler.resequencer.statistics.gaps, handler.resequencer.statistics.late) == (2, 1)


async def test_a_message_whose_handler_fails_is_skipped_like_a_gap(warren: Warren, tmp_path: Path) -> None:
    handler = StepHandler(
        App(), SqliteStore(tmp_path / "s.sqlite"), "virtual", gap_timeout=timedelta(minutes=5)
    )
    handler.failing = {2}
    async with warren.running(handler.app):
        for number in (1, 2, 3):
            await warren.publish(handler.step(number=number))
        await warren.advance(minutes=6)
        assert handler.numbers_of("a") == [1, 3]
        (dead,) = warren.dead_letters
        assert "this step fails" in str(dead)


async def test_without_a_fixed_first_number_the_sequence_starts_with_the_first_message(
    new_app: NewApp, one_store: ListingStore, name: str
) -> None:
    handler = StepHandler(new_app(), one_store, name, first=None)
    async with handler.app:
        await handler.send(17, 18)
        await handler.wait_until_done(17, 18)


async def test_sequence_numbers_of_a_key_are_consecutive_over_processes(
    new_app: NewApp, open_store: OpenStore, name: str
) -> None:
    class News(Event, exchange=f"{name}.news", key="published"):
        text: str

    resequencer = Resequencer(f"{name}.news", store=open_store())
    handled: list[tuple[str, int]] = []

    @resequencer.handle(News)
    async def handle(message: News, delivery: Delivery) -> None:
        handled.append((message.text, int(delivery.headers["warren-sequence"])))

    app = new_app()
    app.include(resequencer)
    numbers = [SequenceNumbers(name, store=open_store()) for _ in range(2)]
    async with app:
        for turn in range(6):
            await app.publish(News(text=f"{turn}"), headers=await numbers[turn % 2].next("k"))
        await eventually(lambda: len(handled) == 6, "all are handled")
        assert handled == [(f"{turn}", turn + 1) for turn in range(6)]
        await app.publish(News(text="without a number"))
        dead = await take_one(app.url or "", f"{name}.news.dead")
    assert "the message has no number" in str(dead.headers["warren-dead-error"])


async def test_invalid_arguments_raise_config_errors(one_store: ListingStore, new_app: NewApp) -> None:
    with pytest.raises(ConfigError, match="window must be at least 1, not 0"):
        Resequencer("q", store=one_store, window=0)
    with pytest.raises(ConfigError, match="shorter than gap_timeout"):
        Resequencer("q", store=one_store, gap_timeout=timedelta(milliseconds=1))
    with pytest.raises(ConfigError, match="has no handler"):
        new_app().include(Resequencer("q", store=one_store))

    class Other(Command, queue="q"):
        pass

    resequencer = Resequencer("q", store=one_store)

    @resequencer.handle(Other)
    async def other(message: Other) -> None: ...

    with pytest.raises(ConfigError, match="Other must use the resequencer's queue"):
        new_app().include(resequencer)
