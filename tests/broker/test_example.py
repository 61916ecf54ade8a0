"""The broker's example in the documentation runs as it stands."""

from __future__ import annotations

from tests.support.examples import run


def test_a_broker_in_the_process_takes_and_gives_a_message() -> None:
    ran = run("broker_in_process")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "hello\n", "")
