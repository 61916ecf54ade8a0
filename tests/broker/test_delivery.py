"""To whom a queue gives its messages, in which order, and how many at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from pamqp.commands import Basic

from tests.broker.conftest import Connect
from tests.support.blocking_client import Channel, Connection, Message
from tests.support.broker_behaviour import Behaviour
from tests.support.in_process_broker import InProcessBroker
from tests.support.queue_assertions import holds, takes_exactly
from warren.broker import BrokerConfig


@pytest.fixture
def with_shared_prefetch(server: Behaviour) -> None:
    """Skip the test on a broker that has no prefetch limit of a channel."""
    if server.ignores_global_qos:
        pytest.skip(
            "RabbitMQ 4.3 has no prefetch limit of a channel: global=true counts for each new consumer"
        )


shared_prefetch = pytest.mark.usefixtures("with_shared_prefetch")


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def publish(channel: Channel, queue: str, first: int, last: int) -> None:
    for body in numbers(first, last):
        channel.publish(queue, body)


def test_first_in_first_out(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    publish(channel, queue, 1, 50)
    channel.consume(queue, no_ack=True)
    publish(channel, queue, 51, 100)
    assert bodies(channel.deliveries(100)) == numbers(1, 100)


def test_consume_ok_comes_before_the_first_delivery(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    publish(channel, queue, 1, 1)
    channel.send(Basic.Consume(queue=queue, consumer_tag="tag"))
    assert isinstance(channel.next(), Basic.ConsumeOk)
    (message,) = channel.deliveries(1)
    assert (message.consumer, message.tag, message.redelivered) == ("tag", 1, False)


def test_a_delivery_says_where_it_was_published(channel: Channel, name: str) -> None:
    exchange = channel.declare_exchange(name)
    queue = channel.declare(exclusive=True)
    channel.bind(queue, exchange)
    channel.publish("a.key", b"body", exchange=exchange)
    got = channel.get(queue)
    assert got is not None
    assert isinstance(got.carrier, Basic.GetOk)
    assert (got.carrier.exchange, got.carrier.routing_key, got.body) == (exchange, "a.key", b"body")
    channel.delete_exchange(exchange)


def test_round_robin(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    for tag in "abc":
        channel.consume(queue, tag)
    publish(channel, queue, 1, 9)
    assert [message.consumer for message in channel.deliveries(9)] == list("abcabcabc")


def test_round_robin_leaves_out_who_has_no_room(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.qos(1)
    channel.consume(queue, "one")
    channel.qos(0)
    channel.consume(queue, "any")
    publish(channel, queue, 1, 4)
    assert [message.consumer for message in channel.deliveries(4)] == ["one", "any", "any", "any"]
    channel.ack(1)
    publish(channel, queue, 5, 7)
    got = channel.deliveries(3)
    assert Counter(message.consumer for message in got) == {"any": 2, "one": 1}


def test_messages_go_to_all_channels_and_connections(connect: Connect, name: str) -> None:
    first = connect()
    channels = [first.channel(), first.channel(), connect().channel()]
    channels[0].declare(name, auto_delete=True)
    for channel in channels:
        channel.consume(name)
    publish(channels[0], name, 1, 6)
    found = [bodies(channel.deliveries(2)) for channel in channels]
    assert found == [[b"1", b"4"], [b"2", b"5"], [b"3", b"6"]]


def test_prefetch_is_each_consumers_own(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.qos(2)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    publish(channel, queue, 1, 10)
    got = takes_exactly(channel, queue, 4)
    assert Counter(message.consumer for message in got) == {"a": 2, "b": 2}
    holds(channel, queue, 6)
    channel.ack(got[0].tag)
    (more,) = takes_exactly(channel, queue, 1)
    assert (more.consumer, more.body) == (got[0].consumer, b"5")


def test_prefetch_counts_for_later_consumers_only(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.consume(queue, "before")
    channel.qos(1)
    channel.consume(queue, "after")
    publish(channel, queue, 1, 6)
    assert Counter(message.consumer for message in takes_exactly(channel, queue, 6)) == {
        "before": 5,
        "after": 1,
    }


def test_prefetch_of_automatic_acknowledgement_is_without_meaning(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.qos(1)
    channel.qos(1, shared=True)
    channel.consume(queue, no_ack=True)
    publish(channel, queue, 1, 20)
    assert bodies(takes_exactly(channel, queue, 20)) == numbers(1, 20)


@pytest.fixture
def shared_limits() -> Iterator[Channel]:
    """Return a channel to a broker that follows RabbitMQ 3.10."""
    with (
        InProcessBroker(config=BrokerConfig(compat="3.10")) as broker,
        Connection(broker.url) as connection,
    ):
        yield connection.channel()


def pauses_automatic_consumers(channel: Channel) -> None:
    """Check that the limit of a channel pauses its consumer with automatic acknowledgement, which it does not count."""
    counted, automatic = channel.declare(exclusive=True), channel.declare(exclusive=True)
    channel.qos(2, shared=True)
    channel.consume(automatic, "automatic", no_ack=True)
    channel.consume(counted, "counted")
    publish(channel, automatic, 1, 3)
    takes_exactly(channel, automatic, 3)
    publish(channel, counted, 1, 3)
    _, second = takes_exactly(channel, counted, 2)
    # The limit is reached: nothing comes, also to a consumer that is new.
    channel.consume(automatic, "later", no_ack=True)
    publish(channel, automatic, 4, 5)
    assert channel.state(automatic) == (2, 2)
    channel.ack(second.tag, multiple=True)
    assert sorted(bodies(channel.deliveries(3))) == [b"3", b"4", b"5"]


def test_the_limit_of_a_channel_pauses_automatic_consumers_before_4_3(shared_limits: Channel) -> None:
    pauses_automatic_consumers(shared_limits)


def test_the_limit_of_a_channel_and_automatic_acknowledgement(channel: Channel, server: Behaviour) -> None:
    """RabbitMQ 4.3 has no such limit, and Warren's does not concern automatic acknowledgement when it follows 4.3."""
    if not server.is_4_3:
        pauses_automatic_consumers(channel)
        return
    counted, automatic = channel.declare(exclusive=True), channel.declare(exclusive=True)
    channel.qos(1, shared=True)
    channel.consume(counted, "counted")
    channel.consume(automatic, "automatic", no_ack=True)
    publish(channel, counted, 1, 2)
    takes_exactly(channel, counted, 1)
    publish(channel, automatic, 1, 3)
    takes_exactly(channel, automatic, 3)


