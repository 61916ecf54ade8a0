"""Observable effects of a step on a broker, in a form that two brokers can be compared by.

Only what the protocol orders is compared in order: the replies on a channel, and the deliveries of one consumer.
Confirms are compared by what they settle, however they are combined.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from pamqp import frame
from pamqp.header import ContentHeader

from tests.support.frames import HEADER
from tests.support.frames import frame as raw_frame

FLAGS_AT = 12
CONTENT_TYPE, CONTENT_ENCODING, HEADERS = 0x8000, 0x4000, 0x2000
FIELD_SIZES = dict(zip(b"tbBsuIilfdTDV", (1, 1, 1, 2, 2, 4, 4, 8, 4, 8, 8, 5, 0), strict=True))
"""Length of a field's value by its type (https://www.rabbitmq.com/amqp-0-9-1-errata)."""


@dataclass(frozen=True, order=True)
class Content:
    """Received message: the fields of its method, its header as `comparable` returns it, and its body."""

    texts: str
    header: bytes
    body: bytes

    def __str__(self) -> str:
        return f"{self.texts} {properties(self.header)} {self.body!r}"


@dataclass(frozen=True, order=True)
class Delivery:
    """Message that was delivered to a consumer, or returned by basic.get."""

    client: int
    channel: int
    consumer: str
    content: Content

    def __str__(self) -> str:
        return f"{self.client}.{self.channel} delivered to {self.consumer!r}: {self.content}"


@dataclass
class Observation:
    """All effects between one step and the next."""

    answers: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    """Replies, returns, closes and cancels in order, by client and channel."""
    deliveries: list[Delivery] = field(default_factory=list)
    tags: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """Sorted delivery tags of each channel."""
    confirms: dict[tuple[int, int], dict[int, str]] = field(default_factory=dict)
    """Confirms of publishes, by client and channel."""
    queues: dict[str, str] = field(default_factory=dict)
    """Ready messages and consumers of each queue, or the reason why they are unknown."""
    exchanges: dict[str, str] = field(default_factory=dict)

    def contradicts(self, other: Observation) -> bool:
        """Return whether it has an effect that the other one lacks or has in another order, so that waiting is useless."""
        return (
            any(other.answers.get(place, [])[: len(texts)] != texts for place, texts in self.answers.items())
            or len(self.deliveries) > len(other.deliveries)
            or any(
                other.confirms.get(place, {}).get(number) != outcome
                for place, outcomes in self.confirms.items()
                for number, outcome in outcomes.items()
            )
        )

    def lines(self, before: Observation) -> list[str]:
        """Describe the effects, and the queues and exchanges that changed."""
        found = [
            f"{client}.{channel} {text}"
            for (client, channel), texts in self.answers.items()
            for text in texts
        ]
        found += map(str, self.deliveries)
        found += [f"{client}.{channel} tags {tags}" for (client, channel), tags in self.tags.items()]
        found += [
            f"{client}.{channel} confirmed {texts}" for (client, channel), texts in self.confirms.items()
        ]
        for kind, now, then in (
            ("queue", self.queues, before.queues),
            ("exchange", self.exchanges, before.exchanges),
        ):
            found += [f"{kind} {name}: {texts}" for name, texts in now.items() if then.get(name) != texts]
        return found


def properties(header: bytes) -> dict[str, object]:
    """Return the properties in the payload of a header frame, without unset ones."""
    found = frame.unmarshal(raw_frame(HEADER, 1, header))[2]
    assert isinstance(found, ContentHeader)
    return {name: value for name, value in dict(found.properties).items() if value not in (None, "")}


def comparable(header: bytes) -> bytes:
    """Return the payload of a header frame with sorted headers and masked times of death, which two brokers cannot share."""
    (flags,) = struct.unpack_from(">H", header, FLAGS_AT)
    if not flags & HEADERS:
        return header
    at = FLAGS_AT + 2
    for flag in (CONTENT_TYPE, CONTENT_ENCODING):
        if flags & flag:
            at += 1 + header[at]
    table, end = _sized(header, at)
    ordered = _ordered_table(table)
    return header[:at] + struct.pack(">I", len(ordered)) + ordered + header[end:]


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the data after a 32-bit length, and its end."""
    end = at + 4 + int(struct.unpack_from(">I", data, at)[0])
    return data[at + 4 : end], end


def _ordered_table(table: bytes) -> bytes:
    fields = []
    at = 0
    while at < len(table):
        end = at + 1 + table[at]
        name = table[at:end]
        value, at = _value(table, end)
        if name == b"\x04time" and value[:1] == b"T":
            assert int.from_bytes(value[1:]) > 900_000_000, "a death without a time"
            value = b"T" + bytes(8)
        fields.append(name + value)
    return b"".join(sorted(fields))


def _value(data: bytes, at: int) -> tuple[bytes, int]:
    """Return one field's type and value, with every table in it sorted, and its end."""
    kind = data[at : at + 1]
    if kind in b"SxAF":
        content, end = _sized(data, at + 1)
        if kind == b"F":
            content = _ordered_table(content)
        elif kind == b"A":
            items, inner = b"", 0
            while inner < len(content):
                item, inner = _value(content, inner)
                items += item
            content = items
        return kind + struct.pack(">I", len(content)) + content, end
    end = at + 1 + FIELD_SIZES[kind[0]]
    return data[at:end], end
