"""Outbox and Deadline while the broker's disk does not answer, and after a crash of the broker then: nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.patterns.sql_sessions import Sessions, open_sessions, sqlite_url
from tests.support.blocking_client import Connection
from tests.support.frozen_files import FrozenFiles, broker_on
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import eventually
from warren.patterns import Deadline, Outbox, SqliteStore
from warren.sdk import App, Command


class Note(Command, queue="notes"):
    text: str


class Order(Command, queue="orders"):
    number: str


class Cancel(Command, queue="cancellations"):
    number: str


@pytest.fixture
def files() -> FrozenFiles:
    return FrozenFiles()


@pytest.fixture
def broker(tmp_path: Path, files: FrozenFiles) -> Iterator[InProcessBroker]:
    with broker_on(files, tmp_path / "data") as broker:
        yield broker


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    async with open_sessions(sqlite_url(tmp_path)) as opened:
        yield opened


async def crash(broker: InProcessBroker, files: FrozenFiles) -> None:
    """Continue with what is on the frozen disk, as if the broker had been killed now."""
    image = broker.image()
    files.thawed.set()
    await asyncio.to_thread(broker.stop)
    broker.data_dir = image
    broker.start()


def ready_notes(broker: InProcessBroker) -> int:
    """Return the number of notes in the queue."""
    with Connection(broker.url) as connection:
        return connection.channel().ready("notes")


def relaying(broker: InProcessBroker, sessions: Sessions) -> tuple[App, Outbox]:
    """Return an App that relays an outbox, and the outbox."""
    app = App(broker.url, grace=0.1)
    outbox = Outbox(sessions)
    app.include(outbox)
    app.publishes(Note)
    return app, outbox


async def test_the_outbox_keeps_what_the_broker_could_not_write(
    broker: InProcessBroker, files: FrozenFiles, sessions: Sessions
) -> None:
    app, outbox = relaying(broker, sessions)
    async with app:
        await asyncio.to_thread(broker.flush_definitions)
        files.thawed.clear()
        async with sessions.begin() as session:
            await outbox.add(session, Note(text="kept"))
        await eventually(lambda: ready_notes(broker) == 1, "the relay has published")
    assert outbox.statistics.relayed == 0
    assert await outbox.lag() > timedelta(0)
    await crash(broker, files)
    assert ready_notes(broker) == 0

    app, outbox = relaying(broker, sessions)
    read: list[str] = []

    @app.handle(Note)
    async def read_note(note: Note) -> None:
        read.append(note.text)

    async with app:
        await eventually(lambda: read == ["kept"], "the note arrives")
        await eventually(lambda: outbox.statistics.relayed == 1, "the row is deleted")
    assert await outbox.lag() == timedelta(0)


def shop(broker: InProcessBroker, store: SqliteStore) -> tuple[App, asyncio.Event, list[str]]:
    """Return an App that cancels orders, an event that is set when it handles one, and the cancelled orders."""
    app = App(broker.url, grace=0.1)
    unpaid = Deadline(
        "unpaid",
        after=timedelta(milliseconds=200),
        signal=lambda number: Cancel(number=number),
        store=store,
        retry_after=timedelta(milliseconds=100),
    )
    app.include(unpaid)
    handling = asyncio.Event()
    cancelled: list[str] = []

    @app.handle(Order)
    async def start(order: Order) -> None:
        handling.set()
        await unpaid.start(order.number)

    @app.handle(Cancel)
    async def cancel(command: Cancel) -> None:
        cancelled.append(command.number)

    return app, handling, cancelled


async def test_a_deadline_that_the_broker_could_not_write_starts_again(
    broker: InProcessBroker, files: FrozenFiles, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "deadlines.sqlite")
    app, handling, cancelled = shop(broker, store)
    async with app:
        pass
    async with App(broker.url) as client:
        await client.publish(Order(number="42"))
    app, handling, cancelled = shop(broker, store)
    # The App has declared all before, so that its start does not wait for the disk.
    files.thawed.clear()
    async with app:
        await handling.wait()
    assert cancelled == []
    await crash(broker, files)

    app, handling, cancelled = shop(broker, store)
    async with app:
        await eventually(lambda: cancelled == ["42"], "the order is cancelled")
    await store.close()
