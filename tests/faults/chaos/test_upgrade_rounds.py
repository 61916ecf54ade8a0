"""Kills during the upgrade of older data folders, each change of the disk in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.chaos.upgrade_rounds import names, run_round

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow, pytest.mark.processes]


@pytest.mark.parametrize("name", names())
def test_a_kill_during_the_upgrade_loses_nothing(name: str, tmp_path: Path) -> None:
    # Every seventh change alone, until a start makes fewer.
    for number in range(1, 400, 7):
        if not run_round(name, [number], number % 2 == 0, tmp_path / str(number)):
            assert number > 10
            return
    pytest.fail("the start makes more changes than expected")


def test_several_kills_in_a_row_lose_nothing(tmp_path: Path) -> None:
    assert run_round(names()[0], [4, 9, 2], True, tmp_path / "data") == 3
