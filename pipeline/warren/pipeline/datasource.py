"""The Spark data source `amqp`: browses a classic queue, reads streams between offsets, and writes messages.

Options for reading: `url` (amqp:// or amqps://, with the credentials), `queue` or `stream`, and `timeout` (seconds
without progress after which the read fails, 30 by default); for streams also those of `source.stream_options`. A
continuous read of a queue goes through a spool, files to which messages are written before they are acknowledged; its
options are those of `spool.spool_options`. The schema is fixed: every property of AMQP 0-9-1 (class basic), the fields
of the delivery, and the body as it was received.

A queue is one partition, read by one task in the queue's order. Each stream is one partition, or several if a
long range of it is read. Each action of Spark reads from the broker again; cache a frame that is used twice, or
write it to Parquet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from warren.pipeline.broker_connection import Address
from warren.pipeline.errors import PipelineError
from warren.pipeline.options import missing_option, parse_seconds
from warren.pipeline.sink.spark_writers import AmqpStreamWriter, AmqpWriter, check_write
from warren.pipeline.sink.write_options import Target
from warren.pipeline.source.queue_browser import QueueBrowser
from warren.pipeline.source.row_schema import SCHEMA
from warren.pipeline.source.spark_readers import QueueReader, StreamMicroBatchReader, StreamReader
from warren.pipeline.source.stream_options import StreamOptions
from warren.pipeline.spool.spark_reader import SPOOL_SCHEMA, SpoolReader
from warren.pipeline.spool.spool_options import SpoolOptions
from warren.pipeline.version_check import VersionChecked, explain_executor_error

OPTIONS = ("url", "queue", "timeout")
TABLE_OPTION = "option."
"""Prefix of the copy of each option that Spark passes for a table of its catalogue."""


class AmqpDataSource(DataSource, metaclass=VersionChecked):
    """Spark data source with the format name `amqp`; registered by `warren.pipeline.register`."""

    @classmethod
    def name(cls) -> str:
        return "amqp"

    def schema(self) -> StructType:
        # Spark calls this in `load()`, so that wrong options fail there and not in a task.
        if self._spool_options() is not None:
            return SPOOL_SCHEMA
        if self._is_for_writing_only():
            Target.from_options(self._user_options())
        elif self._stream_options() is None:
            self._queue_browser()
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._spool_options() is not None:
            raise PipelineError("a spool is for a continuous read: leave spoolDir out to browse the queue")
        check_schema(schema)
        stream_options = self._stream_options()
        return QueueReader(self._queue_browser()) if stream_options is None else StreamReader(stream_options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        spool_options = self._spool_options()
        if spool_options is not None:
            check_schema(schema, SPOOL_SCHEMA)
            return SpoolReader(spool_options)
        check_schema(schema)
        stream_options = self._stream_options()
        if stream_options is None:
            raise PipelineError(
                "a queue is not read continuously without a spool: name its folder with the option 'spoolDir', or a "
                "stream with the option 'stream'"
            )
        return StreamMicroBatchReader(stream_options)

    def writer(self, schema: StructType, overwrite: bool) -> AmqpWriter:
        return AmqpWriter(self._target(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> AmqpStreamWriter:
        return AmqpStreamWriter(self._target(schema, overwrite))

    def _target(self, schema: StructType, overwrite: bool) -> Target:
        target = Target.from_options(self._user_options())
        check_write(schema, overwrite, target)
        return target

    def _is_for_writing_only(self) -> bool:
        """Return True if the options name an exchange or a routing key, and nothing that can be read.

        A table or view of SQL has the schema for reading, also if rows are only inserted into it.
        """
        given = self._user_options().keys()
        return bool(given & {"exchange", "routingkey"}) and not given & {"queue", "stream", "streams"}

    def _stream_options(self) -> StreamOptions | None:
        """Return the options for reading streams; None if the options name a queue instead."""
        given = self._user_options()
        return StreamOptions.from_options(given) if "stream" in given or "streams" in given else None

    def _spool_options(self) -> SpoolOptions | None:
        """Return the options for reading a queue through a spool (files to which messages are written before they are
        acknowledged); None if the option `spoolDir` is not set.
        """
        given = self._user_options()
        return SpoolOptions.from_options(given) if "spooldir" in given else None

    def _user_options(self) -> dict[str, str]:
        """Return the options with names in lower case.

        For `CREATE TABLE ... OPTIONS (queue 'q')`, Spark passes `queue`, a copy `option.queue`, and properties of the
        table such as `owner`. Only the copies are surely the user's options.
        """
        given = {key.lower(): value for key, value in self.options.items()}
        copies = {
            key.removeprefix(TABLE_OPTION): value
            for key, value in given.items()
            if key.startswith(TABLE_OPTION)
        }
        return copies or given

    def _queue_browser(self) -> QueueBrowser:
        """Return the browser that reads the named queue in a batch read.

        :raises PipelineError: if an option is unknown, missing or not valid
        """
        given = self._user_options()
        if unknown := sorted(given.keys() - set(OPTIONS)):
            raise PipelineError(
                f"format 'amqp' has no option {unknown[0]!r}; there are: {', '.join(OPTIONS)}"
            )
        if missing := [name for name in ("url", "queue") if not given.get(name)]:
            raise PipelineError(missing_option(missing[0], given))
        address = Address(given["url"], parse_seconds("timeout", given.get("timeout", "30")))
        return QueueBrowser(address, given["queue"])


@contextmanager
def source_errors() -> Iterator[None]:
    """Convert errors that Spark raises inside the block because of the data source to a one-line `PipelineError`. Spark
    reports an error of an executor with several stack traces. Other errors of Spark are raised unchanged.
    """
    try:
        yield
    except PySparkException as error:
        if found := re.search(rf"{PipelineError.__name__}: (.+)", str(error)):
            raise PipelineError(found[1]) from None
        if explanation := explain_executor_error(str(error)):
            raise PipelineError(explanation) from None
        raise


def check_schema(schema: StructType, own: StructType = SCHEMA) -> None:
    """Raise an error if the user asked for another schema than the data source's fixed one.

    :param schema: schema that Spark passes
    :param own: the data source's schema for this kind of read
    :raises PipelineError: if the schemas differ
    """
    if schema != own:
        raise PipelineError("the schema of format 'amqp' is fixed: leave .schema(...) out, select and cast")
