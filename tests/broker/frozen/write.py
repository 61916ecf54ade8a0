"""Write a data folder with a queue of each kind, through a broker and its clients, and define its expected content.

    python -m tests.broker.frozen.write tests/broker/frozen/NAME

Run it once for each version of the file formats. Never change its output afterwards: every later broker must read it.
"""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from pamqp.commands import Exchange, Queue, Tx

from tests.support.blocking_client import Channel
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.restarts import PERSISTENT, RestartableSession
from warren.broker.store.log.log import Log

LARGE = bytes(range(256)) * 280
"""A body that runs over a block of the log."""
YEAR_MS = 365 * 24 * 3600 * 1000
PROPERTIES: dict[str, Any] = {
    "content_type": "text/plain",
    "headers": {"n": 1, "nested": {"list": [1, "two"]}},
    "correlation_id": "c",
    "message_id": "m",
    "user_id": "guest",
}


@dataclass(frozen=True)
class Found:
    """A message that the folder must hold."""

    body: bytes
    redelivered: bool = False
    """Flag after a clean stop; after a crash all are flagged."""
    properties: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, Any] = field(default_factory=dict)
    """The headers that are checked."""
    deaths: tuple[tuple[str, str, int], ...] = ()
    """Queue, reason and count of each entry of x-death."""


QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "quorum": {"x_queue_type": "quorum", "x_delivery_limit": 5},
    "priority": {"x_max_priority": 5},
    "ttl": {
        "x_message_ttl": YEAR_MS,
        "x_dead_letter_exchange": "",
        "x_dead_letter_routing_key": "late",
    },
    "late": {},
    "short": {"x_max_length": 2, "x_dead_letter_exchange": "dead"},
    "rejecting": {"x_dead_letter_exchange": "dead"},
    "careful": {
        "x_queue_type": "quorum",
        "x_dead_letter_exchange": "",
        "x_dead_letter_routing_key": "narrow",
        "x_dead_letter_strategy": "at-least-once",
        "x_overflow": "reject-publish",
    },
    "narrow": {"x_max_length": 1, "x_overflow": "reject-publish"},
    "grave": {},
    "left": {},
    "middle": {},
    "right": {},
    "purged": {},
    "churn": {},
    "committed": {},
    "lazy": {"x_queue_mode": "lazy"},
    "stream": {"x_queue_type": "stream", "x_stream_max_segment_size_bytes": 5000},
}
"""Durable queues with their arguments."""

OLDEST = "v1"
"""Name of the folder that was written before the queues `LATER`, indexes of segments, and users existed."""
LATER = ("lazy", "stream")

EXCHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "dead": ("fanout", {}),
    "all": ("fanout", {}),
    "topic": ("topic", {"alternate_exchange": "all"}),
    "front": ("direct", {}),
}
BINDINGS = [
    ("grave", "dead", ""),
    ("left", "all", ""),
    ("middle", "all", ""),
    ("right", "all", ""),
    ("plain", "topic", "a.#"),
]

