"""Acknowledging and requeueing: a requeued message returns to its place, marked redelivered."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic

from tests.broker.conftest import Connect
from tests.support.blocking_client import Channel
from tests.support.parameter_ids import frame_id
from tests.support.polling import wait_until
from tests.support.queue_assertions import holds

UNKNOWN = "PRECONDITION_FAILED - unknown delivery tag"


def fill(channel: Channel, queue: str, text: str) -> None:
    for letter in text:
        channel.publish(queue, letter)


def all_delivered(channel: Channel, queue: str, text: str) -> None:
    """Have these messages delivered to a consumer of this channel: their tags are 1, 2, 3..."""
    fill(channel, queue, text)
    channel.consume(queue, "tag")
    assert b"".join(message.body for message in channel.deliveries(len(text))) == text.encode()


def left(channel: Channel, queue: str) -> str:
    return b"".join(channel.drain(queue)).decode()


@pytest.fixture
def queue(channel: Channel) -> str:
    return channel.declare(exclusive=True)


def test_one(channel: Channel, queue: str) -> None:
    all_delivered(channel, queue, "abc")
    channel.ack(2)
    channel.cancel("tag")
    channel.recover()
    assert left(channel, queue) == "ac"


def test_all_up_to_one(channel: Channel, queue: str) -> None:
    all_delivered(channel, queue, "abcd")
    channel.ack(1)
    channel.ack(3, multiple=True)
    channel.cancel("tag")
    channel.recover()
    assert left(channel, queue) == "d"


def test_all(channel: Channel, queue: str) -> None:
    all_delivered(channel, queue, "abc")
    channel.ack(0, multiple=True)
    channel.ack(0, multiple=True)
    channel.cancel("tag")
    channel.recover()
    assert left(channel, queue) == ""


@pytest.mark.parametrize(
    ("wrong", "tag"),
    [
        (Basic.Ack(99), 99),
        (Basic.Ack(0), 0),
        (Basic.Ack(99, True), 99),
        (Basic.Nack(99), 99),
        (Basic.Nack(99, True), 99),
        (Basic.Reject(99), 99),
    ],
    ids=frame_id,
)
def test_an_unknown_tag_closes_the_channel(connect: Connect, wrong: Basic.Ack, tag: int) -> None:
    connection = connect()
    channel = connection.channel()
    queue = channel.declare(exclusive=True)
    all_delivered(channel, queue, "abc")
    channel.send(wrong)
    error = channel.closed()
    assert (error.code, error.text, error.method) == (406, f"{UNKNOWN} {tag}", (60, wrong.frame_id & 0xFFFF))
    other = connection.channel()
    assert left(other, queue) == "abc"


def test_tags_are_unsigned(channel: Channel) -> None:
    channel.connection.raw.ack(2**64 - 1)
    assert channel.closed().text == f"{UNKNOWN} {2**64 - 1}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Basic.Ack(2), Basic.Ack(2)),
        (Basic.Ack(2), Basic.Ack(2, True)),
        (Basic.Ack(2, True), Basic.Ack(1)),
        (Basic.Nack(2, False, False), Basic.Ack(2)),
        (Basic.Reject(2, False), Basic.Nack(2, True)),
    ],
    ids=frame_id,
)
def test_nothing_is_acknowledged_twice(
    channel: Channel, queue: str, first: Basic.Ack, second: Basic.Ack
) -> None:
    all_delivered(channel, queue, "abc")
    channel.send(first, second)
    assert channel.closed().text == f"{UNKNOWN} {second.delivery_tag}"


def test_a_tag_belongs_to_its_channel(connect: Connect) -> None:
    connection = connect()
    first, second = connection.channel(), connection.channel()
    queue = first.declare(exclusive=True)
    all_delivered(first, queue, "a")
    second.ack(1)
    assert second.closed().text == f"{UNKNOWN} 1"


def test_requeued_is_delivered_again_and_says_so(channel: Channel, queue: str) -> None:
    all_delivered(channel, queue, "a")
    for tag in (1, 2, 3):
        channel.reject(tag, requeue=True)
        (message,) = channel.deliveries(1)
        assert (message.tag, message.redelivered, message.body) == (tag + 1, True, b"a")


def test_requeued_is_marked_for_get_too(channel: Channel, queue: str) -> None:
    fill(channel, queue, "a")
    first = channel.get(queue)
    assert first is not None
    assert not first.redelivered
    channel.nack(first.tag)
    second = channel.get(queue)
    assert second is not None
    assert second.redelivered


def test_rejected_without_requeue_is_gone(channel: Channel, queue: str) -> None:
    all_delivered(channel, queue, "abcd")
    channel.cancel("tag")
    channel.reject(4)
    channel.nack(2, multiple=True, requeue=False)
    channel.recover()
    assert left(channel, queue) == "c"


@pytest.mark.parametrize(
    "back",
    [
        [Basic.Nack(2)],
        [Basic.Nack(4), Basic.Nack(2)],
        [Basic.Reject(3, True), Basic.Reject(1, True), Basic.Reject(5, True)],
        [Basic.Nack(3, True)],
        [Basic.Nack(0, True)],
        [Basic.Nack(4), Basic.Nack(3, True)],
        [Basic.Recover(True)],
    ],
    ids=frame_id,
)
def test_requeued_returns_to_its_place(channel: Channel, queue: str, back: list[Basic.Nack]) -> None:
    fill(channel, queue, "abcdefgh")
    for _ in range(5):
        assert channel.get(queue) is not None
    channel.send(*back)
    if isinstance(back[0], Basic.Recover):
        channel.next_method(Basic.RecoverOk)
    found = left(channel, queue)
    assert found == "".join(sorted(found))
    assert found.endswith("fgh")


def test_requeued_from_several_channels_returns_to_its_place(connect: Connect) -> None:
    connection = connect()
    channels = [connection.channel() for _ in range(3)]
    queue = channels[0].declare(exclusive=True)
    fill(channels[0], queue, "abcdef")
    for channel in [*channels, *channels]:
        assert channel.get(queue) is not None
    fill(channels[0], queue, "gh")
    channels[1].nack(0, multiple=True)
    holds(channels[1], queue, 4)
    channels[2].reject(1, requeue=True)
    holds(channels[2], queue, 5)
    channels[0].close()
    holds(channels[1], queue, 7)
    assert left(channels[1], queue) == "abcdegh"


def test_order_through_partly_taken_returns(channel: Channel, queue: str) -> None:
    """Requeue messages twice, of which some were fetched again in between: they keep their places."""
    fill(channel, queue, "abcdef")
    tags = {}
    for letter in "abcd":
        message = channel.get(queue)
        assert message is not None
        tags[letter] = message.tag
    channel.nack(tags["c"])
    channel.nack(tags["a"])
    again = channel.get(queue)
    assert again is not None
    assert again.body == b"a"
    channel.nack(tags["b"])
    channel.nack(again.tag)
    channel.nack(tags["d"])
    assert left(channel, queue) == "abcdef"


def test_a_closed_channel_returns_everything(connect: Connect) -> None:
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    queue = channel.declare(exclusive=True)
    all_delivered(channel, queue, "abc")
    fill(channel, queue, "d")
    channel.ack(2)
    channel.close()
    found = [other.get(queue) for _ in range(3)]
    assert [(message.body, message.redelivered) for message in found if message] == [
        (b"a", True),
        (b"c", True),
        (b"d", True),
    ]


@pytest.mark.parametrize("politely", [True, False])
def test_a_lost_connection_returns_everything(connect: Connect, name: str, politely: bool) -> None:
    connection, observer = connect(), connect().channel()
    observer.declare(name)
    channels = [connection.channel(), connection.channel()]
    fill(observer, name, "abcdef")
    holds(observer, name, 6)
    channels[0].qos(2)
    channels[0].consume(name)
    channels[1].qos(3)
    channels[1].consume(name)
    channels[0].deliveries(2)
    channels[1].deliveries(3)
    if politely:
        connection.close()
    else:
        connection.abort()
    wait_until(lambda: observer.ready(name) == 6, "everything has come back")
    observer.consume(name, no_ack=True)
    found = observer.deliveries(6)
    assert b"".join(message.body for message in found) == b"abcdef"
    assert [message.redelivered for message in found] == [True] * 5 + [False]
    observer.delete(name)


def test_recover_returns_all_of_the_channel(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    queues = [channel.declare(exclusive=True) for _ in range(2)]
    for queue in queues:
        fill(channel, queue, "ab")
        assert channel.get(queue) is not None
    channel.recover()
    for queue in queues:
        assert left(channel, queue) == "ab"


def test_what_is_unacknowledged_is_not_ready(channel: Channel, queue: str) -> None:
    all_delivered(channel, queue, "abc")
    assert channel.state(queue) == (0, 1)
    assert channel.purge(queue) == 0
    channel.cancel("tag")
    channel.nack(0, multiple=True)
    holds(channel, queue, 3)
    assert channel.state(queue) == (3, 0)
    assert channel.purge(queue) == 3


def test_many_single_acknowledgements_and_then_all(channel: Channel, queue: str) -> None:
    channel.consume(queue, "tag")
    for _ in range(300):
        fill(channel, queue, "x")
        (message,) = channel.deliveries(1)
        channel.ack(message.tag)
    fill(channel, queue, "abc")
    assert [message.tag for message in channel.deliveries(3)] == [301, 302, 303]
    channel.ack(302, multiple=True)
    channel.cancel("tag")
    channel.recover()
    assert left(channel, queue) == "c"
