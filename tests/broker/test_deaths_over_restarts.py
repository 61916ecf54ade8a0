"""Expiry and dead-lettering around a stop or a crash: time passes meanwhile, and each dead letter is in one queue."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.restarts import ENDS, PERSISTENT, RestartableSession, end
from warren.broker.store.log.record_format import GROUP, find_record_header

# -- time goes on


@pytest.mark.parametrize("how", ENDS)
def test_the_ttl_continues_while_the_broker_is_stopped(session: RestartableSession, how: str) -> None:
    session.channel.declare("dead-letters", durable=True)
    session.channel.declare(
        "q",
        durable=True,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead-letters",
        x_message_ttl=10_000,
    )
    session.publish("q", b"short", expiration="3000")
    session.publish("q", b"long")
    session.broker.advance(2)
    end(session, how)
    assert session.channel.ready("q") == 2
    session.broker.advance(0.999)
    assert session.channel.ready("q") == 2
    session.broker.advance(0.001)
    assert (session.channel.ready("q"), session.channel.ready("dead-letters")) == (1, 1)
    session.broker.advance(7)
    assert (session.channel.ready("q"), session.channel.ready("dead-letters")) == (0, 2)


@pytest.mark.parametrize("how", ENDS)
def test_messages_that_expired_meanwhile_are_dead_lettered_at_the_start(
    session: RestartableSession, how: str
) -> None:
    """The target queues have messages of their own and may be restored before or after."""
    channel = session.channel
    channel.declare_exchange("dlx", durable=True)
    arguments: dict[str, Any] = {"x_dead_letter_exchange": "dlx", "x_message_ttl": 1000}
    for number in range(4):
        channel.declare(f"dead-letters-{number}", durable=True)
        channel.bind(f"dead-letters-{number}", "dlx")
        channel.declare(f"q{number}", durable=True, **arguments)
        session.publish(f"dead-letters-{number}", b"old 1", b"old 2")
        session.publish(f"q{number}", b"dead")
    session.broker.jump(60)
    end(session, how)
    for _ in range(2):
        channel = session.channel
        found = {number: channel.ready(f"dead-letters-{number}") for number in range(4)}
        assert found == dict.fromkeys(range(4), 6)
        end(session, how)
    for number in range(4):
        assert session.channel.drain(f"dead-letters-{number}") == [b"old 1", b"old 2"] + [b"dead"] * 4
        assert session.channel.ready(f"q{number}") == 0


def test_many_messages_that_expired_meanwhile_are_not_delivered(session: RestartableSession) -> None:
    session.channel.declare("q", durable=True)
    session.publish("q", *[b"dead"] * 1200, expiration="1000")
    session.publish("q", b"alive")
    session.broker.jump(60)
    session.restart()
    assert session.channel.drain("q") == [b"alive"]


def test_x_expires_starts_again_after_a_restart(session: RestartableSession) -> None:
    session.channel.declare("q", durable=True, x_expires=10_000)
    session.broker.advance(9)
    session.restart()
    session.broker.advance(9)
    session.restart()
    session.broker.advance(9.999)
    assert session.channel.exists("q")
    session.broker.advance(10)
    assert not session.channel.exists("q")
    session.restart()
    assert not session.channel.exists("q")


# -- dead letters


@pytest.mark.parametrize("how", ENDS)
def test_a_dead_letter_is_in_one_queue_only_after_a_crash(session: RestartableSession, how: str) -> None:
    channel = session.channel
    channel.declare("dead-letters", durable=True)
    channel.declare("q", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="dead-letters")
    session.publish("q", b"1", b"2", expiration="5000")
    message = channel.get("q")
    assert message is not None
    channel.reject(message.tag)
    session.publish("q", b"3")
    end(session, how)
    channel = session.channel
    assert channel.drain("q") == [b"2", b"3"]
    dead = channel.get("dead-letters")
    assert dead is not None
    assert dead.body == b"1"
    (death,) = dead.headers["x-death"]
    assert (death["count"], death["reason"], death["original-expiration"]) == (1, "rejected", "5000")
    # Its history is still the broker's own, and is counted on.
    channel.nack(dead.tag)
    assert channel.ready("dead-letters") == 1


def test_a_crash_during_dead_lettering_leaves_each_message_in_one_queue(session: RestartableSession) -> None:
    """The removal and the copies are one record of the log: a crash at any moment loses and duplicates nothing."""
    channel = session.channel
    channel.declare_exchange("dlx", durable=True)
    for dead_letter_queue in ("grave1", "grave2"):
        channel.declare(dead_letter_queue, durable=True)
        channel.bind(dead_letter_queue, "dlx")
    channel.declare("q", durable=True, x_dead_letter_exchange="dlx")
    bodies = [b"%d" % number for number in range(300)]
    session.publish("q", *bodies)
    left = len(bodies)
    for rejected in (60, 120, 60):
        session.channel.consume("q", "tag")
        session.channel.deliveries(left)
        for tag in range(1, rejected + 1):
            session.channel.reject(tag)
        session.channel.ready("q")
        session.crash()
        channel = session.channel
        left = channel.ready("q")
        assert channel.ready("grave1") == channel.ready("grave2") == len(bodies) - left
    buried = channel.drain("grave1")
    assert sorted(buried + channel.drain("q"), key=int) == bodies
    assert buried == bodies[: len(buried)] == channel.drain("grave2")


def test_dead_letters_of_one_frame_share_records(session: RestartableSession) -> None:
    channel = session.channel
    channel.declare("dead-letters", durable=True)
    channel.declare("q", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="dead-letters")
    session.publish("q", *[b"%d" % number for number in range(300)])
    channel.consume("q")
    channel.deliveries(300)
    bulk_work = session.broker.virtual_host().bulk_work
    # All in one slice, however slow the machine is: each slice ends a record.
    session.broker.call(lambda: setattr(bulk_work, "slice_seconds", 3600.0))
    channel.nack(300, multiple=True, requeue=False)
    session.sync()
    log = session.broker.broker._log if session.broker.broker else None
    assert log is not None
    seed = session.broker.call(lambda: log._buffer.seed)
    assert session.broker.data_dir is not None
    (segment,) = (session.broker.data_dir / "log").glob("*.log")
    data = segment.read_bytes()
    # Records that begin at the end of a block and go on in the next are not found. There are few of them.
    kinds = []
    position = find_record_header(data, 0, len(data), seed)
    while position >= 0:
        kinds.append(data[position])
        position = find_record_header(data, position + 1, len(data), seed)
    assert 3 < kinds.count(GROUP) < 30
    session.crash()
    assert session.channel.ready("q") == 0
    assert session.channel.drain("dead-letters") == [b"%d" % number for number in range(300)]


@pytest.mark.parametrize("how", ENDS)
def test_x_death_counts_go_on_after_a_restart(session: RestartableSession, how: str) -> None:
    channel = session.channel
    channel.declare(
        "wait", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="q", x_message_ttl=1000
    )
    channel.declare("q", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="wait")
    session.publish("q", b"x")
    for count in range(1, 4):
        message = session.channel.get("q")
        assert message is not None
        session.channel.reject(message.tag)
        session.sync()
        end(session, how)
        session.broker.advance(1)
        message = session.channel.get("q")
        assert message is not None
        assert [death["count"] for death in message.headers["x-death"]] == [count, count]
        session.channel.nack(message.tag)


@pytest.mark.parametrize("how", ENDS)
def test_pending_dead_letters_survive_a_restart(session: RestartableSession, how: str) -> None:
    session.channel.declare(
        "q",
        durable=True,
        x_queue_type="quorum",
        x_dead_letter_exchange="dlx",
        x_dead_letter_strategy="at-least-once",
        x_overflow="reject-publish",
        x_max_length=2,
    )
    session.publish("q", b"1", b"2")
    for _ in range(2):
        message = session.channel.get("q")
        assert message is not None
        session.channel.reject(message.tag)
    session.sync()
    end(session, how)
    channel = session.channel
    assert channel.ready("q") == 0
    channel.publish("q", b"too much", **PERSISTENT)
    assert channel.settled(1) == [False]
    channel.declare_exchange("dlx", durable=True)
    channel.declare("dead-letters", durable=True)
    channel.bind("dead-letters", "dlx")
    session.broker.advance(2)
    assert channel.ready("dead-letters") == 2
    end(session, how)
    session.broker.advance(2)
    assert session.channel.drain("dead-letters") == [b"1", b"2"]
    assert session.channel.ready("q") == 0
