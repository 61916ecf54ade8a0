"""Choice of the change before which the power fails."""

from __future__ import annotations

import pytest

from tests.faults.chaos.power_cuts import CutPoint, PowerCuts

CHANGES = (
    ("open", "log/0001.log"),
    ("write", "log/0001.log"),
    ("sync", "log/0001.log"),
    ("write", "log/0001.log"),
    ("open", "log/0001.idx"),
    ("write", "log/0001.idx"),
    ("unlink", "log/0000.log"),
    ("unlink", "log/0000.idx"),
    ("sync_folder", "log"),
    ("write", "log/0002.log"),
    ("sync_folder", "log"),
    ("write", "manifest"),
    ("write", "streams/1-0.stream"),
)


def due(cuts: PowerCuts) -> list[int]:
    return [number for number, change in enumerate(CHANGES) if cuts.is_due(*change)]


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (CutPoint.ANY, [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12]),
        (CutPoint.INDEX, [4, 5, 7]),
        (CutPoint.DELETION, [6, 7, 8]),
        (CutPoint.NEW_SEGMENT, [1, 9]),
        (CutPoint.OTHER, [11]),
        (CutPoint.COMMIT, []),
    ],
)
def test_the_power_fails_once_before_the_chosen_change(point: CutPoint, expected: list[int]) -> None:
    assert [due(PowerCuts(point, number + 1)) for number in range(len(expected))] == [[at] for at in expected]
    assert due(PowerCuts(point, len(expected) + 1)) == []


def test_the_power_fails_during_a_compaction_only() -> None:
    running = iter([False, False, True, False, True, *[False] * 8])
    assert due(PowerCuts(CutPoint.COMPACTION, 2, lambda: next(running))) == [4]


def test_no_change_is_chosen_unless_asked_for() -> None:
    assert due(PowerCuts()) == []
