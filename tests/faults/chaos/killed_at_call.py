"""`warren` that kills itself before its N-th change of the disk: python -m tests.faults.chaos.killed_at_call N ARGUMENTS...

Its clock starts in the year in which the frozen folders were written: their messages have not expired yet.
"""

from __future__ import annotations

import os
import runpy
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warren.broker.store.file_system.os_files import OsFiles

FROZEN_AT = 1_000_000_000.0
"""Time at which the frozen folders were written, in seconds since 1970."""
CHANGES = ("open", "write", "truncate", "sync", "unlink", "rename", "sync_folder")


class Countdown:
    """Number of changes that are left before the kill."""

    def __init__(self, left: int) -> None:
        self._left = left

    def change(self) -> None:
        """Count a change; kill this process before the last one."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that counts as a change and then calls `call`."""

        def count(*arguments: Any, **named: Any) -> Any:
            self.change()
            return call(*arguments, **named)

        return count


def run(number: int, arguments: list[str]) -> None:
    """Run `warren` with these arguments until the change with this number; 0 for no kill."""
    read, behind = time.time, time.time() - FROZEN_AT
    time.time = lambda: read() - behind
    countdown = Countdown(number)
    for name in CHANGES:
        setattr(OsFiles, name, countdown.counted(getattr(OsFiles, name)))
    Path.mkdir = countdown.counted(Path.mkdir)  # type: ignore[method-assign]

    class Database(sqlite3.Connection):
        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            if not sql.startswith("SELECT"):
                countdown.change()
            return super().execute(sql, *rest)

    connect = sqlite3.connect
    sqlite3.connect = lambda *rest, **named: connect(*rest, factory=Database, **named)  # type: ignore[assignment]
    sys.argv = ["warren", *arguments]
    runpy.run_module("warren.cli.dispatch", run_name="__main__")


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2:])
