"""The broker's examples in the documentation run as they stand."""

from __future__ import annotations

from tests.support.examples import run


def test_a_broker_in_the_process_takes_and_gives_a_message() -> None:
    ran = run("broker_in_process")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "hello\n", "")


def test_an_hour_passes_when_a_test_says_so() -> None:
    ran = run("virtual_clock")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "order 42 is due\n", "")


def test_a_user_may_do_what_it_is_permitted_and_no_more() -> None:
    ran = run("broker_users")
    text = "configure access to queue 'billing.invoices' in vhost '/' refused for user 'billing'"
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"ACCESS_REFUSED - {text}\n", "")
