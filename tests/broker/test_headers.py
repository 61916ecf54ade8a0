"""Routing by headers: headers exchanges, CC and BCC."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pamqp.commands import Exchange, Queue

from tests.broker.conftest import Connect
from tests.support.blocking_client import Channel, Message
from tests.support.polling import wait_until


@pytest.fixture
def queue(channel: Channel) -> str:
    return channel.declare(exclusive=True)


@pytest.fixture
def exchange(channel: Channel, name: str) -> Iterator[str]:
    channel.declare_exchange(name, "headers")
    yield name
    channel.delete_exchange(name)


def bind(channel: Channel, queue: str, exchange: str, **arguments: Any) -> None:
    table = {name.replace("_", "-"): value for name, value in arguments.items()}
    channel.call(Queue.Bind(queue=queue, exchange=exchange, arguments=table), Queue.BindOk)


def taken(channel: Channel, queue: str, exchange: str, headers: dict[str, Any]) -> bool:
    """Return whether a message with these headers reaches the queue."""
    channel.publish("any", "x", exchange=exchange, headers=headers)
    return channel.drain(queue) == [b"x"]


@pytest.mark.parametrize(
    ("pattern", "headers", "matches"),
    [
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 2}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x_match": "all", "a": 1}, {"a": 2}, False),
        ({"x_match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
        ({"x_match": "any", "a": 1, "b": "x"}, {"a": 2, "b": "y"}, False),
        ({"x_match": "any"}, {"a": 1}, False),
        ({}, {"a": 1}, True),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {"b": 1}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": "x"}, {"a": bytearray(b"x")}, True),
        ({"a": datetime.fromtimestamp(5, UTC)}, {"a": 5}, True),
        ({"a": Decimal("1.0")}, {"a": Decimal("1.0")}, True),
        ({"a": Decimal("1.0")}, {"a": Decimal("1.00")}, False),
        ({"a": [1, "x"]}, {"a": [1, "x"]}, True),
        ({"a": [1, "x"]}, {"a": [2, "x"]}, False),
        ({"a": 1}, {"a": 1 << 40}, False),
        ({"a": 1 << 40}, {"a": 1 << 40}, True),
        ({"a": True}, {"a": True}, True),
        ({"a": True}, {"a": 1}, False),
        ({"x_match": "all", "x_special": 1, "a": 1}, {"a": 1}, True),
        ({"x_match": "any", "x_special": 1}, {"x-special": 1}, False),
        ({"x_match": "all-with-x", "x_special": 1, "a": 1}, {"a": 1}, False),
        ({"x_match": "any-with-x", "x_special": 1}, {"x-special": 1}, True),
    ],
)
def test_what_matches(
    channel: Channel,
    queue: str,
    exchange: str,
    pattern: dict[str, Any],
    headers: dict[str, Any],
    matches: bool,
) -> None:
    bind(channel, queue, exchange, **pattern)
    assert taken(channel, queue, exchange, headers) is matches


def test_messages_with_the_same_key_are_routed_by_their_own_headers(
    channel: Channel, connect: Connect, exchange: str
) -> None:
    one, two = channel.declare(exclusive=True), channel.declare(exclusive=True)
    bind(channel, one, exchange, kind="one")
    bind(channel, two, exchange, kind="two")
    for kind in ("one", "two", "one", "none"):
        channel.publish("key", kind, exchange=exchange, headers={"kind": kind})
    assert channel.drain(one) == [b"one", b"one"]
    assert channel.drain(two) == [b"two"]


def test_headers_exchanges_behind_another_exchange_and_as_alternate(
    channel: Channel, queue: str, exchange: str
) -> None:
    front = channel.declare_exchange(f"{exchange}-front")
    channel.call(Exchange.Bind(destination=exchange, source=front), Exchange.BindOk)
    spare = channel.declare_exchange(f"{exchange}-spare", "direct", alternate_exchange=exchange)
    bind(channel, queue, exchange, kind="mine")
    for through in (front, spare):
        assert taken(channel, queue, through, {"kind": "mine"})
        assert not taken(channel, queue, through, {"kind": "other"})
        channel.delete_exchange(through)


def test_a_removed_binding_matches_no_more(channel: Channel, queue: str, exchange: str) -> None:
    bind(channel, queue, exchange, a=1)
    channel.call(Queue.Unbind(queue=queue, exchange=exchange, arguments={"a": 1}), Queue.UnbindOk)
    assert not taken(channel, queue, exchange, {"a": 1})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("some", 'Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x'),
        (True, "Invalid x-match field type bool (value true); expected longstr"),
    ],
)
def test_an_invalid_x_match_is_refused(
    channel: Channel, connect: Connect, queue: str, exchange: str, value: Any, text: str
) -> None:
    other = connect().channel()
    own = other.declare(exclusive=True)
    other.send(Queue.Bind(queue=own, exchange=exchange, arguments={"x-match": value}))
    error = other.closed()
    assert (error.code, error.text) == (406, f"PRECONDITION_FAILED - {text}")


@pytest.mark.parametrize("name", ["amq.headers", "amq.match"])
def test_the_predeclared_headers_exchanges_exist(channel: Channel, queue: str, name: str) -> None:
    bind(channel, queue, name, here=name)
    assert taken(channel, queue, name, {"here": name})


# -- CC and BCC


def test_cc_and_bcc_are_routing_keys_and_bcc_is_removed(channel: Channel) -> None:
    to, cc, bcc = (channel.declare(exclusive=True) for _ in range(3))
    channel.publish(to, "x", headers={"CC": [cc], "BCC": [bcc], "kept": 1})
    for queue in (to, cc, bcc):
        message = channel.get(queue)
        assert isinstance(message, Message)
        assert message.body == b"x"
        assert message.headers == {"CC": [cc], "kept": 1}


def test_a_queue_named_twice_gets_one_copy(channel: Channel, queue: str) -> None:
    channel.publish(queue, "x", headers={"CC": [queue], "BCC": [queue]})
    assert channel.drain(queue) == [b"x"]


def test_a_copy_alone_counts_as_routed(channel: Channel, queue: str, name: str) -> None:
    channel.confirm()
    channel.publish(name, "x", mandatory=True, headers={"CC": [queue]})
    assert channel.settled(1) == [True]
    assert channel.drain(queue) == [b"x"]


def test_consumers_do_not_get_the_header_bcc(channel: Channel, queue: str) -> None:
    channel.consume(queue)
    channel.publish("nowhere", "x", headers={"BCC": [queue]})
    (message,) = channel.deliveries(1)
    assert message.headers == {}


def test_returned_messages_do_not_have_the_header_bcc(channel: Channel, name: str) -> None:
    channel.publish(name, "x", mandatory=True, headers={"BCC": [f"{name}-2"], "kept": 1})
    (message,) = channel.deliveries(1)
    assert (message.body, message.headers) == (b"x", {"kept": 1})


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_values_in_cc_that_are_no_text_are_ignored(
    channel: Channel, queue: str, name: str, header: str
) -> None:
    channel.publish(name, "x", headers={header: [1, queue, None]})
    assert channel.drain(queue) == [b"x"]


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_cc_and_bcc_that_are_no_list_are_refused(channel: Channel, queue: str, header: str) -> None:
    channel.publish(queue, "x", headers={header: "text"})
    error = channel.closed()
    assert error.code == 406
    assert error.text.startswith("PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,")


def test_a_dead_letter_is_routed_by_all_keys_it_was_published_with(channel: Channel, name: str) -> None:
    exchange = channel.declare_exchange(name, "direct")
    to, cc, bcc = (channel.declare(exclusive=True) for _ in range(3))
    for queue in (to, cc, bcc):
        channel.bind(queue, exchange, queue)
    source = channel.declare(exclusive=True, x_dead_letter_exchange=exchange)
    feed = channel.declare_exchange(f"{name}-feed")
    channel.bind(source, feed)
    channel.publish(to, "x", exchange=feed, headers={"CC": [cc], "BCC": [bcc]})
    message = channel.get(source)
    assert message is not None
    channel.reject(message.tag)
    for queue in (to, cc, bcc):
        wait_until(lambda queue=queue: channel.ready(queue) == 1, f"a letter in {queue}")  # type: ignore[misc]
        letter = channel.get(queue)
        assert letter is not None
        assert "BCC" not in letter.headers
        (death,) = letter.headers["x-death"]
        assert death["routing-keys"] == [to, cc]
    for one in (exchange, feed):
        channel.delete_exchange(one)
