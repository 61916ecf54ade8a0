"""The columns of the data source `amqp`: every property of AMQP 0-9-1, what the delivery says, and the body."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
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

from warren.pipeline.replay import OFFSET

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
"""What a read gives. `offset` is the stream's, or counts from 0 in the queue's order; what is not set is null."""


def record_batch(
    messages: list[DeliveredMessage], queue: str, offsets: Iterable[int], schema: pa.Schema
) -> pa.RecordBatch:
    """The messages of one batch as columns, in the order of `SCHEMA`.

    :param offsets: one for each message
    """
    deliveries = [cast(Basic.Deliver, message.delivery) for message in messages]
    properties = [message.header.properties for message in messages]
    columns: dict[str, Iterable[Any]] = {
        "queue": [queue] * len(messages),
        "offset": offsets,
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
    # The offset stands in a column of its own; the message had no such header.
    found = [(name, value_as_text(value)) for name, value in headers.items() if name != OFFSET]
    return found if found or OFFSET not in headers else None


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
