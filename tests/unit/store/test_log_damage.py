"""Recovery of a log with torn tails, flipped bits, truncated or missing segments."""

from __future__ import annotations

import re
from random import Random

import pytest

from tests.support.tiers import cases
from tests.unit.store.log_run import LogRun
from tests.unit.store.simulated_disk import Disk, FileState
from warren.broker.store.log.record_format import MESSAGE, encode_record, segment_seed

SMALL = 256
PAYLOADS = {queue: {number: b"%d:%d:" % (queue, number) * 6 for number in range(1, 9)} for queue in (1, 2)}


def written(block: int = SMALL) -> Disk:
    """Return a disk with eight messages each of two queues, alternating, in one segment; 3 and 6 of queue 1 acknowledged."""
    run = LogRun(Disk(), (1, 2), block=block, segment_size=1 << 20)
    for number in range(1, 9):
        for queue in (1, 2):
            payload = PAYLOADS[queue][number]
            run.log.append_message(run.queue(queue), number, payload[:5], payload[5:])
    for number in (3, 6):
        run.log.acknowledge(run.queue(1), number)
    run.sync()
    return run.kill()


def content(disk: Disk, number: int = 1) -> bytes:
    return bytes(disk.segment(number).content)


def with_content(disk: Disk, data: bytes, number: int = 1) -> Disk:
    copy = disk.kill()
    copy.files[f"/disk/log/{number:016d}.log"] = FileState(bytearray(data), bytearray(data))
    disk.is_dead = False
    return copy


def recovered(disk: Disk, block: int = SMALL) -> tuple[dict[int, dict[int, bytes]], list[str]]:
    run = LogRun(disk, (1, 2), block=block, segment_size=1 << 20)
    found = {queue: run.messages(queue) for queue in (1, 2)}
    run.kill()
    return found, run.recovery.damage


LIVE = {1: {n: p for n, p in PAYLOADS[1].items() if n not in (3, 6)}, 2: PAYLOADS[2]}


@pytest.mark.parametrize("block", [64, SMALL, 65536])
def test_an_intact_log_returns_the_live_messages(block: int) -> None:
    assert recovered(written(block), block) == (LIVE, [])


def test_a_tail_torn_at_any_byte_is_cut_off_without_loss_before_it() -> None:
    run = LogRun(Disk(), (1, 2), segment_size=1 << 20)
    for number in range(1, 5):
        run.log.append_message(run.queue(1), number, b"", PAYLOADS[1][number])
    run.sync()
    firm = len(run.disk.segment(1).content)
    run.log.append_message(run.queue(1), 5, b"", b"the last write" * 30)
    run.log.append_message(run.queue(2), 1, b"", b"and another")
    run.log.begin_group()
    run.log.acknowledge(run.queue(1), 1)
    run.log.append_message(run.queue(2), 2, b"", b"a dead letter")
    run.log.end_group()
    run.sync()
    disk = run.kill().forget_marks()
    whole = content(disk)
    for size in cases(range(firm, len(whole) + 1)):
        after = LogRun(with_content(disk, whole[:size]), (1, 2), segment_size=1 << 20)
        assert after.recovery.damage == []
        first, second = after.messages(1), after.messages(2)
        assert {number: first.get(number) for number in (2, 3, 4)} == {n: PAYLOADS[1][n] for n in (2, 3, 4)}
        assert (1 in first) is (2 not in second), "a group counts whole or not at all"
        assert set(second) <= {1, 2}
        # The log continues behind the cut.
        after.log.append_message(after.queue(2), 100, b"", b"new")
        after.sync()
        again = LogRun(after.kill(), (1, 2), segment_size=1 << 20)
        assert again.recovery.damage == []
        assert again.messages(2) == {**second, 100: b"new"}
        assert again.messages(1) == first


def test_a_tail_of_zeros_or_random_bytes_is_cut_off() -> None:
    disk = written()
    for tail in (bytes(1000), Random(1).randbytes(1000)):
        assert recovered(with_content(disk, content(disk) + tail)) == (LIVE, [])


