"""Audit log: one entry for each change that an operator or a client makes, in the log or in a file of JSON lines.

An entry names the object, never values: passwords, tokens and the values of parameters are not written.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

logger = logging.getLogger(__name__)

OFF: Final = "none"
LOG: Final = "log"
"""Value of the setting `audit` that writes entries to the log; any other value but OFF is the path of a file."""
AMQP: Final = "AMQP"
HTTP: Final = "HTTP"
CONTROL_SOCKET: Final = "control socket"
DONE: Final = "done"
REFUSED: Final = "refused"
FAILED: Final = "failed"
MOST_PENDING: Final = 10_000
"""Most entries that wait for the disk; further ones are logged instead."""
FILE_MODE: Final = 0o600
OBJECT_ARGUMENTS: Final = (
    "vhost",
    "name",
    "username",
    "queue",
    "exchange",
    "source",
    "destination",
    "component",
    "limit",
    "connection",
)
"""Arguments of a verb or a method that name its object. Only these are written: others may be secret."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change, or the attempt to make it.

    :param user: name of the user; empty at the control socket, whose clients have none.
    :param source: IP address of the client; at the control socket, its user id and process id in the operating system.
    :param surface: AMQP, HTTP or CONTROL_SOCKET.
    :param action: what was asked for: method and path, verb, or AMQP method.
    :param object: names of the object, such as its virtual host.
    :param outcome: DONE, REFUSED or FAILED.
    """

    user: str
    source: str
    surface: str
    action: str
    object: Mapping[str, str]
    outcome: str


def object_of(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments that name an object."""
    return {name: str(arguments[name]) for name in OBJECT_ARGUMENTS if isinstance(arguments.get(name), str)}


class AuditLog:
    """Writer of audit entries.

    :param target: LOG, or the path of a file, which is opened anew for each write, so that it can be rotated.
    :param records_amqp: record declarations, deletions, bindings and purges of AMQP clients, too.
    """

    def __init__(self, target: str, records_amqp: bool) -> None:
        self.records_amqp = records_amqp
        self._path = None if target == LOG else Path(target).expanduser()
        self._pending: list[bytes] = []
        self._writing: asyncio.Task[None] | None = None
        self._failure_logged = False

    def check(self) -> None:
        """Create the file if it does not exist.

        :raises OSError: if it cannot be written.
        """
        if self._path is not None:
            self._append(self._path, b"")

    def add(self, change: Change) -> None:
        """Record a change, without waiting for the disk."""
        path = self._path
        if path is None or len(self._pending) >= MOST_PENDING:
            logger.info(
                "event=audit.change_recorded user=%r source=%r surface=%r action=%r object=%s outcome=%s",
                change.user,
                change.source,
                change.surface,
                change.action,
                json.dumps(change.object),
                change.outcome,
            )
            return
        row = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "user": change.user,
            "source": change.source,
            "surface": change.surface,
            "action": change.action,
            "object": dict(change.object),
            "outcome": change.outcome,
        }
        self._pending.append(json.dumps(row).encode() + b"\n")
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write(path))

    async def record(self, change: Change) -> None:
        """Record a change; return when its entry is written, or could not be."""
        self.add(change)
        await self.flush()

    async def flush(self) -> None:
        """Return when the entries added so far are written, or could not be."""
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write(self, path: Path) -> None:
        try:
            while self._pending:
                rows, self._pending = self._pending, []
                try:
                    await asyncio.get_running_loop().run_in_executor(None, self._append, path, b"".join(rows))
                    self._failure_logged = False
                except OSError as error:
                    if not self._failure_logged:
                        self._failure_logged = True
                        logger.error(
                            "event=audit.write_failed path=%s entries=%d error=%r",
                            path,
                            len(rows),
                            error.strerror or str(error),
                        )
        finally:
            self._writing = None

    @staticmethod
    def _append(path: Path, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
        with open(descriptor, "ab") as file:
            file.write(data)
