"""State of a running broker, read over the wire and through its control socket, without changing what it holds.

Messages are delivered and not acknowledged, so that they return to their queues when the connection is closed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from pamqp.commands import Basic

from tests.faults.damage.expected_state import ExpectedState, QueueMessage, make_body, token_of
from tests.support.blocking_client import Channel, Closed, Connection, Message
from tests.support.operator_cli import warren_ctl
from tests.support.streams import consume, offset_of

SECTIONS = (
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "parameters",
    "global_parameters",
    "policies",
    "queues",
    "exchanges",
    "bindings",
)
UNREADABLE = "?"
"""Token of a message whose body is wrong."""


@dataclass
class ObservedState:
    """All that a broker holds."""

    queues: dict[str, list[QueueMessage] | None] = field(default_factory=dict)
    """Messages in the order of delivery; None for a queue that does not exist."""
    miscounted: dict[str, str] = field(default_factory=dict)
    """Queues whose number of ready messages was not the number of messages that could be read."""
    streams: dict[str, list[tuple[int, str]] | None] = field(default_factory=dict)
    """Offset and token of each message; None for a stream that does not exist or cannot be read to its end."""
    positions: dict[tuple[str, str], int] = field(default_factory=dict)
    """First offset that a consumer with a stored position gets."""
    definitions: set[str] = field(default_factory=set)
    logins: dict[str, bool] = field(default_factory=dict)


def url_of(url: str, queue: str, user: str = "guest", password: str = "guest") -> tuple[str, str]:
    """Return the URL for a queue named `VHOST:NAME` or `NAME`, and its name in the virtual host."""
    vhost, _, name = queue.rpartition(":")
    address = url.rpartition("@")[2].removeprefix("amqp://").rstrip("/")
    return f"amqp://{user}:{password}@{address}/{vhost}", name


def definitions_of(data_dir: Path) -> set[str]:
    """Return all definitions that the broker exports, each as its section and JSON."""
    result = warren_ctl(data_dir)("-q", "export_definitions", "-")
    assert result.status == 0, result
    exported = json.loads(result.output)
    return {
        f"{section} {json.dumps(item, sort_keys=True)}" for section in SECTIONS for item in exported[section]
    }


def message_of(message: Message) -> QueueMessage:
    deaths: list[dict[str, Any]] = message.headers.get("x-death", [])
    death = f"{deaths[0]['queue']} {deaths[0]['reason']} {deaths[0]['count']}" if deaths else ""
    return QueueMessage(
        token_of(message.body) or UNREADABLE,
        message.redelivered,
        int(message.headers.get("x-delivery-count", 0)),
        message.properties.priority or 0,
        death,
    )


def read_queue(channel: Channel, queue: str) -> tuple[list[QueueMessage], str]:
    """Get all messages of a queue without acknowledging; return them, and an error if their number was wrong."""
    ready = channel.ready(queue)
    found: list[QueueMessage] = []
    wanted = ready + 1
    while wanted:
        channel.send(*(Basic.Get(queue=queue) for _ in range(wanted)))
        answers = [channel.next() for _ in range(wanted)]
        messages = [message_of(answer) for answer in answers if isinstance(answer, Message)]
        found += messages
        wanted = 0 if len(messages) < wanted else 10
    left = channel.ready(queue)
    wrong = f"{ready} ready, {len(found)} read, {left} left" if (ready, left) != (len(found), 0) else ""
    return found, wrong


def read_stream(channel: Channel, stream: str, end: str) -> list[tuple[int, str]] | None:
    """Return offset and token of each message up to the one with the token `end`; None if the broker stops before it."""
    tag = consume(channel, stream, "first", prefetch=10_000)
    found: list[tuple[int, str]] = []
    while not found or found[-1][1] != end:
        event = channel.next()
        if isinstance(event, Basic.Cancel):
            return None
        if isinstance(event, Message):
            found.append((offset_of(event), token_of(event.body) or UNREADABLE))
    channel.cancel(tag)
    return found


def read_position(channel: Channel, stream: str, tag: str) -> int:
    """Return the first offset that a consumer with a stored position gets; -1 if the broker cancels it."""
    consume(channel, stream, "first", tag, prefetch=1, x_stream_automatic_offset_tracking=True)
    while True:
        event = channel.next()
        if isinstance(event, Basic.Cancel):
            return -1
        if isinstance(event, Message):
            return offset_of(event)


class BrokerClient:
    """Connections to the virtual hosts of a broker, one for each, and channels for queues that exist."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connections: dict[str, Connection | None] = {}

    def channel(self, queue: str) -> tuple[Channel, str] | None:
        """Return a new channel, and the queue's name in its virtual host; None if the queue, or its host, is gone."""
        address, name = url_of(self._url, queue)
        if address not in self._connections:
            self._connections[address] = connect(address)
        connection = self._connections[address]
        if connection is None:
            return None
        channel = connection.channel()
        try:
            channel.state(name)
        except Closed:
            del connection.channels[channel.number]
            return None
        return channel, name

    def __enter__(self) -> BrokerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            if connection is not None:
                connection.__exit__(kind, error, trace)


def connect(address: str) -> Connection | None:
    """Return a connection; None if the broker refuses the user or the virtual host.

    :raises OSError: no broker answers.
    """
    try:
        return Connection(address)
    except AssertionError:
        return None


def publish_again(url: str, expected: ExpectedState, suffix: str) -> ObservedState:
    """Publish one more message to each queue and stream that exists, and wait for the confirms.

    :return: the messages that were confirmed; their tokens end with `suffix`.
    """
    added = ObservedState()
    with BrokerClient(url) as client:
        for queue in (*expected.queues, *expected.streams):
            if (found := client.channel(queue)) is None:
                continue
            channel, name = found
            token = f"{queue}/{suffix}"
            channel.confirm()
            channel.publish(name, make_body(token, 300), delivery_mode=2)
            assert channel.settled(1) == [True], f"the broker refuses a message for {queue}"
            if queue in expected.streams:
                added.streams[queue] = [(-1, token)]
            else:
                added.queues[queue] = [QueueMessage(token)]
    return added


def observe(url: str, data_dir: Path, expected: ExpectedState, added: ObservedState) -> ObservedState:
    """Read all queues, streams and definitions of a running broker.

    :param added: the messages that were published last; a stream is read up to its last one.
    """
    found = ObservedState(queues=dict.fromkeys(expected.queues), streams=dict.fromkeys(expected.streams))
    with BrokerClient(url) as client:
        for queue in expected.queues:
            if (opened := client.channel(queue)) is not None:
                found.queues[queue], wrong = read_queue(*opened)
                if wrong:
                    found.miscounted[queue] = wrong
        for stream, last in added.streams.items():
            if last is not None and (opened := client.channel(stream)) is not None:
                found.streams[stream] = read_stream(*opened, last[-1][1])
        for stream, tag in expected.positions:
            if (opened := client.channel(stream)) is not None:
                found.positions[stream, tag] = read_position(*opened, tag)
    found.definitions = definitions_of(data_dir)
    for user, password in expected.logins.items():
        address, _ = url_of(url, "", user, password)
        connection = connect(address)
        found.logins[user] = connection is not None
        if connection is not None:
            connection.close()
    return found
