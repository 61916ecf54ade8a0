"""Outbox with thousands of refused messages: everything works in pieces, and no statement grows with their number."""

from __future__ import annotations

import logging
import random
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.patterns.sql_plans import recording
from tests.patterns.sql_sessions import Sessions, open_sessions, sqlite_url
from tests.support.tiers import cases
from warren.patterns import Outbox
from warren.patterns.outbox.inspection import OutboxInspection, WaitingState
from warren.sdk import App, Event, Queue
from warren.testing import Warren

MESSAGES = 1600


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("warren.patterns.outbox.outbox_tables.SCAN_ROWS", 300)
    monkeypatch.setattr("warren.patterns.outbox.refusals.PIECE_ROWS", 100)
    monkeypatch.setattr("warren.patterns.outbox.relay.MAX_RETRY_TIMES", 600)
    caplog.set_level(logging.CRITICAL, "warren")  # Each refusal is logged.


class Placed(Event, exchange="orders", key="order.placed", audience=["audit"]):
    order: str
    number: int


class Service:
    """App whose outbox has messages for a queue that is missing."""

    def __init__(self, sessions: Sessions, retry_after: timedelta = timedelta(hours=1)) -> None:
        self.sessions = sessions
        self.app = App()
        self.outbox = Outbox(sessions, retry_after=retry_after)
        self.app.include(self.outbox)

    async def add_messages(self) -> None:
        """Add messages without an ordering key, and two for each of many ordering keys."""
        async with self.sessions.begin() as session:
            for number in range(MESSAGES):
                key = f"order {number // 4}" if number % 2 else None
                await self.outbox.add(session, b"", ordered_by=key, key="missing")

    async def count(self, table: str) -> int:
        async with self.sessions() as session:
            return int((await session.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one())


@pytest.mark.sampled(2)
async def test_thousands_of_refused_messages_are_retried_on_request(
    warren: Warren, sessions: Sessions
) -> None:
    service = Service(sessions)
    inspected = OutboxInspection(sessions, "warren_outbox")
    refused = MESSAGES * 3 // 4  # The second message of each ordering key waits for the first.
    with recording(sessions) as recorder:
        async with warren.running(service.app):
            await service.add_messages()
            await warren.settle()
            assert service.outbox.statistics.failed == refused
            await inspected.open()
            listed, number = await inspected.messages(1000)
            assert number == MESSAGES
            states = [
                WaitingState.REFUSED,
                WaitingState.REFUSED,
                WaitingState.REFUSED,
                WaitingState.HELD_BACK,
            ]
            assert [message.state for message in listed] == states * 250
            for message in listed[:8]:
                alone = await inspected.message(message.id)
                assert alone is not None
                assert (alone.state, alone.attempts) == (message.state, message.attempts)
            assert await inspected.retry(None) == refused
            await warren.advance(seconds=1)
            assert service.outbox.statistics.failed == 2 * refused
            await service.app.declare_now(Queue("missing"))
            assert await inspected.retry(None) == refused
            await warren.advance(seconds=1)
            assert service.outbox.statistics.relayed == MESSAGES
        assert await service.count("warren_outbox") == 0
        assert await service.count("warren_outbox_refused") == 0
    recorder.check_sizes()


@pytest.mark.sampled(2)
async def test_a_start_deletes_the_refusals_of_missing_messages_in_pieces(
    warren: Warren, sessions: Sessions
) -> None:
    service = Service(sessions)
    async with warren.running(service.app):
        await service.add_messages()
        await warren.settle()
    async with sessions.begin() as session:
        await session.execute(text("DELETE FROM warren_outbox WHERE id % 10 <> 0"))
    service = Service(sessions)
    with recording(sessions) as recorder:
        async with warren.running(service.app):
            await service.app.declare_now(Queue("missing"))
            await warren.advance(minutes=2)
            await service.outbox.lag()
    assert service.outbox.statistics.relayed == MESSAGES // 10
    assert await service.count("warren_outbox_refused") == 0
    recorder.check_sizes()
    assert recorder.rows <= 500


async def test_new_messages_do_not_wait_until_all_refused_ones_are_retried(
    warren: Warren,
    sessions: Sessions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("warren.patterns.outbox.relay.BATCH", 10)
    monkeypatch.setattr("warren.patterns.outbox.relay.MAX_RETRY_TIMES", 20)
    service = Service(sessions)
    statistics = service.outbox.statistics
    relayed_at_refusals: list[int] = []

    class Note(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            relayed_at_refusals.append(statistics.relayed)

    async def add(number: int, queue: str) -> None:
        async with sessions.begin() as session:
            for n in range(number):
                await service.outbox.add(session, b"", key=queue, ordered_by=f"{queue} {n}")

    inspected = OutboxInspection(sessions, "warren_outbox")
    async with warren.running(service.app):
        await service.app.declare_now(Queue("present"))
        await add(100, "missing")
        await warren.settle()
        await inspected.open()
        assert await inspected.retry(None) == 100
        logger, note = logging.getLogger("warren.patterns"), Note()
        caplog.set_level(logging.ERROR, logger.name)
        logger.addHandler(note)
        try:
            await add(1, "present")
            await warren.settle()
        finally:
            logger.removeHandler(note)
    assert statistics.relayed == 1
    assert relayed_at_refusals.count(0) <= 20
    assert relayed_at_refusals.count(1) >= 80


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", cases(range(15)))
async def test_the_order_of_each_key_is_kept_while_many_messages_are_refused(
    warren: Warren, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    for name, value in (
        ("relay.BATCH", chance.randint(2, 6)),
        ("relay.MAX_RETRY_TIMES", chance.randint(1, 6)),
        ("outbox_tables.SCAN_ROWS", chance.randint(6, 12)),
    ):
        monkeypatch.setattr(f"warren.patterns.outbox.{name}", value)
    keys = [f"order {number}" for number in range(12)]
    blocked = set(keys[:8])
    sent: list[tuple[str, int]] = []
    received: list[tuple[str, int]] = []
    async with open_sessions(sqlite_url(tmp_path)) as sessions:
        service = Service(sessions, retry_after=timedelta(minutes=1))

        @service.app.handle(Placed, queue="audit", concurrency=1)
        async def audit(event: Placed) -> None:
            received.append((event.order, event.number))

        service.app.publishes(Placed)

        async def add(number: int) -> None:
            async with sessions.begin() as session:
                for _ in range(number):
                    order = chance.choice(keys)
                    event = Placed(order=order, number=len(sent))
                    await service.outbox.add(session, event, ordered_by=order)
                    sent.append((order, event.number))

        async with warren.running(service.app):
            async with sessions.begin() as session:
                for order in sorted(blocked, key=lambda _: chance.random()):
                    await service.outbox.add(session, b"", key="missing", ordered_by=order)
            for _ in range(4):
                await add(12)
                await warren.advance(seconds=chance.randint(1, 90))
            assert sorted(received) == sorted(each for each in sent if each[0] not in blocked)
            await service.app.declare_now(Queue("missing"))
            await add(6)
            await warren.advance(minutes=4)
    for order in keys:
        assert [each for each in received if each[0] == order] == [each for each in sent if each[0] == order]
