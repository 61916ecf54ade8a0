"""Columns of a DataFrame that become parts of a message, and the Spark types that each of them accepts."""

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

TEXT_TYPES = (StringType,)
INTEGER_TYPES = (ByteType, ShortType, IntegerType, LongType)
COLUMN_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "body": (BinaryType, StringType),
    "exchange": TEXT_TYPES,
    "routing_key": TEXT_TYPES,
    "content_type": TEXT_TYPES,
    "content_encoding": TEXT_TYPES,
    "headers": (MapType,),
    "headers_raw": (BinaryType,),
    "delivery_mode": INTEGER_TYPES,
    "priority": INTEGER_TYPES,
    "correlation_id": TEXT_TYPES,
    "reply_to": TEXT_TYPES,
    "expiration": (*TEXT_TYPES, *INTEGER_TYPES),
    "message_id": TEXT_TYPES,
    "timestamp": (TimestampType,),
    "type": TEXT_TYPES,
    "user_id": TEXT_TYPES,
    "app_id": TEXT_TYPES,
    "cluster_id": TEXT_TYPES,
}
SOURCE_ONLY = frozenset(("queue", "offset", "redelivered", "possible_duplicate"))
"""Columns that only reading produces. Writing ignores them, so that a frame that was read can be written again."""


def check_columns(schema: StructType, exchange: str | None) -> None:
    """Check that rows of a schema can become messages, before anything is published.

    :param exchange: exchange option of the write; None if it is not set, so that a column must name the exchange
    :raises PipelineError: if a column is unknown, repeated, missing, or of a wrong type
    """
    counted = Counter(schema.fieldNames())
    if twice := [name for name, times in counted.items() if times > 1]:
        raise PipelineError(
            f"column {twice[0]!r} is there {counted[twice[0]]} times: drop or rename the others"
        )
    for field in schema.fields:
        if field.name in SOURCE_ONLY:
            continue
        types = COLUMN_TYPES.get(field.name)
        if types is None:
            raise PipelineError(
                f"column {field.name!r} is not part of a message: drop it, or put it into the body or the headers; "
                f"there are: {', '.join(COLUMN_TYPES)}"
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
            "no exchange is named: set the option 'exchange' (the empty name sends to the queue that the "
            "routing key names), or add a column 'exchange'"
        )


def is_text_map(kind: DataType) -> bool:
    """Return False for a map type other than map<string,string>; True for every other type, also one that is no map."""
    if not isinstance(kind, MapType):
        return True
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
