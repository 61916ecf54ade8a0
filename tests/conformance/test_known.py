"""The known differences are there, are all that there is in their scripts, and stand in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.duel import PATIENCE
from tests.conformance.known import KNOWN, Difference, as_markdown, portability_as_markdown
from tests.conformance.observation import Observation
from tests.conformance.scripts import EXCHANGES, QUEUES
from tests.conformance.side import Side
from tests.support.in_process_broker import InProcessBroker
from tests.support.rabbitmq import RabbitMQ

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LONG = 60.0
"""Seconds that RabbitMQ may take over what it does like Warren. Nothing is waited for once it is seen."""


@pytest.mark.parametrize("known", [one for one in KNOWN if one.script], ids=lambda one: str(one.what))
def test_a_known_difference_shows(rabbitmq: RabbitMQ, warren: InProcessBroker, known: Difference) -> None:
    judge = Side(rabbitmq.url, QUEUES, EXCHANGES)
    judged = Side(warren.url, QUEUES, EXCHANGES, warren.advance)
    try:
        before = Observation()
        for step in known.script[:-1]:
            before = judged.take(step)
            assert judge.take(step, before, LONG) == before
        here = judged.take(known.script[-1])
        there = judge.take(known.script[-1], here, PATIENCE)
        only_there, only_here = known.shows
        assert any(only_there in line for line in there.lines(Observation()))
        assert not any(only_there in line for line in here.lines(Observation()))
        assert any(only_here in line for line in here.lines(Observation()))
        assert not any(only_here in line for line in there.lines(Observation()))
    finally:
        judge.end()
        judged.end()


def test_what_no_script_shows_a_test_does() -> None:
    assert all((ROOT / one.held_by).is_file() for one in KNOWN if not one.script)


def test_the_documentation_has_the_tables() -> None:
    page = (ROOT / "docs/conformance.md").read_text()
    assert portability_as_markdown() in page, "python -m tests.conformance.known prints the table"
    assert as_markdown() in page, "python -m tests.conformance.known prints the table for docs/conformance.md"
