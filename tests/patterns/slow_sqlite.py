"""A SQLite database whose connections open slowly, and are noted until they are closed."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool


class SlowSqlite:
    """Database in a folder.

    :ivar opening: set while a connection is being opened, and afterwards.
    :ivar may_open: connections wait for it to be set.
    :ivar opened: set once a connection is open.
    :ivar unclosed: connections that are open.
    """

    def __init__(self, folder: Path) -> None:
        self.opening = threading.Event()
        self.may_open = threading.Event()
        self.opened = threading.Event()
        self.unclosed: list[sqlite3.Connection] = []
        database = self

        class Slow(sqlite3.Connection):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                database.opening.set()
                database.may_open.wait()
                super().__init__(*arguments, **options)
                database.unclosed.append(self)
                database.opened.set()

            def close(self) -> None:
                super().close()
                database.unclosed.remove(self)

        self.engine: AsyncEngine = create_async_engine(
            f"sqlite+aiosqlite:///{folder}/slow.sqlite", poolclass=NullPool, connect_args={"factory": Slow}
        )
