"""x-delayed-message: messages reach their queues when they are due, in order, through any stop of the broker."""

from __future__ import annotations

import itertools
import struct
import time
from typing import Any

import pytest
from pamqp import commands

from tests.support.blocking_client import Channel, Connection, Message
from tests.support.broker_process import BrokerProcess
from tests.support.frames import BASIC_PUBLISH, body_frames, frame, method, short
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.queue_arguments import integer, long, text
from tests.support.raw_client import RawClient, made
from tests.support.restarts import PERSISTENT, RestartableSession

DELAYED = "x-delayed-message"


def delayed(channel: Channel, name: str = "later", kind: str = "fanout", **arguments: Any) -> str:
    """Declare a delayed exchange."""
    return channel.declare_exchange(name, DELAYED, x_delayed_type=kind, **arguments)


def publish(channel: Channel, exchange: str, delay: int | None, body: bytes, **properties: Any) -> None:
    headers = {} if delay is None else {"x-delay": delay}
    key = properties.pop("key", "key")
    channel.publish(key, body, exchange=exchange, headers=headers, **properties)


@pytest.fixture
def queue(timed: Channel) -> str:
    """Declare a queue that is bound to the delayed exchange `later`."""
    queue = timed.declare(exclusive=True)
    timed.bind(queue, delayed(timed))
    return queue


# -- when


def test_messages_arrive_when_they_are_due_and_in_order(
    timed: Channel, inprocess: InProcessBroker, queue: str
) -> None:
    for delay in (3000, 1000, 2000, 1000):
        publish(timed, "later", delay, b"%d" % delay)
    publish(timed, "later", None, b"now")
    assert timed.drain(queue) == [b"now"]
    inprocess.advance(0.999)
    assert timed.ready(queue) == 0
    inprocess.advance(0.001)
    assert timed.drain(queue) == [b"1000", b"1000"]
    inprocess.advance(10)
    assert timed.drain(queue) == [b"2000", b"3000"]


def test_a_shorter_delay_overtakes_a_longer_one(
    timed: Channel, inprocess: InProcessBroker, queue: str
) -> None:
    """A message does not wait behind one with a longer delay."""
    publish(timed, "later", 60_000, b"long")
    inprocess.advance(1)
    publish(timed, "later", 10, b"short")
    inprocess.advance(0.01)
    assert timed.drain(queue) == [b"short"]


def test_a_delay_of_years(timed: Channel, inprocess: InProcessBroker, queue: str) -> None:
    """RabbitMQ's plugin supports 49 days at most, and delivers messages with longer delays at once."""
    publish(timed, "later", 2**32 + 5, b"x")
    inprocess.advance(2**32 / 1000)
    assert timed.ready(queue) == 0
    inprocess.advance(0.005)
    assert timed.drain(queue) == [b"x"]
    publish(timed, "later", 2**62, b"never")
    inprocess.advance(10_000 * 365 * 86400)
    assert timed.ready(queue) == 0


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (b"b\x64", 100),
        (b"s\x00\x64", 100),
        (integer(100), 100),
        (long(100), 100),
        (text("100"), 100),
        (b"d" + struct.pack(">d", 100.9), 100),
        (b"D\x01" + struct.pack(">I", 1009), 100),
        (integer(0), 0),
        (integer(-100), 0),
        (text("soon"), 0),
        (text(""), 0),
        (b"t\x01", 0),
        (b"V", 0),
    ],
)
def test_valid_and_invalid_delays(
    timed: Channel, inprocess: InProcessBroker, queue: str, value: bytes, milliseconds: int
) -> None:
    table = short("x-delay") + value
    header = struct.pack(">HHQHI", 60, 0, 1, 0x2000, len(table)) + table
    number = timed.number
    timed.connection.raw.send_bytes(
        method(number, BASIC_PUBLISH, b"\0\0" + short("later") + short("") + b"\0")
        + frame(2, number, header)
        + body_frames(number, b"x", 1000)
    )
    if milliseconds:
        inprocess.advance(milliseconds / 1000 - 0.001)
        assert timed.ready(queue) == 0
        inprocess.advance(0.001)
    assert timed.ready(queue) == 1


