"""Outbox with thousands of refused messages: everything works in pieces, and no statement grows with their number."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import text

from tests.patterns.sql_plans import recording
from tests.patterns.sql_sessions import Sessions, open_sessions, sqlite_url
from warren.patterns import Outbox
from warren.patterns.outbox.inspection import OutboxInspection, WaitingState
from warren.sdk import App, Queue
from warren.testing import Warren

MESSAGES = 1600


@pytest.fixture(params=["postgres", "sqlite"])
async def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sessions]:
    if request.param == "postgres":
        opening = open_sessions(request.getfixturevalue("postgres_url"), f"t{uuid4().hex}")
    else:
        opening = open_sessions(sqlite_url(tmp_path))
    async with opening as opened:
        yield opened


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("warren.patterns.outbox.outbox_tables.SCAN_ROWS", 300)
    monkeypatch.setattr("warren.patterns.outbox.refusals.PIECE_ROWS", 100)
    monkeypatch.setattr("warren.patterns.outbox.relay.MAX_RETRY_TIMES", 600)
    caplog.set_level(logging.CRITICAL, "warren")  # Each refusal is logged.


class Service:
    """App whose outbox has messages for a queue that is missing."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.app = App()
        self.outbox = Outbox(sessions, retry_after=timedelta(hours=1))
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
