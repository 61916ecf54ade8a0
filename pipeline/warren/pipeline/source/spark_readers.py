"""Spark's readers: batch reads of queues and streams, and micro-batches from streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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

IDENTITIES = "amq.identities"
"""Key, among the offsets of a checkpoint, of the identities of the streams, by stream. No stream has this name, because
names that begin with `amq.` are the broker's own."""


class QueueReader(DataSourceReader):
    """Batch reader that returns all messages of one queue, and leaves them in the queue; one task reads them. Spark
    pickles the reader to the executor, so it has only plain values.
    """

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
    """Spark partition: the offsets of one stream from `start` to before `stop`."""

    stream: str
    start: int
    stop: int


class StreamReader(DataSourceReader):
    """Batch reader of streams, each within a range of offsets. Spark pickles it to the executor, so it has only plain
    values.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._bounds = PushedBounds()
        if options.push_filters:
            # Opt-in: Spark 4.3 stores the planned partitions with the frame, so the next query on the same frame, with
            # other filters, would read the partitions of the query before.
            self.pushFilters = self._push_filters  # type: ignore[method-assign]

    def _push_filters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = with_filter(self._bounds, filters, self._options.tolerance)
        # Spark applies all filters again, which is cheap.
        return filters

    def partitions(self) -> list[StreamPartition]:
        options = self._options
        # Messages that arrive from now on are left to the next read.
        ends = options.ends()
        starts, stops = options.starts(ends), options.stops(ends)
        stops = {stream: min(stop, ends[stream]) for stream, stop in stops.items()}
        partitions = partitions_of(options, *apply_bounds(self._bounds, options, starts, stops))
        # Spark requires at least one partition.
        return partitions or [StreamPartition(options.streams[0], 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, partition)


class StreamMicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batch reader of streams. Spark keeps the offsets in its checkpoint; nothing is stored at the broker.

    With the offsets it keeps the identities of the streams, if the broker gives them. A stream that was deleted and
    declared again has another identity: its messages at the same offsets are others.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._available_now_end: Offsets | None = None
        self._trackers: dict[str, EndOffsetTracker] = {}

    def initialOffset(self) -> dict[str, Any]:
        return self._with_identities(self._options.starts(self._ends()), {})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        ends = self._available_now_end or self._reached()
        begin = self._begin(start)
        # An end before the offset reached (a broker that reports none) must not move the query backwards.
        backlog = {stream: max(ends[stream] - offset, 0) for stream, offset in begin.items()}
        for stream, offset in begin.items():
            was_recreated = 0 < ends[stream] < start.get(stream, 0) and self._options.ending[stream] == "last"
            # A query that begins beyond the end has read nothing yet.
            was_recreated = was_recreated and offset != self._options.starting[stream]
            if was_recreated and self._options.fail_on_data_loss:
                raise PipelineError(
                    f"stream {stream!r} ends at offset {ends[stream]}, before the {offset} that was read: it was declared "
                    "again; begin with another checkpoint, or set failOnDataLoss to false"
                )
        if isinstance(limit, ReadMaxRows):
            backlog = split_limit(limit.max_rows, backlog)
        reached = {stream: offset + backlog[stream] for stream, offset in begin.items()}
        return self._with_identities(reached, start)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def reportLatestOffset(self) -> Offsets:
        return self._ends()

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now_end = self._reached()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[StreamPartition]:
        if not self._trackers:
            # Spark repeats the last micro-batch of its checkpoint before it asks for the latest offsets.
            self._ends()
        gone = self._recreated(end)
        begin = {**self._positions(start), **dict.fromkeys(different_identities(start, end), 0)}
        # The messages of that micro-batch are gone with the former stream; the new stream is read afterwards.
        stops = {stream: offset for stream, offset in end.items() if stream not in gone}
        return partitions_of(self._options, begin, stops)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: a stream keeps its messages after they are read.

        :param end: offsets, by stream, before which Spark has processed all messages
        """

    def stop(self) -> None:
        for tracker in self._trackers.values():
            tracker.close()

    def _ends(self) -> Offsets:
        """Return the current end offset of each stream: the offset after its last message."""
        for stream in self._options.streams:
            self._trackers.setdefault(
                stream, EndOffsetTracker(self._options.client(stream), self._options.fail_on_data_loss)
            )
        return self._options.for_each_stream(lambda stream: self._trackers[stream].end())

    def _begin(self, start: dict[str, Any]) -> Offsets:
        """Return the offset at which each stream continues: 0, its first offset, if it was declared again.

        :param start: offsets of the checkpoint
        :raises PipelineError: if a stream was declared again, unless `fail_on_data_loss` is false
        """
        return {**self._positions(start), **dict.fromkeys(self._recreated(start), 0)}

    def _positions(self, start: dict[str, Any]) -> Offsets:
        """Return the offset of each stream in a checkpoint; a stream that is not in it begins as the options say.

        :param start: offsets of the checkpoint
        """
        options = self._options
        if all(stream in start for stream in options.streams):
            return {stream: start[stream] for stream in options.streams}
        return {**options.starts(self._ends()), **{s: start[s] for s in options.streams if s in start}}

    def _with_identities(self, offsets: Offsets, former: dict[str, Any]) -> dict[str, Any]:
        """Return offsets for Spark's checkpoint: with the identities of the streams, as far as they are known.

        :param former: offsets of the checkpoint; a stream that has no message now keeps its identity from there
        """
        identities = dict(former.get(IDENTITIES, {}))
        identities |= {name: tracker.identity for name, tracker in self._trackers.items() if tracker.identity}
        known = {stream: identities[stream] for stream in offsets if stream in identities}
        return {**offsets, IDENTITIES: known} if known else dict(offsets)

    def _recreated(self, offsets: dict[str, Any]) -> list[str]:
        """Return the streams that were deleted and declared again since a checkpoint.

        :param offsets: offsets of the checkpoint
        :raises PipelineError: if there is one, unless `fail_on_data_loss` is false
        """
        options = self._options
        current = {IDENTITIES: {stream: tracker.identity for stream, tracker in self._trackers.items()}}
        found = [stream for stream in different_identities(offsets, current) if stream in options.streams]
        if found and options.fail_on_data_loss:
            raise PipelineError(
                f"stream {found[0]!r} was deleted and declared again after offset {offsets[found[0]]} of it was reached: "
                "begin with another checkpoint, or set failOnDataLoss to false to read the new stream from its first "
                "message"
            )
        return found

    def _reached(self) -> Offsets:
        """Return the current end offset of each stream, or the end that the options set if that is lower."""
        ends = self._ends()
        stops = self._options.stops(ends)
        return {stream: min(end, stops[stream]) for stream, end in ends.items()}


