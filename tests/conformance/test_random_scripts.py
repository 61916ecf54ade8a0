"""Random scripts on both brokers: equal replies, errors, deliveries, order, flags and counts.

`SCRIPTS=N` runs N of each kind instead of a few; `SEEDS=N` runs N new ones.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.differential_run import DifferentialRun
from tests.conformance.random_scripts import RandomScript
from tests.support.in_process_broker import InProcessBroker
from tests.support.rabbitmq import RabbitMQ

pytestmark = pytest.mark.slow

SCRIPTS = int(os.environ.get("SCRIPTS") or 0)
SEEDS = int(os.environ.get("SEEDS") or 0)
STEPS = 40


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("timed", "share", "few"), [(False, 1, 8), (True, 4, 2)], ids=["lasting", "expiring"]
)
def test_both_brokers_behave_the_same(
    rabbitmq: RabbitMQ, warren: InProcessBroker, timed: bool, share: int, few: int
) -> None:
    class Script(RandomScript):
        pass

    def run(queues: list[str], exchanges: list[str]) -> DifferentialRun:
        return DifferentialRun(rabbitmq.url, warren.url, queues, exchanges, warren.advance)

    Script.timed = timed
    Script.make_run = staticmethod(run)
    run_state_machine_as_test(
        Script,
        settings=settings(
            max_examples=(SEEDS or SCRIPTS) // share or few,
            stateful_step_count=STEPS,
            derandomize=not SEEDS,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
