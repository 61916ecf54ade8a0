"""Encoding of Arrow batches as AMQP frames: for each row a `basic.publish` method, a content header and a body."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa

from warren.core.blocking_connection import CHANNEL
from warren.pipeline.errors import PipelineError
from warren.pipeline.sink.arrow_bytes import Cells, cells
from warren.pipeline.sink.header_tables import header_tables
from warren.pipeline.sink.message_ids import MessageIdGenerator
from warren.pipeline.sink.write_options import Target
from warren.wire import content, methods

PERSISTENT = b"\x02"
MAX_SHORT_STRING = 255
"""Maximum length in bytes of AMQP's short strings: names, routing keys and most properties."""
_BEFORE_ID = {
    "content_type": content.CONTENT_TYPE,
    "content_encoding": content.CONTENT_ENCODING,
    "headers": content.HEADERS,
    "delivery_mode": content.DELIVERY_MODE,
    "priority": content.PRIORITY,
    "correlation_id": content.CORRELATION_ID,
    "reply_to": content.REPLY_TO,
    "expiration": content.EXPIRATION,
}
_AFTER_ID = {
    "timestamp": content.TIMESTAMP,
    "type": content.TYPE,
    "user_id": content.USER_ID,
    "app_id": content.APP_ID,
    "cluster_id": content.CLUSTER_ID,
}
_RANGES = {"delivery_mode": range(1, 3), "priority": range(256)}
_HEADER = struct.Struct(">BHIHHQH")
_FRAME = struct.Struct(">BHI")
_FLAGS = struct.Struct(">H")
_LENGTH = struct.Struct(">I")
_SECONDS = struct.Struct(">Q")
_MAX_CACHED_ROUTES = 10_000
"""Number of pairs of exchange and routing key whose encoded `basic.publish` methods are cached."""

Columns = Mapping[str, Any]


class PropertyColumn(NamedTuple):
    """Properties of all rows in AMQP encoding: `flags` has the property flags of each row, and `data` the bytes of its
    properties, as they stand in the content header.
    """

    flags: list[int]
    data: list[bytes]


