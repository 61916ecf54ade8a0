"""An outbox that is stopped while it opens a connection to its database closes that connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy.ext.asyncio import async_sessionmaker

from tests.patterns.slow_sqlite import SlowSqlite
from tests.support.polling import eventually
from warren.patterns import Outbox
from warren.sdk import App


async def test_a_connection_that_opens_during_the_stop_is_closed(tmp_path: Path) -> None:
    database = SlowSqlite(tmp_path)
    app = App("memory://")
    app.include(Outbox(async_sessionmaker(database.engine), table="stopped"))
    await app.start()
    await asyncio.to_thread(database.opening.wait)
    [relay] = [task for task in asyncio.all_tasks() if task.get_name() == "relay of stopped"]
    stopping = asyncio.create_task(app.stop())
    await eventually(lambda: relay.cancelling() > 0, "the relay is being stopped")
    database.may_open.set()
    await stopping
    await database.engine.dispose()
    assert database.unclosed == []
