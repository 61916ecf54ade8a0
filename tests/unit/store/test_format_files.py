"""The format file and its copy: one of them is enough, damage is found, and upgrades can be killed at any point."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.chaos.fault_injection import WRITES, FaultyDisk
from tests.unit.store.simulated_disk import Disk
from warren.broker.store.data_folder import DataFolder
from warren.broker.store.errors import StoreError
from warren.broker.store.file_system.os_files import OsFiles
from warren.broker.store.format_files import COPY, FORMAT, VERSION, StoredFormat, write_format
from warren.core.errors import ExitStatus

FROZEN = Path(__file__).parent / "frozen"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a complete data folder of the current version."""
    with closing(DataFolder.open(tmp_path)) as made:
        made.finish_upgrade()
    return tmp_path


def refusal(path: Path) -> StoreError:
    with pytest.raises(StoreError) as caught:
        DataFolder.open(path)
    assert "\n" not in str(caught.value)
    assert caught.value.status is ExitStatus.USAGE
    return caught.value


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "doubled": lambda path: path.write_bytes(path.read_bytes() * 2),
    "other": lambda path: path.write_bytes(b"\xff" * 5000),
    "identity": lambda path: flip(path, path.read_bytes().index(b"identity") + 12),
    "version": lambda path: flip(path, path.read_bytes().index(b"version") + 8),
    "checksum": lambda path: flip(path, path.read_bytes().index(b"checksum") + 12),
}


@pytest.mark.parametrize("name", [FORMAT, COPY])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_restored_from_the_other_and_reported(
    folder: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = (folder / name).read_bytes()
    DAMAGE[damage](folder / name)
    with closing(DataFolder.open(folder)) as opened:
        assert opened.stored_version == VERSION
    assert (folder / FORMAT).read_bytes() == (folder / COPY).read_bytes() == before
    (record,) = caplog.records
    assert f"event=data_folder.format_repaired file={name} " in record.getMessage()
    caplog.clear()
    DataFolder.open(folder).close()
    assert not caplog.records


def test_every_flipped_bit_is_found(folder: Path) -> None:
    path = folder / FORMAT
    before = path.read_bytes()
    for position in range(len(before)):
        for bit in range(8):
            data = bytearray(before)
            data[position] ^= 1 << bit
            path.write_bytes(data)
            DataFolder.open(folder).close()
            assert path.read_bytes() == before


@pytest.mark.parametrize("second", DAMAGE)
@pytest.mark.parametrize("first", DAMAGE)
def test_two_damaged_files_are_refused(folder: Path, first: str, second: str) -> None:
    (folder / "log" / "0000000000000001.log").write_bytes(b"records")
    DAMAGE[first](folder / FORMAT)
    DAMAGE[second](folder / COPY)
    left = {path.name for path in folder.iterdir()}
    assert "restore one of them" in str(refusal(folder))
    assert {path.name for path in folder.iterdir()} == left


@pytest.mark.parametrize(
    "name", ["log/0000000000000001.log", "definitions.db", "streams/0000000000000001-0000000000000000.stream"]
)
def test_content_without_a_format_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"content")
    (folder / FORMAT).unlink()
    (folder / COPY).unlink()
    assert "neither `format` nor `format.copy`" in str(refusal(folder))


def test_two_identities_are_refused(folder: Path) -> None:
    write_format(folder, COPY, StoredFormat(VERSION, 1), OsFiles())
    assert "are of different data folders" in str(refusal(folder))


def test_a_newer_version_is_refused(folder: Path) -> None:
    for name in (FORMAT, COPY):
        write_format(folder, name, StoredFormat(VERSION + 1, 1), OsFiles())
    assert (
        f"has format version {VERSION + 1}, but this broker reads versions up to {VERSION}; start it with"
        in str(refusal(folder))
    )


def test_a_new_folder_has_version_0_until_it_is_complete(tmp_path: Path) -> None:
    with closing(DataFolder.open(tmp_path)) as first:
        assert first.stored_version == 0
    with closing(DataFolder.open(tmp_path)) as second:
        assert (second.stored_version, second.identity) == (0, first.identity)
        second.finish_upgrade()
    with closing(DataFolder.open(tmp_path)) as third:
        assert (third.stored_version, third.identity) == (VERSION, first.identity)


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_version_stays_until_the_upgrade_is_finished(tmp_path: Path, version: int) -> None:
    folder = tmp_path / "data"
    shutil.copytree(FROZEN / f"v{version}", folder)
    before = (folder / FORMAT).read_text()
    with closing(DataFolder.open(folder)) as opened:
        assert opened.stored_version == version
        assert (folder / FORMAT).read_text() == before
        opened.finish_upgrade()
    # A broker of the older version must not open it: it would skip the records that it cannot read.
    assert (folder / FORMAT).read_text().startswith("warren data folder\nversion 3\n")
    with closing(DataFolder.open(folder)) as again:
        assert (again.stored_version, again.identity) == (VERSION, opened.identity)


def start_and_finish(folder: Path, disk: Disk) -> DataFolder:
    with closing(DataFolder.open(folder, disk)) as opened:
        opened.finish_upgrade()
    return opened


def on_disk(folder: Path, disk: Disk) -> Disk:
    """Copy the format file of a folder to a simulated disk, synced."""
    if (folder / FORMAT).exists():
        handle = disk.open(str(folder / FORMAT))
        disk.write(handle, (folder / FORMAT).read_bytes(), 0)
        disk.sync(handle)
        disk.sync_folder(str(folder))
    return disk


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_upgrade_that_is_killed_at_any_call_is_continued(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    if version:
        shutil.copytree(FROZEN / f"v{version}", folder)
        (folder / "definitions.db").unlink()
        shutil.rmtree(folder / "log")
    # Made outside of the simulated disk, and only once.
    (folder / "streams").mkdir(parents=True)
    whole = FaultyDisk(on_disk(folder, Disk()))
    identity = start_and_finish(folder, whole).identity if version else None
    if not version:
        start_and_finish(folder, whole)
    assert whole.calls.count("rename") >= 2
    for first in range(1, len(whole.calls) + 1):
        for number in (errno.EIO, errno.ENOSPC):
            if number == errno.ENOSPC and whole.calls[first - 1] not in WRITES:
                continue
            disk = FaultyDisk(on_disk(folder, Disk()), number, first)
            with pytest.raises(StoreError):
                start_and_finish(folder, disk)
            left = disk.kill()
            with closing(DataFolder.open(folder, left)) as opened:
                assert opened.stored_version in (version, VERSION)
                assert identity is None or opened.identity == identity
                opened.finish_upgrade()
            with closing(DataFolder.open(folder, left)) as again:
                assert (again.stored_version, again.identity) == (VERSION, opened.identity)
    assert "format_repaired" not in caplog.text
