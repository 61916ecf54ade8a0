"""Power cuts, disk failures and full disks under load: the broker keeps its guarantees."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.faults.chaos.faulty_disk_broker import MIN_COMPACTIONS, FaultyDiskBroker
from tests.faults.chaos.rounds import run

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]


@pytest.mark.parametrize(("fault", "rounds"), [("power", 2), ("fail", 2), ("full", 1), ("frozen", 1)])
async def test_a_broker_on_a_faulty_disk_keeps_its_guarantees(
    tmp_path: Path, fault: str, rounds: int
) -> None:
    broker = FaultyDiskBroker(tmp_path, Random(1), fault)
    tally = await run(broker, Random(2), rounds, tmp_path, min_events=300)
    assert tally.crashes == rounds
    assert min(tally.confirmed, tally.settled, tally.redelivered) > 100 * rounds
    assert tally.durable > 0
    assert broker.faults_injected >= (0 if fault == "power" else rounds)
    if fault == "power":
        # Compaction and its deletions are under test only if there are some.
        assert len(broker.compactions) == rounds
        assert min(broker.compactions) >= MIN_COMPACTIONS
