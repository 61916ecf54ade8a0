"""x-delayed-retry-*: requeued messages wait before they are ready again, longer each time."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Queue

from tests.support.blocking_client import Channel, Connection, Message
from tests.support.in_process_broker import InProcessBroker
from tests.support.queue_arguments import DURABLE, EXCLUSIVE, QUORUM, Field, declare, failed, integer, text
from tests.support.raw_client import RawClient
from tests.support.restarts import RestartableSession

ALL: dict[str, Any] = {
    "x_delayed_retry_type": "all",
    "x_delayed_retry_min": 1000,
    "x_delayed_retry_max": 2500,
}


def got(channel: Channel, queue: str) -> Message:
    message = channel.get(queue)
    assert message is not None
    return message


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_each_requeue_waits_longer(timed: Channel, inprocess: InProcessBroker, kind: str) -> None:
    queue = timed.declare("q", durable=True, x_queue_type=kind, **ALL)
    timed.publish(queue, b"x")
    for seconds in (1, 2, 2.5, 2.5):
        timed.reject(got(timed, queue).tag, requeue=True)
        inprocess.advance(seconds - 0.001)
        assert timed.ready(queue) == 0
        inprocess.advance(0.001)
        assert timed.ready(queue) == 1
    message = got(timed, queue)
    assert message.redelivered
    if kind == "quorum":
        assert message.headers == {"x-acquired-count": 4, "x-delivery-count": 4}


def test_each_return_that_does_not_count_waits_for_the_minimum(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue = timed.declare("q", durable=True, x_queue_type="quorum", **ALL)
    timed.publish(queue, b"x")
    for _ in range(3):
        timed.nack(got(timed, queue).tag)
        inprocess.advance(0.999)
        assert timed.ready(queue) == 0
        inprocess.advance(0.001)
        assert timed.ready(queue) == 1


def test_a_delayed_message_blocks_no_others_and_returns_to_its_position(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue = timed.declare(exclusive=True, **ALL)
    for body in (b"1", b"2", b"3"):
        timed.publish(queue, body)
    timed.nack(got(timed, queue).tag)
    assert timed.ready(queue) == 2
    inprocess.advance(1)
    assert timed.drain(queue) == [b"1", b"2", b"3"]


def test_a_waiting_consumer_gets_a_message_after_its_delay(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue = timed.declare(exclusive=True, **ALL)
    timed.consume(queue, "tag")
    timed.publish(queue, b"x")
    (first,) = timed.deliveries(1)
    timed.nack(first.tag)
    inprocess.advance(0.999)
    assert timed.delivered(queue) == []
    inprocess.advance(0.001)
    (again,) = timed.deliveries(1)
    assert (again.body, again.redelivered) == (b"x", True)


@pytest.mark.parametrize(("which", "waits"), [("failed", (False, True)), ("returned", (True, False))])
def test_the_retry_type_selects_the_delayed_requeues(
    timed: Channel, inprocess: InProcessBroker, which: str, waits: tuple[bool, bool]
) -> None:
    queue = timed.declare("q", x_delayed_retry_type=which, x_delayed_retry_min=1000)
    timed.publish(queue, b"x")
    timed.nack(got(timed, queue).tag)
    assert (timed.ready(queue) == 0) == waits[0]
    inprocess.advance(1)
    with Connection(inprocess.url) as other:
        got(other.channel(), queue)
    assert (timed.ready(queue) == 0) == waits[1]
    inprocess.advance(2)
    timed.reject(got(timed, queue).tag, requeue=True)
    assert (timed.ready(queue) == 0) == waits[1]
    inprocess.advance(2)
    assert timed.ready(queue) == 1


def test_the_delivery_limit_ends_the_retries(timed: Channel, inprocess: InProcessBroker, name: str) -> None:
    dead_letter_queue = timed.declare(exclusive=True)
    queue = timed.declare(
        exclusive=True,
        x_delivery_limit=1,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=dead_letter_queue,
        **ALL,
    )
    timed.publish(queue, b"x")
    timed.reject(got(timed, queue).tag, requeue=True)
    inprocess.advance(1)
    timed.reject(got(timed, queue).tag, requeue=True)
    assert (timed.ready(queue), timed.ready(dead_letter_queue)) == (0, 1)


def test_messages_in_their_delay_are_purged_and_block_a_deletion_if_empty(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue = timed.declare("q", durable=True, x_queue_type="quorum", **ALL)
    for body in (b"1", b"22"):
        timed.publish(queue, body)
        timed.nack(got(timed, queue).tag)
    held = inprocess.virtual_host().queues[b"q"]
    assert inprocess.call(lambda: (held.held_back_count(), held.held_back_bytes())) == (2, 3)
    other = timed.connection.channel()
    other.send(Queue.Delete(queue=queue, if_empty=True))
    assert other.closed().code == 406
    del timed.connection.channels[other.number]
    assert timed.purge(queue) == 2
    assert inprocess.call(lambda: (held.held_back_count(), held.held_back_bytes())) == (0, 0)
    inprocess.advance(10)
    assert timed.drain(queue) == []


def test_a_message_that_expires_during_its_delay(timed: Channel, inprocess: InProcessBroker) -> None:
    queue = timed.declare(exclusive=True, **ALL)
    timed.publish(queue, b"x", expiration="500")
    timed.nack(got(timed, queue).tag)
    inprocess.advance(0.5)
    assert timed.ready(queue) == 0
    inprocess.advance(10)
    assert timed.ready(queue) == 0


def test_without_a_minimum_no_message_is_delayed(timed: Channel) -> None:
    queue = timed.declare(exclusive=True, x_delayed_retry_type="all")
    timed.publish(queue, b"x")
    timed.nack(got(timed, queue).tag)
    assert timed.ready(queue) == 1


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_after_a_restart_the_delay_begins_again(session: RestartableSession, how: str) -> None:
    session.channel.declare("q", durable=True, **ALL)
    session.publish("q", b"waits", b"stays")
    session.channel.nack(got(session.channel, "q").tag)
    assert session.channel.ready("q") == 1
    session.sync()
    session.broker.advance(0.9)
    getattr(session, how)()
    assert session.channel.ready("q") == 1
    session.broker.advance(0.999)
    assert session.channel.ready("q") == 1
    session.broker.advance(0.001)
    assert session.channel.drain("q") == [b"waits", b"stays"]


@pytest.mark.parametrize(
    ("fields", "which", "reason"),
    [
        ([("x-delayed-retry-type", text("sometimes"))], "type", "invalid_delayed_retry_type"),
        ([("x-delayed-retry-min", integer(0))], "min", "{value_zero,0}"),
        ([("x-delayed-retry-max", text("1s"))], "max", '"expected integer, got longstr"'),
        (
            [("x-delayed-retry-min", integer(9)), ("x-delayed-retry-max", integer(5))],
            "max",
            "delayed_retry_max_below_min",
        ),
    ],
)
@pytest.mark.parametrize("kind", [(), (QUORUM,)])
def test_arguments(
    inprocess: InProcessBroker,
    name: str,
    kind: tuple[Field, ...],
    fields: list[Field],
    which: str,
    reason: str,
) -> None:
    with RawClient(inprocess.url) as peer:
        peer.connect().open()
        found = declare(peer, name, *kind, *fields, flags=DURABLE if kind else EXCLUSIVE)
        expected = f"invalid arg 'x-delayed-retry-{which}' for queue '{name}' in vhost '/': {reason}"
        assert found == failed(406, expected)