MESSAGES: dict[str, list[Found]] = {
    "plain": [
        Found(b"unacknowledged", True),
        Found(b"requeued", True),
        Found(b"", properties=PROPERTIES),
        Found(LARGE),
        Found(b"by topic"),
    ],
    "quorum": [
        Found(b"came back", True, headers={"x-acquired-count": 3, "x-delivery-count": 3}),
        Found(b"untouched"),
    ],
    "priority": [Found(b"5"), Found(b"3 first"), Found(b"3 second"), Found(b"none")],
    "ttl": [Found(b"lives", properties={"expiration": str(YEAR_MS // 2)}), Found(b"lives on")],
    "late": [Found(b"died", deaths=(("ttl", "expired", 1),))],
    "short": [Found(b"3"), Found(b"4")],
    "rejecting": [Found(b"kept")],
    "grave": [
        Found(b"1", deaths=(("short", "maxlen", 1),)),
        Found(b"2", deaths=(("short", "maxlen", 1),)),
        Found(b"refused", deaths=(("rejecting", "rejected", 1),)),
    ],
    "narrow": [Found(b"fills it")],
    "careful": [],
    "left": [],
    "middle": [Found(b"for three"), Found(b"by the alternate")],
    "right": [Found(b"for three", True), Found(b"by the alternate")],
    "purged": [],
    "churn": [Found(b"survivor 1", True), Found(b"survivor 2")],
    "committed": [Found(b"commit 1"), Found(b"commit 2")],
    "lazy": [Found(b"lazy 1", True), Found(LARGE), Found(b"lazy 3")],
}
"""The messages of each queue in order. `careful` has one pending dead letter besides: PENDING."""

STREAM = [b"%d" % number + b"x" * 1000 for number in range(12)]
"""The messages of the stream from offset 0 on; it has several segments."""

PENDING = Found(b"aside", deaths=(("careful", "rejected", 1),))
"""The dead letter that moves from `careful` to `narrow` when there is room."""


def declare(channel: Channel) -> None:
    """Declare the topology; for an existing one, check that it is as it was declared."""
    for name, (kind, arguments) in EXCHANGES.items():
        channel.declare_exchange(name, kind, durable=True, **arguments)
    for name, arguments in QUEUES.items():
        channel.declare(name, durable=True, **arguments)


def fill(session: RestartableSession) -> None:
    """Publish, consume and acknowledge until the queues hold `MESSAGES`."""
    channel = session.channel
    declare(channel)
    for queue, exchange, key in BINDINGS:
        channel.bind(queue, exchange, key)
    channel.call(Exchange.Bind(destination="all", source="front", routing_key="key"), Exchange.BindOk)

    session.publish("churn", b"survivor 1")
    _plain(session)
    _quorum(session)
    for level, body in ((None, b"none"), (3, b"3 first"), (9, b"5"), (3, b"3 second")):
        session.publish("priority", body, **({} if level is None else {"priority": level}))
    session.publish("ttl", b"died", expiration="1000")
    session.broker.advance(2)
    session.publish("ttl", b"lives", expiration=str(YEAR_MS // 2))
    session.publish("ttl", b"lives on")
    _dead_letters(session)
    _fan_out(session)
    session.publish("purged", b"1", b"2")
    channel.purge("purged")
    _deleted(session)
    session.publish("plain", b"lost: transient", delivery_mode=1)
    _transaction(session)
    _lazy(session)
    for body in STREAM:
        session.publish("stream", body)
    _churn(session)


def _plain(session: RestartableSession) -> None:
    channel = session.channel
    session.publish("plain", b"acknowledged", b"unacknowledged", b"requeued", b"acknowledged later")
    for _ in range(4):
        assert channel.get("plain") is not None
    channel.ack(4)
    channel.nack(3)
    channel.ack(1)
    session.publish("plain", b"", **PROPERTIES)
    session.publish("plain", LARGE)
    session.publish("a.b", b"by topic", exchange="topic")


def _quorum(session: RestartableSession) -> None:
    channel = session.channel
    session.publish("quorum", b"came back", b"untouched")
    for _ in range(3):
        message = channel.get("quorum")
        assert message is not None
        channel.reject(message.tag, requeue=True)
    assert channel.ready("quorum") == 2


def _dead_letters(session: RestartableSession) -> None:
    channel = session.channel
    session.publish("short", b"1", b"2", b"3", b"4")
    session.publish("rejecting", b"refused", b"kept")
    session.publish("narrow", b"fills it")
    session.publish("careful", b"aside")
    for queue in ("rejecting", "careful"):
        message = channel.get(queue)
        assert message is not None
        channel.reject(message.tag)
    assert (channel.ready("careful"), channel.ready("narrow")) == (0, 1)


def _fan_out(session: RestartableSession) -> None:
    channel = session.channel
    session.publish("key", b"for three", exchange="front")
    session.publish("nobody", b"by the alternate", exchange="topic")
    assert channel.drain("left") == [b"for three", b"by the alternate"]
    assert channel.get("right") is not None


def _deleted(session: RestartableSession) -> None:
    channel = session.channel
    for body in (b"old", b"new"):
        channel.declare("deleted", durable=True)
        session.publish("deleted", body)
        channel.delete("deleted")
    channel.declare_exchange("gone", durable=True)
    channel.bind("plain", "gone")
    channel.bind("left", "topic", "gone")
    channel.call(Queue.Unbind(queue="left", exchange="topic", routing_key="gone"), Queue.UnbindOk)
    channel.delete_exchange("gone")


def _transaction(session: RestartableSession) -> None:
    channel = session.connection.channel()
    channel.call(Tx.Select(), Tx.SelectOk)
    channel.publish("committed", b"commit 1", **PERSISTENT)
    channel.publish("committed", b"commit 2", **PERSISTENT)
    channel.call(Tx.Commit(), Tx.CommitOk)
    channel.publish("committed", b"not committed", **PERSISTENT)


def _lazy(session: RestartableSession) -> None:
    channel = session.channel
    session.publish("lazy", b"lazy 1", b"acknowledged", LARGE)
    session.publish("lazy", b"lost: transient, and on the disk all the same", delivery_mode=1)
    session.publish("lazy", b"lazy 3")
    assert channel.get("lazy") is not None
    taken = channel.get("lazy")
    assert taken is not None
    channel.ack(taken.tag)


def _churn(session: RestartableSession) -> None:
    """Publish and acknowledge until the log has compacted and deleted its first segments."""
    session.publish("churn", *[b"x" * 500] * 1000)
    data_dir = session.broker.data_dir
    assert data_dir is not None
    channel = session.channel
    first = channel.get("churn")
    assert first is not None
    while (message := channel.get("churn")) is not None:
        channel.ack(message.tag)
    channel.nack(first.tag)
    session.publish("churn", b"survivor 2")
    oldest = data_dir / "log" / "0000000000000001.log"
    wait_until(lambda: not oldest.exists(), "the first segment is compacted")


def small_log() -> Callable[..., Log]:
    """Return a log with segments small enough to be stored with the tests."""
    return functools.partial(Log, segment_size=40_000, slack=90_000)


def write(path: Path) -> None:
    """Write a folder at `path` by a broker that is stopped cleanly, started again and stopped."""
    with mock.patch("warren.broker.broker.Log", small_log()), InProcessBroker(path) as broker:
        session = RestartableSession(broker)
        fill(session)
        session.connection.abort()
        # The restart indexes the closed segments.
        broker.restart()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch, "data"))
        shutil.copytree(
            Path(scratch, "data"), sys.argv[1], ignore=shutil.ignore_patterns("lock", "control.sock")
        )
