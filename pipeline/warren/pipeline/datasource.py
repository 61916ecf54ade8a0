"""The Spark data source `amqp`: a classic queue is browsed, a stream is read between offsets, into typed columns.

Options: `url` (amqp:// or amqps://, with the credentials), `queue` or `stream`, and `timeout` (seconds without progress
after which the read fails, 30 by default); for streams those of `ranges`. The schema is fixed: every property of
AMQP 0-9-1 (class basic), what the delivery says, and the body as it came.

One queue is one partition, read by one task: its order is the queue's. Each stream is one, or several if a long range of it
is read. Each action reads again; cache, or write to Parquet, what is used twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from warren.pipeline.broker_connection import Address
from warren.pipeline.errors import PipelineError
from warren.pipeline.options import seconds
from warren.pipeline.sink.spark_writers import AmqpStreamWriter, AmqpWriter, check_write
from warren.pipeline.sink.write_options import Target
from warren.pipeline.source.offset_ranges import Ranges
from warren.pipeline.source.queue_browser import Browse
from warren.pipeline.source.row_schema import SCHEMA, record_batch
from warren.pipeline.source.stream_readers import ContinuousReader, StreamReader
from warren.pipeline.spool.spark_reader import SPOOL_SCHEMA, SpoolReader
from warren.pipeline.spool.spool_options import Settings
from warren.pipeline.version_check import Travels, trouble_elsewhere

OPTIONS = ("url", "queue", "timeout")


class AmqpDataSource(DataSource, metaclass=Travels):
    """Format `amqp`. Made known by `warren.pipeline.register`."""

    @classmethod
    def name(cls) -> str:
        return "amqp"

    def schema(self) -> StructType:
        # Spark asks for it in `load()`: what is wrong with the options is said there, not in a task.
        if self._spool() is not None:
            return SPOOL_SCHEMA
        if self._ranges() is None:
            self._browse()
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._spool() is not None:
            raise PipelineError("a spool is for a continuous read: leave spoolDir out to browse the queue")
        check_schema(schema)
        ranges = self._ranges()
        return AmqpReader(self._browse()) if ranges is None else StreamReader(ranges)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if (settings := self._spool()) is not None:
            check_schema(schema, SPOOL_SCHEMA)
            return SpoolReader(settings)
        check_schema(schema)
        ranges = self._ranges()
        if ranges is None:
            raise PipelineError(
                "a queue is not read continuously without a spool: name its folder with the option 'spoolDir', or a "
                "stream with the option 'stream'"
            )
        return ContinuousReader(ranges)

    def writer(self, schema: StructType, overwrite: bool) -> AmqpWriter:
        return AmqpWriter(self._target(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> AmqpStreamWriter:
        return AmqpStreamWriter(self._target(schema, overwrite))

    def _target(self, schema: StructType, overwrite: bool) -> Target:
        target = Target.of(self._given())
        check_write(schema, overwrite, target)
        return target

    def _ranges(self) -> Ranges | None:
        """What is read of a stream; None if a queue is named."""
        given = self._given()
        return Ranges.of(given) if "stream" in given or "streams" in given else None

    def _spool(self) -> Settings | None:
        """The spool that a queue is read through; None if none is named."""
        given = self._given()
        return Settings.of(given) if "spooldir" in given else None

    def _given(self) -> dict[str, str]:
        return {key.lower(): value for key, value in self.options.items()}

    def _browse(self) -> Browse:
        given = self._given()
        if unknown := sorted(given.keys() - set(OPTIONS)):
            raise PipelineError(
                f"format 'amqp' has no option {unknown[0]!r}; there are: {', '.join(OPTIONS)}"
            )
        if missing := [name for name in ("url", "queue") if not given.get(name)]:
            raise PipelineError(f"format 'amqp' needs the option {missing[0]!r}")
        address = Address(given["url"], seconds("timeout", given.get("timeout", "30")))
        return Browse(address, given["queue"])


class AmqpReader(DataSourceReader):
    """Reads one queue in one task. It is pickled to the executor: plain values only."""

    def __init__(self, browse: Browse) -> None:
        self._browse = browse

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        offset = 0
        for messages in self._browse.batches():
            following = offset + len(messages.bodies)
            yield record_batch(messages, self._browse.queue, range(offset, following))
            offset = following


@contextmanager
def source_errors() -> Iterator[None]:
    """What the source said in an executor comes out as its own error, without Spark's stack traces around it."""
    try:
        yield
    except PySparkException as error:
        if found := re.search(rf"{PipelineError.__name__}: (.+)", str(error)):
            raise PipelineError(found[1]) from None
        if trouble := trouble_elsewhere(str(error)):
            raise PipelineError(trouble) from None
        raise


def check_schema(schema: StructType, own: StructType = SCHEMA) -> None:
    """:raises PipelineError: if another schema than the source's own was asked for"""
    if schema != own:
        raise PipelineError("the schema of format 'amqp' is fixed: leave .schema(...) out, select and cast")