def test_prefetch_is_without_meaning_for_get(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.qos(1)
    channel.qos(1, shared=True)
    publish(channel, queue, 1, 3)
    assert all(channel.get(queue) for _ in range(3))
    assert channel.get(queue) is None


def test_a_global_prefetch_limits_the_channel_or_since_rabbitmq_4_3_each_consumer(
    channel: Channel, server: Behaviour
) -> None:
    queue = channel.declare(exclusive=True)
    channel.qos(2, shared=True)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    publish(channel, queue, 1, 10)
    expected = {"a": 2, "b": 2} if server.ignores_global_qos else {"a": 1, "b": 1}
    found = takes_exactly(channel, queue, sum(expected.values()))
    assert Counter(message.consumer for message in found) == expected


@shared_prefetch
def test_prefetch_of_the_channel_is_shared_by_its_consumers(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.qos(3, shared=True)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    publish(channel, queue, 1, 10)
    takes_exactly(channel, queue, 3)
    channel.ack(2, multiple=True)
    assert bodies(takes_exactly(channel, queue, 2)) == [b"4", b"5"]


@shared_prefetch
def test_prefetch_of_the_channel_is_shared_across_queues(channel: Channel) -> None:
    queues = [channel.declare(exclusive=True) for _ in range(3)]
    channel.qos(2, shared=True)
    for queue in queues:
        channel.consume(queue)
    for queue in queues:
        publish(channel, queue, 1, 2)
    for _ in range(2):
        got = channel.deliveries(2)
        assert not any(channel.delivered(queue) for queue in queues)
        for message in got:
            channel.ack(message.tag)


@shared_prefetch
def test_prefetch_of_the_channel_starves_no_consumer(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.qos(1, shared=True)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    publish(channel, queue, 1, 10)
    taken = []
    for _ in range(10):
        (message,) = channel.deliveries(1)
        taken.append(message.consumer)
        channel.ack(message.tag)
    assert Counter(taken) == {"a": 5, "b": 5}


@shared_prefetch
def test_both_limits_at_once(channel: Channel) -> None:
    """Two consumers with 3 each under a channel limit of 5 get 3 + 2."""
    queue = channel.declare(exclusive=True)
    channel.qos(3)
    channel.qos(5, shared=True)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    publish(channel, queue, 1, 10)
    assert sorted(Counter(message.consumer for message in takes_exactly(channel, queue, 5)).values()) == [
        2,
        3,
    ]


@shared_prefetch
def test_a_raised_limit_of_the_channel_counts_at_once(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.qos(1, shared=True)
    channel.consume(queue)
    publish(channel, queue, 1, 10)
    assert bodies(takes_exactly(channel, queue, 1)) == [b"1"]
    channel.qos(3, shared=True)
    assert bodies(takes_exactly(channel, queue, 2)) == [b"2", b"3"]
    channel.qos(0, shared=True)
    assert bodies(takes_exactly(channel, queue, 7)) == numbers(4, 10)


@shared_prefetch
def test_a_lowered_limit_of_the_channel_counts_at_once(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.qos(3, shared=True)
    channel.consume(queue)
    publish(channel, queue, 1, 2)
    takes_exactly(channel, queue, 2)
    channel.qos(1, shared=True)
    publish(channel, queue, 3, 4)
    assert channel.delivered(queue) == []
    channel.ack(1)
    assert channel.delivered(queue) == []
    channel.ack(2)
    assert bodies(takes_exactly(channel, queue, 1)) == [b"3"]


@shared_prefetch
def test_what_a_cancelled_consumer_has_still_counts_for_the_channel(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.qos(1, shared=True)
    channel.consume(queue, "gone")
    publish(channel, queue, 1, 2)
    assert bodies(takes_exactly(channel, queue, 1)) == [b"1"]
    channel.cancel("gone")
    channel.consume(queue, "next")
    assert channel.delivered(queue) == []
    channel.ack(1)
    assert bodies(channel.deliveries(1)) == [b"2"]


def test_get_says_how_many_are_left(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    publish(channel, queue, 1, 3)
    for left in (2, 1, 0):
        got = channel.get(queue)
        assert got is not None
        assert isinstance(got.carrier, Basic.GetOk)
        assert got.carrier.message_count == left
    assert channel.get(queue) is None


def test_get_and_deliver_share_the_tags(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    publish(channel, queue, 1, 1)
    got = channel.get(queue)
    assert got is not None
    assert got.tag == 1
    channel.consume(queue)
    publish(channel, queue, 2, 2)
    assert [message.tag for message in channel.deliveries(1)] == [2]


def test_a_cancelled_consumer_keeps_what_it_has(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.consume(queue, "tag")
    publish(channel, queue, 1, 2)
    channel.deliveries(2)
    channel.cancel("tag")
    publish(channel, queue, 3, 3)
    holds(channel, queue, 1)
    assert channel.state(queue) == (1, 0)
    channel.nack(1)
    holds(channel, queue, 2)
    channel.ack(2)
    assert channel.drain(queue) == [b"1", b"3"]


def test_a_deleted_queue_tells_its_consumers(connect: Connect, name: str) -> None:
    owner, other = connect().channel(), connect().channel()
    owner.declare(name)
    owner.consume(name, "own")
    other.consume(name, "others")
    publish(owner, name, 1, 2)
    (mine,), (theirs,) = owner.deliveries(1), other.deliveries(1)
    owner.delete(name)
    for channel, tag in ((owner, "own"), (other, "others")):
        notice = channel.next_method(Basic.Cancel)
        assert (notice.consumer_tag, notice.nowait) == (tag, True)
    # What was delivered of it may still be acknowledged: nothing comes of it.
    owner.ack(mine.tag)
    other.reject(theirs.tag, requeue=True)
    for channel in (owner, other):
        assert channel.declare(exclusive=True)


def test_an_exclusive_consumer_is_alone(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    queue = channel.declare(exclusive=True)
    channel.consume(queue, "alone", exclusive=True)
    other = connection.channel()
    other.send(Basic.Consume(queue=queue))
    error = other.closed()
    assert (error.code, error.text) == (
        403,
        f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use",
    )
    channel.cancel("alone")
    channel.consume(queue, "a")
    other = connection.channel()
    other.send(Basic.Consume(queue=queue, exclusive=True))
    assert other.closed().code == 403


def test_messages_of_all_sizes_pass_unchanged(channel: Channel) -> None:
    room = channel.connection.raw.frame_max - 8
    queue = channel.declare(exclusive=True)
    sent = [bytes([size % 251]) * size for size in (0, 1, room - 1, room, room + 1, 3 * room + 7)]
    for body in sent:
        channel.publish(queue, body)
    other = channel.connection.channel()
    channel.consume(queue, "same")
    assert bodies(channel.deliveries(len(sent))) == sent
    channel.nack(0, multiple=True)
    channel.deliveries(len(sent))
    channel.cancel("same")
    channel.nack(0, multiple=True)
    other.consume(queue)
    assert bodies(other.deliveries(len(sent))) == sent


@pytest.mark.parametrize("consumers", [1, 3])
def test_a_backlog_is_delivered_as_acknowledgements_make_room(channel: Channel, consumers: int) -> None:
    queue = channel.declare(exclusive=True)
    publish(channel, queue, 1, 100)
    channel.qos(7)
    for _ in range(consumers):
        channel.consume(queue)
    found: list[bytes] = []
    while len(found) < 100:
        (message,) = channel.deliveries(1)
        found.append(message.body)
        channel.ack(message.tag)
    assert found == numbers(1, 100)
    assert channel.delivered(queue) == []
