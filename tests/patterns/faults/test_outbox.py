"""The outbox in every fault, with a real PostgreSQL and relays that are killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import lose_confirm, lose_connection
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.patterns.sql_sessions import Sessions, open_sessions
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.postgres import PostgreSQL
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.broker import VirtualClock
from warren.patterns import Outbox, TransactionalOnce
from warren.sdk import App, Command, Delivery, Outgoing

MATRIX = Matrix("outbox", page="docs/patterns/outbox.md")

LEASE = timedelta(milliseconds=500)
LONG_LEASE = timedelta(minutes=10)
"""Lease that passes only if the test says so."""
TWICE = "; both copies have the same message id, so that the consumer's `Once` takes one"


class Note(Command, queue="replaced"):
    text: str


@cache
def note_in(queue_name: str) -> type[Note]:
    class NoteHere(Note, queue=queue_name, type="note"):
        pass

    return NoteHere


class Reader:
    """An App that writes down what arrives."""

    def __init__(self, app: App, queue: str) -> None:
        self.app = app
        self.texts: list[str] = []
        self.ids: list[str | None] = []

        @app.handle(note_in(queue), concurrency=1)
        async def read(note: Any, delivery: Delivery) -> None:
            self.texts.append(note.text)
            self.ids.append(delivery.message_id)

    async def reads(self, *texts: str) -> None:
        await eventually(lambda: self.texts == list(texts), f"{texts} arrive")


async def write(sessions: Sessions, outbox: Outbox, queue: str, *texts: str) -> None:
    async with sessions.begin() as session:
        for its in texts:
            await outbox.add(session, note_in(queue)(text=its), ordered_by="the notes")


async def all_are_deleted(outbox: Outbox) -> None:
    """Wait until the confirms of all messages are recorded, so that nobody publishes one of them again."""

    async def empty() -> bool:
        return await outbox.lag() == timedelta(0)

    await eventually(empty, "the table is empty")


async def relay(worker: WorkerChannel, url: str, queue: str, database: str, add: str) -> None:
    """Relay the outbox in a worker that also writes a note, committed or not."""
    async with open_sessions(database, queue) as sessions:
        outbox = Outbox(sessions, lease=LEASE)
        app = App(url)
        app.include(outbox)
        app.publishes(note_in(queue))
        if add == "committed":
            await write(sessions, outbox, queue, "42")
            await worker.report_and_wait("committed")
        if add == "written":
            async with sessions.begin() as session:
                await outbox.add(session, note_in(queue)(text="42"))
                await worker.report_and_wait("written")
        async with app:
            await worker.report_and_wait("relays")


class StandstillRelay:
    """A process that relays, and stands still until `resumes` is set, directly before it writes the note "2".

    Its clock stands still too, until the test moves it.
    """

    def __init__(self, url: str, sessions: Sessions, queue: str) -> None:
        self.clock = VirtualClock()
        self.app = App(url, clock=self.clock)
        self.outbox = Outbox(sessions, lease=LONG_LEASE)
        self.stands_still = False
        self.resumes = asyncio.Event()
        self._sessions = sessions
        self.app.include(self.outbox)
        self.app.publishes(note_in(queue))
        self.app.middleware(publish=self._stand_still)

    async def _stand_still(
        self, outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]], /
    ) -> None:
        if json.loads(outgoing.body) == {"text": "2"}:
            self.stands_still = True
            await self.resumes.wait()
        await call_next(outgoing)

    async def lease_passes(self) -> None:
        """Move the database's time and that of the process beyond the end of the lease."""
        async with self._sessions.begin() as session:
            await session.execute(update(self.outbox.tables[1]).values(until_ms=0))
        self.clock.jump(LONG_LEASE.total_seconds())

    async def lease_is_taken(self) -> bool:
        async with self._sessions() as session:
            return bool((await session.execute(select(self.outbox.tables[1].c.until_ms))).scalar_one())

    async def gives_up_or_publishes_all(self) -> None:
        """Wait until the process has stopped relaying, or has published all three notes, as it must not."""
        statistics = self.outbox.statistics
        await eventually(lambda: not statistics.relaying or statistics.relayed >= 3, "it gives up")

    async def takes_over(self, reader: Reader, text: str) -> None:
        """Move the time of the process until it is the relay again and has published the note."""

        async def published() -> bool:
            await self.clock.advance(1)
            return reader.texts[-1] == text

        await eventually(published, f"{text} arrives")


