"""Checker of a stream's reads: faults are found, and none where there is none."""

from __future__ import annotations

import pytest

from tests.faults.chaos.checker import FaultKind
from tests.faults.chaos.history import EventType
from tests.faults.chaos.history_builder import HistoryBuilder


def streamed(history: HistoryBuilder, *found: str, last: tuple[str, ...]) -> list[FaultKind]:
    """Confirm 1 and 2, send 3, crash; return the faults if `found` was read before and `last` by the whole reader after."""
    history.publish_confirmed("1", "2", to=("stream",))
    history.publish("3", to=("stream",))
    for offset, message in enumerate(found):
        history.add(EventType.READ, "r", f"p:{message}", "stream", offset=offset)
    history.kill()
    history.add(EventType.DRAIN_STARTED, "all", "", "stream")
    for offset, message in enumerate(last):
        history.add(EventType.READ, "all", f"p:{message}", "stream", offset=offset)
    history.add(EventType.DRAINED, "d")
    return history.kinds()


@pytest.mark.parametrize("last", [("1", "2"), ("1", "2", "3")])
def test_confirmed_messages_of_a_stream_are_kept(history: HistoryBuilder, last: tuple[str, ...]) -> None:
    assert streamed(history, "1", last=last) == []


@pytest.mark.parametrize(
    ("found", "last", "fault"),
    [
        ((), ("1",), FaultKind.LOST),
        (("1", "2", "3"), ("1", "2"), FaultKind.LOST),
        ((), ("1", "2", "2"), FaultKind.DUPLICATED),
        ((), ("2", "1"), FaultKind.OUT_OF_ORDER),
        (("1", "3"), ("1", "2"), FaultKind.DUPLICATED),
        ((), ("1", "2", "9"), FaultKind.UNKNOWN),
    ],
)
def test_faults_of_a_stream_are_found(
    history: HistoryBuilder, found: tuple[str, ...], last: tuple[str, ...], fault: FaultKind
) -> None:
    assert fault in streamed(history, *found, last=last)


def test_a_gap_in_the_offsets_is_found(history: HistoryBuilder) -> None:
    history.publish_confirmed("1", "2", to=("stream",))
    history.add(EventType.DRAIN_STARTED, "all", "", "stream")
    for offset in (0, 2):
        history.add(EventType.READ, "all", f"p:{1 + offset // 2}", "stream", offset=offset)
    history.add(EventType.DRAINED, "d")
    assert history.kinds() == [FaultKind.OUT_OF_ORDER]


@pytest.mark.parametrize("read_before", [False, True])
def test_a_crash_may_leave_a_gap_but_not_where_a_message_was(
    history: HistoryBuilder, read_before: bool
) -> None:
    history.publish_confirmed("1", to=("stream",))
    history.publish("2", "3", to=("stream",))
    if read_before:
        for offset in range(2):
            history.add(EventType.READ, "r", f"p:{offset + 1}", "stream", offset=offset)
    history.kill()
    history.add(EventType.DRAIN_STARTED, "all", "", "stream")
    for offset in (0, 2):
        history.add(EventType.READ, "all", f"p:{offset + 1}", "stream", offset=offset)
    history.add(EventType.DRAINED, "d")
    assert (FaultKind.OUT_OF_ORDER in history.kinds()) is read_before
