"""The power of a broker under load fails, again and again: what its clients were told holds all the same."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.chaos.power import Powered
from tests.chaos.rounds import run


async def test_a_broker_whose_power_fails_keeps_its_promises(tmp_path: Path) -> None:
    tally = await run(Powered(tmp_path, Random(1)), Random(2), 3, tmp_path)
    assert tally.crashes == 3
    assert min(tally.confirmed, tally.settled, tally.redelivered) > 500
    assert tally.safe > 0