@asynccontextmanager
async def standing_still(
    reader: Reader, slow: StandstillRelay, sessions: Sessions, queue: str
) -> AsyncIterator[None]:
    """Run both Apps; write three notes, of which `slow` publishes the first, and let its lease pass."""
    await write(sessions, Outbox(sessions, relay=False), queue, "1", "2", "3")
    async with reader.app, slow.app:
        await eventually(lambda: slow.stands_still, "1 is confirmed, 2 and 3 are in memory")
        await slow.lease_passes()
        yield


@asynccontextmanager
async def other_relay(app: App, sessions: Sessions, reader: Reader) -> AsyncIterator[Outbox]:
    """Run another relay of the table; provide its outbox when it has published all three notes."""
    outbox = Outbox(sessions, lease=LONG_LEASE)
    app.include(outbox)
    async with app:
        await reader.reads("1", "1", "2", "3")
        yield outbox


@pytest.fixture
async def sessions(mortal_postgres: PostgreSQL, name: str) -> AsyncIterator[Sessions]:
    async with open_sessions(mortal_postgres.url, name) as opened:
        yield opened


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "before the commit: nothing is published",
)
async def test_a_process_dies_before_it_commits(
    amqp_url: str,
    mortal_postgres: PostgreSQL,
    sessions: Sessions,
    workers: Workers,
    new_app: NewApp,
    name: str,
) -> None:
    place = {"url": amqp_url, "queue": name, "database": mortal_postgres.url}
    doomed = await workers.start(relay, **place, add="written")
    await workers.wait_for("written")
    doomed.kill()
    reader = Reader(new_app(), name)
    async with reader.app:
        await workers.start(relay, **place, add="nothing")
        await workers.wait_for("relays")
        await write(sessions, Outbox(sessions, relay=False), name, "last")
        await reader.reads("last")


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "after the commit: another process relays the message, when the lease of the dead process has expired",
)
async def test_a_process_dies_after_it_committed(
    amqp_url: str, mortal_postgres: PostgreSQL, workers: Workers, new_app: NewApp, name: str
) -> None:
    place = {"url": amqp_url, "queue": name, "database": mortal_postgres.url}
    doomed = await workers.start(relay, **place, add="committed")
    await workers.wait_for("committed")
    doomed.kill()
    reader = Reader(new_app(), name)
    async with reader.app:
        await workers.start(relay, **place, add="nothing")
        await reader.reads("42")


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "after the confirm, before the relay has recorded it: the message is published again" + TWICE,
)
async def test_a_relay_dies_between_the_confirm_and_recording_it(
    amqp_url: str,
    mortal_postgres: PostgreSQL,
    sessions: Sessions,
    workers: Workers,
    new_app: NewApp,
    name: str,
) -> None:
    place = {"url": amqp_url, "queue": name, "database": mortal_postgres.url}
    await write(sessions, Outbox(sessions, relay=False), name, "42")
    reader = Reader(new_app(), name)
    async with reader.app:
        async with sessions.begin() as session:
            await session.execute(text("SELECT * FROM warren_outbox FOR UPDATE"))  # It cannot be deleted now.
            doomed = await workers.start(relay, **place, add="nothing")
            await reader.reads("42")
            doomed.kill()
        await workers.start(relay, **place, add="nothing")
        await eventually(lambda: len(reader.ids) >= 2, "it is published again")
    assert len(set(reader.ids)) == 1


@MATRIX.shows(
    Fault.LOST_ACK,
    "for a handler's own message, under `TransactionalOnce`: it is redelivered, and nothing is added again",
)
async def test_the_acknowledgement_is_lost(
    amqp_url: str, sessions: Sessions, new_app: NewApp, name: str
) -> None:
    reader = Reader(new_app(), f"{name}.out")
    async with Proxy(amqp_url) as proxy, reader.app:
        app, successor = new_app(proxy.url), new_app()
        outboxes = [Outbox(sessions, lease=LEASE) for _ in range(2)]
        once = TransactionalOnce(sessions)
        for its, outbox in zip((app, successor), outboxes, strict=True):
            its.include(outbox)

            @its.handle(note_in(name), once=once)
            @outbox.publishes
            async def pass_on(note: Any) -> Note:
                proxy.to_server.hold()
                return note_in(f"{name}.out")(text=note.text)

        async with app:
            await app.publish(note_in(name)(text="42"))
            await eventually(lambda: once.statistics.run == 1, "it is committed")
            proxy.refuse()
            lose_connection(proxy)
            async with successor:
                await eventually(lambda: once.statistics.duplicates >= 1, "it comes again")
                await reader.reads("42")
    assert [outbox.statistics.added for outbox in outboxes] == [1, 0]