def test_a_delayed_message_has_a_negative_x_delay(
    timed: Channel, inprocess: InProcessBroker, queue: str
) -> None:
    """The negative header prevents a second delay."""
    properties: dict[str, Any] = {"message_id": "m", "content_type": "text/plain", "priority": 3}
    timed.publish("key", b"x", exchange="later", headers={"x-delay": 500, "other": 7}, **properties)
    inprocess.advance(0.5)
    message = timed.get(queue)
    assert message is not None
    assert message.headers == {"x-delay": -500, "other": 7}
    assert (message.carrier.exchange, message.carrier.routing_key) == ("later", "key")
    assert (message.properties.message_id, message.properties.priority) == ("m", 3)
    assert not message.redelivered
    timed.publish("key", b"again", exchange="later", headers=message.headers)
    assert timed.drain(queue) == [b"again"]


def test_the_expiration_counts_from_the_end_of_the_delay(
    timed: Channel, inprocess: InProcessBroker, queue: str
) -> None:
    publish(timed, "later", 1000, b"x", expiration="500")
    inprocess.advance(1.499)
    assert timed.ready(queue) == 1
    inprocess.advance(0.001)
    assert timed.ready(queue) == 0


def test_many_messages_due_at_one_time(timed: Channel, inprocess: InProcessBroker, queue: str) -> None:
    for number in range(1200):
        publish(timed, "later", 1000, b"%d" % number)
    inprocess.advance(1)
    assert timed.drain(queue) == [b"%d" % number for number in range(1200)]


# -- where


@pytest.mark.parametrize(
    ("kind", "binding", "pattern", "key", "colour"),
    [
        ("direct", "a", {}, "a", "none"),
        ("topic", "a.*", {}, "a.b", "none"),
        ("headers", "", {"colour": "red"}, "any", "red"),
    ],
)
def test_due_messages_are_routed_by_x_delayed_type(
    timed: Channel,
    inprocess: InProcessBroker,
    kind: str,
    binding: str,
    pattern: dict[str, Any],
    key: str,
    colour: str,
) -> None:
    queue = timed.declare(exclusive=True)
    exchange = delayed(timed, "typed", kind)
    bind = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=binding, arguments=pattern)
    timed.call(bind, commands.Queue.BindOk)
    timed.publish(key, b"there", exchange=exchange, headers={"colour": colour, "x-delay": 100})
    timed.publish("x", b"elsewhere", exchange=exchange, headers={"colour": "blue", "x-delay": 100})
    inprocess.advance(0.1)
    assert timed.drain(queue) == [b"there"]


def test_x_delayed_type_can_be_a_hash_exchange(timed: Channel, inprocess: InProcessBroker) -> None:
    exchange = delayed(timed, "choosing", "x-consistent-hash")
    queues = [timed.declare(exclusive=True) for _ in range(2)]
    for queue in queues:
        timed.bind(queue, exchange, "1")
    for number in range(40):
        publish(timed, exchange, 100, b"x", key=f"key-{number}")
    inprocess.advance(0.1)
    counts = [timed.ready(queue) for queue in queues]
    assert sum(counts) == 40
    assert all(counts)


def test_bindings_are_evaluated_when_a_message_is_due(
    timed: Channel, inprocess: InProcessBroker, queue: str
) -> None:
    publish(timed, "later", 1000, b"x")
    timed.call(commands.Queue.Unbind(queue=queue, exchange="later"), commands.Queue.UnbindOk)
    other = timed.declare(exclusive=True)
    timed.bind(other, "later")
    inprocess.advance(1)
    assert (timed.ready(queue), timed.ready(other)) == (0, 1)


def test_other_exchanges_can_route_to_a_delayed_exchange(
    timed: Channel, inprocess: InProcessBroker, queue: str
) -> None:
    """By an exchange-to-exchange binding, as an alternate exchange, and as a dead letter exchange."""
    timed.declare_exchange("front", "direct", alternate_exchange="later")
    timed.call(
        commands.Exchange.Bind(destination="later", source="front", routing_key="bound"),
        commands.Exchange.BindOk,
    )
    dying = timed.declare(exclusive=True, x_dead_letter_exchange="later", x_message_ttl=1000)
    publish(timed, "front", 2000, b"bound", key="bound")
    publish(timed, "front", 3000, b"alternate", key="other")
    publish(timed, "", 4000, b"dead", key=dying)
    for seconds, body in ((2, b"bound"), (1, b"alternate"), (2, b"dead")):
        inprocess.advance(seconds - 0.001)
        assert timed.ready(queue) == 0
        inprocess.advance(0.001)
        assert timed.drain(queue) == [body]


