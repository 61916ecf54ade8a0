"""Broker processes without descriptors, and with a clock that jumps: they live, and keep their guarantees."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.faults.chaos.jumping_clock_broker import JumpingClockBroker
from tests.faults.chaos.rounds import run
from tests.faults.chaos.starved_broker import StarvedBroker

pytestmark = [pytest.mark.slow, pytest.mark.processes]


async def test_a_broker_without_descriptors_keeps_its_guarantees(tmp_path: Path) -> None:
    broker = StarvedBroker(tmp_path / "data", Random(1))
    tally = await run(broker, Random(2), 1, tmp_path, min_events=300)
    assert broker.starved >= 1
    assert min(tally.confirmed, tally.settled) > 100


async def test_a_broker_whose_clock_jumps_keeps_its_guarantees(tmp_path: Path) -> None:
    broker = JumpingClockBroker(tmp_path / "data", Random(1))
    tally = await run(broker, Random(2), 1, tmp_path, min_events=300)
    assert broker.jumps >= 1
    assert min(tally.confirmed, tally.settled) > 100