@MATRIX.shows(Fault.LOST_CONFIRM, "the message is published again" + TWICE)
@MATRIX.shows(Fault.DUPLICATE, "the relay's copies have the same message id, for the consumer's `Once`")
async def test_the_confirm_is_lost(amqp_url: str, sessions: Sessions, new_app: NewApp, name: str) -> None:
    reader = Reader(new_app(), name)
    async with reader.app, Proxy(amqp_url) as proxy:
        app = new_app(proxy.url)
        outbox = Outbox(sessions, lease=timedelta(minutes=1))
        app.include(outbox)
        app.publishes(note_in(name))
        async with app:
            await eventually(lambda: outbox.statistics.relaying, "it relays")
            writing = write(sessions, outbox, name, "42")
            await lose_confirm(proxy, writing, lambda: reader.texts == ["42"])
            await eventually(lambda: len(reader.ids) >= 2, "it is published again")
            await eventually(lambda: outbox.statistics.relayed == 1, "it is confirmed")
    assert len(set(reader.ids)) == 1


@MATRIX.shows(
    Fault.REORDERING,
    "messages with the same `ordered_by` are published one after the other; a copy after a crash is "
    "published before the messages that follow",
)
@MATRIX.shows(
    Fault.BROKER_RESTART,
    "messages that are committed meanwhile wait in the table, and are relayed in order",
)
async def test_the_broker_is_killed_while_messages_wait(
    mortal_broker: BrokerProcess, sessions: Sessions, name: str
) -> None:
    app, reader = App(mortal_broker.url), Reader(App(mortal_broker.url), name)
    outbox = Outbox(sessions, lease=LEASE)
    app.include(outbox)
    texts = [str(number) for number in range(30)]
    async with reader.app, app:
        await write(sessions, outbox, name, *texts[:10])
        await asyncio.to_thread(mortal_broker.kill)
        await write(sessions, outbox, name, *texts[10:20])
        await asyncio.to_thread(mortal_broker.start)
        await write(sessions, outbox, name, *texts[20:])
        await eventually(lambda: reader.texts[-1:] == texts[-1:], "all arrive")
    first = {its: position for position, its in reversed(list(enumerate(reader.texts)))}
    assert sorted(first, key=lambda its: first[its]) == texts


@MATRIX.shows(
    Fault.REORDERING,
    "a relay that stands still for longer than its lease, or cannot renew it, publishes nothing that it had read before; "
    "only what it was writing at that moment may arrive late, as a copy with the same message id",
)
async def test_a_relay_stands_still_while_another_relays(
    amqp_url: str, sessions: Sessions, new_app: NewApp, name: str
) -> None:
    reader, slow = Reader(new_app(), name), StandstillRelay(amqp_url, sessions, name)
    async with standing_still(reader, slow, sessions, name):
        async with other_relay(new_app(), sessions, reader) as outbox:
            slow.resumes.set()
            await slow.gives_up_or_publishes_all()
            await write(sessions, Outbox(sessions, relay=False), name, "4")
            await eventually(lambda: reader.texts[-1] == "4", "4 arrives")
            assert reader.texts == ["1", "1", "2", "3", "4"]
            assert slow.outbox.statistics.failed == 0
            await all_are_deleted(outbox)
        await write(sessions, Outbox(sessions, relay=False), name, "5")
        await slow.takes_over(reader, "5")
    assert reader.texts == ["1", "1", "2", "3", "4", "5"]


async def test_a_relay_stands_still_while_another_relays_and_stops(
    amqp_url: str, sessions: Sessions, new_app: NewApp, name: str
) -> None:
    """The lease is free when the relay renews it, but the messages that it read before are out of date."""
    reader, slow = Reader(new_app(), name), StandstillRelay(amqp_url, sessions, name)
    async with standing_still(reader, slow, sessions, name):
        async with other_relay(new_app(), sessions, reader) as outbox:
            await all_are_deleted(outbox)
        await slow.clock.advance(0)

        async def renewed() -> bool:
            return not slow.outbox.statistics.relaying or await slow.lease_is_taken()

        await eventually(renewed, "it has renewed the lease, or given up")
        slow.resumes.set()
        await slow.gives_up_or_publishes_all()
        await write(sessions, Outbox(sessions, relay=False), name, "4")
        await slow.takes_over(reader, "4")
    assert reader.texts == ["1", "1", "2", "3", "4"]


