"""Keys at their edges: None and empty are never taken for a key that messages share, and long ones work or are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from tests.patterns.conftest import NewApp
from tests.support.polling import eventually
from warren.patterns import (
    DateSchedule,
    Deadline,
    Delay,
    ListingStore,
    LocalRateLimiter,
    Once,
    Partitions,
    RateLimit,
    Saga,
    SequenceNumbers,
    Timers,
    TransitionTo,
)
from warren.sdk import App, Command, ConfigError, Event, Message, Queue

LONG = "k" * 10_000
TOMORROW = datetime.now(UTC) + timedelta(days=1)


class Order(BaseModel):
    customer: str


async def reason_of_dead_letter(app: App, queue: str) -> str:
    """Return the error with which the SDK dead-lettered the only letter of a queue."""
    letter = await app.get(f"{queue}.dead", timeout=60)
    assert letter is not None
    await letter.ack()
    return str(letter.headers["warren-dead-error"])


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, "the message has no key, because its field 'order_id' is None"),
        ("", "the message has no key, because its field 'order_id' is empty"),
        (LONG, "has 10000 bytes; with this name at most"),
    ],
)
async def test_a_saga_refuses_a_message_without_a_usable_key(
    new_app: NewApp, store: ListingStore, name: str, key: str | None, reason: str
) -> None:
    class Opened(Event, exchange=f"{name}.orders", key="opened"):
        order_id: str | None = None

    saga = Saga(name, Order, store=store, key="order_id")

    @saga.starts(Opened)
    def start(event: Opened) -> TransitionTo[Order]:
        return TransitionTo("open", Order(customer="Ada"))

    app = new_app()
    app.include(saga)
    async with app:
        await app.publish(Opened(order_id=key))
        assert reason in await reason_of_dead_letter(app, f"{name}.saga")
    assert saga.statistics.started == 0
    assert await saga.history("None") is None


@pytest.mark.parametrize(("key", "refused"), [(None, "is None"), ("", "is empty"), (LONG, None)])
async def test_once_takes_no_missing_key_for_a_key(
    new_app: NewApp, store: ListingStore, name: str, key: str | None, refused: str | None
) -> None:
    class Charge(Command, queue=name):
        number: int

    app = new_app()
    charged: list[int] = []
    once = Once(store, key=lambda message: key)  # type: ignore[arg-type,return-value]

    @app.handle(Charge, once=once, concurrency=1)
    async def charge(command: Charge) -> None:
        charged.append(command.number)

    async with app:
        await app.publish(Charge(number=1))
        await app.publish(Charge(number=2))
        if refused is None:
            await eventually(lambda: once.statistics.duplicates == 1, "the second message is a duplicate")
            assert charged == [1]
        else:
            for _ in range(2):
                assert f"its key function's result {refused}" in await reason_of_dead_letter(app, name)
            assert charged == []


async def test_a_rate_limit_refuses_a_message_whose_key_is_none(new_app: NewApp, name: str) -> None:
    class Charge(Command, queue=name):
        number: int

    app = new_app()
    app.include(
        RateLimit(
            LocalRateLimiter(1, per="1s"),
            queues=[name],
            key=lambda delivery: delivery.headers.get("tenant"),  # type: ignore[arg-type,return-value]
        )
    )

    @app.handle(Charge)
    async def charge(command: Charge) -> None: ...

    async with app:
        await app.publish(Charge(number=1))
        assert "the key of the message is None, not a text" in await reason_of_dead_letter(app, name)


async def test_partitions_refuse_a_message_whose_key_is_none(new_app: NewApp, name: str) -> None:
    partitions = Partitions(name, 2, key=lambda message: message.customer)

    class Placed(Event, exchange=partitions.exchange):
        customer: str | None

    app = new_app()
    app.include(partitions)
    async with app:
        with pytest.raises(ConfigError, match="Placed: the key function of these partitions returned None"):
            await partitions.publish(Placed(customer=None))


class Report(Command, queue="reports"):
    of: str = "sales"


def _timers(store: ListingStore, name: str, timer: str) -> Timers:
    return Timers(name, store=store, sends=[Report], schedules=[DateSchedule(timer, TOMORROW, Report())])


@pytest.mark.parametrize(
    ("set_name", "timer", "reason"),
    [
        ("house", "", "must have 1 to 150 bytes"),
        ("house", LONG, "must have 1 to 150 bytes"),
        ("h" * 100, "t" * 150, "has 150 bytes; with this name at most 149 fit"),
        ("Ежедневные отчёты отдела продаж", "отчёт по регионам " * 4, "with this name at most"),
    ],
)
async def test_a_timer_whose_name_could_not_be_listed_is_refused(
    store: ListingStore, set_name: str, timer: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        _timers(store, set_name, timer)


async def test_the_longest_name_of_a_timer_is_listed_and_fires(
    new_app: NewApp, store: ListingStore, name: str
) -> None:
    class Due(Command, queue=name): ...

    longest = "t" * 140
    set_name = name.ljust(256 - len(f"timer::{longest}"), "s")
    timers = Timers(
        set_name, store=store, sends=[Due], schedules=[DateSchedule(longest, datetime.now(UTC), Due())]
    )
    app = new_app()
    fired: list[Message] = []

    @app.handle(Due)
    async def due(command: Due) -> None:
        fired.append(command)

    app.include(timers)
    async with app:
        await eventually(lambda: len(fired) == 1, "the timer's message is handled")
        with pytest.raises(ConfigError, match="at most 140 fit"):
            await timers.put(DateSchedule(longest + "t", TOMORROW, Due()))


@pytest.mark.parametrize(
    ("key", "reason"), [(None, "the key is None, and must be a text"), ("", "the key is empty")]
)
async def test_a_deadline_and_a_delay_refuse_a_missing_key(
    new_app: NewApp, store: ListingStore, name: str, key: Any, reason: str
) -> None:
    class Unpaid(Command, queue=name):
        order_id: str

    app = new_app()
    app.declare(Queue(name))
    deadline: Deadline = Deadline(
        f"{name}.payment", after="30m", signal=lambda order: Unpaid(order_id=order), store=store
    )
    delay = Delay(f"{name}.delay", store=store)
    app.include(deadline)
    app.include(delay)
    async with app:
        with pytest.raises(ConfigError, match=reason):
            await deadline.start(key)
        with pytest.raises(ConfigError, match=reason):
            await deadline.complete(key)
        with pytest.raises(ConfigError, match=reason):
            await delay.cancel(key)
        with pytest.raises(ConfigError, match=reason):
            await SequenceNumbers(name, store=store).next(key)


async def test_a_long_key_of_a_deadline_works(new_app: NewApp, store: ListingStore, name: str) -> None:
    class Unpaid(Command, queue=name):
        order_id: str

    app = new_app()
    expired: list[str] = []
    deadline: Deadline = Deadline(
        f"{name}.payment", after="1ms", signal=lambda order: Unpaid(order_id=order), store=store
    )
    app.include(deadline)

    @app.handle(Unpaid)
    async def unpaid(command: Unpaid) -> None:
        expired.append(command.order_id)

    async with app:
        await deadline.start(LONG)
        await eventually(lambda: expired == [LONG], "the deadline expires")
