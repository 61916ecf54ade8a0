"""Checksums of records: which calls of `zlib.crc32` release the interpreter's lock."""

from __future__ import annotations

import zlib

import pytest

from tests.unit.store.log_run import LogRun
from tests.unit.store.simulated_disk import Disk
from warren.broker.store.log.record_format import CHECK_PART, MOST_LOCKED, checksum

RELEASING = 5 * 1024
"""Bytes above which `zlib.crc32` releases the interpreter's lock."""
SIZES = [0, 1, CHECK_PART - 1, CHECK_PART, CHECK_PART + 1, 3 * CHECK_PART, MOST_LOCKED, MOST_LOCKED + 1]


@pytest.mark.parametrize("size", SIZES)
def test_a_checksum_is_the_crc_of_all_bytes(size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    assert checksum(data) == zlib.crc32(data)
    assert checksum(data, 12345) == zlib.crc32(data, 12345)


@pytest.mark.parametrize("kind", ["bundle", "message", "group", "fan-out"])
def test_appending_a_record_does_not_release_the_interpreters_lock_for_microseconds(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The log's writer thread, which waits for the lock, could not take it, and its wait would begin anew."""
    run = LogRun(Disk(), (1, 2), block=65536, segment_size=1 << 20)
    sizes: list[int] = []
    crc32 = zlib.crc32

    def noted(data: bytes, start: int = 0) -> int:
        sizes.append(len(data))
        return crc32(data, start)

    with monkeypatch.context() as patched:
        patched.setattr(zlib, "crc32", noted)
        if kind == "group":
            run.log.begin_group()
        for number in range(1, 41):
            if kind == "fan-out":
                run.log.fan_out([(run.queue(1), number), (run.queue(2), number)], b"head", bytes(8000))
            else:
                run.log.append_message(
                    run.queue(1), number, b"head", bytes(8000 if kind == "message" else 400)
                )
        if kind == "group":
            run.log.end_group()
        run.log.close_batch()
    assert sum(sizes) >= 40 * 400, "no payload was checked"
    assert [size for size in sizes if RELEASING < size <= MOST_LOCKED] == []
    after = LogRun(run.close(), (1, 2), block=65536)
    assert len(after.messages(1)) == 40
    after.close()