async def test_a_relay_loses_the_connection_while_another_relays(
    amqp_url: str, sessions: Sessions, new_app: NewApp, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher repeats unconfirmed messages on its next connection, which may be long after."""
    monkeypatch.setattr("warren.patterns.outbox.relay.PUBLISH_SECONDS", 600)
    reader = Reader(new_app(), name)
    async with reader.app, Proxy(amqp_url) as proxy:
        slow = StandstillRelay(proxy.url, sessions, name)
        slow.resumes.set()
        async with slow.app:
            await eventually(lambda: slow.outbox.statistics.relaying, "it relays")
            proxy.to_client.hold()
            await write(sessions, slow.outbox, name, "1", "2", "3")
            await reader.reads("1")
            proxy.refuse()
            proxy.cut()
            proxy.to_client.release()
            await slow.lease_passes()
            async with other_relay(new_app(), sessions, reader):
                proxy.accept()
                await slow.gives_up_or_publishes_all()
                await write(sessions, Outbox(sessions, relay=False), name, "4")
                await eventually(lambda: reader.texts[-1] == "4", "4 arrives")
                assert reader.texts == ["1", "1", "2", "3", "4"]


async def test_a_message_that_is_not_confirmed_in_time_is_no_refusal(
    amqp_url: str,
    sessions: Sessions,
    new_app: NewApp,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker may keep a confirm for long, as while a node of a cluster fails; the message is sound."""
    reader = Reader(new_app(), name)
    async with reader.app, Proxy(amqp_url) as proxy:
        app = new_app(proxy.url)
        outbox = Outbox(sessions)
        app.include(outbox)
        async with app:
            await eventually(lambda: outbox.statistics.relaying, "it relays")
            with monkeypatch.context() as patch:
                patch.setattr("warren.patterns.outbox.relay.PUBLISH_SECONDS", 0.2)
                proxy.to_client.hold()
                await write(sessions, outbox, name, "1")
                # Not the first that fails: a process that stands still may miss the deadline before it has sent.
                await eventually(
                    lambda: "the message may have arrived" in caplog.text,
                    "a sent message is not confirmed in time",
                )
            proxy.to_client.release()
            await all_are_deleted(outbox)
        await eventually(lambda: len(reader.texts) > 1, "it was published again")
    records = [record for record in caplog.records if "outbox.message_" in record.msg]
    assert outbox.statistics.failed == len(records)
    assert {record.levelname for record in records} == {"WARNING"}
    assert {record.getMessage().split()[0] for record in records} == {"event=outbox.message_unconfirmed"}


@MATRIX.shows(
    Fault.STORE_DOWN,
    "`add` fails with the caller's transaction: nothing is published; the relay waits and continues when "
    "the database is back, and publishes again the messages whose confirms it could not record",
)
async def test_postgres_crashes_and_comes_back(
    mortal_postgres: PostgreSQL, sessions: Sessions, new_app: NewApp, name: str
) -> None:
    reader = Reader(new_app(), name)
    outbox = Outbox(sessions, lease=LEASE)
    reader.app.include(outbox)
    async with reader.app:
        await write(sessions, outbox, name, "41")
        await reader.reads("41")
        await asyncio.to_thread(mortal_postgres.crash)
        with pytest.raises((DBAPIError, OSError)):
            await write(sessions, outbox, name, "lost")
        await asyncio.to_thread(mortal_postgres.start)

        async def written() -> bool:
            try:
                await write(sessions, outbox, name, "42")
            except (DBAPIError, OSError):  # A connection of the pool that died with it.
                return False
            return True

        await eventually(written, "the next transaction commits")
        await eventually(lambda: "42" in reader.texts, "the relay goes on")
    assert set(reader.texts) == {"41", "42"}
    assert len(set(reader.ids)) == 2


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect: the lease uses the database's clock",
)
async def test_a_machine_whose_clock_is_an_hour_ahead(
    amqp_url: str, sessions: Sessions, new_app: NewApp, name: str
) -> None:
    reader, ahead = Reader(new_app(), name), App(amqp_url, clock=SkewedClock(3600))
    outboxes = [Outbox(sessions, lease=timedelta(minutes=1)) for _ in range(2)]
    reader.app.include(outboxes[0])
    ahead.include(outboxes[1])
    async with reader.app, ahead:
        for number in range(10):
            await write(sessions, outboxes[number % 2], name, str(number))
        await reader.reads(*map(str, range(10)))
        assert [outbox.statistics.relaying for outbox in outboxes].count(True) == 1
