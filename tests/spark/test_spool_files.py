"""Files of a spool: every message survives a crash at any moment, at its position."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from warren.pipeline.errors import PipelineError
from warren.pipeline.spool.file_format import HEADER, NO_KEY, SpooledMessage, read_chunks
from warren.pipeline.spool.folder import SpoolFolder
from warren.pipeline.spool.segments import Segments


def entry(number: int, size: int = 10) -> SpooledMessage:
    return SpooledMessage(
        b"%d".ljust(size, b".") % number, number.to_bytes(16) if number else NO_KEY, number % 2 == 0
    )


@contextmanager
def open_segments(
    path: Path, window: int = 1000, segment: int = 1 << 20, queue: str = "q"
) -> Iterator[Segments]:
    folder = SpoolFolder(path, queue, wait=0)
    try:
        segments = Segments(folder, window, segment)
        try:
            yield segments
        finally:
            segments.close()
    finally:
        folder.close()


def content(segments: Segments, start: int, stop: int) -> list[tuple[int, bytes]]:
    """Return position and first message of each chunk in a range."""
    found = []
    for part in segments.file_ranges(start, stop):
        with open(part.path, "rb") as file:
            found += [(chunk.first, chunk.frames) for chunk in read_chunks(file, part.begin, part.end)]
    return [(first, frames) for first, frames in found if first < stop]


def known_numbers(segments: Segments, *numbers: int) -> set[int]:
    """Return which of the messages are known."""
    return {int.from_bytes(key) for key in segments.known_keys([number.to_bytes(16) for number in numbers])}


def write_batches(path: Path, batches: int, segment: int = 1 << 20) -> list[tuple[int, bytes]]:
    with open_segments(path, segment=segment) as segments:
        for number in range(batches):
            segments.append([entry(2 * number + 1), entry(2 * number + 2)])
        return content(segments, 0, 2 * batches)


def test_appended_messages_survive_a_restart(tmp_path: Path) -> None:
    written = write_batches(tmp_path, 5, segment=200)
    assert len(list(tmp_path.glob("*.spool"))) > 1
    with open_segments(tmp_path) as segments:
        assert (segments.first, segments.end) == (0, 10)
        assert content(segments, 0, 10) == written
        assert known_numbers(segments, *range(1, 20)) == set(range(1, 11))
        segments.append([entry(11)])
        assert segments.end == 11


def test_a_truncated_file_loses_only_its_last_chunk(tmp_path: Path) -> None:
    """A kill in the middle of a write truncates the file at any byte; a file system may add zeros."""
    written = write_batches(tmp_path / "whole", 3)
    name = f"{0:020}.spool"
    data = (tmp_path / "whole" / name).read_bytes()
    third = len(data) // 3
    torn = [data[:end] for end in range(2 * third, len(data), 7)]
    torn += [data[: 2 * third] + bytes(zeros) for zeros in (1, 30, 500)]
    torn += [data[:end] + bytes(500) for end in (2 * third + 10, 2 * third + HEADER.size, len(data) - 5)]
    torn.append(data[:-5] + bytes(5))
    for number, left in enumerate(torn):
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", path)
        (path / name).write_bytes(left)
        with open_segments(path) as segments:
            assert segments.end == 4
            assert known_numbers(segments, 4, 5) == {4}
            segments.append([entry(7)])
            assert content(segments, 0, 5)[:2] == written[:2]
        with open_segments(path) as segments:
            assert segments.end == 5
        shutil.rmtree(path)


def test_a_damaged_file_raises_an_error_and_is_not_truncated(tmp_path: Path) -> None:
    """One bit in any byte of a header, also of the newest chunk, or in what follows: no size is trusted."""
    write_batches(tmp_path, 3)
    file = tmp_path / f"{0:020}.spool"
    data = bytearray(file.read_bytes())
    third = len(data) // 3
    places = [*range(HEADER.size), *range(2 * third, 2 * third + HEADER.size)]
    for nearest_mark in (*places, 40, third + 5, 2 * third + 40, len(data) - 1):
        for bit in (1, 128):
            broken = bytearray(data)
            broken[nearest_mark] ^= bit
            file.write_bytes(broken)
            with (
                pytest.raises(PipelineError, match=r"spool is damaged at byte \d+: restore it"),
                open_segments(tmp_path),
            ):
                pass
            assert file.read_bytes() == broken


def test_committed_messages_are_deleted_and_their_keys_kept_for_the_window(tmp_path: Path) -> None:
    """Files of two messages each and a window of six: a lost acknowledgement of one of the last six is harmless."""
    with open_segments(tmp_path, window=6, segment=1) as segments:
        for number in range(1, 21, 2):
            segments.append([entry(number), entry(number + 1)])
            segments.remove_before(number - 1)
        assert segments.first == 18
        with pytest.raises(PipelineError, match="begins at 18: another query has read it"):
            segments.file_ranges(17, 20)
        with pytest.raises(PipelineError, match=r"is at position 21 and the spool .* ends at 20"):
            segments.file_ranges(20, 21)
        remembered = known_numbers(segments, *range(1, 21))
    assert len(remembered) <= 10
    assert set(range(15, 21)) <= remembered
    with open_segments(tmp_path, window=6) as again:
        assert (again.first, again.end) == (18, 20)
        assert known_numbers(again, *range(1, 21)) == remembered
    assert len(list(tmp_path.iterdir())) < 12, "old files go"


def test_a_crash_between_two_files_loses_no_key(tmp_path: Path) -> None:
    """The keys of a full file were written, the next file was not created, and the full one grew."""
    write_batches(tmp_path, 1)
    (tmp_path / f"{0:020}.keys").write_bytes((1).to_bytes(16) + zlib.crc32((1).to_bytes(16)).to_bytes(4))
    with open_segments(tmp_path, segment=1) as segments:
        segments.append([entry(3), entry(4)])
        segments.remove_before(4)
        assert segments.first == 4
    with open_segments(tmp_path) as segments:
        assert known_numbers(segments, 1, 2, 3, 4, 5) == {1, 2, 3, 4}


def test_the_newest_file_is_kept_so_that_positions_continue(tmp_path: Path) -> None:
    write_batches(tmp_path, 2)
    with open_segments(tmp_path) as segments:
        segments.remove_before(4)
    with open_segments(tmp_path) as segments:
        assert segments.end == 4
        assert segments.bytes_from(4) == 0 < segments.bytes_from(0)


def test_a_failed_sync_removes_the_written_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_segments(tmp_path) as segments:
        segments.append([entry(1)])

        def fail(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as failing:
            failing.setattr("os.fdatasync", fail)
            with pytest.raises(PipelineError, match="cannot be used: No space left on device"):
                segments.append([entry(2)])
        assert segments.end == 1
        assert not known_numbers(segments, 2)
        with pytest.raises(PipelineError, match="cannot be used: No space left on device"):
            segments.append([entry(3)])
    with open_segments(tmp_path) as segments:
        assert segments.end == 1
        segments.append([entry(3)])
    with open_segments(tmp_path) as segments:
        assert segments.end == 2
        assert known_numbers(segments, 2, 3) == {3}


def test_nothing_is_appended_after_a_partial_chunk_that_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a failing disk neither the write nor the truncation after it succeeds."""
    with open_segments(tmp_path) as segments:
        segments.append([entry(1)])
        write = os.write

        def half(file: int, data: memoryview) -> int:
            write(file, data[: len(data) // 2])
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def fail(*_: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as failing:
            failing.setattr("os.write", half)
            failing.setattr("os.ftruncate", fail)
            with pytest.raises(PipelineError, match="cannot be used: Input/output error"):
                segments.append([entry(2)])
        with pytest.raises(PipelineError, match="cannot be used: Input/output error"):
            segments.append([entry(3)])
    with open_segments(tmp_path) as segments:
        assert segments.end == 1
        segments.append([entry(2)])
        assert segments.end == 2


@pytest.mark.processes
def test_a_spool_has_one_owner_and_one_queue(tmp_path: Path) -> None:
    with open_segments(tmp_path):
        with pytest.raises(
            PipelineError, match=rf"is used by another query \(process {os.getpid()} on .*\): give"
        ):
            SpoolFolder(tmp_path, "q", wait=0)
        code = f"from warren.pipeline.spool.folder import SpoolFolder; SpoolFolder(Path({str(tmp_path)!r}), 'q', wait=0)"
        ran = subprocess.run(
            [sys.executable, "-c", f"from pathlib import Path\n{code}"], capture_output=True, text=True
        )
        assert f"is used by another query (process {os.getpid()}" in ran.stderr
    with pytest.raises(PipelineError, match="belongs to queue 'q': give each queue a spoolDir of its own"):
        SpoolFolder(tmp_path, "other", wait=0)
    SpoolFolder(tmp_path, "q", wait=0).close()


def test_an_invalid_folder_raises_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(PipelineError, match=r"the spool .*/file/spool cannot be used: File exists"):
        SpoolFolder(tmp_path / "file" / "spool", "q", wait=0)
