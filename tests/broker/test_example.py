"""The broker's examples in the documentation run as they stand."""

from __future__ import annotations

from tests.support.examples import run


def test_a_broker_in_the_process_takes_and_gives_a_message() -> None:
    ran = run("broker_in_process")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "hello\n", "")


def test_an_hour_passes_when_a_test_says_so() -> None:
    ran = run("virtual_clock")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "order 42 is due\n", "")