@pytest.mark.parametrize("block", [64, SMALL, 65536])
def test_a_flipped_bit_loses_at_most_its_record_and_is_reported(block: int) -> None:
    disk = written(block)
    whole = content(disk)
    hit: set[tuple[int, int]] = set()
    for at in cases(range(len(whole))):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        found, damage = recovered(with_content(disk, bytes(flipped)), block)
        lost = {(q, n) for q in LIVE for n in LIVE[q]} - {(q, n) for q in found for n in found[q]}
        back = {(q, n) for q in found for n in found[q]} - {(q, n) for q in LIVE for n in LIVE[q]}
        assert len(lost) <= 1
        assert back in (set(), {(1, 3), (1, 6)}), "only a damaged acknowledgement brings messages back"
        assert not (lost and back)
        assert all(found[q][n] == PAYLOADS[q][n] for q in found for n in found[q])
        if lost:
            hit |= lost
            assert len(damage) == 1
            assert re.match(
                r"segment 1, offset \d+: (message \d+ of queue \d is damaged|\d+ bytes are not a record)",
                damage[0],
            )
        assert len(damage) <= 1
    assert hit == {(q, n) for q in LIVE for n in LIVE[q]}


def test_a_damaged_payload_is_reported_with_queue_and_sequence() -> None:
    disk = written(65536)
    whole = bytearray(content(disk))
    position = whole.index(PAYLOADS[2][4])
    whole[position] ^= 1
    found, damage = recovered(with_content(disk, bytes(whole)), 65536)
    assert damage == [f"segment 1, offset {position - 29}: message 4 of queue 2 is damaged"]
    assert found == {1: LIVE[1], 2: {n: p for n, p in LIVE[2].items() if n != 4}}


def test_reading_continues_behind_a_hole_of_several_blocks() -> None:
    disk = written(64)
    whole = content(disk)
    found, damage = recovered(with_content(disk, whole[:200] + bytes(300) + whole[500:]), 64)
    assert damage
    assert all(found[q][n] == PAYLOADS[q][n] for q in found for n in found[q])
    assert 8 in found[1]
    assert 8 in found[2]


def three_segments() -> Disk:
    run = LogRun(Disk(), (1, 2), segment_size=600, slack=1 << 20)
    for number in range(1, 25):
        run.log.append_message(run.queue(1 + number % 2), number, b"", b"%d" % number * 30)
    run.sync()
    disk = run.kill()
    assert len(disk.segments()) >= 3
    return disk


def numbers(run: LogRun) -> set[int]:
    return set(run.messages(1)) | set(run.messages(2))


def test_a_missing_segment_is_reported() -> None:
    disk = three_segments()
    gone = disk.segments()[1]
    del disk.files[f"/disk/log/{gone:016d}.log"]
    run = LogRun(disk, (1, 2))
    (line,) = run.recovery.damage
    assert re.fullmatch(
        rf"segment {gone} is missing: it was \d+ bytes long; messages that it acknowledged come back", line
    )
    assert {1, 24} <= numbers(run)
    assert run.messages(1)[24] == b"24" * 30


def test_the_index_of_a_missing_segment_tells_what_is_lost() -> None:
    # This start has indexed the segments.
    disk = LogRun(three_segments(), (1, 2), slack=1 << 20).kill()
    gone = disk.segments()[1]
    held = {1: set[int](), 2: set[int]()}
    for queue in held:
        held[queue] = set(LogRun(disk.kill(), (1, 2)).messages(queue))
    disk.is_dead = False
    size = len(disk.segment(gone).content)
    del disk.files[f"/disk/log/{gone:016d}.log"]
    run = LogRun(disk, (1, 2))
    lost = {queue: sorted(held[queue] - set(run.messages(queue))) for queue in held}
    assert all(len(numbers) == 3 for numbers in lost.values())
    texts = [f"messages {a}, {b} and {c} of queue {queue}" for queue, (a, b, c) in lost.items()]
    assert run.recovery.damage == [
        f"segment {gone} is missing: it was {size} bytes long; lost: {texts[0]}; {texts[1]}"
    ]


