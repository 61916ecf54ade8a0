"""The x-death history of dead letters: its fields, its growth, and the detection of cycles."""

from __future__ import annotations

import struct
from datetime import datetime
from typing import Any

import pytest

from tests.support.blocking_client import Channel
from tests.support.dead_letters import arrived, deaths, dying, reasons
from tests.support.frames import BASIC_PUBLISH, HEADER, frame, long, method, short
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from warren.wire import field_tables, properties

# -- the history


def test_the_first_death(timed: Channel) -> None:
    timed.declare_exchange("source", "topic")
    timed.declare_exchange("dlx")
    dead_letter_queue = timed.declare(exclusive=True)
    timed.bind(dead_letter_queue, "dlx")
    queue = timed.declare("queue", x_dead_letter_exchange="dlx")
    timed.bind(queue, "source", "#")
    timed.publish("a.b", b"body", exchange="source", headers={"mine": 1})
    message = timed.get(queue)
    assert message is not None
    timed.reject(message.tag)
    dead = arrived(timed, dead_letter_queue)
    assert (dead.carrier.exchange, dead.carrier.routing_key, dead.body) == ("dlx", "a.b", b"body")
    assert not dead.redelivered
    headers = dead.headers
    (death,) = headers.pop("x-death")
    assert headers == {
        "mine": 1,
        "x-first-death-reason": "rejected",
        "x-first-death-queue": "queue",
        "x-first-death-exchange": "source",
        "x-last-death-reason": "rejected",
        "x-last-death-queue": "queue",
        "x-last-death-exchange": "source",
    }
    time = death.pop("time")
    assert isinstance(time, datetime)
    assert time.timestamp() == 1_000_000_000
    assert death == {
        "count": 1,
        "reason": "rejected",
        "queue": "queue",
        "exchange": "source",
        "routing-keys": ["a.b"],
    }


def test_the_first_death_on_any_broker(channel: Channel, dead_letter_queue: str) -> None:
    queue = dying(channel, dead_letter_queue)
    channel.publish(queue, b"body")
    message = channel.get(queue)
    assert message is not None
    channel.reject(message.tag)
    headers = arrived(channel, dead_letter_queue).headers
    (death,) = headers["x-death"]
    assert isinstance(death.pop("time"), datetime)
    assert death == {
        "count": 1,
        "reason": "rejected",
        "queue": queue,
        "exchange": "",
        "routing-keys": [queue],
    }
    for part, value in (("reason", "rejected"), ("queue", queue), ("exchange", "")):
        assert headers[f"x-first-death-{part}"] == value


def test_the_types_of_the_fields(channel: Channel, dead_letter_queue: str) -> None:
    queue = dying(channel, dead_letter_queue, x_message_ttl=60_000)
    channel.publish(queue, b"", expiration="1")
    dead = arrived(channel, dead_letter_queue)
    field = properties.decode(dead.header).headers["x-death"]
    assert (field.kind, field.raw[5:6]) == ("A", b"F")
    entry = field_tables.decode_fields(field.raw[10:])
    assert {name: found.kind for name, found in entry.items()} == {
        "count": "l",
        "reason": "S",
        "queue": "S",
        "time": "T",
        "exchange": "S",
        "routing-keys": "A",
        "original-expiration": "S",
    }
    assert entry["routing-keys"].raw[5:6] == b"S"
    assert entry["original-expiration"].value == "1"


def test_the_expiration_moves_to_x_death(channel: Channel, dead_letter_queue: str) -> None:
    queue = dying(channel, dead_letter_queue)
    channel.publish(queue, b"", expiration="60000")
    message = channel.get(queue)
    assert message is not None
    channel.reject(message.tag)
    dead = arrived(channel, dead_letter_queue)
    assert dead.properties.expiration is None
    assert deaths(dead)[0]["original-expiration"] == "60000"


