"""State of a migration on disk: its id, the numbers of its queues, and what happened to single messages."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from warren.cli.migrate.journal import QueueJournal
from warren.cli.migrate.plan import Way
from warren.core.errors import UsageError
from warren.core.operating_system.files import lock_file

STATE_FILE: Final = "migration.json"
COPIES_FILE: Final = "copies.jsonl"
"""One line for each message that was published again: queue and sequence."""
LOCK_FILE: Final = "lock"


@dataclass
class QueueRecord:
    """State of a queue: its number and its handling."""

    number: int
    way: Way
    reason: str


@dataclass
class MigrationState:
    """State of a migration, as the file has it."""

    migration: str
    """Id of the migration, which the headers of its messages have."""
    source: str
    """URL of the source without credentials."""
    target: str
    started: str
    """Time at which it began, as ISO 8601."""
    queues: dict[str, QueueRecord] = field(default_factory=dict)


class StateFolder:
    """Folder with the state of one migration. One process at a time may have it open.

    :raises UsageError: if another process has it, or it belongs to another migration.
    """

    def __init__(self, path: Path, source: str, target: str, now: str) -> None:
        self._path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UsageError(f"cannot use the folder {path}: {error.strerror or error}") from None
        if not lock_file(self._lock):
            raise UsageError(f"another `warren migrate` works with the folder {path}")
        self.state = self._load() or MigrationState(secrets.token_hex(6), source, target, now)
        if (self.state.source, self.state.target) != (source, target):
            raise UsageError(
                f"the folder {path} belongs to the migration from {self.state.source} to {self.state.target}:"
                " choose another one with --state"
            )
        self.save()
        self._copies = os.open(path / COPIES_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _load(self) -> MigrationState | None:
        file = self._path / STATE_FILE
        if not file.exists():
            return None
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
            queues = {
                name: QueueRecord(each["number"], Way(each["way"]), each["reason"])
                for name, each in value.pop("queues").items()
            }
            return MigrationState(**value, queues=queues)
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise UsageError(f"{file} cannot be read: {error}") from None

    def add_queue(self, name: str, way: Way, reason: str) -> QueueRecord:
        """Add a queue to the state, which `save` writes; return its record."""
        record = self.state.queues[name] = QueueRecord(len(self.state.queues), way, reason)
        return record

    def save(self) -> None:
        """Write the state; a kill leaves the old one or the new one."""
        temporary = self._path / f"{STATE_FILE}.new"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(asdict(self.state), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path / STATE_FILE)

    def open_journal(self, record: QueueRecord) -> QueueJournal:
        """Open the journal of a queue."""
        return QueueJournal(self._path, record.number)

    def note_copy(self, queue: str, sequence: int) -> None:
        """Note that a message was published again, so that the target may have a copy."""
        os.write(self._copies, json.dumps([queue, sequence]).encode() + b"\n")

    def copies(self) -> dict[str, int]:
        """Return how many messages of each queue were published again, in all runs."""
        found: dict[str, set[int]] = {}
        with (self._path / COPIES_FILE).open(encoding="utf-8") as lines:
            for line in lines:
                try:
                    queue, sequence = json.loads(line)
                except ValueError:  # A kill has cut the last line.
                    continue
                found.setdefault(queue, set()).add(sequence)
        return {queue: len(sequences) for queue, sequences in found.items()}

    def close(self) -> None:
        """Close the files, and let other processes use the folder."""
        os.close(self._copies)
        os.close(self._lock)
