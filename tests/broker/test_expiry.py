"""Expiry: per-message TTL, per-queue TTL, and unused queues (x-expires)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pamqp.commands import Basic

from tests.support.blocking_client import Channel, Message
from tests.support.dead_letters import dying
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.queue_assertions import holds


def dead_lettering(channel: Channel, **arguments: Any) -> tuple[str, str]:
    """Declare a queue and the target of its dead letters."""
    dead_letter_queue = channel.declare(exclusive=True)
    return dying(channel, dead_letter_queue, **arguments), dead_letter_queue


# -- messages, at their exact time


def test_a_message_expires_at_its_millisecond(timed: Channel, inprocess: InProcessBroker) -> None:
    queue, dead_letter_queue = dead_lettering(timed)
    timed.publish(queue, b"x", expiration="1500")
    assert timed.ready(queue) == 1
    inprocess.advance(1.499)
    assert (timed.ready(queue), timed.ready(dead_letter_queue)) == (1, 0)
    inprocess.advance(0.001)
    assert (timed.ready(queue), timed.ready(dead_letter_queue)) == (0, 1)


@pytest.mark.parametrize(
    ("of_queue", "of_message", "seconds"),
    [(1000, None, 1), (1000, "500", 0.5), (500, "1000", 0.5), (0, "9", 0)],
)
def test_the_smaller_ttl_wins(
    timed: Channel, inprocess: InProcessBroker, of_queue: int, of_message: str | None, seconds: float
) -> None:
    queue, dead_letter_queue = dead_lettering(timed, x_message_ttl=of_queue)
    if of_message is None:
        timed.publish(queue, b"x")
    else:
        timed.publish(queue, b"x", expiration=of_message)
    timed.ready(queue)
    if seconds:
        inprocess.advance(seconds - 0.001)
        assert (timed.ready(queue), timed.ready(dead_letter_queue)) == (1, 0)
        inprocess.advance(0.001)
    assert (timed.ready(queue), timed.ready(dead_letter_queue)) == (0, 1)


def test_messages_with_a_queue_ttl_expire_in_order(timed: Channel, inprocess: InProcessBroker) -> None:
    queue, dead_letter_queue = dead_lettering(timed, x_message_ttl=1000)
    for number in range(5):
        timed.publish(queue, b"%d" % number)
        timed.ready(queue)
        inprocess.advance(0.1)
    inprocess.advance(0.5)
    for number in range(5):
        assert timed.ready(dead_letter_queue) == number + 1
        inprocess.advance(0.1)
    assert timed.drain(dead_letter_queue) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_longer_ttl_at_the_head_keeps_expired_messages_behind_it(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue, dead_letter_queue = dead_lettering(timed)
    timed.publish(queue, b"long", expiration="5000")
    timed.publish(queue, b"short", expiration="1000")
    timed.publish(queue, b"none")
    timed.ready(queue)
    inprocess.advance(4)
    assert (timed.ready(queue), timed.ready(dead_letter_queue)) == (3, 0)
    inprocess.advance(1)
    assert timed.drain(dead_letter_queue) == [b"long", b"short"]
    assert timed.drain(queue) == [b"none"]


def test_consuming_the_head_expires_the_messages_behind_it(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue, dead_letter_queue = dead_lettering(timed)
    timed.publish(queue, b"none")
    timed.publish(queue, b"short", expiration="1000")
    timed.publish(queue, b"last")
    timed.ready(queue)
    inprocess.advance(2)
    assert timed.ready(dead_letter_queue) == 0
    timed.consume(queue, "tag")
    assert [message.body for message in timed.deliveries(2)] == [b"none", b"last"]
    assert timed.drain(dead_letter_queue) == [b"short"]


def test_dropping_the_head_expires_the_messages_behind_it(timed: Channel, inprocess: InProcessBroker) -> None:
    queue, dead_letter_queue = dead_lettering(timed, x_max_length=3)
    for body, ttl in ((b"driven out", "9000"), (b"dead", "1000"), (b"dying", "2000")):
        timed.publish(queue, body, expiration=ttl)
    timed.ready(queue)
    inprocess.advance(1)
    timed.publish(queue, b"last")
    assert timed.ready(queue) == 2
    assert timed.drain(dead_letter_queue) == [b"driven out", b"dead"]
    inprocess.advance(1)
    assert timed.drain(dead_letter_queue) == [b"dying"]


def test_messages_expire_on_time_after_a_purge(timed: Channel, inprocess: InProcessBroker) -> None:
    queue, dead_letter_queue = dead_lettering(timed)
    timed.publish(queue, b"purged", expiration="1000")
    assert timed.purge(queue) == 1
    timed.publish(queue, b"long", expiration="3000")
    timed.ready(queue)
    inprocess.advance(2.999)
    assert timed.ready(dead_letter_queue) == 0
    inprocess.advance(0.001)
    assert timed.drain(dead_letter_queue) == [b"long"]


def test_a_requeue_keeps_the_expiry(timed: Channel, inprocess: InProcessBroker) -> None:
    queue, dead_letter_queue = dead_lettering(timed, x_message_ttl=1000)
    timed.publish(queue, b"x")
    message = timed.get(queue)
    assert message is not None
    inprocess.advance(0.9)
    timed.nack(message.tag)
    assert timed.ready(queue) == 1
    inprocess.advance(0.1)
    assert (timed.ready(queue), timed.ready(dead_letter_queue)) == (0, 1)


def test_a_message_delivered_at_once_keeps_its_expiry(timed: Channel, inprocess: InProcessBroker) -> None:
    queue, dead_letter_queue = dead_lettering(timed)
    timed.qos(1)
    timed.consume(queue)
    for ttl in ("0", "1000"):
        timed.publish(queue, ttl, expiration=ttl)
        (message,) = timed.deliveries(1)
        inprocess.advance(1)
        timed.nack(message.tag)
        assert timed.delivered(queue) == []
        assert timed.drain(dead_letter_queue) == [ttl.encode()]


def test_a_message_requeued_after_its_expiry_expires_at_once(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue, dead_letter_queue = dead_lettering(timed, x_message_ttl=1000)
    for body in (b"a", b"b"):
        timed.publish(queue, body)
    timed.consume(queue, "tag")
    timed.deliveries(2)
    timed.cancel("tag")
    inprocess.advance(5)
    assert timed.ready(dead_letter_queue) == 0
    timed.nack(2)
    assert timed.drain(dead_letter_queue) == [b"b"]
    timed.consume(queue, "tag")
    timed.nack(1)
    assert timed.drain(dead_letter_queue) == [b"a"]
    assert timed.delivered(queue) == []


def test_expired_messages_are_never_delivered(timed: Channel, inprocess: InProcessBroker) -> None:
    """However many messages expire at once, the next consumer gets the first one that has not expired."""
    queue = timed.declare(exclusive=True)
    timed.connection.raw.send_bytes(
        b"".join(timed.encoded(queue, b"dead", expiration="1000") for _ in range(1600))
        + timed.encoded(queue, b"alive")
    )
    assert timed.ready(queue) == 1601
    inprocess.jump(2)
    found = timed.get(queue)
    assert found is not None
    assert found.body == b"alive"


def test_expired_messages_do_not_count_for_the_prefetch_limit(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue = timed.declare(exclusive=True)
    for number in range(10):
        timed.publish(queue, b"%d" % number, expiration="1000" if number % 2 else "9000")
    timed.ready(queue)
    inprocess.advance(2)
    timed.qos(3)
    timed.consume(queue)
    assert [message.body for message in timed.delivered(queue)] == [b"0", b"2", b"4"]


def test_the_longest_ttl(timed: Channel, inprocess: InProcessBroker) -> None:
    """Ten years, the limit of RabbitMQ."""
    queue, dead_letter_queue = dead_lettering(timed, x_message_ttl=315_360_000_000)
    timed.publish(queue, b"x")
    timed.ready(queue)
    inprocess.advance(315_359_999)
    assert timed.ready(dead_letter_queue) == 0
    inprocess.advance(1)
    assert timed.ready(dead_letter_queue) == 1


def test_a_get_waits_until_many_expired_messages_are_removed(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue, dead_letter_queue = dead_lettering(timed)
    count = 10_000
    dying = timed.encoded(queue, b"dead", expiration="1000")
    for _ in range(20):
        timed.connection.raw.send_bytes(dying * (count // 20))
    timed.publish(queue, b"alive")
    assert timed.ready(queue) == count + 1
    inprocess.jump(2)
    found = timed.get(queue)
    assert found is not None
    assert found.body == b"alive"
    assert timed.ready(dead_letter_queue) == count


# -- queues, at their exact time


def test_an_unused_queue_expires(timed: Channel, inprocess: InProcessBroker) -> None:
    queue = timed.declare(x_expires=1000)
    inprocess.advance(0.999)
    assert timed.exists(queue)
    # That was a declare: its time starts anew.
    inprocess.advance(0.999)
    assert timed.exists(queue)
    inprocess.advance(1)
    assert not timed.exists(queue)


def test_basic_get_is_a_use_and_publishing_is_not(timed: Channel, inprocess: InProcessBroker) -> None:
    queue = timed.declare(x_expires=1000)
    inprocess.advance(0.6)
    assert timed.get(queue) is None
    inprocess.advance(0.6)
    assert timed.get(queue) is None
    inprocess.advance(0.6)
    other = timed.declare(exclusive=True)
    timed.publish(queue, b"x")
    timed.ready(other)
    inprocess.advance(0.6)
    assert not timed.exists(queue)


def test_a_queue_with_a_consumer_does_not_expire(timed: Channel, inprocess: InProcessBroker) -> None:
    queue = timed.declare(x_expires=1000)
    timed.consume(queue, "tag")
    inprocess.advance(100)
    timed.publish(queue, b"x")
    assert timed.deliveries(1)
    timed.cancel("tag")
    inprocess.advance(0.999)
    timed.consume(queue, "tag")
    inprocess.advance(100)
    timed.cancel("tag")
    inprocess.advance(1)
    assert not timed.exists(queue)


def test_the_messages_of_an_unused_queue_are_not_dead_lettered(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue, dead_letter_queue = dead_lettering(timed, x_expires=1000)
    timed.publish(queue, b"x")
    timed.ready(queue)
    inprocess.advance(5)
    assert not timed.exists(queue)
    assert timed.ready(dead_letter_queue) == 0


# -- on any broker, in real time


def test_ttl_0_without_a_ready_consumer(channel: Channel) -> None:
    queue, dead_letter_queue = dead_lettering(channel, x_message_ttl=0)
    channel.publish(queue, b"nobody there")
    assert channel.drain(queue) == []
    wait_until(lambda: channel.ready(dead_letter_queue) == 1, "the message is dead-lettered")


@pytest.mark.parametrize("by", ["queue", "message"])
def test_ttl_0_with_a_ready_consumer(channel: Channel, by: str) -> None:
    queue, dead_letter_queue = dead_lettering(channel, **({"x_message_ttl": 0} if by == "queue" else {}))
    properties: dict[str, Any] = {"expiration": "0"} if by == "message" else {}
    channel.qos(1)
    channel.consume(queue)
    channel.publish(queue, b"taken", **properties)
    channel.publish(queue, b"one too many", **properties)
    assert [message.body for message in channel.deliveries(1)] == [b"taken"]
    wait_until(lambda: channel.ready(dead_letter_queue) == 1, "the second is dead-lettered")
    channel.ack(1)
    assert channel.delivered(queue) == []


def test_ttl_0_behind_a_message_without_ttl(channel: Channel) -> None:
    queue, dead_letter_queue = dead_lettering(channel)
    channel.publish(queue, b"first")
    channel.publish(queue, b"second", expiration="0")
    holds(channel, queue, 2)
    assert channel.drain(queue) == [b"first"]
    wait_until(lambda: channel.ready(dead_letter_queue) == 1, "the second is dead-lettered")


def test_ttl_in_real_time(channel: Channel) -> None:
    queue, dead_letter_queue = dead_lettering(channel, x_message_ttl=60_000)
    began = time.monotonic()
    channel.publish(queue, b"x", expiration="100")
    wait_until(lambda: channel.ready(dead_letter_queue) == 1, "the message is dead-lettered")
    assert time.monotonic() - began > 0.09


def test_expires_in_real_time(channel: Channel, name: str) -> None:
    channel.declare(name, x_expires=100)
    channel.confirm()

    def gone() -> bool:
        # A publish does not use the queue, and comes back when there is none.
        channel.publish(name, b"", mandatory=True)
        return isinstance(channel.next(), Message)

    wait_until(gone, "the queue is deleted")


@pytest.mark.parametrize(
    ("expiration", "reason"),
    [
        ("abc", "no_integer"),
        ("10ms", '{leftover_string,"ms"}'),
        ("-1", "{value_negative,-1}"),
        (" 5", "no_integer"),
        ("1.5", '{leftover_string,".5"}'),
        ("-5ms", '{leftover_string,"ms"}'),
        ("315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_an_invalid_expiration_is_refused(channel: Channel, expiration: str, reason: str) -> None:
    queue = channel.declare(exclusive=True)
    channel.publish(queue, b"x", expiration=expiration)
    error = channel.closed()
    assert (error.code, error.method) == (406, (60, 40))
    assert error.text == f"PRECONDITION_FAILED - invalid expiration '{expiration}': {reason}"


def test_a_consumer_that_asks_for_it_gets_the_time_at_which_a_message_expires(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue = timed.declare(exclusive=True)
    timed.publish(queue, b"x", expiration="1500", headers={"n": 1})
    timed.publish(queue, b"y")
    now = inprocess.call(lambda: inprocess.virtual_host().clock.wall())
    timed.send(Basic.Consume(queue=queue, arguments={"x-warren-show-expiry": True}))
    first, second = timed.deliveries(2)
    assert first.headers == {"n": 1, "x-warren-expires-at": round((now + 1.5) * 1000)}
    assert second.headers == {}
