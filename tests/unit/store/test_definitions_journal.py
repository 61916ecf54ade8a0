"""Journal of the definitions: power cuts, kills between journal and database, a full disk, compaction, upgrades."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from unittest import mock

import pytest

from tests.faults.chaos.fault_injection import FaultyDisk
from tests.support.polling import wait_until
from tests.unit.store.frozen.write import DEFINITIONS
from tests.unit.store.simulated_disk import Disk
from warren.broker.store.data_folder import DataFolder
from warren.broker.store.definitions import definitions_journal
from warren.broker.store.definitions.definitions_database import Definitions, QueueRow
from warren.broker.store.definitions.definitions_recovery import DefinitionsLost
from warren.broker.store.definitions.journal_format import decode_journal, encode_header, encode_transaction
from warren.broker.store.definitions.row_statements import Statement
from warren.broker.store.errors import StoreError
from warren.broker.store.file_system.files_protocol import Files

FROZEN = Path(__file__).parent / "frozen"
IDENTITY = 0x1234_5678_9ABC_DEF0
JOURNAL = "definitions.journal"


def queue(number: int) -> QueueRow:
    return QueueRow(b"/", b"queue-%d" % number, number, auto_delete=False, arguments=bytes(range(256)))


class Session:
    """Definitions of one life of a broker; `names` reads the queues that the next life finds."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.folder = DataFolder.open(path, files)
        self.definitions = Definitions.open(self.folder, asyncio.get_running_loop())

    async def put(self, *numbers: int) -> None:
        for number in numbers:
            self.definitions.put(queue(number))
            await self.definitions.flush()

    async def close(self) -> None:
        await self.definitions.close()
        self.folder.finish_upgrade()
        self.folder.close()


async def stored(path: Path, files: Files | None = None) -> list[int]:
    session = Session(path, files)
    found = [row.incarnation for row in session.definitions.load().queues]
    await session.close()
    return sorted(found)


def copy_killed(path: Path, target: Path) -> Path:
    """Return a copy of the folder as a kill would leave it."""
    shutil.copytree(path, target)
    return target


# Format

STATEMENTS: list[Statement] = [
    ("INSERT INTO t VALUES (?, ?, ?)", (b"\x00\xff", "ü", None)),
    ("INSERT INTO t VALUES (?, ?, ?)", (True, -(2**63), 2**63 - 1)),
    ("UPDATE t SET a = 1", ()),
    ("UPDATE t SET a = 1", ()),
]


def test_statements_are_decoded_as_they_were_encoded() -> None:
    data = encode_header(IDENTITY, 4) + encode_transaction(IDENTITY, 7, STATEMENTS)
    content = decode_journal(data, IDENTITY)
    assert not isinstance(content, str)
    assert (content.schema, content.generation, content.end, content.damage) == (4, 7, len(data), "")
    found = [(sql, row) for sql, rows in content.transactions[0] for row in rows]
    assert found == STATEMENTS


def test_every_flipped_bit_of_a_journal_is_found() -> None:
    data = encode_header(IDENTITY, 4)
    for generation in (7, 8):
        data += encode_transaction(IDENTITY, generation, STATEMENTS[:2])
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            content = decode_journal(bytes(flipped), IDENTITY)
            assert isinstance(content, str) or content.damage


def test_a_journal_of_another_folder_is_not_read() -> None:
    data = encode_header(IDENTITY, 4) + encode_transaction(IDENTITY, 7, STATEMENTS)
    assert decode_journal(data, IDENTITY + 1) == "it belongs to another data folder"


def test_a_missing_record_is_found() -> None:
    data = encode_header(IDENTITY, 4)
    for generation in (7, 9):
        data += encode_transaction(IDENTITY, generation, STATEMENTS[:2])
    content = decode_journal(data, IDENTITY)
    assert not isinstance(content, str)
    assert content.generation == 7
    assert "generation 9 follows 7" in content.damage


# Kills and power cuts


async def test_a_kill_between_journal_and_commit_completes_the_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session(tmp_path / "data")
    session.folder.finish_upgrade()
    await session.put(1)
    before = copy_killed(tmp_path / "data", tmp_path / "before")
    await session.put(2)
    after = copy_killed(tmp_path / "data", tmp_path / "after")
    await session.close()
    # The journal has the last change, the database has not.
    for name in ("definitions.db", "definitions.db-wal"):
        shutil.copy(before / name, after / name)
    caplog.set_level("INFO")
    assert await stored(after) == [1, 2]
    assert "event=definitions.change_replayed" in caplog.text
    assert "rebuilt" not in caplog.text


async def test_a_record_that_was_cut_short_by_a_kill_is_removed(tmp_path: Path) -> None:
    session = Session(tmp_path / "data")
    session.folder.finish_upgrade()
    await session.put(1)
    left = copy_killed(tmp_path / "data", tmp_path / "left")
    await session.close()
    record = encode_transaction(session.folder.identity, 3, [("UPDATE meta SET value = 3", ())])
    for size in (1, 10, len(record) - 1):
        again = copy_killed(left, tmp_path / f"cut-{size}")
        with (again / JOURNAL).open("ab") as file:
            file.write(record[:size])
        assert await stored(again) == [1]
        assert await stored(again) == [1]


async def test_any_power_cut_leaves_the_committed_changes(tmp_path: Path) -> None:
    """SQLite syncs each change, the journal does not: after a power cut it may be any number of changes behind."""
    for seed in range(15):
        random = Random(seed)
        disk, path = Disk(), tmp_path / str(seed)
        session = Session(path, disk)
        session.folder.finish_upgrade()
        count = random.randint(1, 12)
        with mock.patch.object(definitions_journal, "MIN_COMPACTED_SIZE", 0):
            await session.put(*range(1, count + 1))
        after = disk.cut_power(random)
        image = copy_killed(path, tmp_path / "image")
        # Its disk is dead.
        with contextlib.suppress(StoreError):
            await session.definitions.close()
        session.folder.close()
        shutil.rmtree(path)
        image.rename(path)
        assert await stored(path, after) == list(range(1, count + 1))
        assert await stored(path, after) == list(range(1, count + 1))