def test_cc_and_bcc_of_a_delayed_message(timed: Channel, inprocess: InProcessBroker) -> None:
    exchange = delayed(timed, "copies", "direct")
    queues = [timed.declare(exclusive=True) for _ in range(3)]
    for queue, key in zip(queues, "abc", strict=True):
        timed.bind(queue, exchange, key)
    timed.publish("a", b"x", exchange=exchange, headers={"x-delay": 50, "CC": ["b"], "BCC": ["c"]})
    inprocess.advance(0.05)
    found = [timed.get(queue) for queue in queues]
    assert all(message is not None and "BCC" not in message.headers for message in found)


# -- mandatory and unroutable messages


def test_mandatory_is_decided_at_publish_time(timed: Channel, inprocess: InProcessBroker) -> None:
    exchange = delayed(timed, "lonely")
    timed.confirm()
    publish(timed, exchange, 1000, b"returned", mandatory=True)
    returned = timed.next()
    assert isinstance(returned, Message)
    assert (returned.body, returned.carrier.name) == (b"returned", "Basic.Return")
    queue = timed.declare(exclusive=True)
    timed.bind(queue, exchange)
    publish(timed, exchange, 1000, b"kept", mandatory=True)
    assert timed.settled(2) == [True, True]
    inprocess.advance(1)
    assert timed.drain(queue) == [b"kept"]


def test_an_unroutable_due_message_is_dropped(timed: Channel, inprocess: InProcessBroker, queue: str) -> None:
    publish(timed, "later", 1000, b"x")
    timed.delete(queue)
    inprocess.advance(1)
    other = timed.declare(exclusive=True)
    timed.bind(other, "later")
    inprocess.advance(100)
    assert timed.ready(other) == 0


def test_delayed_messages_are_deleted_with_their_exchange(
    timed: Channel, inprocess: InProcessBroker, queue: str
) -> None:
    publish(timed, "later", 1000, b"gone")
    timed.delete_exchange("later")
    timed.bind(queue, delayed(timed))
    inprocess.advance(10)
    assert timed.ready(queue) == 0


def test_the_delay_of_a_transaction_counts_from_its_commit(
    timed: Channel, inprocess: InProcessBroker, queue: str
) -> None:
    timed.call(commands.Tx.Select(), commands.Tx.SelectOk)
    publish(timed, "later", 1000, b"x")
    inprocess.advance(5)
    timed.call(commands.Tx.Commit(), commands.Tx.CommitOk)
    inprocess.advance(0.999)
    assert timed.ready(queue) == 0
    inprocess.advance(0.001)
    assert timed.ready(queue) == 1


def test_clients_cannot_access_the_internal_queue(timed: Channel, queue: str) -> None:
    publish(timed, "later", 1000, b"x")
    assert not timed.exists("amq.delayed.later")
    timed.publish("amq.delayed.later", b"sneaked in", mandatory=True)
    assert isinstance(timed.next(), Message)


# -- its arguments


def refusal(peer: RawClient, name: str, arguments: dict[str, Any]) -> str:
    command = made(commands.Exchange.Declare, exchange=name, exchange_type=DELAYED, arguments=arguments)
    found = peer.refused(command)
    peer.open()
    assert (found.code, found.method) == (406, (40, 10))
    return found.text.removeprefix("PRECONDITION_FAILED - ")


