"""What a load needs on the broker: its exchange, queues and bindings, and how its messages are addressed."""

from __future__ import annotations

from dataclasses import dataclass

from warren.broker.bench.load_options import Load
from warren.core.blocking_connection import BlockingConnection, ClosedByBroker
from warren.wire import field_tables
from warren.wire.amqp_url import AmqpUrl
from warren.wire.content import DELIVERY_MODE, HEADERS, PRIORITY
from warren.wire.reply_codes import Reply

WORDS = 100
"""Different words in each place of a binding that matches nothing."""

BINDING_SECONDS = 120.0
"""That a broker may take for all bindings."""


@dataclass(frozen=True)
class Address:
    """How one of a load's messages is published: exchange, key, encoded properties and the flags that announce them."""

    exchange: bytes
    routing_key: bytes
    properties: bytes = b""
    flags: int = 0


def queue_names(load: Load) -> list[bytes]:
    """All of them, the queues of one group side by side. A single one has the load's own name."""
    count = load.queues * load.fan_out
    return [load.queue.encode()] if count == 1 else [f"{load.queue}-{i:06d}".encode() for i in range(count)]


def queues_of(load: Load, consumer: int) -> list[bytes]:
    """What consumer number `consumer` consumes from: its share, or a queue that it shares with others."""
    names = queue_names(load)
    if load.queue_type == "stream":
        return names
    return names[consumer :: load.consumers] or [names[consumer % len(names)]]


def addresses(load: Load) -> list[Address]:
    """Of the messages in turn: every key of every group, and every priority as often as every key. All are as long."""
    groups, keys = load.queues, load.keys
    levels = max(load.priorities, 1)
    return [
        _address(load, turn % groups, turn // groups % keys, turn // (groups * keys))
        for turn in range(groups * keys * levels)
    ]


def _address(load: Load, group: int, key: int, level: int) -> Address:
    headers: dict[str, field_tables.Value] = {
        f"header-{i:02d}": f"value-{i:02d}" for i in range(load.headers)
    }
    if load.exchange == "headers":
        headers["group"] = f"{group:06d}"
    flags, properties = 0, b""
    # In the order of the flags (AMQP 0-9-1, section 4.2.6.1): headers, delivery mode, priority.
    if headers:
        flags |= HEADERS
        table = field_tables.encode(headers)
        properties += len(table).to_bytes(4, "big") + table
    if load.persistent:
        flags |= DELIVERY_MODE
        properties += b"\x02"
    if load.priorities:
        flags |= PRIORITY
        properties += bytes((level,))
    if not load.exchange:
        return Address(b"", queue_names(load)[group], properties, flags)
    return Address(load.queue.encode(), _key(load, group, key), properties, flags)


def _key(load: Load, group: int, key: int) -> bytes:
    return f"bench.{group:06d}.{key:06d}".encode() if load.keys > 1 else f"bench.{group:06d}".encode()


class Layout:
    """The exchange, queues and bindings of a run: there when it begins, and gone afterwards unless they are kept."""

    def __init__(self, url: AmqpUrl, load: Load, keep: bool) -> None:
        self._url = url
        self._load = load
        self._names = queue_names(load)
        plain = load.queue_type == "classic"
        self._durable = load.persistent or not plain
        arguments: dict[str, field_tables.Value] = dict(load.arguments)
        if not plain:
            arguments["x-queue-type"] = load.queue_type
        if load.priorities:
            arguments["x-max-priority"] = load.priorities - 1
        self._arguments = field_tables.encode(arguments)
        self._keep = keep

    def __enter__(self) -> None:
        connection = BlockingConnection(self._url, product="warren bench")
        try:
            for name in self._names:
                if not self._keep or not self._exists(connection, name):
                    self._declare(connection, name, passive=False)
            if self._load.exchange:
                self._bind(connection)
        except BaseException:
            # Half of them may be there.
            self._remove()
            raise
        connection.close()

    def _exists(self, connection: BlockingConnection, name: bytes) -> bool:
        try:
            self._declare(connection, name, passive=True)
        except ClosedByBroker as refused:
            if refused.code != Reply.NOT_FOUND:
                raise
            connection.reopen()
            return False
        return True

    def _declare(self, connection: BlockingConnection, name: bytes, passive: bool) -> None:
        flags = (passive, self._durable, False, False, False)
        connection.call("queue.declare", 0, name, *flags, self._arguments)

    def _bind(self, connection: BlockingConnection) -> None:
        load, exchange = self._load, self._load.queue.encode()
        flags = (False, self._durable, False, False, False)
        kind = load.exchange.encode()
        connection.call("exchange.declare", 0, exchange, kind, *flags, field_tables.encode({}))
        for place, name in enumerate(self._names):
            group = place // load.fan_out
            for key in range(load.keys if load.exchange == "direct" else 1):
                pattern, arguments = self._binding(group, key)
                connection.send("queue.bind", 0, name, exchange, pattern, True, arguments)
        for number in range(load.bindings):
            pattern, arguments = self._idle_binding(number)
            queue = self._names[number % len(self._names)]
            connection.send("queue.bind", 0, queue, exchange, pattern, True, arguments)
        # They were not answered one by one; this comes when all are made.
        connection.socket.settimeout(BINDING_SECONDS)
        self._declare(connection, self._names[0], passive=True)

    def _binding(self, group: int, key: int) -> tuple[bytes, bytes]:
        load = self._load
        if load.exchange == "headers":
            return b"", field_tables.encode({"x-match": "all", "group": f"{group:06d}"})
        if load.exchange == "topic" and load.keys > 1:
            return f"bench.{group:06d}.*".encode(), field_tables.encode({})
        return _key(load, group, key), field_tables.encode({})

    def _idle_binding(self, number: int) -> tuple[bytes, bytes]:
        """No message has these: words, one-word and many-words wildcards in turn, so that a topic has all to look at."""
        if self._load.exchange == "headers":
            return b"", field_tables.encode({"x-match": "all", "group": f"other-{number}"})
        first, second, third = number % WORDS, number // WORDS % WORDS, number // WORDS**2
        if self._load.exchange != "topic":
            return f"other.{first}.{second}.{third}".encode(), field_tables.encode({})
        kinds = (
            f"bench.other{first}.{second}.{third}",
            f"bench.*.other{first}.{second}.{third}",
            f"*.other{first}.{second}.{third}",
            f"bench.other{first}.{second}.#.{third}",
        )
        return kinds[number % len(kinds)].encode(), field_tables.encode({})

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._remove()

    def _remove(self) -> None:
        if self._keep and not self._load.exchange:
            return
        try:
            connection = BlockingConnection(self._url, product="warren bench")
            if self._load.exchange:
                connection.call("exchange.delete", 0, self._load.queue.encode(), False, False)
            for name in () if self._keep else self._names:
                connection.call("queue.delete", 0, name, False, False, False)
            connection.close()
        except (OSError, ClosedByBroker):
            # If the run failed, that is what to report; else the broker is gone, and the queues with it.
            return