def test_other_properties_are_kept(channel: Channel, dead_letter_queue: str) -> None:
    queue = dying(channel, dead_letter_queue)
    sent: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "message_type": "t",
        "user_id": "guest",
        "app_id": "a",
    }
    values = {
        "text": "é",
        "flag": True,
        "none": None,
        "list": [1, "two", {"deep": 2.5}],
        "big": 2**40,
        "raw": bytearray(b"x"),
    }
    channel.publish(queue, b"body", headers=values, **sent)
    before = channel.get(queue)
    assert before is not None
    channel.reject(before.tag)
    after = arrived(channel, dead_letter_queue)
    assert {name: getattr(after.properties, name) for name in sent} == sent
    old, new = properties.decode(before.header).headers, properties.decode(after.header).headers
    assert {name: new[name] for name in old} == old


def test_integers_keep_their_width(channel: Channel, dead_letter_queue: str) -> None:
    queue = dying(channel, dead_letter_queue)
    table = (
        b"\x04byteb\xff"
        + b"\x05shorts\xff\xfe"
        + b"\x04longl"
        + bytes(7)
        + b"\x05"
        + b"\x01dd"
        + struct.pack(">d", 1.5)
    )
    header = struct.pack(">HHQH", 60, 0, 0, 0x2000) + long(table)
    publish = method(channel.number, BASIC_PUBLISH, b"\0\0" + short("") + short(queue) + b"\0")
    channel.connection.raw.send_bytes(publish + frame(HEADER, channel.number, header))
    channel.ready(queue)
    message = channel.get(queue)
    assert message is not None
    channel.reject(message.tag)
    found = properties.decode(arrived(channel, dead_letter_queue).header).headers
    assert [(name, found[name].kind) for name in ("byte", "short", "long", "d")] == [
        ("byte", "b"),
        ("short", "s"),
        ("long", "l"),
        ("d", "d"),
    ]


def test_a_death_in_another_queue_is_added_at_the_front(channel: Channel, dead_letter_queue: str) -> None:
    second = dying(channel, dead_letter_queue)
    first = dying(channel, second, x_message_ttl=1)
    channel.publish(first, b"x")
    wait_until(lambda: channel.ready(second) == 1, "the message has expired")
    message = channel.get(second)
    assert message is not None
    channel.reject(message.tag)
    dead = arrived(channel, dead_letter_queue)
    assert reasons(dead) == [(second, "rejected", 1), (first, "expired", 1)]
    assert [death["routing-keys"] for death in deaths(dead)] == [[second], [first]]
    headers = dead.headers
    assert (headers["x-first-death-reason"], headers["x-first-death-queue"]) == ("expired", first)
    if not channel.connection.is_rabbitmq:
        assert (headers["x-last-death-reason"], headers["x-last-death-queue"]) == ("rejected", second)


def test_a_repeated_death_is_counted_and_moves_to_the_front(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    """The retry loop: reject, wait in a queue with a TTL, return."""
    timed.declare("wait", x_dead_letter_exchange="", x_dead_letter_routing_key="work", x_message_ttl=1000)
    timed.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="wait")
    timed.publish("work", b"x", expiration="60000")
    for round_ in range(1, 4):
        message = timed.get("work")
        assert message is not None
        if round_ > 1:
            assert reasons(message) == [("wait", "expired", round_ - 1), ("work", "rejected", round_ - 1)]
            # The time is that of the first death of its kind.
            times = [death["time"].timestamp() for death in deaths(message)]
            assert times == [1_000_000_001, 1_000_000_000]
            assert deaths(message)[1]["original-expiration"] == "60000"
            assert message.headers["x-last-death-queue"] == "wait"
            assert message.headers["x-first-death-queue"] == "work"
        timed.reject(message.tag)
        assert timed.ready("wait") == 1
        inprocess.advance(1)


