"""x-message-deduplication on exchanges and queues: a window of keys that survives any stop of the broker."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests.support.blocking_client import Channel, Message
from tests.support.in_process_broker import InProcessBroker
from tests.support.queue_arguments import EXCLUSIVE, Field, declare, failed, integer, text
from tests.support.raw_client import RawClient, made
from tests.support.restarts import PERSISTENT, RestartableSession

UNIQUE: dict[str, Any] = {"x_message_deduplication": True}
HEADER = "x-deduplication-header"


def publish(channel: Channel, queue: str, *keys: object, exchange: str = "", **properties: Any) -> None:
    """Publish a message for each key, with the key as its body."""
    for key in keys:
        headers = {} if key is None else {HEADER: key}
        body = str(key).encode()
        channel.publish(queue, body, exchange=exchange, headers=headers, **properties)


@pytest.fixture
def queue(timed: Channel) -> str:
    """Declare a deduplicating queue."""
    return timed.declare(exclusive=True, **UNIQUE)


# -- queues


def test_a_queue_accepts_each_key_once(timed: Channel, queue: str) -> None:
    publish(timed, queue, "a", "b", "a", 1, "1", 1, None, None, "b")
    assert timed.drain(queue) == [b"a", b"b", b"1", b"1", b"None", b"None"]
    # Also after the first one has been consumed.
    publish(timed, queue, "a", "c")
    assert timed.drain(queue) == [b"c"]


def test_a_duplicate_is_confirmed_and_not_returned(timed: Channel, queue: str) -> None:
    timed.confirm()
    publish(timed, queue, "a", "a", mandatory=True)
    assert timed.settled(2) == [True, True]
    assert not [event for event in timed.events if isinstance(event, Message)]
    assert timed.ready(queue) == 1


def test_the_window_is_limited_by_x_cache_size(timed: Channel) -> None:
    queue = timed.declare(exclusive=True, x_cache_size=3, **UNIQUE)
    publish(timed, queue, "a", "b", "c", "a", "d", "a", "c")
    assert timed.drain(queue) == [b"a", b"b", b"c", b"d", b"a"]


def test_the_default_window_has_128_keys(timed: Channel, queue: str) -> None:
    publish(timed, queue, "first", *range(127), "first")
    assert timed.purge(queue) == 128
    publish(timed, queue, "one more", "first")
    assert timed.drain(queue) == [b"one more", b"first"]


def test_keys_expire_after_x_cache_ttl(timed: Channel, inprocess: InProcessBroker) -> None:
    queue = timed.declare(exclusive=True, x_cache_ttl=1000, **UNIQUE)
    publish(timed, queue, "a")
    inprocess.advance(0.999)
    publish(timed, queue, "a")
    assert timed.drain(queue) == [b"a"]
    inprocess.advance(0.001)
    publish(timed, queue, "a")
    assert timed.drain(queue) == [b"a"]


def test_a_message_can_set_the_ttl_of_its_key(timed: Channel, inprocess: InProcessBroker, queue: str) -> None:
    headers = {HEADER: "a", "x-cache-ttl": 500}
    for seconds, expected in ((0, [b"x"]), (0.499, []), (0.001, [b"x"])):
        inprocess.advance(seconds)
        timed.publish(queue, b"x", headers=headers)
        assert timed.drain(queue) == expected


def test_another_header_may_be_the_key(timed: Channel) -> None:
    queue = timed.declare(exclusive=True, x_deduplication_header="order", **UNIQUE)
    for order in (1, 2, 1):
        timed.publish(queue, b"%d" % order, headers={"order": order, HEADER: "same"})
    assert timed.drain(queue) == [b"1", b"2"]


def test_the_key_of_a_rejected_message_is_not_stored(timed: Channel) -> None:
    queue = timed.declare(exclusive=True, x_max_length=1, x_overflow="reject-publish", **UNIQUE)
    timed.confirm()
    publish(timed, queue, "a", "b")
    assert timed.settled(2) == [True, False]
    assert timed.drain(queue) == [b"a"]
    publish(timed, queue, "b")
    assert timed.drain(queue) == [b"b"]


def test_other_queues_of_a_fan_out_get_their_copies(timed: Channel, queue: str, name: str) -> None:
    other = timed.declare(exclusive=True)
    exchange = timed.declare_exchange(name)
    for bound in (queue, other):
        timed.bind(bound, exchange)
    publish(timed, "", "a", "a", exchange=exchange)
    assert (timed.drain(queue), timed.drain(other)) == ([b"a"], [b"a", b"a"])


def test_dead_letters_are_deduplicated(timed: Channel, inprocess: InProcessBroker, queue: str) -> None:
    dying = timed.declare(
        exclusive=True, x_message_ttl=1000, x_dead_letter_exchange="", x_dead_letter_routing_key=queue
    )
    publish(timed, dying, "a", "a", "b")
    inprocess.advance(1)
    assert timed.drain(queue) == [b"a", b"b"]


def test_a_waiting_consumer_gets_each_key_once(timed: Channel, queue: str) -> None:
    timed.consume(queue, "tag")
    publish(timed, queue, "a", "a", "b", "b", "c")
    assert [message.body for message in timed.deliveries(3)] == [b"a", b"b", b"c"]
    assert timed.delivered(queue) == []


def test_duplicates_within_a_transaction(timed: Channel, queue: str) -> None:
    timed.call(commands.Tx.Select(), commands.Tx.SelectOk)
    publish(timed, queue, "a", "a", "b")
    timed.call(commands.Tx.Commit(), commands.Tx.CommitOk)
    assert timed.drain(queue) == [b"a", b"b"]
    timed.call(commands.Tx.Commit(), commands.Tx.CommitOk)
    publish(timed, queue, "c")
    timed.call(commands.Tx.Rollback(), commands.Tx.RollbackOk)
    publish(timed, queue, "c", "a")
    timed.call(commands.Tx.Commit(), commands.Tx.CommitOk)
    assert timed.drain(queue) == [b"c"]


# -- exchanges


@pytest.mark.parametrize(
    ("kind", "arguments"), [("x-message-deduplication", {"x_cache_size": 3}), ("topic", UNIQUE)]
)
def test_an_exchange_routes_each_key_once(
    timed: Channel, name: str, kind: str, arguments: dict[str, Any]
) -> None:
    exchange = timed.declare_exchange(name, kind, **arguments)
    queues = [timed.declare(exclusive=True) for _ in range(2)]
    for queue in queues:
        timed.bind(queue, exchange, "#")
    timed.confirm()
    publish(timed, "key", "a", "b", "a", None, None, exchange=exchange, mandatory=True)
    assert timed.settled(5) == [True] * 5
    for queue in queues:
        assert timed.drain(queue) == [b"a", b"b", b"None", b"None"]
    assert not [event for event in timed.events if isinstance(event, Message)]


def test_the_key_of_an_unroutable_message_is_not_stored(timed: Channel, name: str) -> None:
    exchange = timed.declare_exchange(name, "direct", **UNIQUE)
    publish(timed, "key", "a", exchange=exchange, mandatory=True)
    assert isinstance(timed.next(), Message)
    queue = timed.declare(exclusive=True)
    timed.bind(queue, exchange, "key")
    publish(timed, "key", "a", exchange=exchange)
    assert timed.drain(queue) == [b"a"]


# -- arguments


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (("x-message-deduplication", text("yes")), "{unacceptable_type,longstr}"),
        (("x-cache-size", integer(0)), "{value_zero,0}"),
        (("x-cache-size", integer(-1)), "{value_negative,-1}"),
        (("x-cache-size", integer(1_000_001)), "{max_value_exceeded,1000001}"),
        (("x-cache-ttl", text("1s")), '"expected integer, got longstr"'),
        (("x-deduplication-header", integer(1)), "{unacceptable_type,signedint}"),
    ],
)
def test_invalid_arguments_are_refused(
    inprocess: InProcessBroker, name: str, field: Field, reason: str
) -> None:
    with RawClient(inprocess.url) as peer:
        peer.connect().open()
        expected = f"invalid arg '{field[0]}' for queue '{name}' in vhost '/': {reason}"
        assert declare(peer, name, field, flags=EXCLUSIVE) == failed(406, expected)
        kind = "x-message-deduplication"
        arguments = {"x-cache-size": 0}
        command = made(commands.Exchange.Declare, exchange=name, exchange_type=kind, arguments=arguments)
        text = f"PRECONDITION_FAILED - invalid arg 'x-cache-size' for exchange '{name}' in vhost '/': {{value_zero,0}}"
        assert peer.refused(command).text == text


# -- over restarts


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_the_window_survives_a_restart(session: RestartableSession, how: str) -> None:
    channel = session.channel
    channel.declare("q", durable=True, x_cache_size=3, **UNIQUE)
    channel.declare("e", durable=True)
    channel.declare_exchange("x", "fanout", durable=True, x_cache_ttl=5000, **UNIQUE)
    channel.bind("e", "x")
    for _ in range(2):
        publish(channel, "q", "a", "b", "c", "d", **PERSISTENT)
        publish(channel, "", "a", "b", exchange="x", **PERSISTENT)
    publish(channel, "q", "transient")
    session.sent += 13
    channel.settled_until(session.sent)
    before = [b"a", b"b", b"c", b"d", b"a", b"b", b"c", b"d"]
    session.broker.advance(2)
    getattr(session, how)()
    channel = session.channel
    assert channel.drain("q") == before
    assert channel.drain("e") == [b"a", b"b"]
    publish(channel, "q", "c", "d", "e", "b", **PERSISTENT)
    publish(channel, "", "a", "c", exchange="x", **PERSISTENT)
    assert channel.drain("q") == [b"e", b"b"]
    assert channel.drain("e") == [b"c"]
    # Times go on.
    session.broker.advance(3)
    publish(channel, "", "a", "c", exchange="x", **PERSISTENT)
    assert channel.drain("e") == [b"a"]


def test_a_new_queue_of_the_same_name_has_an_empty_window(session: RestartableSession) -> None:
    for _ in range(2):
        session.channel.declare("q", durable=True, **UNIQUE)
        session.publish("q", b"x", headers={HEADER: "a"})
        session.publish("q", b"x", headers={HEADER: "a"})
        assert session.channel.delete("q") == 1
        session.crash()
