"""The judge of the damage matrix finds every planted loss; the table of files and the damages are what they claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.faults.damage.expected_state import ExpectedQueue, ExpectedState, QueueMessage, make_body, token_of
from tests.faults.damage.file_damage import DamageKind, Place, damage
from tests.faults.damage.folder_files import KINDS, UnknownFileError, check_kinds
from tests.faults.damage.judge import Outcome, Start, Verdict, judge
from tests.faults.damage.observed_state import UNREADABLE, ObservedState

SEGMENT = "log/0000000000000002.log"
STREAM = "streams/0000000000000007-0000000000000002.stream"
REPORT = (
    "2026-11-23 10:00:00,000 ERROR warren.broker.broker event=store.damage_found "
    "detail='segment 2, offset 8: 100 bytes are not a record'\n"
)
STREAM_REPORT = REPORT.replace("segment 2, offset 8", "stream 7, segment 2, offset 36")
DEFINITION = 'policies {"name": "limit"}'


def expected_state() -> ExpectedState:
    """Return two messages of run 1, two of run 2, one of them delivered before, and a settled one; a stream of four."""
    messages = [QueueMessage("1"), QueueMessage("2"), QueueMessage("3", redelivered=True), QueueMessage("4")]
    return ExpectedState(
        queues={"orders": ExpectedQueue(messages, {"0"})},
        streams={"events": {offset: f"e{offset}" for offset in range(4)}},
        next_offsets={"events": 4},
        positions={("events", "reader"): 2},
        definitions={DEFINITION},
        logins={"alice": "secret"},
        runs={"log/0000000000000001.log": 1, SEGMENT: 2},
        published={"orders 1": 1, "orders 2": 1, "orders 3": 2, "orders 4": 2},
        settled={"orders 0": 2, "orders 3": 2},
    )


def observed_state() -> ObservedState:
    expected = expected_state()
    return ObservedState(
        queues={"orders": [*expected.queues["orders"].messages, QueueMessage("orders/first")]},
        streams={"events": [*expected.streams["events"].items(), (4, "events/first")]},
        positions={("events", "reader"): 2},
        definitions={DEFINITION},
        logins={"alice": True},
    )


ADDED = ObservedState(
    queues={"orders": [QueueMessage("orders/first")]}, streams={"events": [(-1, "events/first")]}
)


def second_state(first: ObservedState) -> ObservedState:
    """Return what a second start finds that loses nothing."""
    queues = {
        name: None if messages is None else [replace(message, redelivered=True) for message in messages]
        for name, messages in first.queues.items()
    }
    return replace(
        first, queues=queues, streams=dict(first.streams), logins=dict(first.logins), miscounted={}
    )


def verdict(
    plant: Callable[[ObservedState], None],
    errors: str = "",
    path: str = SEGMENT,
    *,
    later: Callable[[ObservedState], None] = lambda found: None,
    later_errors: str = "",
) -> Verdict:
    """Judge two starts: `plant` changes what the first one finds, `later` what only the second one finds."""
    first = observed_state()
    plant(first)
    second = second_state(first)
    later(second)
    return judge(
        path,
        expected_state(),
        Start(True, 0, errors, first, ADDED),
        Start(True, 0, later_errors, second),
        [],
    )


def queue_of(found: ObservedState) -> list[QueueMessage]:
    messages = found.queues["orders"]
    assert messages is not None
    return messages


def remove(*tokens: str) -> Callable[[ObservedState], None]:
    def plant(found: ObservedState) -> None:
        found.queues["orders"] = [message for message in queue_of(found) if message.token not in tokens]

    return plant


def insert(message: QueueMessage) -> Callable[[ObservedState], None]:
    return lambda found: queue_of(found).insert(0, message)


def unmark(found: ObservedState) -> None:
    found.queues["orders"] = [replace(message, redelivered=False) for message in queue_of(found)]


def reorder(found: ObservedState) -> None:
    queue_of(found).reverse()


def delete_queue(found: ObservedState) -> None:
    found.queues["orders"] = None


def miscount(found: ObservedState) -> None:
    found.miscounted["orders"] = "4 ready, 5 read, 0 left"


def change_stream(*items: tuple[int, str]) -> Callable[[ObservedState], None]:
    def plant(found: ObservedState) -> None:
        found.streams["events"] = list(items)

    return plant


def move_position(found: ObservedState) -> None:
    found.positions["events", "reader"] = 0


def forget_policy(found: ObservedState) -> None:
    found.definitions = set()


def lock_out(found: ObservedState) -> None:
    found.logins["alice"] = False


def nothing(found: ObservedState) -> None:
    """Plant no fault."""


def test_an_intact_folder_is_recovered() -> None:
    assert verdict(nothing).outcome is Outcome.RECOVERED
    assert verdict(nothing, REPORT).outcome is Outcome.RECOVERED


def shorten_stream(found: ObservedState) -> None:
    found.streams["events"] = [(0, "e0"), (1, "e1"), (4, "events/first")]
    found.positions["events", "reader"] = 4


LOSSES: list[tuple[Callable[[ObservedState], None], str, str]] = [
    (remove("3"), SEGMENT, REPORT),
    (remove("3", "4"), SEGMENT, REPORT.replace("segment 2,", "segments 1 to 3 are missing,")),
    (insert(QueueMessage("0")), SEGMENT, REPORT),
    (unmark, SEGMENT, REPORT),
    (miscount, SEGMENT, REPORT),
    (shorten_stream, STREAM, STREAM_REPORT),
    (move_position, STREAM, STREAM_REPORT),
    (delete_queue, "definitions.db", REPORT.replace("segment 2, offset 8", "the definitions")),
    (forget_policy, "definitions.db", REPORT.replace("segment 2, offset 8", "the definitions")),
    (lock_out, "definitions.db", REPORT.replace("segment 2, offset 8", "user alice")),
]


@pytest.mark.parametrize(("plant", "path", "report"), LOSSES)
def test_a_loss_is_silent_unless_a_line_names_the_file_or_the_owner(
    plant: Callable[[ObservedState], None], path: str, report: str
) -> None:
    assert verdict(plant, "", path).outcome is Outcome.SILENT
    assert (
        verdict(
            plant,
            report.replace("segment 2,", "segment 1,")
            .replace("definitions", "disk")
            .replace("alice", "bob")
            .replace("1 to 3", "4 to 5"),
            path,
        ).outcome
        is Outcome.SILENT
    )
    assert verdict(plant, report.replace("ERROR", "INFO"), path).outcome is Outcome.SILENT
    assert verdict(plant, report, path).outcome is Outcome.REPORTED


@pytest.mark.parametrize(
    "plant",
    [remove("1"), remove("1", "3"), remove("orders/first"), forget_policy, move_position, shorten_stream],
)
def test_a_reported_loss_of_what_the_file_did_not_hold_is_collateral(
    plant: Callable[[ObservedState], None],
) -> None:
    named = REPORT + REPORT.replace("segment 2", "queue orders, stream events, policy limit")
    assert verdict(plant, named).outcome is Outcome.COLLATERAL


@pytest.mark.parametrize(
    "plant",
    [
        insert(QueueMessage(UNREADABLE)),
        insert(QueueMessage("another")),
        reorder,
        change_stream((0, "e0"), (1, "e1"), (2, "events/first")),
        change_stream((0, "e0"), (1, "e1"), (2, "e2"), (3, UNREADABLE), (4, "events/first")),
    ],
)
def test_no_report_excuses_wrong_data(plant: Callable[[ObservedState], None]) -> None:
    named = REPORT + STREAM_REPORT + REPORT.replace("segment 2", "queue orders, stream events")
    assert verdict(plant, named).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    "later", [remove("4"), remove("orders/first"), delete_queue, forget_policy, unmark, lock_out]
)
def test_a_loss_at_the_second_start_is_a_second_loss(later: Callable[[ObservedState], None]) -> None:
    assert verdict(nothing, later=later).outcome is Outcome.SECOND_LOSS
    assert verdict(remove("3"), REPORT, later=later, later_errors=REPORT).outcome is Outcome.SECOND_LOSS


def test_a_second_start_may_repeat_a_report_but_not_add_one() -> None:
    assert verdict(remove("3"), REPORT, later_errors=REPORT).outcome is Outcome.REPORTED
    other = REPORT.replace("offset 8", "offset 9")
    assert verdict(remove("3"), REPORT, later_errors=other).outcome is Outcome.SECOND_LOSS


LINE = "warren broker: the definitions in data are damaged; restore them\n"


@pytest.mark.parametrize(
    ("status", "errors", "changed", "outcome"),
    [
        (2, LINE, [], Outcome.REFUSED),
        (2, REPORT + LINE, [], Outcome.REFUSED),
        (2, LINE, ["definitions.db"], Outcome.SECOND_LOSS),
        (2, LINE + LINE, [], Outcome.UNCLEAR),
        (2, "", [], Outcome.UNCLEAR),
        (0, LINE, [], Outcome.UNCLEAR),
        (-9, LINE, [], Outcome.UNCLEAR),
        (None, LINE, [], Outcome.UNCLEAR),
        (1, "Traceback (most recent call last):\n", [], Outcome.TRACEBACK),
    ],
)
def test_a_refusal_is_one_line_with_a_status_and_changes_nothing(
    status: int | None, errors: str, changed: list[str], outcome: Outcome
) -> None:
    assert judge(SEGMENT, expected_state(), Start(False, status, errors), None, changed).outcome is outcome


def test_a_broker_that_fails_after_its_start_is_unclear() -> None:
    start = Start(True, 0, "", None, failure="ConnectionError")
    assert judge(SEGMENT, expected_state(), start, None, []).outcome is Outcome.UNCLEAR
    assert verdict(nothing, "Traceback (most recent call last):\n").outcome is Outcome.TRACEBACK


def test_every_byte_of_a_body_is_checked() -> None:
    body = make_body("orders/1", 100)
    assert token_of(body) == "orders/1"
    for at in range(len(body)):
        assert token_of(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]) is None


@pytest.mark.parametrize("size", [8, 55, 1000, 20_000, 200_000])
@pytest.mark.parametrize("place", Place)
@pytest.mark.parametrize("kind", DamageKind)
def test_each_damage_changes_one_file_at_its_place(
    tmp_path: Path, kind: DamageKind, place: Place, size: int
) -> None:
    before = Random(size).randbytes(size - 1) + b"\1" + bytes(500)
    for seed in range(20 if size < 10_000 else 3):
        (tmp_path / "file").write_bytes(before)
        done = damage(tmp_path, "file", kind, place, Random(seed))
        assert done is not None
        if kind is DamageKind.MISSING:
            assert not list(tmp_path.iterdir())
            continue
        after = (tmp_path / "file").read_bytes()
        assert after.rstrip(b"\0") != before.rstrip(b"\0")
        changed = next(
            (at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(after)
        )
        assert changed < size or kind is DamageKind.DUPLICATED_BLOCK
        if kind in (DamageKind.FLIPPED_BIT, DamageKind.TRUNCATED) and place is Place.HEADER:
            assert changed < 64
        if kind is DamageKind.FLIPPED_BIT:
            assert sum(old != new for old, new in zip(before, after, strict=True)) == 1
            assert place is not Place.LAST_RECORD or changed >= size - 24


def test_a_file_of_no_kind_and_a_kind_without_a_file_are_errors(tmp_path: Path) -> None:
    (tmp_path / "surprise").touch()
    with pytest.raises(UnknownFileError, match="files of no kind: surprise"):
        check_kinds(tmp_path)
    (tmp_path / "surprise").unlink()
    with pytest.raises(UnknownFileError, match=r"kinds without a file: definitions\.db, "):
        check_kinds(tmp_path)


def test_a_position_in_the_table_picks_a_file(tmp_path: Path) -> None:
    for path in [f"log/{number:016}.log" for number in (1, 2, 3)] + [
        f"streams/{stream:016x}-{first:016x}.stream" for stream, first in ((7, 0), (7, 10), (7, 20), (8, 0))
    ]:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    picked = {kind.name: kind.pick(tmp_path, Random(1)) for kind in KINDS if " " in kind.name}
    assert picked == {
        "oldest log segment": "log/0000000000000001.log",
        "middle log segment": "log/0000000000000002.log",
        "last log segment": "log/0000000000000003.log",
        "log index": None,
        "oldest stream segment": "streams/0000000000000007-0000000000000000.stream",
        "middle stream segment": "streams/0000000000000007-000000000000000a.stream",
        "last stream segment": "streams/0000000000000007-0000000000000014.stream",
        "only stream segment": "streams/0000000000000008-0000000000000000.stream",
    }


@pytest.mark.parametrize(
    "event", ["broker.loop_stalled ms=173", "broker.loop_blocked ms=5000", "store.sync_delayed seconds=12.0"]
)
def test_a_slow_machine_is_no_report_of_damage(event: str) -> None:
    line = f"2026-11-23 10:00:00,000 WARNING warren.broker.stall_monitor event={event}\n"
    assert verdict(nothing, later_errors=line).outcome is Outcome.RECOVERED
