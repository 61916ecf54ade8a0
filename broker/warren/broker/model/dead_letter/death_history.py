"""The x-death header of dead letters (https://www.rabbitmq.com/docs/dlx#effects), and detection of dead-letter cycles.

The entries of x-death stay encoded: decoding them at each dead-lettering would take longer with each entry.
All entries that are read here were written by this broker, since an x-death from a client is replaced. Each begins with
the fields count, reason and queue, in this order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.wire import field_tables
from warren.wire.content import header_payload
from warren.wire.properties import decode

if TYPE_CHECKING:
    from warren.broker.model.message import Message
    from warren.broker.model.queue.queue import Queue

COUNT_END: Final = len(field_tables.join({"count": field_tables.long_field(0)}))
"""Offset in an encoded x-death entry at which its first field ends: the count, a 64-bit integer."""

REASONS: Final = ("rejected", "expired", "maxlen", "delivery_limit")
"""RabbitMQ's reasons for dead-lettering. Append only: the broker's log stores their positions, counted from 1."""


def record_death(
    headers: dict[str, field_tables.Field],
    *,
    trusts_history: bool,
    queue: bytes,
    reason: str,
    time: int,
    exchange: bytes,
    keys: list[bytes],
    expiration: bytes | None,
    sets_last_death: bool,
) -> None:
    """Record a dead-lettering in a message's headers, as the first entry of x-death.

    There is one entry for each queue and reason. If the message was dead-lettered there for this reason before, the
    count of the entry is raised.

    :param headers: the message's headers, which are changed.
    :param trusts_history: True if the broker wrote the x-death that is present. One that a client published is
        replaced, as since RabbitMQ 4.0.
    :param time: seconds since 1970.
    :param exchange: the exchange that the message was published to.
    :param keys: the routing key and the keys in CC.
    :param expiration: the property `expiration` of the message, which the dead letter does not keep.
    :param sets_last_death: True to set the headers x-last-death-*, too.
    """
    deaths: list[bytes] = []
    if trusts_history and "x-death" in headers:
        deaths = split_deaths(headers["x-death"])
    name = decode_name(queue)
    same = death_key(name, reason)
    known = [death for death in deaths if death.startswith(same, COUNT_END)]
    if known:
        deaths.remove(known[0])
        count = int.from_bytes(known[0][COUNT_END - 8 : COUNT_END])
        death = field_tables.join({"count": field_tables.long_field(count + 1)}) + known[0][COUNT_END:]
    else:
        fields = {
            "time": field_tables.field_of(field_tables.Timestamp(time)),
            "exchange": field_tables.field_of(decode_name(exchange)),
            "routing-keys": field_tables.field_of([decode_name(key) for key in keys]),
        }
        if expiration is not None:
            fields["original-expiration"] = field_tables.field_of(decode_name(expiration))
        death = field_tables.join({"count": field_tables.long_field(1)}) + same + field_tables.join(fields)
    deaths.insert(0, death)
    headers["x-death"] = join_deaths(deaths)
    last = {"reason": reason, "queue": name, "exchange": decode_name(exchange)}
    for part, value in last.items():
        if not trusts_history or f"x-first-death-{part}" not in headers:
            headers[f"x-first-death-{part}"] = field_tables.field_of(value)
        if sets_last_death:
            headers[f"x-last-death-{part}"] = field_tables.field_of(value)


def exclude_cycles(targets: list[Queue], letter: Message) -> list[Queue]:
    """Return the queues that a dead letter may enter: those from which it has not been dead-lettered before.

    Otherwise a message could go round for ever between queues in which it expires or overflows. A queue is allowed
    again if a client has rejected the message since. Source: https://www.rabbitmq.com/docs/dlx#effects.
    """
    deaths = split_deaths(decode(header_payload(letter.content), "x-death").headers["x-death"])
    rejected = field_tables.join({"reason": field_tables.field_of("rejected")})
    left = []
    for target in targets:
        name = decode_name(target.name)
        here = tuple(death_key(name, reason) for reason in REASONS)
        places = [index for index, death in enumerate(deaths) if death.startswith(here, COUNT_END)]
        if places and not any(death.startswith(rejected, COUNT_END) for death in deaths[: places[0] + 1]):
            continue
        left.append(target)
    return left


def death_key(queue: str, reason: str) -> bytes:
    """Return the encoded fields reason and queue, which identify an x-death entry.

    In the entry they come after the field `count`.
    """
    return field_tables.join({"reason": field_tables.field_of(reason), "queue": field_tables.field_of(queue)})


def split_deaths(field: field_tables.Field) -> list[bytes]:
    """Return the entries of an x-death header, each encoded, the newest first."""
    deaths: list[bytes] = []
    data, position = field.raw, 5
    while position < len(data):
        size = int.from_bytes(data[position + 1 : position + 5])
        deaths.append(data[position + 5 : position + 5 + size])
        position += 5 + size
    return deaths


def join_deaths(deaths: list[bytes]) -> field_tables.Field:
    """Return the header x-death with these encoded entries."""
    items = b"".join(b"F" + len(death).to_bytes(4) + death for death in deaths)
    return field_tables.Field("A", None, b"A" + len(items).to_bytes(4) + items)


def decode_name(name: bytes) -> str:
    """Decode a name from the wire. Bytes that are not UTF-8 become surrogates (the error handler `surrogateescape`)."""
    return name.decode("utf-8", "surrogateescape")
