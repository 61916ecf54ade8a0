"""Several consumers of one queue: priorities and single active consumer."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic

from tests.broker.conftest import Connect
from tests.support.blocking_client import Channel, Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until


@pytest.fixture
def queue(channel: Channel) -> str:
    return channel.declare(exclusive=True)


@pytest.fixture
def single(channel: Channel, name: str) -> str:
    channel.declare(name, auto_delete=True, x_single_active_consumer=True)
    return name


def consume(channel: Channel, queue: str, tag: str, **arguments: Any) -> None:
    table = {name.replace("_", "-"): value for name, value in arguments.items()}
    channel.call(Basic.Consume(queue=queue, consumer_tag=tag, arguments=table), Basic.ConsumeOk)


def served(channel: Channel, queue: str, count: int) -> list[str]:
    """Publish so many: the consumers that got them, in order."""
    for number in range(count):
        channel.publish(queue, str(number))
    return [message.consumer for message in channel.deliveries(count)]


def test_the_higher_priority_is_served_while_it_has_room(channel: Channel, queue: str) -> None:
    channel.qos(2)
    consume(channel, queue, "low", x_priority=-1)
    consume(channel, queue, "plain")
    consume(channel, queue, "high", x_priority=10)
    assert served(channel, queue, 6) == ["high", "high", "plain", "plain", "low", "low"]


def test_equal_priorities_take_turns(channel: Channel, queue: str) -> None:
    consume(channel, queue, "low", x_priority=1)
    consume(channel, queue, "a", x_priority=5)
    consume(channel, queue, "b", x_priority=5)
    assert served(channel, queue, 4) == ["a", "b", "a", "b"]


def test_one_with_room_again_is_first_again(channel: Channel, queue: str) -> None:
    channel.qos(1)
    consume(channel, queue, "low", x_priority=1)
    consume(channel, queue, "high", x_priority=2)
    for body in "abc":
        channel.publish(queue, body)
    first, second = channel.deliveries(2)
    assert [first.consumer, second.consumer] == ["high", "low"]
    channel.ack(first.tag)
    (third,) = channel.deliveries(1)
    assert third.consumer == "high"


def test_a_priority_that_is_no_number_is_refused(channel: Channel, queue: str) -> None:
    channel.send(Basic.Consume(queue=queue, consumer_tag="x", arguments={"x-priority": "high"}))
    error = channel.closed()
    assert (error.code, error.text) == (
        406,
        f"PRECONDITION_FAILED - invalid arg 'x-priority' for queue '{queue}' in vhost '/': "
        '"expected integer, got longstr"',
    )


def test_only_one_is_active_until_it_is_cancelled(channel: Channel, single: str) -> None:
    consume(channel, single, "first")
    consume(channel, single, "second")
    consume(channel, single, "third")
    assert served(channel, single, 3) == ["first"] * 3
    channel.cancel("first")
    assert served(channel, single, 2) == ["second"] * 2
    channel.cancel("second")
    assert served(channel, single, 1) == ["third"]


def test_the_next_takes_over_what_a_lost_connection_had(
    connect: Connect, channel: Channel, single: str
) -> None:
    lost = connect()
    active = lost.channel()
    consume(active, single, "first")
    consume(channel, single, "second")
    for body in "ab":
        channel.publish(single, body)
    assert len(active.deliveries(2)) == 2
    lost.abort()
    taken = channel.deliveries(2)
    assert [(message.body, message.redelivered) for message in taken] == [(b"a", True), (b"b", True)]


def test_one_that_waits_gets_nothing_though_the_active_one_is_full(channel: Channel, single: str) -> None:
    channel.qos(1)
    consume(channel, single, "first")
    consume(channel, single, "second")
    for body in "ab":
        channel.publish(single, body)
    (message,) = channel.deliveries(1)
    wait_until(lambda: channel.ready(single) == 1, "one message stays")
    assert channel.delivered(single) == []
    channel.ack(message.tag)
    (after,) = channel.deliveries(1)
    assert (message.consumer, after.consumer) == ("first", "first")


def test_a_limit_for_the_channel_holds_with_one_that_waits(inprocess: InProcessBroker) -> None:
    """RabbitMQ 3.10 does not serve the second consumer here at all."""
    with Connection(inprocess.url) as connection:
        channel = connection.channel()
        single = channel.declare(exclusive=True, x_single_active_consumer=True)
        channel.qos(1, shared=True)
        consume(channel, single, "first")
        consume(channel, single, "second")
        for body in "ab":
            channel.publish(single, body)
        (message,) = channel.deliveries(1)
        channel.cancel("first")
        channel.ack(message.tag)
        (after,) = channel.deliveries(1)
        assert (message.consumer, after.consumer) == ("first", "second")


def test_a_quorum_queue_with_one_active_consumer_is_not_polled(channel: Channel, name: str) -> None:
    channel.declare(name, durable=True, x_queue_type="quorum", x_single_active_consumer=True)
    channel.send(Basic.Get(queue=name))
    error = channel.closed()
    assert error.code == 405
    assert error.text.endswith(
        "basic.get operations are not supported by quorum queues with single active consumer"
    )
    again = channel.connection.channel()
    again.delete(name)