def different_identities(former: Mapping[str, Any], later: Mapping[str, Any]) -> list[str]:
    """Return the streams that have another identity in `later` than in `former`. A stream without an identity in one of
    them is not compared.

    :param former: offsets with the identities of their streams, as `latestOffset` returns them
    """
    before, after = former.get(IDENTITIES, {}), later.get(IDENTITIES, {})
    return [stream for stream, identity in before.items() if (after.get(stream) or identity) != identity]


def partitions_of(options: StreamOptions, starts: Offsets, stops: Offsets) -> list[StreamPartition]:
    """Divide the range of each stream into Spark's partitions.

    :param starts: first offset of each stream
    :param stops: offset after the last one to read of each stream
    """
    return [
        StreamPartition(stream, *task)
        for stream in options.streams
        if stream in stops
        for task in options.tasks(starts[stream], stops[stream])
    ]


def read(options: StreamOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one Spark partition as Arrow batches.

    :param partition: a `StreamPartition`: a stream and a range of its offsets
    :raises PipelineError: if the stream cannot be read, or messages of the range are gone
    """
    assert isinstance(partition, StreamPartition)
    for messages in options.client(partition.stream).read_batches(
        partition.start, partition.stop, options.fail_on_data_loss
    ):
        yield record_batch(messages, partition.stream)
