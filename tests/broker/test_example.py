"""The broker's examples in the documentation run as they stand."""

from __future__ import annotations

import pytest

from tests.support.example_programs import run
from tests.support.rabbitmq import RabbitMQ

pytestmark = pytest.mark.processes

STREAMED = """\
from the first:
  0:order 0
  1:order 1
from offset 8:
  8:order 8
  9:order 9
of the last hour:
  0:order 0
  1:order 1
  2:order 2
"""


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


def test_a_stream_is_read_from_anywhere() -> None:
    ran = run("stream")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, STREAMED, "")


def test_a_stream_of_rabbitmq_is_read_by_the_same_program(rabbitmq: RabbitMQ) -> None:
    ran = run("stream", AMQP_URL=rabbitmq.url)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, STREAMED, "")


def test_a_stream_is_filtered_by_an_expression_and_drops_duplicates() -> None:
    ran = run("stream_extensions")
    assert (ran.returncode, ran.stdout) == (0, "2:order 3\n3:order 4\n")
    # That RabbitMQ ignores the two extensions is logged, once for each.
    assert ran.stderr.count("event=portability.feature_used") == len(ran.stderr.splitlines()) == 2


def test_delayed_messages_come_when_it_is_time() -> None:
    ran = run("delayed_exchange")
    assert (ran.returncode, ran.stdout) == (0, "1 days\n7 days\n90 days\n")
    # That RabbitMQ has this type by a plugin only is logged, once.
    assert ran.stderr.count("event=portability.feature_used") == len(ran.stderr.splitlines()) == 1
