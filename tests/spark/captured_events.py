"""Batches of captured events for tests: sources that record events, and their messages."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pika

from warren.core.capture_events import MESSAGE_TYPE, Event, EventBatch, Recorder, event_prefix
from warren.wire import properties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "type STRING, app_id STRING, headers MAP<STRING, STRING>, body BINARY"
"""Columns that `events_of` reads."""


class Source:
    """One run of a process that captures events; times are microseconds."""

    def __init__(self, by: Recorder = "sdk", app: str = "shop", name: str | None = None) -> None:
        self.by = by
        self.app = app
        self.name = name or f"{app}-{uuid.uuid4().hex[:8]}"
        self.batches: list[EventBatch] = []
        self.events: list[dict[str, Any]] = []
        """All events in batches, without lost ones, for an independent computation."""
        self._sequence = 1
        self._pending: list[Event] = []

    def record(self, event: str, at: int, message_id: str = "", *, size: int = -1, **known: Any) -> None:
        self._pending.append((event_prefix(event, **known), at, message_id, size))

    def flush(self) -> None:
        """Make a batch of the events since the last one."""
        if self._pending:
            for number, (beginning, at, message_id, _) in enumerate(self._pending, self._sequence):
                known = {"source": self.name, "by": self.by, "sequence": number, "at": at}
                self.events.append(
                    {**known, "message_id": message_id or None, **json.loads(f"{beginning}}}")}
                )
            self.batches.append(
                EventBatch(self.name, self.by, self.app, self._sequence, self._pending, "warren.events")
            )
            self._sequence += len(self._pending)
            self._pending = []

    def lose(self) -> int:
        """Drop the events since the last batch; their numbers are used up."""
        lost = len(self._pending)
        self._sequence += lost
        self._pending = []
        return lost


def batches(sources: Iterable[Source]) -> list[EventBatch]:
    for source in sources:
        source.flush()
    return [batch for source in sources for batch in source.batches]


def frame_of_batches(spark: SparkSession, sent: Sequence[EventBatch], *others: tuple[Any, ...]) -> DataFrame:
    """Return batches as the data source returns them, with `others` as additional rows."""
    return spark.createDataFrame([*map(row, sent), *others], COLUMNS)


def row(batch: EventBatch) -> tuple[str, str, dict[str, str], bytes]:
    values = properties.decode(batch.header())
    headers = {name: str(field.value) for name, field in values.headers.items()}
    return MESSAGE_TYPE, (values.data("app_id") or b"").decode(), headers, batch.body


def published(batch: EventBatch) -> tuple[bytes, pika.BasicProperties]:
    """Return body and properties for pika."""
    kind, app, headers, body = row(batch)
    typed = {**headers, "sequence": batch.sequence, "count": batch.count}
    return body, pika.BasicProperties(
        type=kind, app_id=app, message_id=batch.message_id, headers=typed, delivery_mode=2
    )