# Damage to both


async def damaged_both(tmp_path: Path, damage: Callable[[Path], None]) -> Path:
    session = Session(tmp_path / "data")
    session.folder.finish_upgrade()
    await session.put(1, 2, 3)
    left = copy_killed(tmp_path / "data", tmp_path / "left")
    await session.close()
    (left / "definitions.db-wal").unlink()
    damage(left / JOURNAL)
    return left


def cut_last_record(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip_last_record(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut_last_record, flip_last_record])
async def test_changes_that_both_have_lost_are_noticed(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    left = await damaged_both(tmp_path, damage)
    folder = DataFolder.open(left)
    for _ in range(2):
        with pytest.raises(DefinitionsLost, match=r"definitions\.db has lost changes .* is damaged"):
            Definitions.open(folder, asyncio.get_running_loop())
    definitions = Definitions.open(folder, asyncio.get_running_loop(), True)
    assert sorted(row.incarnation for row in definitions.load().queues) == [1, 2]
    await definitions.close()
    folder.close()
    assert await stored(left) == [1, 2]


# Full disk, failure and compaction


async def test_a_full_disk_delays_changes_and_loses_none(tmp_path: Path) -> None:
    disk = FaultyDisk(Disk(), errno.ENOSPC, first=1 << 30, times=3)
    session = Session(tmp_path, disk)
    session.folder.finish_upgrade()
    with mock.patch("warren.broker.store.definitions.definitions_database._RETRY", 0.001):
        await session.put(1)
        disk.first = 0
        await session.put(2, 3)
    assert len(disk.refused) == 3
    await session.close()
    assert await stored(tmp_path, disk.kill()) == [1, 2, 3]


async def test_a_failed_write_of_the_journal_ends_the_definitions(tmp_path: Path) -> None:
    disk = Disk()
    session = Session(tmp_path, disk)
    session.folder.finish_upgrade()
    await session.put(1)
    disk.fail_writes = True
    with pytest.raises(StoreError, match="cannot write the definitions: Input/output error"):
        await session.put(2)
    disk.fail_writes = False
    await session.definitions.close()
    session.folder.close()
    assert await stored(tmp_path, disk) == [1]


async def test_a_large_journal_is_replaced_by_a_snapshot(tmp_path: Path) -> None:
    with mock.patch.object(definitions_journal, "MIN_COMPACTED_SIZE", 2000):
        session = Session(tmp_path)
        largest = 0
        for _ in range(30):
            await session.put(1, 2, 3)
            largest = max(largest, (tmp_path / JOURNAL).stat().st_size)
        await session.close()
    assert largest < 20_000, "90 records of 500 bytes"
    for name in ("definitions.db", "definitions.db-wal"):
        (tmp_path / name).unlink(missing_ok=True)
    assert await stored(tmp_path) == [1, 2, 3]


async def test_the_write_ahead_log_is_emptied_when_there_are_no_changes(tmp_path: Path) -> None:
    with mock.patch("warren.broker.store.definitions.definitions_database._IDLE", 0.01):
        session = Session(tmp_path)
        await session.put(1)
        log = tmp_path / "definitions.db-wal"
        await asyncio.to_thread(wait_until, lambda: log.stat().st_size == 0, "the write-ahead log is empty")
        await session.close()


# Upgrade


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_an_upgrade_that_fails_at_any_call_is_continued(tmp_path: Path, version: str) -> None:
    async def run(path: Path, disk: Disk) -> None:
        """Upgrade the folder; the database is on the real disk, the other files are not."""
        folder = DataFolder.open(path, disk)
        try:
            definitions = Definitions.open(folder, asyncio.get_running_loop())
            try:
                assert definitions.load() == DEFINITIONS
                folder.finish_upgrade()
            finally:
                await definitions.close()
        finally:
            folder.close()

    def copy(name: str) -> tuple[Path, Disk]:
        path, disk = tmp_path / name, Disk()
        shutil.copytree(FROZEN / version, path)
        (path / "streams").mkdir()
        for file in (path / "format", *(path / "log").iterdir()):
            handle = disk.open(str(file))
            disk.write(handle, file.read_bytes(), 0)
            disk.sync(handle)
        disk.sync_folder(str(path))
        return path, disk

    path, disk = copy("whole")
    whole = FaultyDisk(disk)
    await run(path, whole)
    for first in range(1, len(whole.calls) + 1):
        path, disk = copy(str(first))
        failing = FaultyDisk(disk, errno.EIO, first)
        with contextlib.suppress(StoreError):
            await run(path, failing)
        left = failing.cut_power(Random(first))
        await run(path, left)
        assert left.files[str(path / "format")].content.startswith(b"warren data folder\nversion 3\n")
        assert str(path / JOURNAL) in left.files
        shutil.rmtree(path)


async def test_a_database_of_this_version_without_rows_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    session = Session(tmp_path)
    await session.put(1)
    await session.close()
    (tmp_path / JOURNAL).unlink()
    database = sqlite3.connect(tmp_path / "definitions.db")
    for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        database.execute(f"DROP TABLE {name}")
    database.close()
    with pytest.raises(DefinitionsLost, match=r"neither definitions\.db \(it is missing or empty\)"):
        Definitions.open(DataFolder.open(tmp_path), asyncio.get_running_loop())
