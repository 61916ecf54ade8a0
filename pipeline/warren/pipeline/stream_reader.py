"""Spark's readers of a stream: a range of it once, or what comes, from Spark's checkpoint on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from warren.pipeline.ranges import Ranges
from warren.pipeline.replay import offset_of
from warren.pipeline.rows import SCHEMA, record_batch


@dataclass
class Piece(InputPartition):
    """What one task reads: from an offset to before another."""

    start: int
    stop: int


class StreamReader(DataSourceReader):
    """Reads a range once. It is pickled to the executor: plain values only."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges

    def partitions(self) -> list[Piece]:
        ranges = self._ranges
        end = ranges.replay.end()
        # What arrives from now on is for the next read.
        start = ranges.start(end)
        tasks = ranges.tasks(start, ranges.stop(end))
        # Spark asks for one piece in any case.
        return [Piece(*task) for task in tasks or [(start, start)]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._ranges, partition)


class ContinuousReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on. The offsets are in Spark's checkpoint: nothing is stored at the broker."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._until: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"offset": self._ranges.start(self._end())}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        end = self._ranges.stop(self._end())
        if self._until is not None:
            end = min(end, self._until)
        if isinstance(limit, ReadMaxRows):
            end = min(end, start["offset"] + limit.max_rows)
        # A stream never gets shorter; one that was made anew under the same name does.
        return {"offset": max(end, start["offset"])}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._ranges.per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, int]:
        return {"offset": self._end()}

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._end()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Piece]:
        return [Piece(*task) for task in self._ranges.tasks(start["offset"], end["offset"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._ranges, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the messages stay in any case."""

    def _end(self) -> int:
        return self._ranges.replay.end()


def read(ranges: Ranges, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one piece."""
    assert isinstance(partition, Piece)
    schema = to_arrow_schema(SCHEMA, timezone="UTC")
    replay = ranges.replay
    for messages in replay.batches(partition.start, partition.stop, ranges.whole):
        yield record_batch(messages, replay.stream, [offset_of(message) for message in messages], schema)