class FrameEncoder:
    """Encoder that turns the rows of a Spark partition into the AMQP frames that publish them as messages.

    :param target: destination; its exchange and routing key have precedence over the columns
    :param frame_max: largest frame in bytes
    :param message_ids: generator of ids for rows without one
    """

    def __init__(self, target: Target, frame_max: int, message_ids: MessageIdGenerator) -> None:
        self._target = target
        self._room = frame_max - 8
        self._id_generator = message_ids
        self._methods: dict[tuple[bytes | None, bytes | None], bytes] = {}

    def frames(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return for each row one bytes object with the frames that publish it: method, content header and body.

        :raises PipelineError: if a value does not fit into a message
        """
        count = batch.num_rows
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        bodies = [body or b"" for body in cells(columns["body"])]
        publishes = self._publish_methods(columns, count)
        before = encode_properties(_BEFORE_ID, columns, count)
        after = encode_properties(_AFTER_ID, columns, count)
        flags = [a | b for a, b in zip(before.flags, after.flags, strict=True)]
        ids = self._message_ids(columns, publishes, flags, before.data, after.data, bodies)
        room = self._room
        encoded = []
        for publish, flag, head, name, tail, body in zip(
            publishes, flags, before.data, ids, after.data, bodies, strict=True
        ):
            properties = b"".join((head, bytes((len(name),)), name, tail))
            size, length = len(body), len(properties) + content.HEADER_FIXED
            header = _HEADER.pack(2, CHANNEL, length, 60, 0, size, flag | content.MESSAGE_ID)
            if length > room:
                raise PipelineError(
                    f"the properties of a message take {length} bytes: a frame of this broker holds {room}"
                )
            if not size:
                encoded.append(b"".join((publish, header, properties, b"\xce")))
            elif size <= room:
                frame = _FRAME.pack(3, CHANNEL, size)
                encoded.append(b"".join((publish, header, properties, b"\xce", frame, body, b"\xce")))
            else:
                encoded.append(b"".join((publish, header, properties, b"\xce", *body_frames(body, room))))
        return encoded

    def _publish_methods(self, columns: Columns, count: int) -> list[bytes]:
        """Return for each row the encoded frame of its `basic.publish` method.

        :param columns: Arrow columns of the batch, by name
        :param count: number of rows
        :raises PipelineError: if a row has no exchange, or a name is too long
        """
        exchanges = constant_or_column(self._target.exchange, columns, "exchange", count)
        keys = constant_or_column(self._target.routing_key, columns, "routing_key", count)
        cached = self._methods
        if len(cached) > _MAX_CACHED_ROUTES:
            cached.clear()
        found = []
        for route in zip(exchanges, keys, strict=True):
            publish = cached.get(route)
            if publish is None:
                exchange, key = route
                if exchange is None:
                    raise PipelineError(
                        "a row has no exchange: fill the column, or set the option 'exchange'"
                    )
                check_short("exchange", exchange)
                check_short("routing_key", key or b"")
                flag = self._target.mandatory
                publish = methods.frame(CHANNEL, "basic.publish", 0, exchange, key or b"", flag, False)
                cached[route] = publish
            found.append(publish)
        return found

    def _message_ids(
        self,
        columns: Columns,
        publishes: list[bytes],
        flags: list[int],
        before: list[bytes],
        after: list[bytes],
        bodies: list[bytes],
    ) -> list[bytes]:
        """Return the message id of each row: the value of the column `message_id` or, if that is missing or null, an id
        derived from the other values.

        Each parameter except `columns` has one value for each row.

        :param columns: Arrow columns of the batch, by name
        :param publishes: encoded `basic.publish` methods
        :param flags: property flags
        :param before: encoded properties that precede the message id in the header
        :param after: encoded properties that follow it
        :param bodies: message bodies
        :raises PipelineError: if an id is longer than 255 bytes
        """
        column = columns.get("message_id")
        given = cells(column) if column is not None else None
        if given is not None:
            for value in given:
                check_short("message_id", value or b"")
            if not column.null_count:  # type: ignore[union-attr]
                return [value or b"" for value in given]
        contents = [
            b"".join((publish, _FLAGS.pack(flag), head, tail, body))
            for publish, flag, head, tail, body in zip(publishes, flags, before, after, bodies, strict=True)
        ]
        if given is None:
            return self._id_generator.ids_for(contents)
        missing = [place for place, value in enumerate(given) if value is None]
        made = self._id_generator.ids_for([contents[place] for place in missing])
        ids = [value or b"" for value in given]
        for place, value in zip(missing, made, strict=True):
            ids[place] = value
        return ids


def constant_or_column(value: str | None, columns: Columns, name: str, count: int) -> Cells:
    """Return a value for each row, as bytes: the constant `value` if it is set, else the row's value in a column; None
    for a null, or if there is no such column.

    :param columns: Arrow columns of the batch, by name
    :param name: name of the column
    :param count: number of rows
    """
    if value is not None:
        return [value.encode()] * count
    return cells(columns[name]) if name in columns else [None] * count


def encode_properties(names: Mapping[str, int], columns: Columns, count: int) -> PropertyColumn:
    """Encode several properties of each row for its content header.

    :param names: property flags by the names of the properties, in their order in the header
    :param columns: Arrow columns of the batch, by name
    :param count: number of rows
    """
    always = 0
    flags: list[int] | None = None
    encoded_columns: list[list[bytes]] = []
    for name, flag in names.items():
        values = encode_property(name, columns, count)
        if values is None:
            continue
        if None in values:
            flags = [
                given if value is None else given | flag
                for given, value in zip(flags or repeat(0, count), values, strict=True)
            ]
            encoded_columns.append([value or b"" for value in values])
        else:
            always |= flag
            encoded_columns.append(values)  # type: ignore[arg-type]
    data = (
        encoded_columns[0]
        if len(encoded_columns) == 1
        else list(map(b"".join, zip(*encoded_columns, strict=True)))
    )
    return PropertyColumn(
        [always | flag for flag in flags] if flags else [always] * count, data or [b""] * count
    )


def encode_property(name: str, columns: Columns, count: int) -> Cells | None:
    """Encode one property of each row as it appears in the content header.

    :param name: name of the property, and of its column
    :param columns: Arrow columns of the batch, by name
    :param count: number of rows
    :return: bytes for each row, None for a row without the property; None instead of a list if no row has it
    """
    if name == "headers":
        texts, raws = columns.get("headers"), columns.get("headers_raw")
        if texts is None and raws is None:
            return None
        return [
            None if table is None else _LENGTH.pack(len(table)) + table
            for table in header_tables(texts, raws)
        ]
    column = columns.get(name)
    if name == "delivery_mode":
        # Persistent by default: published results should survive a restart of the broker.
        return (
            [value or PERSISTENT for value in encode_octets(name, column)]
            if column is not None
            else [PERSISTENT] * count
        )
    if column is None:
        return None
    if name == "priority":
        return encode_octets(name, column)
    if name == "timestamp":
        return encode_timestamps(column)
    return [None if value is None else encode_short(name, value) for value in cells(as_text_column(column))]


def as_text_column(column: Any) -> Any:
    """Convert an Arrow column of integers to strings; return other columns unchanged."""
    return column.cast(pa.string()) if pa.types.is_integer(column.type) else column


def encode_short(name: str, value: bytes) -> bytes:
    """Encode a value as a short string: its length in one byte, then the value.

    :param name: name of the column, for the error
    :raises PipelineError: if the value is longer than 255 bytes
    """
    check_short(name, value)
    return bytes((len(value),)) + value


def check_short(name: str, value: bytes) -> None:
    """Check that a value fits into a short string.

    :param name: name of the column, for the error
    :raises PipelineError: if it is too long
    """
    if len(value) > MAX_SHORT_STRING:
        begin = value[:40].decode(errors="replace")
        raise PipelineError(f"a value of column {name!r} is longer than 255 bytes: {begin!r}...")


def encode_octets(name: str, column: Any) -> Cells:
    """Encode an Arrow column of integers, `delivery_mode` or `priority`, as one byte each; None for null.

    :param name: name of the column, which decides the range
    :raises PipelineError: if a value is out of range
    """
    allowed = _RANGES[name]
    values = column.to_pylist()
    for value in set(values):
        if value is not None and value not in allowed:
            raise PipelineError(
                f"a value of column {name!r} is {value}: it must be {allowed[0]} to {allowed[-1]}"
            )
    return [None if value is None else bytes((value,)) for value in values]


def encode_timestamps(column: Any) -> Cells:
    """Encode an Arrow column of times as AMQP timestamps: whole seconds since 1970; None for null.

    :raises PipelineError: if a time is before 1970
    """
    values = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    if any(value is not None and value < 0 for value in values):
        raise PipelineError("a value of column 'timestamp' is before 1970: a message cannot carry it")
    return [None if value is None else _SECONDS.pack(value // 1_000_000) for value in values]


def body_frames(body: bytes, room: int) -> list[bytes]:
    """Encode a message body as body frames with a payload of at most `room` bytes each; return the pieces of these
    frames in order, for `bytes.join`.
    """
    frames = []
    for begin in range(0, len(body), room):
        part = body[begin : begin + room]
        frames += [_FRAME.pack(3, CHANNEL, len(part)), part, b"\xce"]
    return frames
