"""Spark's reader of a queue, through a spool: offsets are positions in it, and what is committed leaves it."""

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
from warren.pipeline.source.delivery_batches import Deliveries
from warren.pipeline.source.row_schema import ARROW, SCHEMA, record_batch
from warren.pipeline.spool.file_format import LARGEST, Torn, chunks
from warren.pipeline.spool.folder import Folder
from warren.pipeline.spool.queue_consumer import Consumer
from warren.pipeline.spool.segments import SEGMENT, Part, Segments
from warren.pipeline.spool.spool_options import Settings
from warren.wire.field_tables import TableError
from warren.wire.reply_codes import AmqpError

SPOOL_SCHEMA = StructType([*SCHEMA.fields, StructField("possible_duplicate", BooleanType())])
"""What a continuous read of a queue gives. `offset` is the position in the spool."""
_ARROW = ARROW.append(pa.field("possible_duplicate", pa.bool_()))
ROWS = 4096
"""Rows of an Arrow batch, about."""

Offset = dict[str, str | int]


@dataclass
class Piece(InputPartition):
    """What one task reads."""

    part: Part


class SpoolReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue on and on. It opens nothing before Spark asks it where it is: it is pickled to the executors."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: Open | None = None
        self._drain = False
        self._until: int | None = None

    def initialOffset(self) -> Offset:
        return self._offset(self._opened().segments.first)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        opened = self._opened()
        begin = self._position(start)
        opened.segments.parts(begin, begin)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        consumer = opened.consuming()
        # Spark asks for more when the batch before has succeeded: it makes room, though its files are still there.
        consumer.read_to(begin)
        if self._drain and self._until is None and consumer.wait(begin + (most or 1 << 62)):
            self._until = opened.segments.end
            consumer.stop()
        error = consumer.error
        end = opened.segments.end if self._until is None else self._until
        if end <= begin and error is not None:
            # Not before: what has been acknowledged is read first.
            raise error
        return self._offset(max(begin, min(end, begin + most) if most else end))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._settings.per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def reportLatestOffset(self) -> Offset:
        return self._offset(self._opened().segments.end)

    def prepareForTriggerAvailableNow(self) -> None:
        self._drain = True
        self._opened().consuming()

    def partitions(self, start: Offset, end: Offset) -> list[Piece]:
        parts = self._opened().segments.parts(self._position(start), self._position(end))
        return [Piece(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        return rows(partition.part, self._settings.queue)

    def commit(self, end: Offset) -> None:
        self._opened().segments.remove_before(self._position(end))

    def stop(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _opened(self) -> Open:
        if self._open is None:
            self._open = Open(self._settings)
        return self._open

    def _offset(self, position: int) -> Offset:
        return {"spool": self._opened().folder.identity, "position": position}

    def _position(self, offset: Offset) -> int:
        """:raises PipelineError: if the checkpoint is another spool's"""
        if offset["spool"] != self._opened().folder.identity:
            raise PipelineError(
                f"the checkpoint belongs to another spool than {self._settings.folder}: "
                "begin with a new checkpoint, or name the spoolDir that it was made with"
            )
        return int(offset["position"])


class Open:
    """A spool that a query has open, and its consumer once it is started."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.folder = Folder(settings.folder, settings.queue)
        try:
            self.segments = Segments(self.folder, settings.window, min(SEGMENT, settings.max_bytes // 4 + 1))
        except BaseException:
            self.folder.close()
            raise
        self._consumer: Consumer | None = None

    def consuming(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._settings, self.segments)
            self._consumer.start()
        return self._consumer

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.stop()
        self.segments.close()
        self.folder.close()


def rows(part: Part, queue: str) -> Iterator[pa.RecordBatch]:
    """The messages of a part of a file.

    :raises PipelineError: if it is not there, or damaged
    """
    deliveries, doubtful, position = Deliveries(LARGEST), bytearray(), part.start
    try:
        with open(part.path, "rb") as file:
            for chunk in chunks(file, part.begin, part.end):
                behind = chunk.first + chunk.length
                if behind <= part.start:
                    continue
                if chunk.first >= part.stop:
                    break
                deliveries.feed(chunk.frames)
                doubtful += chunk.doubtful
                if len(doubtful) >= ROWS or behind >= part.stop:
                    yield batch(deliveries, doubtful, behind, part, queue)
                    doubtful, position = bytearray(), behind
    except FileNotFoundError:
        raise PipelineError(
            f"{part.path} is not there on this machine: spoolDir must be on a file system that the driver and all "
            "executors have mounted"
        ) from None
    except Torn:
        raise PipelineError(f"{part.path} cannot be read: it ends early") from None
    except (OSError, AmqpError, TableError) as error:
        raise PipelineError(f"{part.path} cannot be read: {error}") from None
    if position < part.stop:
        raise PipelineError(f"{part.path} is damaged: position {position} is missing")


def batch(deliveries: Deliveries, doubtful: bytearray, behind: int, part: Part, queue: str) -> pa.RecordBatch:
    """What has been fed in, without what is not of this part."""
    messages = deliveries.take()
    first = behind - len(doubtful)
    begin, end = max(part.start - first, 0), min(part.stop, behind) - first
    kept = record_batch(messages.cut(begin, end), queue, range(first + begin, first + end))
    flags = pa.array(map(bool, doubtful[begin:end]), pa.bool_())
    return pa.RecordBatch.from_arrays([*kept.columns, flags], schema=_ARROW)
