"""The Spark data source `amqp`: `spark.read.format("amqp")` browses a classic queue into typed columns.

Options: `url` (amqp:// or amqps://, with the credentials), `queue`, and `timeout` (seconds without progress
after which the read fails, 30 by default). The schema is fixed: every property of AMQP 0-9-1 (class basic),
what the delivery says, and the body as it came.

One queue is one partition, read by one task: its order is the queue's. Each action reads the queue again;
cache, or write to Parquet, what is used twice.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from warren.pipeline.browse import Browse, BrowseError

SCHEMA = StructType(
    [
        StructField("queue", StringType()),
        StructField("offset", LongType()),
        StructField("exchange", StringType()),
        StructField("routing_key", StringType()),
        StructField("redelivered", BooleanType()),
        StructField("content_type", StringType()),
        StructField("content_encoding", StringType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("delivery_mode", ShortType()),
        StructField("priority", ShortType()),
        StructField("correlation_id", StringType()),
        StructField("reply_to", StringType()),
        StructField("expiration", StringType()),
        StructField("message_id", StringType()),
        StructField("timestamp", TimestampType()),
        StructField("type", StringType()),
        StructField("user_id", StringType()),
        StructField("app_id", StringType()),
        StructField("cluster_id", StringType()),
        StructField("body", BinaryType()),
    ]
)
"""What a read gives. `offset` counts from 0 in the queue's order; a property that is not set is null."""

OPTIONS = ("url", "queue", "timeout")


class AmqpDataSource(DataSource):
    """Format `amqp`. Made known by `warren.pipeline.register`."""

    @classmethod
    def name(cls) -> str:
        return "amqp"

    def schema(self) -> StructType:
        # Spark asks for it in `load()`: what is wrong with the options is said there, not in a task.
        self._browse()
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        if schema != SCHEMA:
            raise BrowseError("the schema of format 'amqp' is fixed: leave .schema(...) out, select and cast")
        return AmqpReader(self._browse())

    def _browse(self) -> Browse:
        given = {key.lower(): value for key, value in self.options.items()}
        if unknown := sorted(given.keys() - set(OPTIONS)):
            raise BrowseError(f"format 'amqp' has no option {unknown[0]!r}; there are: {', '.join(OPTIONS)}")
        if missing := [name for name in ("url", "queue") if not given.get(name)]:
            raise BrowseError(f"format 'amqp' needs the option {missing[0]!r}")
        return Browse(given["url"], given["queue"], seconds(given.get("timeout", "30")))


class AmqpReader(DataSourceReader):
    """Reads one queue in one task. It is pickled to the executor: plain values only."""

    def __init__(self, browse: Browse) -> None:
        self._browse = browse

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(SCHEMA, timezone="UTC")
        offset = 0
        for messages in self._browse.batches():
            yield record_batch(messages, self._browse.queue, offset, schema)
            offset += len(messages)


@contextmanager
def source_errors() -> Iterator[None]:
    """What the source said in an executor comes out as its own error, without Spark's stack traces around it."""
    try:
        yield
    except PySparkException as error:
        if found := re.search(rf"{BrowseError.__name__}: (.+)", str(error)):
            raise BrowseError(found[1]) from None
        raise


def seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BrowseError(f"timeout is {text!r}: it must be a number of seconds") from None


def record_batch(
    messages: list[DeliveredMessage], queue: str, offset: int, schema: pa.Schema
) -> pa.RecordBatch:
    """The messages of one batch as columns, in the order of `SCHEMA`."""
    deliveries = [cast(Basic.Deliver, message.delivery) for message in messages]
    properties = [message.header.properties for message in messages]
    columns: dict[str, Iterable[Any]] = {
        "queue": [queue] * len(messages),
        "offset": range(offset, offset + len(messages)),
        "exchange": [delivery.exchange for delivery in deliveries],
        "routing_key": [delivery.routing_key for delivery in deliveries],
        "redelivered": [delivery.redelivered for delivery in deliveries],
        "headers": [headers_as_text(each.headers) for each in properties],
        "type": [each.message_type for each in properties],
        # pamqp gives "" where it is not set; the specification allows it to hold nothing else.
        "cluster_id": [each.cluster_id or None for each in properties],
        "body": [message.body for message in messages],
    }
    for name in schema.names:
        if name not in columns:
            columns[name] = [getattr(each, name) for each in properties]
    arrays = [pa.array(columns[name], schema.field(name).type) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def headers_as_text(headers: dict[str, Any] | None) -> list[tuple[str, str | None]] | None:
    """A header table as Spark's map<string,string>: text as it is, everything else as JSON would write it.

    Times are ISO 8601 in UTC, bytes that are not UTF-8 are base64, a decimal keeps its digits, void is null.
    """
    if headers is None:
        return None
    return [(name, value_as_text(value)) for name, value in headers.items()]


def value_as_text(value: Any) -> str | None:
    plain = as_json_value(value)
    return plain if plain is None or isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def as_json_value(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case bytes() | bytearray():
            try:
                return bytes(value).decode()
            except UnicodeDecodeError:
                return base64.b64encode(value).decode()
        case Decimal():
            return str(value)
        case dict():
            return {name: as_json_value(inner) for name, inner in value.items()}
        case list():
            return [as_json_value(inner) for inner in value]
        case _:
            return value
