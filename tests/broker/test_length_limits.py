"""Length limits: x-max-length, x-max-length-bytes and the overflow modes."""

from __future__ import annotations

import pytest

from tests.support.blocking_client import Channel
from tests.support.polling import wait_until
from tests.support.queue_assertions import holds, takes_exactly


def fill(channel: Channel, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        channel.publish(queue, body)


def test_drop_head_drops_the_oldest_message(channel: Channel) -> None:
    queue = channel.declare(exclusive=True, x_max_length=3)
    fill(channel, queue, b"1", b"2", b"3", b"4", b"5")
    assert channel.drain(queue) == [b"3", b"4", b"5"]


def test_bytes_of_bodies_are_counted(channel: Channel) -> None:
    queue = channel.declare(exclusive=True, x_max_length_bytes=10)
    fill(channel, queue, b"aaaa", b"bbbb", b"", b"cc")
    holds(channel, queue, 4)
    fill(channel, queue, b"d")
    assert channel.drain(queue) == [b"bbbb", b"", b"cc", b"d"]


def test_a_message_larger_than_the_limit_drops_all_and_itself(channel: Channel) -> None:
    queue = channel.declare(exclusive=True, x_max_length_bytes=10)
    fill(channel, queue, b"aaaa", b"x" * 11)
    assert channel.drain(queue) == []


def test_both_limits_apply(channel: Channel) -> None:
    queue = channel.declare(exclusive=True, x_max_length=3, x_max_length_bytes=10)
    fill(channel, queue, b"1", b"2", b"3", b"4")
    holds(channel, queue, 3)
    fill(channel, queue, b"56789abc")
    assert channel.drain(queue) == [b"3", b"4", b"56789abc"]


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_a_queue_of_length_0_delivers_to_waiting_consumers_only(channel: Channel, overflow: str) -> None:
    queue = channel.declare(exclusive=True, x_max_length=0, x_overflow=overflow)
    channel.confirm()
    channel.publish(queue, b"1")
    assert channel.settled(1) == [overflow == "drop-head"]
    holds(channel, queue, 0)
    channel.consume(queue)
    channel.publish(queue, b"2")
    expected = [b"2"] if overflow == "drop-head" else []
    assert [message.body for message in takes_exactly(channel, queue, len(expected))] == expected


def test_only_ready_messages_count(channel: Channel) -> None:
    queue = channel.declare(exclusive=True, x_max_length=2)
    channel.qos(2)
    channel.consume(queue)
    fill(channel, queue, b"1", b"2", b"3", b"4", b"5")
    assert [message.body for message in takes_exactly(channel, queue, 2)] == [b"1", b"2"]
    holds(channel, queue, 2)
    channel.ack(2, multiple=True)
    assert [message.body for message in takes_exactly(channel, queue, 2)] == [b"4", b"5"]


def test_a_message_delivered_at_once_does_not_count(channel: Channel) -> None:
    queue = channel.declare(exclusive=True, x_max_length=1)
    channel.consume(queue)
    fill(channel, queue, *[b"%d" % number for number in range(10)])
    takes_exactly(channel, queue, 10)


def test_a_requeue_to_a_full_queue_drops_the_oldest_message(channel: Channel) -> None:
    queue = channel.declare(exclusive=True, x_max_length=3)
    fill(channel, queue, b"1", b"2")
    for _ in range(2):
        assert channel.get(queue) is not None
    fill(channel, queue, b"3", b"4", b"5")
    holds(channel, queue, 3)
    channel.nack(2, multiple=True)
    holds(channel, queue, 3)
    assert channel.drain(queue) == [b"3", b"4", b"5"]


def test_a_requeued_message_is_in_position_before_others_are_dropped(channel: Channel) -> None:
    queue = channel.declare(exclusive=True, x_max_length=3)
    fill(channel, queue, b"1", b"2", b"3")
    for _ in range(2):
        assert channel.get(queue) is not None
    fill(channel, queue, b"4")
    channel.nack(2)
    holds(channel, queue, 3)
    channel.nack(1)
    assert channel.drain(queue) == [b"2", b"3", b"4"]


def test_reject_publish_keeps_requeued_messages(channel: Channel) -> None:
    queue = channel.declare(exclusive=True, x_max_length=2, x_overflow="reject-publish")
    fill(channel, queue, b"1", b"2")
    assert channel.get(queue) is not None
    fill(channel, queue, b"3", b"4")
    holds(channel, queue, 2)
    channel.nack(1)
    assert channel.drain(queue) == [b"1", b"2", b"3"]


def test_reject_publish_by_bytes(channel: Channel) -> None:
    queue = channel.declare(exclusive=True, x_max_length_bytes=10, x_overflow="reject-publish")
    channel.confirm()
    fill(channel, queue, b"12345678", b"abc", b"ab", b"")
    assert channel.settled(4) == [True, False, True, True]
    assert channel.drain(queue) == [b"12345678", b"ab", b""]


def test_dropped_messages_are_confirmed(channel: Channel) -> None:
    queue = channel.declare(exclusive=True, x_max_length=1)
    channel.confirm()
    fill(channel, queue, *[b"x"] * 20)
    assert channel.settled(20) == [True] * 20
    holds(channel, queue, 1)


def test_rejected_publishes_can_be_dead_lettered(channel: Channel, dead_letter_queue: str, name: str) -> None:
    queue = channel.declare(
        exclusive=True,
        x_max_length=1,
        x_overflow="reject-publish-dlx",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=dead_letter_queue,
    )
    other = channel.declare(exclusive=True)
    exchange = channel.declare_exchange(name)
    for bound in (queue, other):
        channel.bind(bound, exchange)
    channel.confirm()
    for body in (b"1", b"2"):
        channel.publish("", body, exchange=exchange)
    channel.publish(queue, b"3")
    assert channel.settled(3) == [True, False, False]
    channel.delete_exchange(exchange)
    wait_until(lambda: channel.ready(dead_letter_queue) == 2, "the refused are dead-lettered")
    assert channel.drain(queue) == [b"1"]
    assert channel.drain(other) == [b"1", b"2"]
    letters = [channel.get(dead_letter_queue), channel.get(dead_letter_queue)]
    for letter, body in zip(letters, (b"2", b"3"), strict=True):
        assert letter is not None
        (death,) = letter.headers["x-death"]
        assert (letter.body, death["queue"], death["reason"], death["count"]) == (body, queue, "maxlen", 1)
