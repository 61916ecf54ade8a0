"""The x-death header of dead letters (https://www.rabbitmq.com/docs/dlx#effects), and detection of dead-letter cycles.

The headers of a message stay encoded: decoding them at each dead-lettering would take longer with each of them.
All entries of x-death that are read here were written by this broker, since an x-death from a client is replaced. Each
begins with the fields count, reason and queue, in this order.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.wire import field_tables
from warren.wire.headers_splice import join_table, split_table

if TYPE_CHECKING:
    from warren.broker.model.queue.queue import Queue

REASONS: Final = ("rejected", "expired", "maxlen", "delivery_limit")
"""RabbitMQ's reasons for dead-lettering. Append only: the broker's log stores their positions, counted from 1."""

COUNT_END: Final = len(field_tables.join({"count": field_tables.long_field(0)}))
"""Offset in an encoded x-death entry at which its first field ends: the count, a 64-bit integer."""
REASON_TEXT: Final = COUNT_END + len(field_tables.name_bytes("reason")) + 5
"""Offset in an encoded x-death entry of the text of its second field, the reason."""
QUEUE_SKIP: Final = len(field_tables.name_bytes("queue")) + 5
"""Bytes in an encoded x-death entry between the text of the reason and that of the queue."""
X_DEATH: Final = field_tables.name_bytes("x-death")
CC: Final = field_tables.name_bytes("CC")
BCC: Final = field_tables.name_bytes("BCC")
PARTS: Final = ("reason", "queue", "exchange")
"""Endings of the names of the headers x-first-death-* and x-last-death-*, in the order in which they are added."""
FIRST: Final = tuple(field_tables.name_bytes(f"x-first-death-{part}") for part in PARTS)
LAST: Final = tuple(field_tables.name_bytes(f"x-last-death-{part}") for part in PARTS)
ADDED: Final = frozenset((X_DEATH, *FIRST, *LAST))
"""Names of the headers that a death adds or changes, each with its length in front."""
KNOWN_ENTRIES: Final = 64
"""Number of encoded x-death entries and of header tables that are kept for messages that need the same."""
LARGEST_KNOWN: Final = 2048
"""Bytes of the largest header table that is kept with its result."""

_LONG = struct.Struct(">q")
_U32 = struct.Struct(">I")


class DeadLetterHeaders:
    """Headers of a dead letter, and what follows from them.

    They are the same for all messages with the same headers, exchange, routing key and expiration that die in one queue
    for one reason in the same second.
    """

    def __init__(self, table: bytes, keys: list[bytes], deaths: list[bytes]) -> None:
        self.table = table
        """The header table, encoded, with its length in front."""
        self.keys = keys
        """The message's routing key, and the keys in its headers CC and BCC."""
        self.deaths = deaths
        """Entries of x-death, each encoded, the newest first."""
        self.targets: list[Queue] | None = None
        """The queues that the dead letter enters; None if they are not known or may differ between such messages."""


