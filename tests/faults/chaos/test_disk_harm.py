"""The disk of a broker under load loses its power, fails, is full: what its clients were told holds all the same."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.faults.chaos.power import Powered
from tests.faults.chaos.rounds import run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("harm", "rounds"), [("power", 2), ("fail", 2), ("full", 1)])
async def test_a_broker_whose_disk_comes_to_harm_keeps_its_promises(
    tmp_path: Path, harm: str, rounds: int
) -> None:
    subject = Powered(tmp_path, Random(1), harm)
    tally = await run(subject, Random(2), rounds, tmp_path, least=300)
    assert tally.crashes == rounds
    assert min(tally.confirmed, tally.settled, tally.redelivered) > 100 * rounds
    assert tally.safe > 0
    assert subject.harms >= (0 if harm == "power" else rounds)
