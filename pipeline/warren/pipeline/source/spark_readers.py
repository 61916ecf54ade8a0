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
from warren.pipeline.source.end_offset_tracker import EndOffsetTracker
from warren.pipeline.source.filter_pushdown import PushedBounds, apply_bounds, with_filter
from warren.pipeline.source.queue_browser import QueueBrowser
from warren.pipeline.source.row_schema import record_batch
from warren.pipeline.source.stream_options import Offsets, StreamOptions, split_limit


class QueueReader(DataSourceReader):
    """Reads one queue in one task. It is pickled to the executor: plain values only."""

    def __init__(self, browser: QueueBrowser) -> None:
        self._browser = browser

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        offset = 0
        for messages in self._browser.batches():
            following = offset + len(messages.bodies)
            yield record_batch(messages, self._browser.queue, range(offset, following))
            offset = following


@dataclass
class StreamPartition(InputPartition):
    """What one task reads: of a stream from an offset to before another."""

    stream: str
    start: int
    stop: int


class StreamReader(DataSourceReader):
    """Reads ranges once. It is pickled to the executor: plain values only."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._bounds = PushedBounds()
        if options.push_filters:
            # Only where it is asked for: Spark 4.3 keeps, with the frame, what the filters of its last query have left to
            # read, and reads the same for its next query, whose filters are others.
            self.pushFilters = self._push_filters  # type: ignore[method-assign]

    def _push_filters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = with_filter(self._bounds, filters, self._options.tolerance)
        # Spark looks at all of them again, which costs it little.
        return filters

    def partitions(self) -> list[StreamPartition]:
        options = self._options
        # What arrives from now on is for the next read.
        ends = options.ends()
        starts, stops = options.starts(ends), options.stops(ends)
        stops = {stream: min(stop, ends[stream]) for stream, stop in stops.items()}
        partitions = partitions_of(options, *apply_bounds(self._bounds, options, starts, stops))
        # Spark asks for one piece in any case.
        return partitions or [StreamPartition(options.streams[0], 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, partition)


class StreamMicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on. The offsets are in Spark's checkpoint: nothing is stored at the broker."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._available_now_end: Offsets | None = None
        self._trackers: dict[str, EndOffsetTracker] = {}

    def initialOffset(self) -> Offsets:
        return self._options.starts(self._ends())

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        ends = self._available_now_end or self._reached()
        begin = self._begin(start)
        # No end, or one before the place that was reached, is no way back.
        backlog = {stream: max(ends[stream] - offset, 0) for stream, offset in begin.items()}
        for stream, offset in begin.items():
            was_recreated = 0 < ends[stream] < start.get(stream, 0) and self._options.ending[stream] == "last"
            # Who begins ahead of the end has read nothing yet.
            was_recreated = was_recreated and offset != self._options.starting[stream]
            if was_recreated and self._options.fail_on_data_loss:
                raise PipelineError(
                    f"stream {stream!r} ends at offset {ends[stream]}, before the {offset} that was read: it was made "
                    "anew; begin with another checkpoint, or set failOnDataLoss to false"
                )
        if isinstance(limit, ReadMaxRows):
            backlog = split_limit(limit.max_rows, backlog)
        return {stream: offset + backlog[stream] for stream, offset in begin.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def reportLatestOffset(self) -> Offsets:
        return self._ends()

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now_end = self._reached()

    def partitions(self, start: Offsets, end: Offsets) -> list[StreamPartition]:
        return partitions_of(self._options, self._begin(start), end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the messages stay in any case."""

    def stop(self) -> None:
        for tracker in self._trackers.values():
            tracker.close()

    def _ends(self) -> Offsets:
        for stream in self._options.streams:
            self._trackers.setdefault(
                stream, EndOffsetTracker(self._options.client(stream), self._options.fail_on_data_loss)
            )
        return self._options.for_each_stream(lambda stream: self._trackers[stream].end())

    def _begin(self, start: Offsets) -> Offsets:
        """Where each stream goes on; one that the checkpoint does not know yet begins where the options say."""
        options = self._options
        if all(stream in start for stream in options.streams):
            return {stream: start[stream] for stream in options.streams}
        return {**options.starts(self._ends()), **{s: start[s] for s in options.streams if s in start}}

    def _reached(self) -> Offsets:
        ends = self._ends()
        stops = self._options.stops(ends)
        return {stream: min(end, stops[stream]) for stream, end in ends.items()}


def partitions_of(options: StreamOptions, starts: Offsets, stops: Offsets) -> list[StreamPartition]:
    return [
        StreamPartition(stream, *task)
        for stream in options.streams
        if stream in stops
        for task in options.tasks(starts[stream], stops[stream])
    ]


def read(options: StreamOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one piece."""
    assert isinstance(partition, StreamPartition)
    for messages in options.client(partition.stream).read_batches(
        partition.start, partition.stop, options.fail_on_data_loss
    ):
        yield record_batch(messages, partition.stream)
