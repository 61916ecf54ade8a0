"""Small rehearsals of a migration under load, with a kill of the tool and of both brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.migration.rehearsal import Load, Rehearsal, two_brokers
from tests.support.rabbitmq import installed

pytestmark = [pytest.mark.processes, pytest.mark.slow]

RABBITMQ = "4.3"


@pytest.mark.parametrize(
    ("source", "target"), [("warren", "warren"), ("warren", RABBITMQ), (RABBITMQ, "warren")]
)
def test_nothing_is_lost_or_out_of_order_when_tool_source_and_target_are_killed(
    source: str, target: str, tmp_path: Path
) -> None:
    """Copies are those that a consumer recognises by their headers, and redeliveries of the brokers."""
    if RABBITMQ in (source, target) and not installed(RABBITMQ):
        pytest.skip(f"RabbitMQ {RABBITMQ} is not installed")
    load = Load(queues=3, delay_queues=1, messages=800, delay_ms=3000, seed=21)
    with two_brokers(source, target, tmp_path) as brokers:
        verdict = Rehearsal(*brokers, load, tmp_path / "state", print).run()
    assert not verdict.faults, "\n".join(verdict.faults)
    assert verdict.arrived == 4 * 800
    assert verdict.certificate["holds"]
    assert len(verdict.kills) == 3
