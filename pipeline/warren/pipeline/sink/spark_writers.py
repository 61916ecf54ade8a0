"""Spark's writers: each task publishes the rows of its partition, and ends when all of them are confirmed.

Commit and abort do nothing, because a published message cannot be taken back. A task that is retried, or runs twice
because of speculative execution, publishes its rows again with the same message ids.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from warren.pipeline.broker_connection import pipeline_errors
from warren.pipeline.errors import PipelineError
from warren.pipeline.sink.column_types import check_columns
from warren.pipeline.sink.frame_encoder import FrameEncoder
from warren.pipeline.sink.message_ids import MessageIdGenerator
from warren.pipeline.sink.publisher import Publisher
from warren.pipeline.sink.write_options import Target
from warren.pipeline.version_check import VersionChecked

QUERY = "sql.streaming.queryId"
"""Local property with the id of the streaming query, which Spark sets for its tasks. It survives a restart from the
checkpoint."""
BATCH = "streaming.sql.batchId"
"""Local property with the number of the micro-batch, which Spark sets for the tasks of a streaming query. It survives a
restart from the checkpoint."""


@dataclass
class Published(WriterCommitMessage):
    """Commit message of a task: the number of messages that it published."""

    confirmed: int


class AmqpWriter(DataSourceArrowWriter, metaclass=VersionChecked):
    """Writer of a batch query: each task publishes the rows of one partition. Spark pickles the writer to the
    executors, so it has only plain values.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        # One id for all tasks and their retries.
        self._write = target.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return publish(self._target, iterator, self._write)


class AmqpStreamWriter(DataSourceStreamArrowWriter, metaclass=VersionChecked):
    """Writer of a streaming query: for each micro-batch, each task publishes the rows of one partition."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        if query is None or batch is None:
            raise PipelineError(
                "this is not a micro-batch of a streaming query: format 'amqp' writes micro-batches only"
            )
        return publish(self._target, iterator, self._target.write_id or query, batch)


def check_write(schema: StructType, overwrite: bool, target: Target) -> None:
    """Check that rows of the schema can be published to the target, before anything is written.

    :param overwrite: whether the user asked to replace existing data, which a broker cannot do
    :raises PipelineError: if the rows cannot be published, or `overwrite` is true
    """
    if overwrite:
        raise PipelineError(
            "messages cannot be overwritten: write with mode('append'), a stream with outputMode append or update"
        )
    check_columns(schema, target.exchange)


def publish(target: Target, batches: Iterator[pa.RecordBatch], *write: str) -> Published:
    """Publish the rows of this task's partition, and wait until all are confirmed.

    :param write: texts that identify the write and its micro-batch, from which message ids are derived
    """
    context = TaskContext.get()
    assert context is not None
    message_ids = MessageIdGenerator(*write, str(context.partitionId()))
    publisher: Publisher | None = None
    encoder: FrameEncoder | None = None
    with pipeline_errors(f"cannot write to {target.description}"):
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if publisher is None or encoder is None:
                    publisher = Publisher(target)
                    encoder = FrameEncoder(target, publisher.frame_max, message_ids)
                publisher.publish(encoder.frames(batch))
            if publisher is None:
                return Published(0)
            publisher.finish()
            return Published(publisher.confirmed)
        finally:
            if publisher is not None:
                publisher.close()
