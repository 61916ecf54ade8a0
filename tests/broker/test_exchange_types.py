"""Hash, random and recent-history exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from tests.broker.conftest import Connect
from tests.support.blocking_client import Channel, Closed
from tests.support.broker_behaviour import Behaviour
from tests.support.raw_client import RawClient, made
from tests.support.restarts import RestartableSession
from tests.support.tiers import examples
from warren.broker.model.exchange.consistent_hash import ConsistentHash
from warren.broker.model.exchange.exchange import Binding, Exchange

Declare: TypeAlias = Callable[..., str]
HASH, MODULUS, RANDOM, HISTORY = "x-consistent-hash", "x-modulus-hash", "x-random", "x-recent-history"


@pytest.fixture
def make(connect: Connect, channel: Channel, name: str) -> Declare:
    """Declare an exchange; skip the test if the broker does not have its type."""

    def declare(kind: str, **arguments: Any) -> str:
        probe = connect().channel()
        try:
            probe.declare_exchange(name, kind, auto_delete=True, **arguments)
        except Closed as error:
            if f"unknown exchange type '{kind}'" in error.text or "invalid exchange type" in error.text:
                pytest.skip(f"this broker has no {kind}")
            raise
        return name

    return declare


def bound(channel: Channel, exchange: str, *keys: str) -> list[str]:
    """Declare a queue for each key, and bind it with the key."""
    queues = []
    for key in keys:
        queues.append(channel.declare(exclusive=True))
        channel.bind(queues[-1], exchange, key)
    return queues


def publish(channel: Channel, exchange: str, count: int, **properties: Any) -> None:
    for number in range(count):
        channel.publish(f"key-{number}", b"%d" % number, exchange=exchange, **properties)


def contents(channel: Channel, queues: list[str]) -> list[list[bytes]]:
    return [channel.drain(queue) for queue in queues]


# -- x-consistent-hash


def test_a_consistent_hash_shares_keys_by_weight(channel: Channel, make: Declare) -> None:
    exchange = make(HASH)
    queues = bound(channel, exchange, "1", "2", "1")
    publish(channel, exchange, 2000)
    counts = [channel.ready(queue) for queue in queues]
    assert sum(counts) == 2000
    # 500 with a standard deviation of 19, 1,000 with one of 22: four of them.
    assert all(abs(count - 500) < 80 for count in (counts[0], counts[2]))
    assert abs(counts[1] - 1000) < 90


def test_a_consistent_hash_routes_equal_keys_to_one_queue(channel: Channel, make: Declare) -> None:
    exchange = make(HASH)
    queues = bound(channel, exchange, "1", "1", "1", "1")
    publish(channel, exchange, 50)
    first = contents(channel, queues)
    publish(channel, exchange, 50)
    assert contents(channel, queues) == first


@pytest.mark.parametrize(
    ("argument", "value", "properties"),
    [
        ("hash_header", "customer", lambda number: {"headers": {"customer": number}}),
        ("hash_property", "message_id", lambda number: {"message_id": f"m{number}"}),
        ("hash_property", "correlation_id", lambda number: {"correlation_id": f"c{number}"}),
    ],
)
def test_a_consistent_hash_can_hash_a_header_or_property(
    channel: Channel, make: Declare, argument: str, value: str, properties: Callable[[int], dict[str, Any]]
) -> None:
    exchange = make(HASH, **{argument: value})
    queues = bound(channel, exchange, "10", "10", "10")
    for _ in range(2):
        for number in range(60):
            channel.publish("the same key", b"%d" % number, exchange=exchange, **properties(number))
    found = contents(channel, queues)
    assert all(found)
    for bodies in found:
        assert set(Counter(bodies).values()) == {2}
    # What lacks it goes somewhere, always to the same.
    for number in range(20):
        channel.publish(f"key-{number}", b"without", exchange=exchange)
    assert sorted(map(len, contents(channel, queues))) == [0, 0, 20]


def test_a_hash_exchange_without_bindings_routes_nothing(channel: Channel, make: Declare) -> None:
    exchange = make(HASH)
    channel.publish("key", b"x", exchange=exchange, mandatory=True)
    returned = channel.next()
    assert getattr(returned, "body", None) == b"x"


def test_only_keys_of_an_added_or_removed_queue_move(
    channel: Channel, make: Declare, server: Behaviour
) -> None:
    exchange = make(HASH)
    if not server.is_warren:
        pytest.skip("RabbitMQ moves the keys of the queues that were bound later, too")
    queues = bound(channel, exchange, *["1"] * 5)
    publish(channel, exchange, 500)
    before = contents(channel, queues)
    gone = queues.pop(2)
    channel.delete(gone)
    publish(channel, exchange, 500)
    after = contents(channel, queues)
    for bodies, more in zip(before[:2] + before[3:], after, strict=True):
        assert set(bodies) <= set(more)
        # What the one that went had is shared by all.
        assert len(more) > len(bodies)


def test_a_binding_key_has_to_be_a_weight(peer: RawClient, channel: Channel, make: Declare) -> None:
    exchange = make(HASH)
    queue = peer.declare(exclusive=True)
    for key, reason in (
        ("0", "The binding key must be greater than 0"),
        ("-1", "The binding key must be greater than 0"),
        ("abc", 'The binding key must be an integer: <<"abc">>'),
        ("", "The binding key must be an integer: <<>>"),
        ("1.5", 'The binding key must be an integer: <<"1.5">>'),
        (" 2", 'The binding key must be an integer: <<" 2">>'),
    ):
        found = peer.refused(made(commands.Queue.Bind, queue=queue, exchange=exchange, routing_key=key))
        assert (found.code, found.text) == (406, f"PRECONDITION_FAILED - {reason}"), key
        assert found.method == (50, 20)
        peer.open()
    peer.bind(queue, exchange, "+3")


def test_a_weight_has_an_upper_limit(peer: RawClient, make: Declare, server: Behaviour) -> None:
    exchange = make(HASH)
    if not server.is_warren:
        pytest.skip("RabbitMQ before 4.2 takes any, and works on it")
    queue = peer.declare(exclusive=True)
    bind = made(commands.Queue.Bind, queue=queue, exchange=exchange, routing_key="10001")
    assert peer.refused(bind).text == "PRECONDITION_FAILED - The binding key must not exceed 10000"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"hash-property": "priority"}, "Unsupported property: priority"),
        (
            {"hash-header": "h", "hash-property": "message_id"},
            "hash-header and hash-property are mutually exclusive",
        ),
    ],
)
def test_invalid_hash_arguments_are_refused(
    peer: RawClient, make: Declare, name: str, arguments: dict[str, Any], reason: str
) -> None:
    make(HASH)
    command = made(commands.Exchange.Declare, exchange=f"{name}-2", exchange_type=HASH, arguments=arguments)
    found = peer.refused(command)
    assert (found.code, found.text) == (406, f"PRECONDITION_FAILED - {reason}")


def test_a_consistent_hash_is_stable_over_a_restart(session: RestartableSession) -> None:
    channel = session.channel
    channel.declare_exchange("hash", HASH, durable=True)
    names = [f"q{number}" for number in range(5)]
    # Not in the order in which they are restored.
    for number, name in reversed(list(enumerate(names))):
        channel.declare(name, durable=True)
        channel.bind(name, "hash", str(number + 1))
    publish(channel, "hash", 100)
    before = contents(channel, names)
    session.restart()
    publish(session.channel, "hash", 100)
    assert contents(session.channel, names) == before


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(1, 50), min_size=2, max_size=6))
def test_shares_follow_arbitrary_weights(weights: list[int]) -> None:
    choice = ConsistentHash()
    places = [
        Exchange(b"e%d" % number, b"fanout", False, False, False, b"") for number in range(len(weights))
    ]
    for place, weight in zip(places, weights, strict=True):
        choice.add(Binding(place, b"%d" % weight, b""))
    count = 2000
    found = Counter(choice.select(b"key-%d" % number, {}, None)[0].name for number in range(count))
    for place, weight in zip(places, weights, strict=True):
        share = weight / sum(weights)
        # Five standard deviations.
        assert abs(found[place.name] - count * share) <= 5 * (count * share * (1 - share)) ** 0.5 + 1


# -- x-modulus-hash, x-random, x-local-random


def test_a_modulus_hash_routes_each_key_to_one_queue(channel: Channel, make: Declare) -> None:
    exchange = make(MODULUS)
    queues = bound(channel, exchange, "", "any", "thing")
    publish(channel, exchange, 300)
    first = contents(channel, queues)
    assert sorted(map(len, first))[0] > 60
    assert sum(map(len, first)) == 300
    publish(channel, exchange, 300)
    assert contents(channel, queues) == first


@pytest.mark.parametrize("kind", [RANDOM, "x-local-random"])
def test_a_random_exchange_routes_each_message_to_one_queue(
    channel: Channel, make: Declare, kind: str
) -> None:
    exchange = make(kind)
    queues = bound(channel, exchange, "", "", "")
    for _ in range(300):
        channel.publish("the same key", b"x", exchange=exchange)
    counts = [channel.ready(queue) for queue in queues]
    assert sum(counts) == 300
    assert min(counts) > 60


def test_a_local_random_exchange_takes_classic_queues_with_an_empty_key(
    peer: RawClient, make: Declare, name: str
) -> None:
    exchange = make("x-local-random")
    queue = peer.declare(exclusive=True)
    found = peer.refused(made(commands.Queue.Bind, queue=queue, exchange=exchange, routing_key="k"))
    assert found.text == "PRECONDITION_FAILED - Non empty binding 'k' key not permitted"
    peer.open()
    peer.declare(f"{name}-q", durable=True, arguments={"x-queue-type": "quorum"})
    found = peer.refused(made(commands.Queue.Bind, queue=f"{name}-q", exchange=exchange))
    assert found.text == (
        "PRECONDITION_FAILED - Queue type rabbit_quorum_queue not valid for this exchange type"
    )
    peer.open()
    peer.call(made(commands.Queue.Delete, queue=f"{name}-q"), 1, commands.Queue.DeleteOk)


# -- behind other exchanges


@pytest.mark.parametrize("kind", [HASH, MODULUS, RANDOM])
def test_hash_exchanges_work_behind_another_exchange(
    channel: Channel, make: Declare, kind: str, name: str
) -> None:
    chooser = make(kind)
    front = channel.declare_exchange(f"{name}-front", "topic")
    channel.call(
        commands.Exchange.Bind(destination=chooser, source=front, routing_key="#"), commands.Exchange.BindOk
    )
    queues = bound(channel, chooser, "1", "2")
    publish(channel, front, 100)
    found = contents(channel, queues)
    assert sum(map(len, found)) == 100
    assert all(found)
    channel.delete_exchange(front)


# -- x-recent-history


def test_a_new_binding_gets_the_recent_history(channel: Channel, make: Declare) -> None:
    exchange = make(HISTORY, x_recent_history_length=3)
    (early,) = bound(channel, exchange, "")
    publish(channel, exchange, 5)
    channel.publish("k", b"secret", exchange=exchange, headers={"x-recent-history-no-store": True})
    assert channel.ready(early) == 6
    (late,) = bound(channel, exchange, "")
    message = channel.get(late)
    assert message is not None
    assert (message.body, message.carrier.exchange, message.carrier.routing_key) == (b"2", exchange, "key-2")
    assert channel.drain(late) == [b"3", b"4"]


def test_an_exchange_without_bindings_that_others_lead_to_keeps_its_history(
    channel: Channel, make: Declare
) -> None:
    exchange = make(HISTORY)
    first = channel.declare_exchange(f"{exchange}-first", "fanout", auto_delete=True)
    channel.call(
        commands.Exchange.Bind(destination=exchange, source=first, routing_key=""), commands.Exchange.BindOk
    )
    publish(channel, first, 2)
    (late,) = bound(channel, exchange, "")
    assert channel.drain(late) == [b"0", b"1"]


@pytest.mark.parametrize(("value", "shown"), [(0, "0"), ("a", '<<"a">>')])
def test_the_recent_history_has_a_length(
    peer: RawClient, make: Declare, name: str, value: object, shown: str
) -> None:
    make(HISTORY)
    command = made(
        commands.Exchange.Declare,
        exchange=f"{name}-2",
        exchange_type=HISTORY,
        arguments={"x-recent-history-length": value},
    )
    found = peer.refused(command)
    assert (found.code, found.text) == (
        406,
        f"PRECONDITION_FAILED - Invalid argument {shown}, 'x-recent-history-length' must be a positive integer",
    )
