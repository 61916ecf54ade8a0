"""Spark's readers of streams: a range of each once, or what comes, from Spark's checkpoint on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from warren.pipeline.errors import PipelineError
from warren.pipeline.source.filter_pushdown import Limits, bounded, narrowed
from warren.pipeline.source.offset_ranges import Offsets, Ranges, shared
from warren.pipeline.source.row_schema import record_batch
from warren.pipeline.source.stream_end import Watch


@dataclass
class Piece(InputPartition):
    """What one task reads: of a stream from an offset to before another."""

    stream: str
    start: int
    stop: int


class StreamReader(DataSourceReader):
    """Reads ranges once. It is pickled to the executor: plain values only."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._limits = Limits()
        if ranges.pushing:
            # Only where it is asked for: Spark 4.3 keeps, with the frame, what the filters of its last query have left to
            # read, and reads the same for its next query, whose filters are others.
            self.pushFilters = self._push  # type: ignore[method-assign]

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        self._limits = narrowed(self._limits, filters, self._ranges.tolerance)
        # Spark looks at all of them again, which costs it little.
        return filters

    def partitions(self) -> list[Piece]:
        ranges = self._ranges
        # What arrives from now on is for the next read.
        ends = ranges.ends()
        starts, stops = ranges.starts(ends), ranges.stops(ends)
        stops = {stream: min(stop, ends[stream]) for stream, stop in stops.items()}
        found = pieces(ranges, *bounded(self._limits, ranges, starts, stops))
        # Spark asks for one piece in any case.
        return found or [Piece(ranges.streams[0], 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._ranges, partition)


class ContinuousReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on. The offsets are in Spark's checkpoint: nothing is stored at the broker."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._until: Offsets | None = None
        self._watches: dict[str, Watch] = {}

    def initialOffset(self) -> Offsets:
        return self._ranges.starts(self._ends())

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        ends = self._until or self._reached()
        begin = self._begin(start)
        # No end, or one before the place that was reached, is no way back.
        waiting = {stream: max(ends[stream] - offset, 0) for stream, offset in begin.items()}
        for stream, offset in begin.items():
            anew = 0 < ends[stream] < start.get(stream, 0) and self._ranges.ending[stream] == "last"
            # Who begins ahead of the end has read nothing yet.
            anew = anew and offset != self._ranges.starting[stream]
            if anew and self._ranges.whole:
                raise PipelineError(
                    f"stream {stream!r} ends at offset {ends[stream]}, before the {offset} that was read: it was made "
                    "anew; begin with another checkpoint, or set failOnDataLoss to false"
                )
        if isinstance(limit, ReadMaxRows):
            waiting = shared(limit.max_rows, waiting)
        return {stream: offset + waiting[stream] for stream, offset in begin.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._ranges.per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def reportLatestOffset(self) -> Offsets:
        return self._ends()

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._reached()

    def partitions(self, start: Offsets, end: Offsets) -> list[Piece]:
        return pieces(self._ranges, self._begin(start), end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._ranges, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the messages stay in any case."""

    def stop(self) -> None:
        for watch in self._watches.values():
            watch.close()

    def _ends(self) -> Offsets:
        for stream in self._ranges.streams:
            self._watches.setdefault(stream, Watch(self._ranges.replay(stream), self._ranges.whole))
        return self._ranges.of_each(lambda stream: self._watches[stream].end())

    def _begin(self, start: Offsets) -> Offsets:
        """Where each stream goes on; one that the checkpoint does not know yet begins where the options say."""
        ranges = self._ranges
        if all(stream in start for stream in ranges.streams):
            return {stream: start[stream] for stream in ranges.streams}
        return {**ranges.starts(self._ends()), **{s: start[s] for s in ranges.streams if s in start}}

    def _reached(self) -> Offsets:
        ends = self._ends()
        stops = self._ranges.stops(ends)
        return {stream: min(end, stops[stream]) for stream, end in ends.items()}


def pieces(ranges: Ranges, starts: Offsets, stops: Offsets) -> list[Piece]:
    return [
        Piece(stream, *task)
        for stream in ranges.streams
        if stream in stops
        for task in ranges.tasks(starts[stream], stops[stream])
    ]


def read(ranges: Ranges, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one piece."""
    assert isinstance(partition, Piece)
    for messages in ranges.replay(partition.stream).batches(partition.start, partition.stop, ranges.whole):
        yield record_batch(messages, partition.stream)