class DeathHistory:
    """Writer of the headers x-death, x-first-death-* and x-last-death-* of one queue's dead letters.

    :param queue: the name of the queue that the messages leave.
    :param reason: why they leave: `rejected`, `expired`, `maxlen` or `delivery_limit`.
    :param time: when they leave, in seconds since 1970.
    :param removes_cc: True if the queue has an x-dead-letter-routing-key: then the header CC is removed, too.
    :param sets_last_death: True to set the headers x-last-death-*.
    """

    def __init__(
        self, queue: bytes, reason: str, time: i64, *, removes_cc: bool, sets_last_death: bool
    ) -> None:
        self._time = int(time)
        self._removes_cc = removes_cc
        self._sets_last_death = sets_last_death
        self._reason_value = long_string(reason.encode())
        self._queue_value = long_string(queue)
        self._same = b"".join(
            (
                field_tables.name_bytes("reason"),
                self._reason_value,
                field_tables.name_bytes("queue"),
                self._queue_value,
            )
        )
        """Encoded fields reason and queue, which identify an x-death entry. They follow the field `count`."""
        self._known: dict[tuple[bytes, bool, bytes, bytes, bytes | None], DeadLetterHeaders] = {}
        self._first_deaths: dict[tuple[bytes, bytes, bytes, bytes | None], tuple[bytes, bytes]] = {}

    def forget_targets(self) -> None:
        """Forget the queues that dead letters enter, because bindings or queues have changed."""
        for headers in self._known.values():
            headers.targets = None

    def record(
        self,
        table: bytes,
        trusts_history: bool,
        exchange: bytes,
        routing_key: bytes,
        expiration: bytes | None,
    ) -> DeadLetterHeaders:
        """Return the headers of a dead letter: those of the message with this death as the first entry of x-death.

        There is one entry for each queue and reason. If the message was dead-lettered there for this reason before, the
        count of the entry is raised. BCC is removed.

        :param table: the message's headers: an encoded table without its length.
        :param trusts_history: True if the broker wrote the x-death that is present. One that a client published is
            replaced, as since RabbitMQ 4.0.
        :param exchange: the exchange that the message was published to.
        :param routing_key: the routing key of the message.
        :param expiration: the property `expiration` of the message, which the dead letter does not keep.
        """
        key = (table, trusts_history, exchange, routing_key, expiration)
        found = self._known.get(key)
        if found is None:
            found = self._write(table, trusts_history, exchange, routing_key, expiration)
            if len(table) <= LARGEST_KNOWN:
                if len(self._known) >= KNOWN_ENTRIES:
                    self._known.clear()
                self._known[key] = found
        return found

    def _write(
        self,
        table: bytes,
        trusts_history: bool,
        exchange: bytes,
        routing_key: bytes,
        expiration: bytes | None,
    ) -> DeadLetterHeaders:
        fields = split_table(table)
        cc = fields.get(CC, b"")
        bcc = fields.pop(BCC, b"")
        if cc and self._removes_cc:
            del fields[CC]
        keys = [routing_key]
        if cc or bcc:
            keys += keys_in(cc)
            keys += keys_in(bcc)
        if ADDED.isdisjoint(fields):
            death, added = self._first_death(exchange, routing_key, cc, expiration)
            return DeadLetterHeaders(join_table(fields, added), keys, [death])
        old = fields.get(X_DEATH) if trusts_history else None
        deaths = [] if old is None else split_deaths(old)
        again = [death for death in deaths if death.startswith(self._same, COUNT_END)]
        if again:
            death = again[0]
            deaths.remove(death)
            count: int = _LONG.unpack_from(death, COUNT_END - 8)[0]
            death = death[: COUNT_END - 8] + _LONG.pack(count + 1) + death[COUNT_END:]
        else:
            death = self._first_death(exchange, routing_key, cc, expiration)[0]
        deaths.insert(0, death)
        fields[X_DEATH] = join_deaths(deaths)
        values = (self._reason_value, self._queue_value, long_string(exchange))
        for first, last, value in zip(FIRST, LAST, values, strict=True):
            if not trusts_history or first not in fields:
                fields[first] = value
            if self._sets_last_death:
                fields[last] = value
        return DeadLetterHeaders(join_table(fields, b""), keys, deaths)

    def _first_death(
        self, exchange: bytes, routing_key: bytes, cc: bytes, expiration: bytes | None
    ) -> tuple[bytes, bytes]:
        """Return a new entry of x-death, encoded, and all encoded headers that a first death adds.

        :param cc: the encoded value of the header CC; empty if the message has none.
        """
        key = (exchange, routing_key, cc, expiration)
        found = self._first_deaths.get(key)
        if found is None:
            keys = b"".join(long_string(name) for name in (routing_key, *keys_in(cc)))
            parts = [
                field_tables.join({"count": field_tables.long_field(1)}),
                self._same,
                field_tables.join({"time": field_tables.field_of(field_tables.Timestamp(self._time))}),
                field_tables.name_bytes("exchange"),
                long_string(exchange),
                field_tables.name_bytes("routing-keys"),
                b"A" + _U32.pack(len(keys)) + keys,
            ]
            if expiration is not None:
                parts += [field_tables.name_bytes("original-expiration"), long_string(expiration)]
            death = b"".join(parts)
            added = [X_DEATH, join_deaths([death])]
            values = (self._reason_value, self._queue_value, long_string(exchange))
            for first, last, value in zip(FIRST, LAST, values, strict=True):
                added += [first, value]
                if self._sets_last_death:
                    added += [last, value]
            found = (death, b"".join(added))
            if len(self._first_deaths) >= KNOWN_ENTRIES:
                self._first_deaths.clear()
            self._first_deaths[key] = found
        return found


def exclude_cycles(targets: list[Queue], deaths: list[bytes]) -> list[Queue]:
    """Return the queues that a dead letter may enter: those that it has not left before, or not since a rejection.

    :param deaths: the entries of its x-death, the newest first, that of the present death included.
    """
    left = queues_left(deaths)
    return [target for target in targets if target.name not in left]


def queues_left(deaths: list[bytes]) -> list[bytes]:
    """Return the names of the queues that a message has left since a client rejected it last, so that it may not return.

    Otherwise it could go round for ever between queues in which it expires or overflows. Source:
    https://www.rabbitmq.com/docs/dlx#effects.

    :param deaths: the entries of its x-death, the newest first.
    """
    left: list[bytes] = []
    for death in deaths:
        size: i64 = _U32.unpack_from(death, REASON_TEXT - 4)[0]
        if death.startswith(b"rejected", REASON_TEXT) and size == 8:
            break
        start: i64 = REASON_TEXT + size + QUEUE_SKIP
        size = _U32.unpack_from(death, start - 4)[0]
        left.append(death[start : start + size])
    return left


def split_deaths(value: bytes) -> list[bytes]:
    """Return the entries of an encoded x-death header, each encoded, the newest first."""
    deaths: list[bytes] = []
    position: i64 = 5
    while position < len(value):
        size: i64 = _U32.unpack_from(value, position + 1)[0]
        deaths.append(value[position + 5 : position + 5 + size])
        position += 5 + size
    return deaths


def join_deaths(deaths: list[bytes]) -> bytes:
    """Return the encoded header x-death with these encoded entries."""
    parts: list[bytes] = []
    for death in deaths:
        parts.append(b"F" + _U32.pack(len(death)))
        parts.append(death)
    items = b"".join(parts)
    return b"A" + _U32.pack(len(items)) + items


def keys_in(value: bytes) -> list[bytes]:
    """Return the routing keys in the encoded header CC or BCC of a message; none if there is no such header.

    Anything but texts in an array is ignored.
    """
    if not value.startswith(b"A"):
        return []
    return [item.raw[5:] for item in field_tables.decode_items(value[5:]) if item.kind == "S"]


def long_string(text: bytes) -> bytes:
    """Return a text as an encoded field of type `S`."""
    return b"S" + _U32.pack(len(text)) + text
