"""The columns that a message is made of, and their types: what the source's rows have, and nothing that has no place."""

from __future__ import annotations

from collections import Counter

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from warren.pipeline.errors import PipelineError

TEXT = (StringType,)
NUMBER = (ByteType, ShortType, IntegerType, LongType)
TYPES: dict[str, tuple[type[DataType], ...]] = {
    "body": (BinaryType, StringType),
    "exchange": TEXT,
    "routing_key": TEXT,
    "content_type": TEXT,
    "content_encoding": TEXT,
    "headers": (MapType,),
    "headers_raw": (BinaryType,),
    "delivery_mode": NUMBER,
    "priority": NUMBER,
    "correlation_id": TEXT,
    "reply_to": TEXT,
    "expiration": (*TEXT, *NUMBER),
    "message_id": TEXT,
    "timestamp": (TimestampType,),
    "type": TEXT,
    "user_id": TEXT,
    "app_id": TEXT,
    "cluster_id": TEXT,
}
READ = frozenset(("queue", "offset", "redelivered", "possible_duplicate"))
"""Where and how a message was read. Passed over, so that a frame that was read can be written again."""


def check_columns(schema: StructType, exchange: str | None) -> None:
    """:raises PipelineError: if rows of this schema are no messages, before any of them is published"""
    counted = Counter(schema.fieldNames())
    if twice := [name for name, times in counted.items() if times > 1]:
        raise PipelineError(
            f"column {twice[0]!r} is there {counted[twice[0]]} times: drop or rename the others"
        )
    for field in schema.fields:
        if field.name in READ:
            continue
        types = TYPES.get(field.name)
        if types is None:
            raise PipelineError(
                f"column {field.name!r} has no place in a message: drop it, or put it into the body or the headers; "
                f"there are: {', '.join(TYPES)}"
            )
        if not isinstance(field.dataType, types) or not is_text_map(field.dataType):
            wanted = " or ".join(each().simpleString() for each in types if each is not MapType)
            raise PipelineError(
                f"column {field.name!r} is {field.dataType.simpleString()}: it must be "
                f"{wanted or 'map<string,string>'}; cast it"
            )
    if "body" not in counted:
        raise PipelineError("there is no column 'body', of type binary or string: it is the message's body")
    if exchange is None and "exchange" not in counted:
        raise PipelineError(
            "no exchange is named: set the option 'exchange' (the empty one leads to the queue that the "
            "routing key names), or have a column 'exchange'"
        )


def is_text_map(kind: DataType) -> bool:
    if not isinstance(kind, MapType):
        return True
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
