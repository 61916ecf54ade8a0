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


@dataclass(frozen=True, order=True)
class Content:
    """A message as it came: the fields of its carrier, the bytes of its header (times masked), its body."""

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


def without_times(header: bytes) -> bytes:
    """When a message died is the one thing in a header that two brokers cannot agree on."""
    mark = b"\x04timeT"
    at = header.find(mark)
    while at >= 0:
        start = at + len(mark)
        (seconds,) = struct.unpack_from(">Q", header, start)
        assert seconds > 900_000_000, "a death without a time"
        header = header[:start] + bytes(8) + header[start + 8 :]
        at = header.find(mark, start)
    return header
