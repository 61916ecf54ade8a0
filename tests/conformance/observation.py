"""What a step had for consequences: everything that a client, or another one, could see of it.

Only what is in an order by rule is compared in order: the answers of a channel, and the deliveries of one consumer.
Confirms are compared as what they settle, however they are bundled.
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
SIZES = dict(zip(b"tbBsuIilfdTDV", (1, 1, 1, 2, 2, 4, 4, 8, 4, 8, 8, 5, 0), strict=True))
"""How long a field's value is, by its type (https://www.rabbitmq.com/amqp-0-9-1-errata)."""


@dataclass(frozen=True, order=True)
class Content:
    """A message as it came: the fields of its carrier, its header as `comparable` makes it, its body."""

    said: str
    header: bytes
    body: bytes

    def __str__(self) -> str:
        return f"{self.said} {properties(self.header)} {self.body!r}"


@dataclass(frozen=True, order=True)
class Delivery:
    """A message that a consumer got, or that answered a basic.get."""

    who: int
    channel: int
    consumer: str
    content: Content

    def __str__(self) -> str:
        return f"{self.who}.{self.channel} delivered to {self.consumer!r}: {self.content}"


@dataclass
class Observation:
    """All that was seen between one step and the next."""

    answers: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    """By connection and channel: replies, returns, closes, cancels, in order."""
    deliveries: list[Delivery] = field(default_factory=list)
    tags: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """The delivery tags that a channel has given, sorted."""
    confirms: dict[tuple[int, int], dict[int, str]] = field(default_factory=dict)
    """By connection and channel: what became of a publish."""
    queues: dict[str, str] = field(default_factory=dict)
    """By name: how many messages are ready, how many consumers there are; or why one cannot know."""
    exchanges: dict[str, str] = field(default_factory=dict)

    def exceeds(self, other: Observation) -> bool:
        """Whether there is something here that the other one has not, or has in another order: waiting mends nothing."""
        return (
            any(other.answers.get(place, [])[: len(said)] != said for place, said in self.answers.items())
            or len(self.deliveries) > len(other.deliveries)
            or any(
                other.confirms.get(place, {}).get(number) != outcome
                for place, outcomes in self.confirms.items()
                for number, outcome in outcomes.items()
            )
        )

    def lines(self, before: Observation) -> list[str]:
        """For a reader: what was said, and which queues and exchanges are not as they were."""
        found = [f"{who}.{channel} {text}" for (who, channel), said in self.answers.items() for text in said]
        found += map(str, self.deliveries)
        found += [f"{who}.{channel} tags {tags}" for (who, channel), tags in self.tags.items()]
        found += [f"{who}.{channel} confirmed {said}" for (who, channel), said in self.confirms.items()]
        for kind, now, then in (
            ("queue", self.queues, before.queues),
            ("exchange", self.exchanges, before.exchanges),
        ):
            found += [f"{kind} {name}: {said}" for name, said in now.items() if then.get(name) != said]
        return found


def properties(header: bytes) -> dict[str, object]:
    """The properties in the payload of a header frame, without those that are not set."""
    found = frame.unmarshal(raw_frame(HEADER, 1, header))[2]
    assert isinstance(found, ContentHeader)
    return {name: value for name, value in dict(found.properties).items() if value not in (None, "")}


def comparable(header: bytes) -> bytes:
    """The payload of a header frame with its headers in one order, and the times at which a message died masked.

    Neither is anything that two brokers could agree on.
    """
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
    """What a 32-bit length announces, and where it ends."""
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
    """One field's type and value, with every table in it in order; and where it ends."""
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
    end = at + 1 + SIZES[kind[0]]
    return data[at:end], end