def test_gaps_between_segments_are_reported_without_a_manifest() -> None:
    disk = LogRun(three_segments(), (1, 2), slack=1 << 20).kill()
    first, *middle, last = disk.segments()
    for number in middle:
        del disk.files[f"/disk/log/{number:016d}.log"]
    stray = 9_999_999_999_999_999
    disk.files[f"/disk/log/{stray}.log"] = FileState()
    del disk.files["/disk/manifest"]
    run = LogRun(disk, (1, 2))
    assert run.recovery.damage == [
        "the manifest is missing: it is written again from the segments that exist",
        f"segments {first + 1} to {last - 1} are missing",
        f"segments {last + 1} to {stray - 1} are missing",
    ]


def test_a_missing_last_segment_is_reported_after_a_clean_stop() -> None:
    disk = three_segments()
    disk = LogRun(disk, (1, 2)).close()
    last = disk.segments()[-1]
    del disk.files[f"/disk/log/{last:016d}.log"]
    run = LogRun(disk, (1, 2))
    (line,) = run.recovery.damage
    assert re.fullmatch(
        rf"segment {last} is missing: it was \d+ bytes long; lost: messages 22 and 24 of queue 1; message 23 of queue 2",
        line,
    )


def test_a_truncated_segment_is_reported() -> None:
    disk = three_segments()
    number = disk.segments()[1]
    file = disk.segment(number)
    del file.content[len(file.content) - 40 :]
    run = LogRun(disk, (1, 2))
    (line,) = run.recovery.damage
    assert re.match(rf"segment {number}, offset \d+: message \d+ of queue \d is cut short", line)
    assert len(numbers(run)) == 23


def test_an_empty_segment_file_does_not_prevent_recovery() -> None:
    disk = three_segments()
    disk.segment(disk.segments()[1]).content.clear()
    run = LogRun(disk, (1, 2))
    assert {1, 24} <= numbers(run)


def test_damage_in_the_last_segment_after_a_clean_stop_is_no_torn_tail() -> None:
    run = LogRun(Disk(), (1, 2), segment_size=1 << 20)
    run.log.append_message(run.queue(1), 1, b"fir", b"st")
    run.log.append_message(run.queue(1), 2, b"sec", b"ond")
    disk = run.close()
    disk.segment(1).content[-1] ^= 1
    after = LogRun(disk, (1, 2), segment_size=1 << 20)
    assert after.recovery.clean
    assert len(after.recovery.damage) == 1
    assert "message 2 of queue 1 is damaged" in after.recovery.damage[0]
    # Nothing is appended behind a position that cannot be read.
    after.log.append_message(after.queue(1), 3, b"", b"third")
    disk = after.close()
    assert disk.segments() == [1, 2]
    assert LogRun(disk, (1, 2)).messages(1) == {1: b"first", 3: b"third"}


def test_a_last_segment_that_shrank_after_a_clean_stop_is_reported() -> None:
    run = LogRun(Disk(), (1,), segment_size=1 << 20)
    for number in (1, 2):
        run.log.append_message(run.queue(1), number, b"%d" % number, b"x" * 19)
    disk = run.close()
    size = len(content(disk))
    del disk.segment(1).content[size - 49 :]
    after = LogRun(disk, (1,))
    assert after.recovery.damage == [f"segment 1 was {size} bytes long and is {size - 49} now"]
    assert set(after.messages(1)) == {1}


def test_records_of_another_data_folder_are_rejected() -> None:
    disk = written()
    other = with_content(Disk(), content(disk), number=2)
    found, damage = recovered(other)
    assert found == {1: {}, 2: {}}
    assert damage == ["the manifest is missing: it is written again from the segments that exist"]


def test_a_body_with_forged_records_is_not_read_as_records() -> None:
    forged = b"".join(
        encode_record(MESSAGE, 2, number, b"forged", segment_seed(12345, 1)) for number in range(1, 4)
    )
    run = LogRun(Disk(), (1, 2), block=65536, segment_size=1 << 20)
    run.log.append_message(run.queue(1), 1, b"be", b"fore")
    run.log.append_message(run.queue(1), 2, b"", forged)
    run.log.append_message(run.queue(1), 3, b"be", b"hind")
    run.sync()
    disk = run.kill()
    whole = bytearray(content(disk))
    whole[8 + 29 + 6 + 1] ^= 0xFF  # the length in the header of message 2
    found, damage = recovered(with_content(disk, bytes(whole)), 65536)
    assert found == {1: {1: b"before", 3: b"behind"}, 2: {}}
    assert len(damage) == 1
