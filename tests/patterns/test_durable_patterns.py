"""Patterns whose promise depends on a durable broker refuse one in memory that nobody chose."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from warren.patterns import (
    Deadline,
    Delay,
    DelayLadder,
    Outbox,
    RoutingSlips,
    Saga,
    SqliteStore,
    Timers,
    TransitionTo,
)
from warren.sdk import App, Command, Component, ConfigError, DelayBackend, Event


class Placed(Event, exchange="orders", key="placed"):
    order: str


class Cancel(Command, queue="orders.cancel"):
    order: str


class Checkout(BaseModel):
    pass


def outbox(folder: Path) -> Component:
    # Without a pool, no connection outlives its use.
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/outbox.sqlite", poolclass=NullPool)
    return Outbox(async_sessionmaker(engine))


def deadline(folder: Path) -> Component:
    return Deadline(
        "pay", after=timedelta(minutes=1), signal=lambda key: Cancel(order=key), store=store(folder)
    )


def saga(folder: Path) -> Component:
    made = Saga("checkout", Checkout, store=store(folder), key="order")

    @made.starts(Placed)
    def start(placed: Placed) -> TransitionTo[Checkout]:
        return TransitionTo("waiting", Checkout())

    return made


def store(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "store.sqlite")


PATTERNS: dict[str, Callable[[Path], Component]] = {
    "Outbox": outbox,
    "Deadline": deadline,
    "Saga": saga,
    "Delay": lambda folder: Delay(),
    "DelayLadder": lambda folder: DelayLadder("ladder", "5s"),
    "Timers": lambda folder: Timers("timers", store=store(folder), sends=[Cancel]),
    "RoutingSlips": lambda folder: RoutingSlips(steps=[Cancel], ends=[]),
}


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_a_durable_pattern_names_itself_and_the_choices(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AMQP_URL", raising=False)
    app = App()
    app.include(PATTERNS[pattern](tmp_path))
    with pytest.raises(ConfigError, match=rf"^{pattern} .*AMQP_URL.*embedded:.*memory://"):
        await app.start()
    app.use_broker("memory://")
    async with app:
        pass


async def test_a_durable_backend_of_delayed_redeliveries_is_a_durable_pattern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AMQP_URL", raising=False)
    delay: DelayBackend = Delay()
    with pytest.raises(ConfigError, match=r"^Delay "):
        await App(delay=delay).start()
