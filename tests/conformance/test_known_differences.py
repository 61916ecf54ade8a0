"""Known differences: they exist, are the only ones in their scripts, and are documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.broker_session import BrokerSession
from tests.conformance.differential_run import REFERENCE_TIMEOUT
from tests.conformance.known_differences import (
    KNOWN_DIFFERENCES,
    Difference,
    differences_table,
    portability_table,
)
from tests.conformance.observation import Observation
from tests.conformance.written_scripts import EXCHANGES, QUEUES
from tests.support.in_process_broker import InProcessBroker
from tests.support.rabbitmq import RabbitMQ

ROOT = Path(__file__).parents[2]
SETUP_TIMEOUT = 60.0
"""Seconds that RabbitMQ may take for effects that equal Warren's; the wait ends when they are observed."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Take the differences from the version of RabbitMQ that is compared."""
    if "known" in metafunc.fixturenames:
        compat: str = metafunc.config.getoption("--compat")
        chosen = [item for item in KNOWN_DIFFERENCES if item.script and compat in item.versions]
        metafunc.parametrize("known", chosen, ids=lambda item: str(item.what))


@pytest.mark.slow
def test_a_known_difference_shows(rabbitmq: RabbitMQ, warren: InProcessBroker, known: Difference) -> None:
    reference = BrokerSession(rabbitmq.url, QUEUES, EXCHANGES)
    subject = BrokerSession(warren.url, QUEUES, EXCHANGES, warren.advance)
    try:
        before = Observation()
        for step in known.script[:-1]:
            before = subject.play(step)
            assert reference.play(step, before, SETUP_TIMEOUT) == before
        here = subject.play(known.script[-1])
        there = reference.play(known.script[-1], here, REFERENCE_TIMEOUT)
        only_there, only_here = known.distinguishing_texts
        assert any(only_there in connection for connection in there.lines(Observation()))
        assert not any(only_there in connection for connection in here.lines(Observation()))
        assert any(only_here in connection for connection in here.lines(Observation()))
        assert not any(only_here in connection for connection in there.lines(Observation()))
    finally:
        reference.end()
        subject.end()


def test_what_no_script_shows_a_test_does() -> None:
    assert all((ROOT / item.tested_by).is_file() for item in KNOWN_DIFFERENCES if not item.script)


def test_the_documentation_has_the_tables() -> None:
    page = (ROOT / "docs/conformance.md").read_text()
    assert portability_table() in page, "python -m tests.conformance.known_differences prints the table"
    assert differences_table() in page, (
        "python -m tests.conformance.known_differences prints the table for docs/conformance.md"
    )
