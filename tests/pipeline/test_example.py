"""The pipeline's example in the documentation runs as it stands."""

from __future__ import annotations

from tests.pipeline.conftest import Audit, Message
from tests.support.examples import run


def test_browsing_counts_and_shows_what_stays(audit: Audit) -> None:
    audit.publish([Message(f"order {number}".encode()) for number in range(5)])
    ran = run("spark_read", audit.name, AMQP_URL=audit.url)
    assert ran.returncode == 0, ran.stderr
    shown = [f"{number} {audit.name} order {number}" for number in range(3)]
    assert ran.stdout.splitlines() == ["messages: 5", *shown], ran.stderr
    assert audit.ready() == 5
