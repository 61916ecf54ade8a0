"""Several consumers of one queue: priorities and single active consumer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pamqp.commands import Basic

from tests.broker.conftest import Connect
from tests.support.blocking_client import Channel, Connection
from tests.support.broker_behaviour import Behaviour
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.queue_assertions import holds


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


def test_a_quorum_queue_with_one_active_consumer_is_not_polled(
    channel: Channel, server: Behaviour, name: str
) -> None:
    channel.declare(name, durable=True, x_queue_type="quorum", x_single_active_consumer=True)
    channel.send(Basic.Get(queue=name))
    error = channel.closed()
    assert error.code == 405
    # RabbitMQ 4 prints the type as an Erlang term.
    kind = '<<"quorum">>' if server.is_4_3 else "quorum"
    assert error.text.endswith(
        f"basic.get operations are not supported by {kind} queues with single active consumer"
    )
    again = channel.connection.channel()
    again.delete(name)


# -- priorities and the single active consumer of a quorum queue


@pytest.fixture
def quorum(channel: Channel, name: str) -> Iterator[str]:
    """Return a quorum queue with a single active consumer."""
    channel.declare(name, durable=True, x_queue_type="quorum", x_single_active_consumer=True)
    yield name
    channel.delete(name)


def test_a_higher_priority_takes_over_when_all_deliveries_are_settled(
    channel: Channel, connect: Connect, quorum: str, server: Behaviour
) -> None:
    higher = connect().channel()
    consume(channel, quorum, "low", x_priority=0)
    for body in (b"0", b"1"):
        channel.publish(quorum, body)
    first, second = channel.deliveries(2)
    consume(higher, quorum, "high", x_priority=5)
    channel.publish(quorum, b"2")
    if not server.is_4_3:
        # Before 4.0 the first consumer keeps the role.
        assert [message.body for message in channel.deliveries(1)] == [b"2"]
        return
    # Neither gets it: the first one quiesces.
    holds(channel, quorum, 1)
    channel.ack(first.tag)
    holds(channel, quorum, 1)
    channel.ack(second.tag)
    (third,) = higher.deliveries(1)
    assert third.body == b"2"
    # The other one waits for the role, and gets it back.
    higher.ack(third.tag)
    higher.cancel("high")
    channel.publish(quorum, b"3")
    assert [message.body for message in channel.deliveries(1)] == [b"3"]


def test_a_higher_priority_takes_over_at_once_if_nothing_is_unacknowledged(
    channel: Channel, connect: Connect, quorum: str, server: Behaviour
) -> None:
    higher = connect().channel()
    channel.consume(quorum, "low", no_ack=True)
    channel.publish(quorum, b"0")
    channel.deliveries(1)
    consume(higher, quorum, "high", x_priority=5)
    channel.publish(quorum, b"1")
    (message,) = (higher if server.is_4_3 else channel).deliveries(1)
    assert message.body == b"1"


@pytest.mark.parametrize("settled", ["nack", "reject"])
def test_what_the_quiescing_consumer_returns_goes_to_the_next(
    channel: Channel, connect: Connect, quorum: str, server: Behaviour, settled: str
) -> None:
    higher = connect().channel()
    consume(channel, quorum, "low", x_priority=0)
    channel.publish(quorum, b"0")
    (message,) = channel.deliveries(1)
    consume(higher, quorum, "high", x_priority=5)
    getattr(channel, settled)(message.tag, requeue=True)
    (again,) = (higher if server.is_4_3 else channel).deliveries(1)
    assert (again.body, again.redelivered) == (b"0", True)


def test_the_consumer_goes_on_if_the_higher_priority_has_left_meanwhile(
    channel: Channel, connect: Connect, quorum: str, server: Behaviour
) -> None:
    higher = connect().channel()
    consume(channel, quorum, "low", x_priority=0)
    channel.publish(quorum, b"0")
    (message,) = channel.deliveries(1)
    consume(higher, quorum, "high", x_priority=5)
    higher.cancel("high")
    channel.publish(quorum, b"1")
    if server.is_4_3:
        holds(channel, quorum, 1)
    channel.ack(message.tag)
    assert [each.body for each in channel.deliveries(1)] == [b"1"]


def test_of_several_waiting_ones_the_highest_priority_takes_over(
    channel: Channel, connect: Connect, quorum: str, server: Behaviour
) -> None:
    others = {tag: connect().channel() for tag in ("one", "nine", "five")}
    consume(channel, quorum, "first", x_priority=9)
    channel.publish(quorum, b"0")
    (message,) = channel.deliveries(1)
    for tag, priority in (("one", 1), ("nine", 9), ("five", 5)):
        consume(others[tag], quorum, tag, x_priority=priority)
    # An equal priority takes nothing over.
    channel.publish(quorum, b"1")
    (second,) = channel.deliveries(1)
    channel.ack(second.tag, multiple=True)
    channel.cancel("first")
    channel.publish(quorum, b"2")
    # Before 4.0, it is the turn of the one that has waited longest.
    following = others["nine" if server.is_4_3 else "one"]
    assert [each.body for each in following.deliveries(1)] == [b"2"]
    assert message.body == b"0"