def test_x_delayed_type_is_required(inprocess: InProcessBroker, name: str) -> None:
    with RawClient(inprocess.url) as peer:
        peer.connect().open()
        missing = "Invalid argument, 'x-delayed-type' must be an existing exchange type"
        assert refusal(peer, name, {}) == missing
        assert refusal(peer, name, {"x-delayed-type": 7}) == missing
        assert refusal(peer, name, {"x-delayed-type": "foo"}) == "unknown exchange type 'foo'"
        itself = "x-delayed-type cannot be x-delayed-message itself"
        assert refusal(peer, name, {"x-delayed-type": DELAYED}) == itself
        peer.declare_exchange(name, DELAYED, arguments={"x-delayed-type": "topic"})
        inequivalent = f"inequivalent arg 'x-delayed-type' for exchange '{name}' in vhost '/'"
        found = refusal(peer, name, {"x-delayed-type": "direct"})
        assert found == f"{inequivalent}: received 'direct' but current is 'topic'"


# -- over restarts


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_delayed_messages_survive_a_stop(session: RestartableSession, how: str) -> None:
    channel = session.channel
    channel.declare("q", durable=True)
    delayed(channel, durable=True)
    channel.bind("q", "later")
    for delay in (9000, 3000, 6000):
        publish(channel, "later", delay, b"%d" % delay, expiration="2000", **PERSISTENT)
    publish(channel, "later", 3000, b"transient")
    session.sent += 4
    channel.settled_until(session.sent)
    session.broker.advance(4)
    assert session.channel.drain("q") == [b"3000", b"transient"]
    session.sync()
    getattr(session, how)()
    session.broker.advance(1.999)
    assert session.channel.ready("q") == 0
    session.broker.advance(0.001)
    message = session.channel.get("q")
    assert message is not None
    assert (message.body, message.headers) == (b"6000", {"x-delay": -6000})
    session.channel.ack(message.tag)
    session.sync()
    # What has left is not there again.
    getattr(session, how)()
    assert session.channel.ready("q") == 0
    session.broker.advance(3)
    assert session.channel.drain("q") == [b"9000"]
    # Its expiration counts from its arrival.
    assert session.channel.ready("q") == 0


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_messages_that_became_due_meanwhile_arrive_at_the_start(
    session: RestartableSession, how: str
) -> None:
    channel = session.channel
    channel.declare("q", durable=True)
    delayed(channel, durable=True)
    channel.bind("q", "later")
    for number in range(5):
        publish(channel, "later", 5000 - number * 1000, b"%d" % number, **PERSISTENT)
    session.sent += 5
    channel.settled_until(session.sent)
    session.broker.clock.jump(3)
    getattr(session, how)()
    assert session.channel.drain("q") == [b"4", b"3", b"2"]
    session.broker.advance(2)
    assert session.channel.drain("q") == [b"1", b"0"]


def test_a_deleted_delayed_exchange_stays_deleted(session: RestartableSession) -> None:
    channel = session.channel
    delayed(channel, durable=True)
    publish(channel, "later", 1000, b"x", **PERSISTENT)
    session.sent += 1
    channel.settled_until(session.sent)
    channel.delete_exchange("later")
    session.crash()
    session.channel.declare("q", durable=True)
    session.channel.bind("q", delayed(session.channel, durable=True))
    session.broker.advance(10)
    assert session.channel.ready("q") == 0


def test_delayed_messages_survive_a_kill(broker: BrokerProcess) -> None:
    connection = Connection(broker.url)
    channel = connection.channel()
    channel.confirm()
    channel.declare("q", durable=True)
    delayed(channel, durable=True)
    channel.bind("q", "later")
    # At once: each is due 100 ms before the one that was sent before it.
    messages = [
        channel.encoded(
            "key", b"%d" % number, "later", headers={"x-delay": 3000 - 100 * number}, **PERSISTENT
        )
        for number in range(20)
    ]
    began = time.monotonic()
    connection.raw.send_bytes(b"".join(messages))
    channel.ready("q")
    taken = time.monotonic() - began
    channel.settled_until(20)
    broker.kill()
    connection.abort()
    broker.start()
    with Connection(broker.url) as connection:
        channel = connection.channel()
        wait_until(lambda: channel.ready("q") == 20, "all have come")
        found = [int(body) for body in channel.drain("q")]
    assert sorted(found) == list(range(20))
    for one, other in itertools.combinations(found, 2):
        # Unless the broker stood still between the two, and so longer than their delays differ.
        assert one > other or taken > (other - one) * 0.1, found
