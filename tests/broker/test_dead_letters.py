"""Dead-lettering: for which reasons, where to, with which history, and what happens where it cannot go."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.broker.conftest import Connect
from tests.support.client import Channel, Connection, Message
from tests.support.frames import BASIC_PUBLISH, HEADER, frame, long, method, short
from tests.support.inprocess import InProcess
from tests.support.processes import wait_until
from warren.wire import properties, tables


@pytest.fixture
def grave(channel: Channel) -> str:
    return channel.declare(exclusive=True)


@pytest.fixture
def timed(inprocess: InProcess) -> Iterator[Channel]:
    """A channel to the broker whose clock the test moves."""
    with Connection(inprocess.url) as connection:
        yield connection.channel()


def dying(channel: Channel, grave: str, **arguments: Any) -> str:
    """A queue whose dead letters go to another, by the default exchange."""
    return channel.declare(
        exclusive=True, x_dead_letter_exchange="", x_dead_letter_routing_key=grave, **arguments
    )


def arrived(channel: Channel, queue: str) -> Message:
    """The next message of a queue, once it is there."""
    found: list[Message] = []

    def look() -> bool:
        message = channel.get(queue, no_ack=True)
        found.extend([] if message is None else [message])
        return bool(found)

    wait_until(look, f"a message is in {queue}")
    return found[0]


def deaths(message: Message) -> list[dict[str, Any]]:
    return [dict(death) for death in message.headers["x-death"]]


def reasons(message: Message) -> list[tuple[str, str, int]]:
    """Queue, reason and count of each entry of x-death."""
    return [(death["queue"], death["reason"], death["count"]) for death in deaths(message)]


# -- the reasons


def test_rejected(channel: Channel, grave: str) -> None:
    queue = dying(channel, grave)
    for body in (b"rejected", b"nacked", b"nacked too"):
        channel.publish(queue, body)
        assert channel.get(queue) is not None
    channel.reject(1)
    channel.nack(3, multiple=True, requeue=False)
    for body in (b"rejected", b"nacked", b"nacked too"):
        message = arrived(channel, grave)
        assert message.body == body
        assert reasons(message) == [(queue, "rejected", 1)]


def test_expired(channel: Channel, grave: str) -> None:
    queue = dying(channel, grave, x_message_ttl=1)
    channel.publish(queue, b"x")
    assert reasons(arrived(channel, grave)) == [(queue, "expired", 1)]


def test_maxlen(channel: Channel, grave: str) -> None:
    queue = dying(channel, grave, x_max_length=1)
    for body in (b"1", b"2", b"3"):
        channel.publish(queue, body)
    for body in (b"1", b"2"):
        message = arrived(channel, grave)
        assert message.body == body
        assert reasons(message) == [(queue, "maxlen", 1)]
    assert channel.drain(queue) == [b"3"]


def test_delivery_limit(channel: Channel, grave: str, name: str) -> None:
    channel.declare(
        name,
        durable=True,
        x_queue_type="quorum",
        x_delivery_limit=2,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=grave,
    )
    channel.confirm()
    channel.publish(name, b"poison")
    channel.settled(1)
    for count in range(3):
        wait_until(lambda: channel.ready(name) == 1, "the message is back")
        message = channel.get(name)
        assert message is not None
        assert message.headers.get("x-delivery-count", 0) == count
        assert message.redelivered == (count > 0)
        channel.nack(message.tag)
    message = arrived(channel, grave)
    assert reasons(message) == [(name, "delivery_limit", 1)]
    channel.delete(name)


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        ({"x_queue_type": "quorum"}, 20),
        ({"x_queue_type": "quorum", "x_delivery_limit": 0}, 0),
        ({"x_delivery_limit": 3}, 3),
    ],
)
def test_delivery_limits_of_each_queue_type(timed: Channel, arguments: dict[str, Any], limit: int) -> None:
    grave = timed.declare(exclusive=True)
    queue = timed.declare(
        "limited", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key=grave, **arguments
    )
    timed.publish(queue, b"poison")
    for count in range(limit + 1):
        assert timed.ready(grave) == 0
        message = timed.get(queue)
        assert message is not None
        assert message.headers.get("x-delivery-count", 0) == count
        timed.reject(message.tag, requeue=True)
    assert (timed.ready(queue), timed.ready(grave)) == (0, 1)


@pytest.mark.parametrize("arguments", [{}, {"x_queue_type": "quorum", "x_delivery_limit": -1}])
def test_without_a_delivery_limit(timed: Channel, arguments: dict[str, Any]) -> None:
    queue = timed.declare("unlimited", durable=True, **arguments)
    timed.publish(queue, b"x")
    for _ in range(30):
        message = timed.get(queue)
        assert message is not None
        timed.nack(message.tag)
    assert timed.ready(queue) == 1


def test_a_lost_consumer_counts_as_a_delivery(inprocess: InProcess) -> None:
    """One return a loss, whatever other channels the connection had."""
    with Connection(inprocess.url) as keeper:
        observer = keeper.channel()
        observer.declare("limited", durable=True, x_delivery_limit=5)
        observer.publish("limited", b"x")
        for count in (1, 2):
            with Connection(inprocess.url) as connection:
                for _ in range(3):
                    channel = connection.channel()
                    channel.consume("limited")
                assert connection.channels[1].deliveries(1)
            message = observer.get("limited")
            assert message is not None
            assert message.headers["x-delivery-count"] == 2 * count - 1
            observer.nack(message.tag)


# -- the history


def test_the_first_death(timed: Channel) -> None:
    timed.declare_exchange("source", "topic")
    timed.declare_exchange("dlx")
    grave = timed.declare(exclusive=True)
    timed.bind(grave, "dlx")
    queue = timed.declare("queue", x_dead_letter_exchange="dlx")
    timed.bind(queue, "source", "#")
    timed.publish("a.b", b"body", exchange="source", headers={"mine": 1})
    message = timed.get(queue)
    assert message is not None
    timed.reject(message.tag)
    dead = arrived(timed, grave)
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


def test_the_first_death_on_any_broker(channel: Channel, grave: str) -> None:
    queue = dying(channel, grave)
    channel.publish(queue, b"body")
    message = channel.get(queue)
    assert message is not None
    channel.reject(message.tag)
    headers = arrived(channel, grave).headers
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


def test_the_types_of_the_fields(channel: Channel, grave: str) -> None:
    queue = dying(channel, grave, x_message_ttl=60_000)
    channel.publish(queue, b"", expiration="1")
    dead = arrived(channel, grave)
    field = properties.decode(dead.header).headers["x-death"]
    assert (field.kind, field.raw[5:6]) == ("A", b"F")
    entry = tables.decode_fields(field.raw[10:])
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


def test_the_expiration_moves_into_the_history(channel: Channel, grave: str) -> None:
    queue = dying(channel, grave)
    channel.publish(queue, b"", expiration="60000")
    message = channel.get(queue)
    assert message is not None
    channel.reject(message.tag)
    dead = arrived(channel, grave)
    assert dead.properties.expiration is None
    assert deaths(dead)[0]["original-expiration"] == "60000"


def test_other_properties_are_kept(channel: Channel, grave: str) -> None:
    queue = dying(channel, grave)
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
    after = arrived(channel, grave)
    assert {name: getattr(after.properties, name) for name in sent} == sent
    old, new = properties.decode(before.header).headers, properties.decode(after.header).headers
    assert {name: new[name] for name in old} == old


def test_integers_keep_their_width(channel: Channel, grave: str) -> None:
    queue = dying(channel, grave)
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
    channel.connection.raw.send(publish + frame(HEADER, channel.number, header))
    channel.ready(queue)
    message = channel.get(queue)
    assert message is not None
    channel.reject(message.tag)
    found = properties.decode(arrived(channel, grave).header).headers
    assert [(name, found[name].kind) for name in ("byte", "short", "long", "d")] == [
        ("byte", "b"),
        ("short", "s"),
        ("long", "l"),
        ("d", "d"),
    ]


def test_a_second_death_elsewhere_stands_in_front(channel: Channel, grave: str) -> None:
    second = dying(channel, grave)
    first = dying(channel, second, x_message_ttl=1)
    channel.publish(first, b"x")
    wait_until(lambda: channel.ready(second) == 1, "the message has expired")
    message = channel.get(second)
    assert message is not None
    channel.reject(message.tag)
    dead = arrived(channel, grave)
    assert reasons(dead) == [(second, "rejected", 1), (first, "expired", 1)]
    assert [death["routing-keys"] for death in deaths(dead)] == [[second], [first]]
    headers = dead.headers
    assert (headers["x-first-death-reason"], headers["x-first-death-queue"]) == ("expired", first)
    if not channel.connection.is_rabbitmq:
        assert (headers["x-last-death-reason"], headers["x-last-death-queue"]) == ("rejected", second)


def test_a_repeated_death_is_counted_and_moves_to_the_front(timed: Channel, inprocess: InProcess) -> None:
    """The retry loop: rejected, waited for a while, back again."""
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


def test_what_a_client_publishes_as_x_death_is_no_history(timed: Channel) -> None:
    """As in RabbitMQ 4.0; up to 3.13 it was counted on."""
    grave = timed.declare(exclusive=True)
    queue = dying(timed, grave)
    forged = [{"queue": queue, "reason": "rejected", "count": 41}]
    timed.publish(queue, b"x", headers={"x-death": forged, "x-first-death-queue": "forged"})
    message = timed.get(queue)
    assert message is not None
    assert message.headers["x-death"] == forged
    timed.reject(message.tag)
    dead = arrived(timed, grave)
    assert reasons(dead) == [(queue, "rejected", 1)]
    assert dead.headers["x-first-death-queue"] == queue


@pytest.mark.parametrize(
    "forged", ["text", 7, [], [1], ["x"], {"queue": 1}, [{}], [{"queue": 5, "reason": []}]]
)
def test_an_x_death_of_any_form_does_no_harm(timed: Channel, forged: Any) -> None:
    grave = timed.declare(exclusive=True)
    queue = dying(timed, dying(timed, grave, x_max_length=0), x_max_length=0)
    timed.publish(queue, b"x", headers={"x-death": forged})
    assert len(reasons(arrived(timed, grave))) == 2


# -- routing keys


def test_the_key_is_kept_or_overridden(channel: Channel, name: str) -> None:
    channel.declare_exchange(name, "topic")
    grave = channel.declare(exclusive=True)
    channel.bind(grave, name, "#")
    kept = channel.declare(exclusive=True, x_dead_letter_exchange=name, x_max_length=0)
    changed = channel.declare(
        exclusive=True, x_dead_letter_exchange=name, x_dead_letter_routing_key="other", x_max_length=0
    )
    for queue, key in ((kept, kept), (changed, "other")):
        channel.publish(queue, b"x")
        dead = arrived(channel, grave)
        assert (dead.carrier.exchange, dead.carrier.routing_key) == (name, key)
        assert deaths(dead)[0]["routing-keys"] == [queue]
    channel.delete_exchange(name)


@pytest.mark.parametrize("override", [None, "other"])
def test_cc_and_bcc(channel: Channel, name: str, override: str | None) -> None:
    channel.declare_exchange(name)
    grave = channel.declare(exclusive=True)
    channel.bind(grave, name)
    arguments: dict[str, Any] = {"x_dead_letter_exchange": name, "x_max_length": 0}
    if override is not None:
        arguments["x_dead_letter_routing_key"] = override
    queue = channel.declare(exclusive=True, **arguments)
    channel.publish(queue, b"x", headers={"CC": ["cc1", "cc2"], "BCC": ["bcc"], "other": 1})
    dead = arrived(channel, grave)
    assert deaths(dead)[0]["routing-keys"] == [queue, "cc1", "cc2"]
    assert "BCC" not in dead.headers
    assert dead.headers.get("CC") == (["cc1", "cc2"] if override is None else None)
    assert dead.headers["other"] == 1
    channel.delete_exchange(name)


# -- where nothing is


def test_without_an_exchange_the_message_is_gone(channel: Channel, name: str) -> None:
    plans: list[dict[str, Any]] = [
        {},
        {"x_dead_letter_exchange": name},
        {"x_dead_letter_exchange": "amq.direct"},
    ]
    for arguments in plans:
        queue = channel.declare(exclusive=True, **arguments)
        channel.publish(queue, b"x")
        message = channel.get(queue)
        assert message is not None
        channel.reject(message.tag)
        assert channel.state(queue) == (0, 0)


def test_an_exchange_may_come_later(channel: Channel, name: str) -> None:
    queue = channel.declare(exclusive=True, x_dead_letter_exchange=name)
    grave = channel.declare(exclusive=True)
    channel.declare_exchange(name)
    channel.bind(grave, name)
    channel.publish(queue, b"x")
    message = channel.get(queue)
    assert message is not None
    channel.reject(message.tag)
    assert arrived(channel, grave).body == b"x"
    channel.delete_exchange(name)


def test_a_full_target_loses_its_copy(channel: Channel, name: str) -> None:
    channel.declare_exchange(name)
    full = channel.declare(exclusive=True, x_max_length=1, x_overflow="reject-publish")
    free = channel.declare(exclusive=True)
    for target in (full, free):
        channel.bind(target, name)
    queue = channel.declare(exclusive=True, x_dead_letter_exchange=name, x_max_length=0)
    for body in (b"1", b"2"):
        channel.publish(queue, body)
    wait_until(lambda: channel.ready(free) == 2, "both are dead-lettered")
    assert channel.drain(full) == [b"1"]
    channel.delete_exchange(name)


def test_a_deleted_or_purged_queue_dead_letters_nothing(channel: Channel, grave: str) -> None:
    queue = dying(channel, grave)
    channel.publish(queue, b"purged")
    assert channel.ready(queue) == 1
    assert channel.purge(queue) == 1
    channel.publish(queue, b"deleted")
    assert channel.ready(queue) == 1
    assert channel.delete(queue) == 1
    assert channel.ready(grave) == 0


# -- circles


def test_a_circle_without_a_rejection_ends(channel: Channel, name: str) -> None:
    queue = channel.declare(name, x_dead_letter_exchange="", x_message_ttl=1)
    channel.publish(queue, b"x")
    wait_until(lambda: channel.ready(queue) == 0, "the message is dropped")
    channel.delete(queue)


def test_a_longer_circle_ends_in_its_second_round(timed: Channel, inprocess: InProcess) -> None:
    for source, target in (("a", "b"), ("b", "c"), ("c", "a")):
        timed.declare(source, x_dead_letter_exchange="", x_dead_letter_routing_key=target, x_message_ttl=1000)
    timed.publish("a", b"x")
    for queue in "abc":
        assert [timed.ready(name) for name in "abc"] == [name == queue for name in "abc"]
        inprocess.advance(1)
    assert [timed.ready(name) for name in "abc"] == [0, 0, 0]


def test_a_circle_ends_for_its_own_queue_only(timed: Channel, inprocess: InProcess) -> None:
    timed.declare_exchange("dlx")
    timed.declare("loop", x_dead_letter_exchange="dlx", x_message_ttl=1000)
    timed.declare("other")
    timed.bind("loop", "dlx")
    timed.bind("other", "dlx")
    timed.publish("loop", b"x")
    timed.ready("loop")
    inprocess.advance(1)
    assert (timed.ready("loop"), timed.ready("other")) == (0, 1)


def test_a_rejection_in_the_circle_keeps_it_going(timed: Channel, inprocess: InProcess) -> None:
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


def test_a_long_chain_of_full_queues(channel: Channel) -> None:
    """Each queue's overflow is the next one's publish, hundreds deep."""
    depth = 200
    queue = last = channel.declare(exclusive=True)
    for _ in range(depth):
        queue = dying(channel, queue, x_max_length=0)
    channel.publish(queue, b"x")
    assert len(deaths(arrived(channel, last))) == depth


# -- at least once


def strict(channel: Channel, queue: str, exchange: str, **arguments: Any) -> str:
    return channel.declare(
        queue,
        durable=True,
        x_queue_type="quorum",
        x_dead_letter_exchange=exchange,
        x_dead_letter_strategy="at-least-once",
        x_overflow="reject-publish",
        **arguments,
    )


def test_at_least_once_keeps_what_nobody_takes(timed: Channel, inprocess: InProcess) -> None:
    strict(timed, "work", "dlx", x_max_length=2)
    for body in (b"1", b"2"):
        timed.publish("work", body)
        message = timed.get("work")
        assert message is not None
        timed.reject(message.tag)
    inprocess.advance(60)
    # Kept aside: not ready, but in the way of what would be too much.
    assert timed.ready("work") == 0
    timed.confirm()
    timed.publish("work", b"3")
    assert timed.settled(1) == [False]
    timed.declare_exchange("dlx")
    grave = timed.declare(exclusive=True)
    timed.bind(grave, "dlx")
    inprocess.advance(2)
    for body in (b"1", b"2"):
        dead = arrived(timed, grave)
        assert dead.body == body
        assert reasons(dead) == [("work", "rejected", 1)]
    timed.publish("work", b"4")
    assert timed.drain("work") == [b"4"]


def test_at_least_once_waits_for_room(timed: Channel, inprocess: InProcess) -> None:
    timed.declare("grave", x_max_length=1, x_overflow="reject-publish")
    strict(timed, "work", "", x_dead_letter_routing_key="grave")
    for body in (b"1", b"2", b"3"):
        timed.publish("work", body)
        message = timed.get("work")
        assert message is not None
        timed.reject(message.tag)
    found = []
    for _ in range(3):
        found += timed.drain("grave")
        inprocess.advance(2)
    assert found == [b"1", b"2", b"3"]


def test_at_least_once_works_off_a_long_backlog(timed: Channel, inprocess: InProcess) -> None:
    strict(timed, "work", "dlx", x_message_ttl=1000)
    bodies = [b"%d" % number for number in range(1000)]
    timed.connection.raw.send(b"".join(timed.encoded("work", body) for body in bodies))
    assert timed.ready("work") == 1000
    inprocess.advance(30)
    assert timed.ready("work") == 0
    timed.declare_exchange("dlx")
    grave = timed.declare(exclusive=True)
    timed.bind(grave, "dlx")
    inprocess.advance(1)
    assert sorted(timed.drain(grave), key=int) == bodies


def test_at_most_once_loses_what_nobody_takes(timed: Channel, inprocess: InProcess) -> None:
    timed.declare("work", durable=True, x_queue_type="quorum", x_dead_letter_exchange="dlx")
    timed.publish("work", b"x")
    message = timed.get("work")
    assert message is not None
    timed.reject(message.tag)
    timed.declare_exchange("dlx")
    grave = timed.declare(exclusive=True)
    timed.bind(grave, "dlx")
    inprocess.advance(10)
    assert timed.ready(grave) == 0


def test_a_deleted_queue_takes_what_it_kept_aside_along(timed: Channel, inprocess: InProcess) -> None:
    strict(timed, "work", "dlx")
    timed.publish("work", b"x")
    message = timed.get("work")
    assert message is not None
    timed.reject(message.tag)
    timed.delete("work")
    timed.declare_exchange("dlx")
    grave = timed.declare(exclusive=True)
    timed.bind(grave, "dlx")
    inprocess.advance(10)
    assert timed.ready(grave) == 0


def test_bytes_kept_aside_count_too(timed: Channel) -> None:
    strict(timed, "work", "dlx", x_max_length_bytes=10)
    timed.publish("work", b"12345678")
    message = timed.get("work")
    assert message is not None
    timed.reject(message.tag)
    timed.confirm()
    timed.publish("work", b"abc")
    assert timed.settled(1) == [False]


def test_dead_letters_reach_a_waiting_consumer(connect: Connect) -> None:
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    grave = channel.declare(exclusive=True)
    other.consume(grave, "waiting")
    queue = dying(channel, grave, x_max_length=0)
    channel.publish(queue, b"x")
    (message,) = other.deliveries(1)
    assert (message.consumer, message.body, message.redelivered) == ("waiting", b"x", False)
