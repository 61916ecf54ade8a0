"""Topology of a benchmark run: its exchange, queues, bindings, and the routing key and properties of messages."""

from __future__ import annotations

from dataclasses import dataclass

from warren.broker.bench.load_options import Load
from warren.core.blocking_connection import BlockingConnection, ClosedByBroker
from warren.wire import field_tables
from warren.wire.amqp_url import AmqpUrl
from warren.wire.content import DELIVERY_MODE, HEADERS, PRIORITY
from warren.wire.reply_codes import Reply

WORDS = 100
"""Number of different words at each position of the binding keys that match no message (see `Load.bindings`)."""

BINDING_SECONDS = 120.0
"""Seconds that the broker may take to declare all bindings; after them, the run fails."""


@dataclass(frozen=True)
class PublishTarget:
    """Exchange and routing key of a publish, with its encoded properties and their property flags."""

    exchange: bytes
    routing_key: bytes
    properties: bytes = b""
    flags: int = 0


def queue_names(load: Load) -> list[bytes]:
    """Return the names of all queues, group after group; a single queue has the name `load.queue`.

    Each message is routed to one group, and a copy of it goes to every queue of that group.
    """
    count = load.queues * load.fan_out
    return [load.queue.encode()] if count == 1 else [f"{load.queue}-{i:06d}".encode() for i in range(count)]


def queues_of(load: Load, consumer: int) -> list[bytes]:
    """Return the names of the queues that consumer number `consumer` consumes: its share of all, at least one.

    With fewer queues than consumers, several consumers share a queue. Streams are not divided: each consumer reads all.
    """
    names = queue_names(load)
    if load.queue_type == "stream":
        return names
    return names[consumer :: load.consumers] or [names[consumer % len(names)]]


def publish_targets(load: Load) -> list[PublishTarget]:
    """Return the targets that messages use in turn: each combination of queue group, routing key and priority.

    The encoded publishes to all targets are equally long, because names, keys and headers have fixed widths.
    `PublishBuffer` relies on that: it overwrites the sequence numbers at constant distances in one buffer.
    """
    groups, keys = load.queues, load.keys
    levels = max(load.priorities, 1)
    return [
        _publish_target(load, turn % groups, turn // groups % keys, turn // (groups * keys))
        for turn in range(groups * keys * levels)
    ]


def _publish_target(load: Load, group: int, key: int, level: int) -> PublishTarget:
    headers: dict[str, field_tables.Value] = {
        f"header-{i:02d}": f"value-{i:02d}" for i in range(load.headers)
    }
    if load.exchange == "headers":
        headers["group"] = f"{group:06d}"
    if load.distinct:
        # Each message gets headers of its own.
        headers = {}
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
        return PublishTarget(b"", queue_names(load)[group], properties, flags)
    return PublishTarget(load.queue.encode(), _key(load, group, key), properties, flags)


def _key(load: Load, group: int, key: int) -> bytes:
    return f"bench.{group:06d}.{key:06d}".encode() if load.keys > 1 else f"bench.{group:06d}".encode()


class LoadTopology:
    """Context manager that declares exchange, queues and bindings of a run, and deletes them at its end.

    :param url: AMQP URL of the broker.
    :param keep: True to use existing queues as they are, and to keep all queues at the end; only the exchange is
        deleted then.
    """

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
            # Some of them may have been declared.
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
        # The bindings were sent with nowait. The reply to this declare arrives when all of them are made.
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
        """Return (routing key, encoded arguments) of a binding that matches no message, but makes routing slower.

        For a topic exchange, some of the keys contain the wildcard `*` or `#`.

        :param number: number of the binding, below `load.bindings`
        """
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
            # A failure of the run itself is reported; otherwise the broker is gone with its queues.
            return
