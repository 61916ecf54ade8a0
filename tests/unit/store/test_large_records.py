"""Large records: not copied and not checked on the event loop, written in a batch of their own, indexed in parts."""

from __future__ import annotations

import struct
import threading
import zlib

import pytest

from tests.unit.store.log_run import LogRun
from tests.unit.store.simulated_disk import Disk
from warren.broker.store.index.index_job import IndexJob
from warren.broker.store.index.index_store import IndexStore
from warren.broker.store.log.record_format import (
    BLOCK,
    BLOCK_HEADER,
    FIRST_TRANSIENT_INCARNATION,
    HEADER,
    LARGE_RECORD,
)
from warren.broker.store.log.segment_reader import BEGINNING, PART, Damage

LARGE = bytes(range(256)) * (LARGE_RECORD // 256)
LONG = bytes(range(251)) * (3 * PART // 251)
"""Content of a message that is indexed in several parts."""


def run_of(disk: Disk, segment_size: int = 1 << 26, known: tuple[int, ...] = (1, 2)) -> LogRun:
    return LogRun(disk, known, block=BLOCK, segment_size=segment_size, describe=describe, preallocate=0)


def describe(payload: bytes) -> tuple[int, int, int]:
    """Return priority, expiry and body size, which a message of these tests begins with."""
    return struct.unpack_from("<HQI", payload)


def encoded(priority: int, expires: int, content: bytes) -> bytes:
    return struct.pack("<HQI", priority, expires, len(content)) + content


@pytest.mark.parametrize("kind", ["message", "fan-out"])
def test_the_writer_thread_checks_a_large_record(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    run = run_of(Disk())
    threads: list[int] = []
    crc32 = zlib.crc32

    def noted(data: bytes, start: int = 0) -> int:
        if len(data) >= LARGE_RECORD:
            threads.append(threading.get_ident())
        return crc32(data, start)

    content = encoded(1, 0, LARGE)
    with monkeypatch.context() as patched:
        patched.setattr(zlib, "crc32", noted)
        if kind == "message":
            run.log.append_message(run.queue(1), 1, b"", content)
        else:
            run.log.fan_out([(run.queue(1), 1), (run.queue(2), 1)], b"", content)
        run.sync()
    assert threads
    assert threading.get_ident() not in threads
    after = run_of(run.kill())
    assert after.recovery.damage == []
    assert after.messages(1) == {1: content}
    assert after.messages(2) == ({} if kind == "message" else {1: content})
    after.close()


@pytest.mark.parametrize("left", [0, 1, HEADER - 5, HEADER - 4, HEADER - 1, HEADER])
def test_the_header_of_a_large_record_may_cross_the_end_of_a_block(left: int) -> None:
    run = run_of(Disk())
    before = bytes(BLOCK - BLOCK_HEADER - HEADER - left)
    large = encoded(0, 0, LARGE)
    run.log.append_message(run.queue(), 1, b"", encoded(0, 0, before)[: len(before)])
    run.log.append_message(run.queue(), 2, b"", large)
    run.log.append_message(run.queue(), 3, b"", encoded(0, 0, b"behind it"))
    after = run_of(run.kill_synced())
    assert after.recovery.damage == []
    found = after.messages()
    assert found[2] == large
    assert sorted(found) == [1, 2, 3]
    after.close()


def test_records_before_a_large_one_do_not_wait_for_it() -> None:
    run = run_of(Disk())
    run.log.append_message(run.queue(), 1, b"", encoded(0, 0, b"small"))
    first = run.log.batch
    run.log.append_message(run.queue(), 2, b"", encoded(0, 0, LARGE))
    assert run.log.batch == first + 1
    run.log.append_message(run.queue(), 3, b"", encoded(0, 0, b"small"))
    run.sync()
    assert run.synced[0] == first
    run.close()


def test_a_large_spilled_message_is_read_back() -> None:
    run = run_of(Disk())
    queue = run.queue(FIRST_TRANSIENT_INCARNATION + 1)
    content = encoded(0, 0, LARGE)
    position = run.log.spill(queue, 1, b"", content)
    run.run_until(lambda: run.log.written_position > position)
    assert run.log.lookup.payloads(queue, [(1, int(position))]) == [content]
    run.close()


def long_segment() -> tuple[Disk, int]:
    """Write a segment with long records of each kind between short ones; return the disk and the data folder's number."""
    run = run_of(Disk())
    run.log.append_message(run.queue(1), 1, b"", encoded(1, 10, b"short"))
    run.log.append_message(run.queue(1), 2, b"", encoded(2, 20, LONG))
    run.log.fan_out([(run.queue(1), 3), (run.queue(2), 1)], b"", encoded(3, 30, LONG))
    run.log.spill(run.queue(FIRST_TRANSIENT_INCARNATION + 1), 1, b"", encoded(4, 40, LONG))
    run.log.append_message(run.queue(1), 4, b"", encoded(5, 50, b"short"))
    identity = run.recovery.identity
    return run.kill_synced(), identity


def entries(store: IndexStore, *, whole: bool) -> tuple[bytes | None, list[str]]:
    """Return the entries of the segment's index and the damage that was found; by `next`, which reads whole records."""
    reader, builder = store.reader(1), store.builder(1)
    if whole:
        while (record := reader.next()) is not None:
            builder.add(record)
        return builder.finish(1).entries, [each.text for each in reader.damage]
    job = IndexJob(store, 1, None)
    steps = 0
    while job.index is None:
        job.run_slice()
        steps += 1
    assert steps > 3 * len(LONG) // PART, "it reads no more than a part in one step"
    return job.index.entries, [each.text for each in job.damage]


def test_the_index_of_long_records_is_that_of_whole_ones() -> None:
    disk, identity = long_segment()
    store = IndexStore("/disk/log", disk, identity, BLOCK, describe)
    found = entries(store, whole=False)
    assert found == entries(store, whole=True)
    assert found[0]
    assert found[1] == []


@pytest.mark.parametrize("where", ["beginning", "middle", "end"])
def test_damage_in_a_long_record_is_found(where: str) -> None:
    disk, identity = long_segment()
    content = disk.segment(1).content
    start = content.index(encoded(2, 20, LONG)[:BEGINNING])
    content[start + {"beginning": 100, "middle": len(LONG) // 2, "end": len(LONG) - 100}[where]] ^= 1
    store = IndexStore("/disk/log", disk, identity, BLOCK, describe)
    found = entries(store, whole=False)
    assert found == entries(store, whole=True)
    assert len(found[1]) == 1
    assert "message 2 of queue 1 is damaged" in found[1][0]


@pytest.mark.parametrize("rest", [1, HEADER, PART - 1, PART, PART + 1])
def test_a_long_record_that_is_cut_short_is_found(rest: int) -> None:
    disk, identity = long_segment()
    content = disk.segment(1).content
    start = content.index(encoded(2, 20, LONG)[:BEGINNING])
    del content[start + rest :]
    store = IndexStore("/disk/log", disk, identity, BLOCK, describe)
    reader = store.reader(1)
    damage: list[Damage] = []
    store.build(1, damage)
    found = [each.text for each in damage]
    while reader.next() is not None:
        pass
    assert found == [each.text for each in reader.damage]
    assert "message 2 of queue 1 is cut short" in found[0]
