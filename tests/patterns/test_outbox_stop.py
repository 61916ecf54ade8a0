"""An outbox that is stopped while it opens a connection to its database closes that connection."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from tests.support.polling import eventually
from warren.patterns import Outbox
from warren.sdk import App


async def test_a_connection_that_opens_during_the_stop_is_closed(tmp_path: Path) -> None:
    opening, may_open = threading.Event(), threading.Event()
    unclosed: list[sqlite3.Connection] = []

    class Slow(sqlite3.Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            opening.set()
            may_open.wait()
            super().__init__(*arguments, **options)
            unclosed.append(self)

        def close(self) -> None:
            super().close()
            unclosed.remove(self)

    engine = create_async_engine(
        f"sqlite+aiosqlite:///{tmp_path}/outbox.sqlite", poolclass=NullPool, connect_args={"factory": Slow}
    )
    app = App("memory://")
    app.include(Outbox(async_sessionmaker(engine), table="stopped"))
    await app.start()
    await asyncio.to_thread(opening.wait)
    [relay] = [task for task in asyncio.all_tasks() if task.get_name() == "relay of stopped"]
    stopping = asyncio.create_task(app.stop())
    await eventually(lambda: relay.cancelling() > 0, "the relay is being stopped")
    may_open.set()
    await stopping
    await engine.dispose()
    assert unclosed == []
