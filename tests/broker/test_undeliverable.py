"""Messages that cannot be encoded: no client but the log notices them, and they are not lost.

Clients cannot send such a message. The tests put one into the broker: its routing key has more than 255 bytes.
"""

from __future__ import annotations

import struct

import pytest

from tests.support.blocking_client import Channel
from tests.support.dead_letters import arrived
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.restarts import RestartableSession
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue
from warren.broker.model.vhost.bulk_publish import BULK_COPIES
from warren.wire.content import join_content
from warren.wire.properties import Properties, encode

LONG = b"k" * 256


def message(body: bytes, key: bytes = LONG, *, delivery_mode: int = 1) -> Message:
    header = encode(Properties(delivery_mode=delivery_mode), len(body))
    return Message(b"", key, join_content(1, header, body), len(body), 1)


def queue_of(broker: InProcessBroker, name: str) -> Queue:
    return broker.virtual_host().queues[name.encode()]


def publish(broker: InProcessBroker, name: str, *messages: Message) -> None:
    """Put messages into a queue, one after the other, in one turn of the broker's event loop."""

    def put() -> None:
        for each in messages:
            queue_of(broker, name).publish(each)

    broker.call(put)


def undeliverable(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return queue and sequence number of each message that a log line names."""
    lines = [each.getMessage() for each in caplog.records]
    return [" ".join(line.split()[1:3]) for line in lines if "event=queue.message_undeliverable" in line]


@pytest.mark.parametrize("no_ack", [False, True], ids=["ack", "no-ack"])
@pytest.mark.parametrize("waits", [False, True], ids=["published", "ready"])
def test_a_consumer_gets_the_messages_around_it(
    timed: Channel,
    other: Channel,
    inprocess: InProcessBroker,
    caplog: pytest.LogCaptureFixture,
    no_ack: bool,
    waits: bool,
) -> None:
    timed.declare("q")
    key = bytes(bytearray(b"k"))
    # The second one has the very key of the first: neither is sent with what another was encoded with.
    messages = [message(b"1", key), message(b"-"), message(b"-"), message(b"2", key), message(b"3", b"l")]
    if waits:
        publish(inprocess, "q", *messages)
    timed.consume("q", "c", no_ack=no_ack)
    if not waits:
        publish(inprocess, "q", *messages)

    found = timed.deliveries(3)

    assert [(each.body, each.carrier.routing_key, each.tag) for each in found] == [
        (b"1", "k", 1),
        (b"2", "k", 2),
        (b"3", "l", 3),
    ]
    assert undeliverable(caplog) == ["queue='q' sequence=2", "queue='q' sequence=3"]
    # It is held by nobody; the messages behind it are delivered, and another client does not notice.
    assert inprocess.call(lambda: int(queue_of(inprocess, "q").unacked)) == (2 if no_ack else 5)
    other.publish("q", b"4")
    assert [each.body for each in timed.deliveries(1)] == [b"4"]
    assert other.ready("q") == 0


def test_a_get_answers_with_the_next_message(
    timed: Channel, inprocess: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    timed.declare("q")
    publish(inprocess, "q", message(b"-"), message(b"1", b"k"), message(b"-"))

    found = timed.get("q")

    assert found is not None
    assert (found.body, found.tag) == (b"1", 1)
    assert timed.get("q") is None
    assert undeliverable(caplog) == ["queue='q' sequence=1", "queue='q' sequence=3"]
    timed.ack(1)
    assert timed.state("q") == (0, 0)
    assert inprocess.call(lambda: int(queue_of(inprocess, "q").unacked)) == 2


@pytest.mark.parametrize("by_get", [False, True], ids=["consumer", "get"])
def test_it_is_dead_lettered(timed: Channel, inprocess: InProcessBroker, by_get: bool) -> None:
    timed.declare("dead")
    timed.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    publish(inprocess, "q", message(b"x"))
    if by_get:
        assert timed.get("q") is None
    else:
        timed.consume("q", "c")
    letter = timed.get("dead")
    assert letter is not None
    assert (letter.body, letter.carrier.routing_key) == (b"x", "dead")
    assert inprocess.call(lambda: int(queue_of(inprocess, "q").unacked)) == 0


def test_an_exchange_is_checked_as_a_routing_key_is(timed: Channel, inprocess: InProcessBroker) -> None:
    timed.declare("q")
    timed.consume("q", "c")
    odd = message(b"-", b"k")
    odd.exchange = LONG
    publish(inprocess, "q", odd, odd.copy(), message(b"1", b"k"))
    assert [(each.body, each.carrier.exchange) for each in timed.deliveries(1)] == [(b"1", "")]


# -- the log


def test_the_log_has_no_record_of_it_under_another_key(session: RestartableSession) -> None:
    broker = session.broker
    session.channel.declare("q", durable=True)
    odd = [message(body, delivery_mode=2) for body in (b"-", b"--")]
    # Both have the same key, as the messages of one publisher do.
    odd[1].routing_key = odd[0].routing_key
    good = [message(body, b"k", delivery_mode=2) for body in (b"1", b"2")]
    for each in (*odd, *good):
        each.persistent = True
    for each in (good[0], *odd, good[1]):
        if each in odd:
            with pytest.raises((ValueError, struct.error)):
                publish(broker, "q", each)
        else:
            publish(broker, "q", each)
    session.publish("q", b"3")

    session.crash()

    found = [session.channel.get("q", no_ack=True) for _ in range(3)]
    assert [(each.body, each.carrier.routing_key) for each in found if each is not None] == [
        (b"1", "k"),
        (b"2", "k"),
        (b"3", "q"),
    ]


def test_a_dead_letter_that_cannot_be_logged_waits_and_is_named_once(
    session: RestartableSession, caplog: pytest.LogCaptureFixture
) -> None:
    broker, channel = session.broker, session.channel
    channel.declare("dead", durable=True)
    channel.bind("dead", "amq.fanout")
    channel.declare("q", durable=True, x_dead_letter_exchange="amq.fanout", x_message_ttl=1000)
    publish(broker, "q", message(b"-", delivery_mode=2), message(b"-", delivery_mode=2))
    session.publish("q", b"1")

    for _ in range(5):
        broker.advance(1)

    assert channel.drain("dead") == [b"1"]
    assert broker.call(lambda: queue_of(broker, "q").held_back_count()) == 2
    lines = [each.getMessage() for each in caplog.records if "dead_letter.failed" in each.getMessage()]
    assert lines == [f"event=dead_letter.failed queue='q' sequence={number}" for number in (1, 2)]
    # With a key of its own, the queue can get rid of them.
    broker.call(lambda: _shorten(broker, "q"))
    broker.advance(1)
    assert channel.drain("dead") == [b"-", b"-"]


def _shorten(broker: InProcessBroker, name: str) -> None:
    for each, _ in queue_of(broker, name).pending_dead_letters:
        each.routing_key = b"k"


def fail_to_deliver(broker: InProcessBroker, *names: str) -> None:
    """Deliver a persistent message that cannot be logged to durable queues, and check that this fails."""
    odd = message(b"-", delivery_mode=2)
    odd.persistent = True
    vhost = broker.virtual_host()
    with pytest.raises((ValueError, struct.error)):
        broker.call(lambda: vhost.deliver([queue_of(broker, name) for name in names], odd))


def test_dead_lettering_goes_on_after_a_message_that_cannot_be_logged(session: RestartableSession) -> None:
    broker, channel = session.broker, session.channel
    for queue in ("dead", "a", "b"):
        channel.declare(queue, durable=True)
    channel.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    fail_to_deliver(broker, "a", "b")
    channel.publish("q", b"x")
    found = channel.get("q")
    assert found is not None
    channel.reject(found.tag)
    assert arrived(channel, "dead").body == b"x"
    assert channel.drain("a") == channel.drain("b") == []


@pytest.mark.parametrize("expires", [False, True], ids=["same", "expires"])
def test_publishes_are_confirmed_after_a_message_that_cannot_be_logged(
    session: RestartableSession, expires: bool
) -> None:
    """Copies that expire at different times are records of one group of the log."""
    broker, channel = session.broker, session.channel
    channel.declare("a", durable=True)
    if expires:
        channel.declare("b", durable=True, x_message_ttl=60_000)
    else:
        channel.declare("b", durable=True)
    fail_to_deliver(broker, "a", "b")
    session.publish("a", b"1")
    session.crash()
    assert session.channel.drain("a") == [b"1"]
    assert session.channel.drain("b") == []


def test_a_dead_letter_for_very_many_queues_waits_too(session: RestartableSession) -> None:
    broker, channel = session.broker, session.channel
    queues = [channel.declare(f"dead-{number}", durable=True) for number in range(BULK_COPIES + 1)]
    for each in queues:
        channel.bind(each, "amq.fanout")
    channel.declare("q", durable=True, x_dead_letter_exchange="amq.fanout", x_message_ttl=1000)
    publish(broker, "q", message(b"-", delivery_mode=2))
    broker.advance(1.5)

    def is_held_back() -> bool:
        return broker.call(lambda: queue_of(broker, "q").held_back_count()) == 1

    # The copies are staged in slices of bulk work.
    wait_until(is_held_back, "the dead letter waits")

    broker.call(lambda: _shorten(broker, "q"))
    broker.advance(1)

    assert arrived(channel, queues[0]).body == b"-"
    assert arrived(channel, queues[-1]).body == b"-"
    assert broker.call(lambda: queue_of(broker, "q").held_back_count()) == 0
