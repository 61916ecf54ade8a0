"""Schema of the rows that the data source `amqp` reads, and conversion of messages to Arrow batches of that schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
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

from warren.pipeline.source.delivery_parser import MessageColumns
from warren.pipeline.source.header_decoder import COLUMNS, HeaderPairs
from warren.wire.properties import present_properties

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
        StructField("headers_raw", BinaryType()),
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
"""Columns of a read. `offset` is the message's offset in the stream; messages of a queue are numbered from 0 in the
queue's order. Properties that a message does not have are null."""

ARROW: pa.Schema = to_arrow_schema(SCHEMA, timezone="UTC")


def record_batch(
    messages: MessageColumns, queue: str, offsets: Iterable[int] | None = None
) -> pa.RecordBatch:
    """Convert messages to an Arrow batch with the columns of `SCHEMA`.

    :param queue: name of the queue or stream, for the column `queue`
    :param offsets: values of the column `offset`; None for the offsets in `messages`, which the stream assigned
    """
    count = len(messages.bodies)
    redelivered, exchanges, keys = zip(*messages.routings, strict=True) if count else ((), (), ())
    columns: dict[str, Any] = {
        "queue": pa.repeat(pa.scalar(queue, pa.string()), count),
        "offset": messages.offsets if offsets is None else offsets,
        "exchange": exchanges,
        "routing_key": keys,
        "redelivered": redelivered,
        "body": messages.bodies,
    }
    found = {name for name, _ in present_properties(messages.flags & ~1)}
    if "headers" in found:
        found.add("headers_raw")
    # Skip properties that no message has: most messages set few of the fifteen.
    properties = zip(COLUMNS, zip(*messages.rows, strict=True), strict=True) if count else ()
    columns.update({name: column for name, column in properties if name in found})
    return pa.RecordBatch.from_arrays([column_array(field, columns, count) for field in ARROW], schema=ARROW)


def column_array(field: pa.Field, columns: dict[str, Any], count: int) -> pa.Array:
    """Return one column of a batch as an Arrow array; all null if no message has the property.

    :param field: name and type of the column
    :param columns: values of each message by column, without the properties that no message has
    :param count: number of messages
    """
    column = columns.get(field.name)
    if column is None:
        return pa.nulls(count, field.type)
    if field.name == "headers":
        return map_array(column, field.type)
    return column if isinstance(column, pa.Array) else pa.array(column, field.type)


def map_array(tables: Sequence[HeaderPairs | None], kind: pa.DataType) -> pa.Array:
    """Return decoded header tables as an Arrow array of map<string,string>; None becomes null.

    :param kind: the map type, of Arrow
    """
    names: list[str] = []
    values: list[str | None] = []
    for table in tables:
        if table is not None:
            names += table[0]
            values += table[1]
    ends = list(accumulate((0 if table is None else len(table[0]) for table in tables), initial=0))
    starts: list[int | None] = [
        None if table is None else end for table, end in zip(tables, ends[:-1], strict=True)
    ]
    offsets = pa.array([*starts, ends[-1]], pa.int32())
    return pa.MapArray.from_arrays(offsets, pa.array(names, pa.string()), pa.array(values, pa.string()), kind)
