"""A database that refuses connections for a moment: messages wait for it, and are not dead-lettered."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from tests.patterns.conftest import PATIENCE
from tests.patterns.sql_sessions import asyncpg_url
from tests.support.postgres import postgres_server
from warren.core.errors import UsageError
from warren.patterns import StoreUnavailable, TransactionalOnce
from warren.patterns.outbox.inspection import open_outbox
from warren.sdk import Delivery


async def _nothing() -> bytes:
    return b"done"


@pytest.mark.processes
async def test_a_claim_waits_while_all_connections_of_the_database_are_taken() -> None:
    with postgres_server("max_connections=10") as server:
        engine = create_async_engine(asyncpg_url(server.url), poolclass=NullPool)
        once = TransactionalOnce(async_sessionmaker(engine), patience=timedelta(seconds=PATIENCE))
        impatient = TransactionalOnce(async_sessionmaker(engine), patience=timedelta(0))

        def handled_by(which: TransactionalOnce, number: int) -> asyncio.Future[bytes]:
            delivery = Delivery(b"", "", "", "charges", False, None, {"message_id": f"m-{number}"})
            return asyncio.ensure_future(which.run(None, delivery, _nothing))

        assert await handled_by(impatient, 0) == b"done"
        taken: list[asyncpg.Connection] = []
        with contextlib.suppress(asyncpg.TooManyConnectionsError):
            while True:
                taken.append(await asyncpg.connect(server.url))
        waiting = handled_by(once, 1)
        with pytest.raises(StoreUnavailable, match="too many clients"):
            await handled_by(impatient, 2)
        with pytest.raises(StoreUnavailable, match=r"did not answer: .*too many clients"):
            async with open_outbox(server.url, "outbox"):
                pass
        assert not waiting.done()
        for connection in taken:
            await connection.close()
        assert await waiting == b"done"
        with pytest.raises(UsageError):
            async with open_outbox(server.url, "outbox"):
                pass
        await engine.dispose()
