"""Spark's micro-batch reader of a queue through a spool, whose files keep acknowledged messages until Spark has
processed them. Spark's offsets are positions (numbers of messages since the spool was created), and a commit removes
messages from the spool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BooleanType, StructField, StructType

from warren.pipeline.errors import PipelineError
from warren.pipeline.source.delivery_parser import DeliveryParser
from warren.pipeline.source.row_schema import ARROW, SCHEMA, record_batch
from warren.pipeline.spool.file_format import MAX_CHUNK_BYTES, TornChunk, read_chunks
from warren.pipeline.spool.folder import SpoolFolder
from warren.pipeline.spool.segments import SEGMENT_BYTES, FileRange, Segments
from warren.pipeline.spool.spool_consumer import SpoolConsumer
from warren.pipeline.spool.spool_options import SpoolOptions
from warren.wire.field_tables import TableError
from warren.wire.reply_codes import AmqpError

SPOOL_SCHEMA = StructType([*SCHEMA.fields, StructField("possible_duplicate", BooleanType())])
"""Columns of a continuous read of a queue. `offset` is a message's number since the spool was created; a spool's files
keep messages until Spark has processed them."""
_ARROW = ARROW.append(pa.field("possible_duplicate", pa.bool_()))
BATCH_ROWS = 4096
"""Approximate number of rows of an Arrow batch."""

Offset = dict[str, str | int]


@dataclass
class SpoolPartition(InputPartition):
    """Spark partition: consecutive messages in one of the files in which a spool keeps messages."""

    file_range: FileRange


class SpoolReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batch reader of a queue through a spool: files that keep acknowledged messages until Spark has processed
    them.

    Spark pickles it to the executors, so it opens the spool only when Spark asks for an offset, which it does on the
    driver.
    """

    def __init__(self, settings: SpoolOptions) -> None:
        self._options = settings
        self._spool: OpenSpool | None = None
        self._drain = False
        self._until: int | None = None

    def initialOffset(self) -> Offset:
        return self._offset(self._open_spool().segments.first)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        opened = self._open_spool()
        begin = self._position(start)
        opened.segments.file_ranges(begin, begin)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        consumer = opened.started_consumer()
        # Spark asks again when the micro-batch before has succeeded: its messages no longer count against the limit.
        consumer.read_to(begin)
        if self._drain and self._until is None and consumer.wait(begin + (most or 1 << 62)):
            self._until = opened.segments.end
            consumer.stop()
        error = consumer.error
        end = opened.segments.end if self._until is None else self._until
        if end <= begin and error is not None:
            # Raise only now: messages that were acknowledged are read first.
            raise error
        return self._offset(max(begin, min(end, begin + most) if most else end))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def reportLatestOffset(self) -> Offset:
        return self._offset(self._open_spool().segments.end)

    def prepareForTriggerAvailableNow(self) -> None:
        self._drain = True
        self._open_spool().started_consumer()

    def partitions(self, start: Offset, end: Offset) -> list[SpoolPartition]:
        file_ranges = self._open_spool().segments.file_ranges(self._position(start), self._position(end))
        return [SpoolPartition(file_range) for file_range in file_ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpoolPartition)
        return read_rows(partition.file_range, self._options.queue)

    def commit(self, end: Offset) -> None:
        self._open_spool().segments.remove_before(self._position(end))

    def stop(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _open_spool(self) -> OpenSpool:
        if self._spool is None:
            self._spool = OpenSpool(self._options)
        return self._spool

    def _offset(self, position: int) -> Offset:
        return {"spool": self._open_spool().folder.identity, "position": position}

    def _position(self, offset: Offset) -> int:
        """Return the position (number of a message since the spool was created) in an offset of Spark's checkpoint.

        :raises PipelineError: if the checkpoint belongs to another spool
        """
        if offset["spool"] != self._open_spool().folder.identity:
            raise PipelineError(
                f"the checkpoint belongs to another spool than {self._options.folder}: "
                "begin with a new checkpoint, or name the spoolDir that it was made with"
            )
        return int(offset["position"])


class OpenSpool:
    """Locked folder and segment files of a spool, which keep messages until Spark has processed them, and the consumer
    that fills them from the queue.
    """

    def __init__(self, settings: SpoolOptions) -> None:
        self._options = settings
        self.folder = SpoolFolder(settings.folder, settings.queue)
        try:
            self.segments = Segments(
                self.folder, settings.window, min(SEGMENT_BYTES, settings.max_bytes // 4 + 1)
            )
        except BaseException:
            self.folder.close()
            raise
        self._consumer: SpoolConsumer | None = None

    def started_consumer(self) -> SpoolConsumer:
        """Return the consumer that moves messages from the queue to the spool's files; the first call starts it."""
        if self._consumer is None:
            self._consumer = SpoolConsumer(self._options, self.segments)
            self._consumer.start()
        return self._consumer

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.stop()
        self.segments.close()
        self.folder.close()


def read_rows(file_range: FileRange, queue: str) -> Iterator[pa.RecordBatch]:
    """Yield the messages in a part of a spool's segment file as Arrow batches.

    :param file_range: path and byte range of the file, and the positions of the messages to read there
    :param queue: name of the queue, for the column `queue`
    :raises PipelineError: if the file is missing or damaged
    """
    deliveries, possible_duplicate, position = DeliveryParser(MAX_CHUNK_BYTES), bytearray(), file_range.start
    try:
        with open(file_range.path, "rb") as file:
            for chunk in read_chunks(file, file_range.begin, file_range.end):
                next_position = chunk.first + chunk.length
                if next_position <= file_range.start:
                    continue
                if chunk.first >= file_range.stop:
                    break
                deliveries.feed(chunk.frames)
                possible_duplicate += chunk.possible_duplicate
                if len(possible_duplicate) >= BATCH_ROWS or next_position >= file_range.stop:
                    yield to_record_batch(deliveries, possible_duplicate, next_position, file_range, queue)
                    possible_duplicate, position = bytearray(), next_position
    except FileNotFoundError:
        raise PipelineError(
            f"{file_range.path} is not there on this machine: spoolDir must be on a file system that the driver and all "
            "executors have mounted"
        ) from None
    except TornChunk:
        raise PipelineError(f"{file_range.path} cannot be read: it ends early") from None
    except (OSError, AmqpError, TableError) as error:
        raise PipelineError(f"{file_range.path} cannot be read: {error}") from None
    if position < file_range.stop:
        raise PipelineError(f"{file_range.path} is damaged: position {position} is missing")


def to_record_batch(
    deliveries: DeliveryParser,
    possible_duplicate: bytearray,
    next_position: int,
    file_range: FileRange,
    queue: str,
) -> pa.RecordBatch:
    """Convert messages that were read from a spool's file to an Arrow batch, without those outside the range.

    :param deliveries: parser that holds the messages
    :param possible_duplicate: a byte for each message, 1 if it may be a duplicate
    :param next_position: position after the last message
    :param queue: name of the queue, for the column with it
    :param file_range: range whose positions from `start` to before `stop` are kept
    """
    messages = deliveries.take()
    first = next_position - len(possible_duplicate)
    begin, end = max(file_range.start - first, 0), min(file_range.stop, next_position) - first
    kept = record_batch(messages.slice(begin, end), queue, range(first + begin, first + end))
    flags = pa.array(map(bool, possible_duplicate[begin:end]), pa.bool_())
    return pa.RecordBatch.from_arrays([*kept.columns, flags], schema=_ARROW)
