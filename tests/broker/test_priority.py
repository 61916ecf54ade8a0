"""Priority queues: the highest priority first, and FIFO within one priority."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pamqp.commands import Queue

from tests.broker.conftest import Connect
from tests.support.blocking_client import Channel, Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.queue_assertions import holds


@pytest.fixture
def queue(channel: Channel) -> str:
    return channel.declare(exclusive=True, x_max_priority=10)


def fill(channel: Channel, queue: str, *messages: tuple[str, int | None]) -> None:
    for body, priority in messages:
        properties: dict[str, Any] = {} if priority is None else {"priority": priority}
        channel.publish(queue, body, **properties)


def test_the_highest_priority_first_and_fifo_within_a_priority(channel: Channel, queue: str) -> None:
    fill(channel, queue, ("a1", 1), ("b5", 5), ("c1", 1), ("d9", 9), ("e5", 5))
    assert channel.drain(queue) == [b"d9", b"b5", b"e5", b"a1", b"c1"]


def test_a_missing_priority_is_the_lowest_and_a_higher_one_the_maximum(channel: Channel, queue: str) -> None:
    fill(channel, queue, ("none", None), ("zero", 0), ("ten", 10), ("over", 200), ("one", 1))
    assert channel.drain(queue) == [b"ten", b"over", b"one", b"none", b"zero"]


def test_a_queue_without_x_max_priority_ignores_priorities(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    fill(channel, queue, ("first", 1), ("second", 9))
    assert channel.drain(queue) == [b"first", b"second"]


def test_a_requeued_message_returns_to_its_position_in_its_priority(channel: Channel, queue: str) -> None:
    fill(channel, queue, ("a", 1), ("b", 1), ("c", 5))
    first, second = channel.get(queue), channel.get(queue)
    assert first is not None
    assert second is not None
    assert (first.body, second.body) == (b"c", b"a")
    channel.nack(second.tag, requeue=True)
    fill(channel, queue, ("d", 1))
    assert channel.drain(queue) == [b"a", b"b", b"d"]


def test_an_overflow_drops_from_the_head_as_rabbitmq_does(channel: Channel) -> None:
    queue = channel.declare(exclusive=True, x_max_priority=10, x_max_length=2)
    fill(channel, queue, ("low", 1), ("high", 9), ("mid", 5))
    assert channel.drain(queue) == [b"mid", b"low"]


def test_a_purge_removes_all_priorities(channel: Channel, queue: str) -> None:
    fill(channel, queue, ("a", 1), ("b", 9))
    holds(channel, queue, 2)
    assert channel.purge(queue) == 2
    assert channel.drain(queue) == []


def test_a_consumer_gets_the_highest_priority_first(connect: Connect, channel: Channel, queue: str) -> None:
    fill(channel, queue, ("a", 1), ("b", 9), ("c", 5))
    holds(channel, queue, 3)
    channel.qos(1)
    channel.consume(queue)
    got = []
    for _ in range(3):
        (message,) = channel.deliveries(1)
        got.append(message.body)
        channel.ack(message.tag)
    assert got == [b"b", b"c", b"a"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [(256, "{max_value_exceeded,256}"), (-1, "{value_negative,-1}"), ("x", '"expected integer')],
)
def test_an_invalid_x_max_priority_is_refused(
    channel: Channel, name: str, value: int | str, reason: str
) -> None:
    arguments: dict[str, Any] = {"x-max-priority": value}
    channel.send(Queue.Declare(queue=name, arguments=arguments))
    error = channel.closed()
    assert error.code == 406
    assert error.text.startswith(
        f"PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue '{name}' in vhost '/': {reason}"
    )


def test_x_max_priority_is_refused_for_a_quorum_queue(channel: Channel, name: str) -> None:
    arguments: dict[str, Any] = {"x-max-priority": 5, "x-queue-type": "quorum"}
    channel.send(Queue.Declare(queue=name, durable=True, arguments=arguments))
    error = channel.closed()
    assert (error.code, error.text) == (
        406,
        f"PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue '{name}' in vhost '/' of queue type "
        "rabbit_quorum_queue",
    )


def test_each_priority_expires_at_its_own_head(inprocess: InProcessBroker) -> None:
    with Connection(inprocess.url) as connection:
        channel = connection.channel()
        queue = channel.declare(x_max_priority=10)
        channel.publish(queue, "high, lasting", priority=9)
        channel.publish(queue, "low, soon over", priority=1, expiration="1000")
        channel.publish(queue, "low, lasting", priority=1)
        holds(channel, queue, 3)
        inprocess.advance(1.001)
        assert channel.drain(queue) == [b"high, lasting", b"low, lasting"]


def test_priorities_survive_a_restart(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        with Connection(broker.url) as connection:
            channel = connection.channel()
            queue = channel.declare("levels", durable=True, x_max_priority=10)
            channel.confirm()
            for body, priority in (("a", 1), ("b", 9), ("c", 5), ("d", 9)):
                channel.publish(queue, body, priority=priority, delivery_mode=2)
            channel.settled(4)
        broker.restart()
        with Connection(broker.url) as connection:
            assert connection.channel().drain(queue) == [b"b", b"d", b"c", b"a"]
