"""Acknowledgement timeouts, set by the consumer, the queue or the broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import commands

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.broker_behaviour import Behaviour
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


# -- quorum queues: the consumer is suspended, the channel stays open


def quorum(channel: Channel, name: str, timeout: int, **arguments: Any) -> str:
    return channel.declare(name, durable=True, x_queue_type="quorum", x_consumer_timeout=timeout, **arguments)


def test_a_consumer_of_a_quorum_queue_is_told_and_keeps_its_channel(
    channel: Channel, name: str, server: Behaviour
) -> None:
    """On RabbitMQ 4.3, too; the message that comes back may time out again meanwhile."""
    if not server.is_4_3:
        pytest.skip("RabbitMQ before 4.3 closes the channel")
    queue = quorum(channel, name, 300)
    channel.qos(1)
    channel.consume(queue, "slow")
    channel.publish(queue, b"x")
    (first,) = channel.deliveries(1)
    assert channel.next_method(commands.Basic.Cancel).consumer_tag == "slow"
    # Suspended, not gone: the tag is in use, and the message is ready.
    assert channel.state(queue) == (1, 1)
    # The late acknowledgement is no error. It does not remove the message, but makes the consumer active again.
    channel.ack(first.tag)
    (second,) = channel.deliveries(1)
    assert (second.body, second.redelivered, second.headers) == (b"x", True, {"x-acquired-count": 1})
    channel.delete(queue)


def test_a_client_ends_a_suspended_consumer_by_its_answer(
    channel: Channel, name: str, server: Behaviour
) -> None:
    if not server.is_4_3:
        pytest.skip("RabbitMQ before 4.3 closes the channel")
    queue = quorum(channel, name, 300)
    channel.qos(1)
    channel.consume(queue, "slow")
    channel.publish(queue, b"x")
    (first,) = channel.deliveries(1)
    channel.next_method(commands.Basic.Cancel)
    channel.send(commands.Basic.CancelOk(consumer_tag="slow"))
    channel.ack(first.tag)
    assert channel.state(queue) == (1, 0)
    # Its tag is free again, and a further answer does not concern the new consumer.
    channel.consume(queue, "slow")
    (second,) = channel.deliveries(1)
    channel.ack(second.tag)
    channel.delete(queue)


def test_only_overdue_messages_are_requeued(
    timed: Channel, other: Channel, inprocess: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    queue = quorum(timed, "q", 1000)
    timed.consume(queue, "slow")
    for body in (b"1", b"2"):
        timed.publish(queue, body)
    timed.deliveries(2)
    inprocess.advance(0.5)
    timed.publish(queue, b"3")
    (third,) = timed.deliveries(1)
    inprocess.advance(0.5)
    cancelled = timed.next_method(commands.Basic.Cancel)
    assert (cancelled.consumer_tag, cancelled.nowait) == ("slow", True)
    # The third is unacknowledged still, and further messages do not come.
    assert other.state(queue) == (2, 1)
    timed.publish(queue, b"4")
    assert timed.state(queue) == (3, 1)
    timed.ack(third.tag)
    assert timed.state(queue) == (3, 1)
    assert [other.get(queue, no_ack=True).body for _ in range(3)] == [b"1", b"2", b"4"]  # type: ignore[union-attr]
    (line,) = [each.getMessage() for each in caplog.records if "consumer.timed_out" in each.getMessage()]
    assert line == (
        "event=consumer.timed_out peer=127.0.0.1 channel=1 consumer='slow' queue='q' messages=2 timeout_ms=1000"
    )


def test_a_consumer_goes_on_when_all_that_timed_out_is_settled(
    timed: Channel, other: Channel, inprocess: InProcessBroker
) -> None:
    queue = quorum(timed, "q", 1000)
    timed.qos(3)
    timed.consume(queue, "slow")
    for body in (b"1", b"2", b"3"):
        timed.publish(queue, body)
    first, second, third = timed.deliveries(3)
    inprocess.advance(1)
    timed.next_method(commands.Basic.Cancel)
    timed.ack(first.tag)
    timed.reject(second.tag)
    assert timed.state(queue) == (3, 1)
    timed.nack(third.tag, requeue=False)
    assert [message.body for message in timed.deliveries(3)] == [b"1", b"2", b"3"]
    # Each tag can be settled once only.
    timed.ack(first.tag)
    assert ended(timed).text == f"PRECONDITION_FAILED - unknown delivery tag {first.tag}"


@pytest.mark.parametrize("tag", [0, 2])
def test_several_are_settled_at_once(timed: Channel, inprocess: InProcessBroker, tag: int) -> None:
    queue = quorum(timed, "q", 1000)
    timed.consume(queue, "slow")
    for body in (b"1", b"2"):
        timed.publish(queue, body)
    timed.deliveries(2)
    inprocess.advance(1)
    timed.next_method(commands.Basic.Cancel)
    timed.ack(tag, multiple=True)
    assert [message.body for message in timed.deliveries(2)] == [b"1", b"2"]


def test_many_overdue_messages_keep_their_order(
    timed: Channel, other: Channel, inprocess: InProcessBroker
) -> None:
    queue = quorum(timed, "q", 1000)
    timed.consume(queue, "slow")
    for number in range(300):
        timed.publish(queue, b"%d" % number)
    timed.deliveries(300)
    inprocess.advance(1)
    timed.next_method(commands.Basic.Cancel)
    assert other.drain(queue) == [b"%d" % number for number in range(300)]


def test_the_messages_go_to_another_consumer(
    timed: Channel, other: Channel, inprocess: InProcessBroker
) -> None:
    queue = quorum(timed, "q", 1000)
    timed.consume(queue, "slow")
    timed.publish(queue, b"x")
    timed.deliveries(1)
    other.consume(queue, "fast", no_ack=True)
    inprocess.advance(1)
    (message,) = other.deliveries(1)
    assert message.headers == {"x-acquired-count": 1}
    assert timed.state(queue) == (0, 2)


def test_another_consumer_becomes_the_single_active_one(
    timed: Channel, other: Channel, inprocess: InProcessBroker
) -> None:
    queue = quorum(timed, "q", 1000, x_single_active_consumer=True)
    timed.consume(queue, "slow")
    timed.publish(queue, b"1")
    (late,) = timed.deliveries(1)
    other.consume(queue, "next")
    inprocess.advance(1)
    (message,) = other.deliveries(1)
    other.ack(message.tag)
    # It waits for the role again when it has settled what was late.
    timed.ack(late.tag)
    timed.publish(queue, b"2")
    assert timed.state(queue) == (0, 2)
    (message,) = other.deliveries(1)
    other.cancel("next")
    timed.publish(queue, b"3")
    assert [message.body for message in timed.deliveries(1)] == [b"3"]


def test_the_only_consumer_stays_suspended_until_it_settles(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue = quorum(timed, "q", 1000, x_single_active_consumer=True)
    timed.consume(queue, "slow")
    timed.publish(queue, b"1")
    (late,) = timed.deliveries(1)
    inprocess.advance(1)
    timed.next_method(commands.Basic.Cancel)
    assert timed.state(queue) == (1, 1)
    timed.ack(late.tag)
    assert [message.body for message in timed.deliveries(1)] == [b"1"]


def test_a_suspended_consumer_can_be_cancelled_and_its_tag_used_again(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue = quorum(timed, "q", 1000)
    timed.consume(queue, "slow")
    timed.publish(queue, b"1")
    (late,) = timed.deliveries(1)
    inprocess.advance(1)
    timed.next_method(commands.Basic.Cancel)
    timed.cancel("slow")
    timed.consume(queue, "slow")
    assert [message.body for message in timed.deliveries(1)] == [b"1"]
    timed.ack(late.tag)
    assert timed.state(queue) == (0, 1)


def test_a_client_that_does_not_know_basic_cancel_loses_its_channel(inprocess: InProcessBroker) -> None:
    with Connection(inprocess.url, properties={"capabilities": {}}) as connection:
        channel = connection.channel()
        queue = quorum(channel, "q", 1000)
        channel.consume(queue, "slow")
        channel.publish(queue, b"x")
        channel.deliveries(1)
        inprocess.advance(1)
        assert ended(channel).text == text(channel, 1000)


@pytest.mark.parametrize("taken", ["get", "cancelled"])
def test_a_message_without_a_consumer_costs_the_channel(
    timed: Channel, inprocess: InProcessBroker, taken: str
) -> None:
    queue = quorum(timed, "q", 1000)
    timed.publish(queue, b"x")
    if taken == "get":
        assert timed.get(queue) is not None
    else:
        timed.consume(queue, "slow")
        timed.deliveries(1)
        timed.cancel("slow")
    inprocess.advance(1)
    assert ended(timed).text == text(timed, 1000)


def test_before_4_3_a_quorum_queue_closes_the_channel() -> None:
    with (
        InProcessBroker(config=BrokerConfig(compat="3.10")) as broker,
        Connection(broker.url) as connection,
    ):
        channel = connection.channel()
        queue = quorum(channel, "q", 1000)
        channel.consume(queue, "slow")
        channel.publish(queue, b"x")
        channel.deliveries(1)
        broker.advance(1)
        assert ended(channel).text == text(channel, 1000)
