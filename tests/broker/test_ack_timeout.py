"""Acknowledgement timeouts, set by the consumer, the queue or the broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import commands

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.raw_client import RawClient, made
from warren.broker import BrokerConfig


def text(channel: Channel, timeout: int) -> str:
    return (
        f"PRECONDITION_FAILED - delivery acknowledgement on channel {channel.number} timed out. Timeout value used: "
        f"{timeout} ms. This timeout value can be configured, see consumers doc guide to learn more"
    )


def ended(channel: Channel) -> Closed:
    """Return the error that closes the channel."""
    error = channel.closed()
    del channel.connection.channels[channel.number]
    return error


@pytest.fixture
def other(inprocess: InProcessBroker) -> Iterator[Channel]:
    with Connection(inprocess.url) as connection:
        yield connection.channel()


def test_a_timeout_closes_the_channel_and_requeues_its_messages(
    timed: Channel, other: Channel, inprocess: InProcessBroker
) -> None:
    queue = timed.declare("q", x_consumer_timeout=1000)
    timed.consume(queue, "tag")
    timed.publish(queue, b"x")
    timed.deliveries(1)
    inprocess.advance(0.999)
    assert other.state(queue) == (0, 1)
    inprocess.advance(0.001)
    error = ended(timed)
    assert (error.code, error.text, error.method) == (406, text(timed, 1000), (0, 0))
    message = other.get(queue)
    assert message is not None
    assert (message.body, message.redelivered) == (b"x", True)


def test_the_timeout_starts_with_each_delivery(timed: Channel, inprocess: InProcessBroker) -> None:
    queue = timed.declare(exclusive=True, x_consumer_timeout=1000)
    timed.consume(queue, "tag")
    tags = []
    for _ in range(5):
        timed.publish(queue, b"x")
        tags.append(timed.deliveries(1)[0].tag)
        inprocess.advance(0.3)
        if len(tags) == 4:
            break
        timed.ready(queue)
        if len(tags) >= 3:
            timed.ack(tags[len(tags) - 3])
    # Delivered at 0.6 and 0.9 the last two are unacknowledged at 1.2.
    timed.ack(tags[1])
    inprocess.advance(0.399)
    timed.ready(queue)
    inprocess.advance(0.001)
    assert ended(timed).code == 406


def test_acknowledging_in_time_keeps_the_channel_open(timed: Channel, inprocess: InProcessBroker) -> None:
    queue = timed.declare(exclusive=True, x_consumer_timeout=1000)
    timed.consume(queue, "tag")
    for number in range(20):
        timed.publish(queue, b"%d" % number)
        (message,) = timed.deliveries(1)
        inprocess.advance(0.999)
        timed.ack(message.tag)
    inprocess.advance(100)
    assert timed.ready(queue) == 0


@pytest.mark.parametrize("arguments", [{}, {"x_consumer_timeout": 0}])
def test_there_is_no_timeout_by_default(
    timed: Channel, inprocess: InProcessBroker, arguments: dict[str, Any]
) -> None:
    queue = timed.declare(exclusive=True, **arguments)
    timed.consume(queue, "tag")
    timed.publish(queue, b"x")
    timed.deliveries(1)
    inprocess.advance(10 * 86400)
    assert timed.state(queue) == (0, 1)


def test_automatic_acknowledgement_has_no_timeout(timed: Channel, inprocess: InProcessBroker) -> None:
    queue = timed.declare(exclusive=True, x_consumer_timeout=1000)
    timed.consume(queue, "tag", no_ack=True)
    timed.publish(queue, b"x")
    inprocess.advance(10)
    assert timed.state(queue) == (0, 1)


def test_basic_get_has_a_timeout(timed: Channel, inprocess: InProcessBroker) -> None:
    queue = timed.declare("q", x_consumer_timeout=1000)
    timed.publish(queue, b"x")
    assert timed.get(queue) is not None
    inprocess.advance(1)
    assert ended(timed).text == text(timed, 1000)


def test_a_consumer_may_set_its_own_timeout(
    timed: Channel, other: Channel, inprocess: InProcessBroker
) -> None:
    queue = timed.declare("q", x_consumer_timeout=60_000)
    consume = commands.Basic.Consume(queue=queue, consumer_tag="own", arguments={"x-consumer-timeout": 500})
    timed.call(consume, commands.Basic.ConsumeOk)
    timed.publish(queue, b"x")
    timed.deliveries(1)
    inprocess.advance(0.5)
    assert ended(timed).text == text(timed, 500)
    with RawClient(inprocess.url) as peer:
        peer.connect().open()
        found = peer.refused(made(commands.Basic.Consume, queue=queue, arguments={"x-consumer-timeout": -1}))
        reason = f"invalid arg 'x-consumer-timeout' for queue '{queue}' in vhost '/': {{value_negative,-1}}"
        assert found.text == f"PRECONDITION_FAILED - {reason}"


def test_the_broker_may_set_a_default_timeout() -> None:
    with (
        InProcessBroker(config=BrokerConfig(consumer_timeout=2000)) as broker,
        Connection(broker.url) as connection,
    ):
        quick, slow = connection.channel(), connection.channel()
        quick.consume(quick.declare("quick"), "tag")
        slow.consume(slow.declare("slow", x_consumer_timeout=0), "tag")
        for queue in ("quick", "slow"):
            slow.publish(queue, b"x")
        quick.deliveries(1)
        slow.deliveries(1)
        broker.advance(2)
        assert ended(quick).text == text(quick, 2000)
        broker.advance(100)
        assert slow.state("slow") == (0, 1)


def test_many_deliveries_take_little_memory(timed: Channel, inprocess: InProcessBroker) -> None:
    """Ten thousand deliveries at different times, of which all but the last are acknowledged."""
    queue = timed.declare(exclusive=True, x_consumer_timeout=3_600_000)
    timed.consume(queue, "tag")
    for number in range(3000):
        timed.publish(queue, b"x")
        inprocess.jump(0.01)
        if number % 100 == 99:
            messages = timed.deliveries(100)
            timed.ack(messages[-1].tag if number < 2999 else messages[-2].tag, multiple=True)
    inprocess.advance(3599)
    assert timed.state(queue) == (0, 1)
    inprocess.advance(5)
    assert ended(timed).code == 406
