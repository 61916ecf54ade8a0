"""Reader of capture event streams: batches as they arrive, and their events in order."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.support.blocking_client import Connection
from tests.support.polling import PATIENCE
from tests.support.streams import consume

Event = dict[str, Any]


@dataclass(frozen=True)
class CapturedBatch:
    """A batch of capture events."""

    message_id: str
    application: str
    source: str
    by: str
    sequence: int
    count: int
    events: tuple[Event, ...]


class CaptureReader:
    """All batches of a stream so far; `until` reads on."""

    def __init__(self, url: str, stream: str) -> None:
        self._connection = Connection(url)
        self._channel = self._connection.channel()
        consume(self._channel, stream, "first", prefetch=1000)
        self.batches: list[CapturedBatch] = []

    def until(self, done: Callable[[CaptureReader], bool], seconds: float = PATIENCE) -> CaptureReader:
        deadline = time.monotonic() + seconds
        while not done(self):
            assert time.monotonic() < deadline, [event["event"] for event in self.events]
            (message,) = self._channel.deliveries(1)
            self._channel.ack(message.tag)
            headers, properties = message.headers, message.properties
            assert properties.message_type == "warren.events"
            assert properties.content_type == "application/json"
            self.batches.append(
                CapturedBatch(
                    str(properties.message_id),
                    str(properties.app_id),
                    headers["source"],
                    headers["by"],
                    headers["sequence"],
                    headers["count"],
                    tuple(json.loads(message.body)),
                )
            )
        return self

    def stopped(self, sources: int = 1) -> CaptureReader:
        """Read on until this number of sources have ended."""
        return self.until(lambda found: sum(one["event"] == "stopped" for one in found.events) == sources)

    @property
    def events(self) -> list[Event]:
        """All events without duplicates, in the order of their sources' sequence numbers."""
        by_source: dict[str, dict[int, CapturedBatch]] = defaultdict(dict)
        for batch in self.batches:
            by_source[batch.source][batch.sequence] = batch
        return [
            event
            for batches in by_source.values()
            for sequence in sorted(batches)
            for event in batches[sequence].events
        ]

    def missing(self) -> int:
        """Return the number of missing events, by the sequence numbers of one source that has started and ended."""
        present: set[int] = set()
        for batch in self.batches:
            assert batch.count == len(batch.events)
            present.update(range(batch.sequence, batch.sequence + batch.count))
        return max(present, default=0) - len(present)

    def close(self) -> None:
        self._connection.abort()


def of(events: Iterable[Event], *names: str, **values: object) -> list[Event]:
    """Return the events with these names and values."""
    return [
        event
        for event in events
        if event["event"] in names and all(event.get(key) == value for key, value in values.items())
    ]


def names(events: Iterable[Event], **values: object) -> list[str]:
    """Return the names of the events with these values."""
    return [
        event["event"] for event in events if all(event.get(key) == value for key, value in values.items())
    ]