def test_x_death_of_a_client_is_replaced(timed: Channel) -> None:
    """Replace a client's x-death as RabbitMQ does since 4.0; up to 3.13 it continued the client's history."""
    dead_letter_queue = timed.declare(exclusive=True)
    queue = dying(timed, dead_letter_queue)
    forged = [{"queue": queue, "reason": "rejected", "count": 41}]
    timed.publish(queue, b"x", headers={"x-death": forged, "x-first-death-queue": "forged"})
    message = timed.get(queue)
    assert message is not None
    assert message.headers["x-death"] == forged
    timed.reject(message.tag)
    dead = arrived(timed, dead_letter_queue)
    assert reasons(dead) == [(queue, "rejected", 1)]
    assert dead.headers["x-first-death-queue"] == queue


@pytest.mark.parametrize(
    "forged", ["text", 7, [], [1], ["x"], {"queue": 1}, [{}], [{"queue": 5, "reason": []}]]
)
def test_a_malformed_x_death_of_a_client_is_harmless(timed: Channel, forged: Any) -> None:
    dead_letter_queue = timed.declare(exclusive=True)
    queue = dying(timed, dying(timed, dead_letter_queue, x_max_length=0), x_max_length=0)
    timed.publish(queue, b"x", headers={"x-death": forged})
    assert len(reasons(arrived(timed, dead_letter_queue))) == 2


# -- circles


def test_a_cycle_without_a_rejection_ends(channel: Channel, name: str) -> None:
    queue = channel.declare(name, x_dead_letter_exchange="", x_message_ttl=1)
    channel.publish(queue, b"x")
    wait_until(lambda: channel.ready(queue) == 0, "the message is dropped")
    channel.delete(queue)


def test_a_longer_cycle_ends_in_its_second_round(timed: Channel, inprocess: InProcessBroker) -> None:
    for source, target in (("a", "b"), ("b", "c"), ("c", "a")):
        timed.declare(source, x_dead_letter_exchange="", x_dead_letter_routing_key=target, x_message_ttl=1000)
    timed.publish("a", b"x")
    for queue in "abc":
        assert [timed.ready(name) for name in "abc"] == [name == queue for name in "abc"]
        inprocess.advance(1)
    assert [timed.ready(name) for name in "abc"] == [0, 0, 0]


def test_a_cycle_ends_for_its_own_queue_only(timed: Channel, inprocess: InProcessBroker) -> None:
    timed.declare_exchange("dlx")
    timed.declare("loop", x_dead_letter_exchange="dlx", x_message_ttl=1000)
    timed.declare("other")
    timed.bind("loop", "dlx")
    timed.bind("other", "dlx")
    timed.publish("loop", b"x")
    timed.ready("loop")
    inprocess.advance(1)
    assert (timed.ready("loop"), timed.ready("other")) == (0, 1)


def test_a_cycle_with_a_rejection_goes_on(timed: Channel, inprocess: InProcessBroker) -> None:
    timed.declare("a", x_dead_letter_exchange="", x_dead_letter_routing_key="b", x_message_ttl=1000)
    timed.declare("b", x_dead_letter_exchange="", x_dead_letter_routing_key="a")
    timed.publish("a", b"x")
    for _ in range(5):
        timed.ready("a")
        inprocess.advance(1)
        message = timed.get("b")
        assert message is not None
        timed.reject(message.tag)
    assert timed.ready("a") == 1


def test_a_rejected_message_may_return_to_its_own_queue(timed: Channel) -> None:
    timed.declare("self", x_dead_letter_exchange="")
    timed.publish("self", b"x")
    for count in range(5):
        message = timed.get("self")
        assert message is not None
        assert [death[2] for death in (reasons(message) if count else [])] == [count][:count]
        timed.reject(message.tag)
    assert timed.ready("self") == 1


def test_a_long_chain_of_full_queues_overflows_without_recursion(channel: Channel) -> None:
    """Each queue's overflow is a publish to the next one, hundreds of times."""
    depth = 200
    queue = last = channel.declare(exclusive=True)
    for _ in range(depth):
        queue = dying(channel, queue, x_max_length=0)
    channel.publish(queue, b"x")
    assert len(deaths(arrived(channel, last))) == depth
