"""Filter of a stream consumer: messages by their header x-stream-filter-value.

RabbitMQ (3.13 and later, "Stream Filtering") filters chunks with a Bloom filter, and consumers have to filter again. Here
the broker looks at each message, and passes over chunks in which no value occurs without looking at their messages.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

if TYPE_CHECKING:
    from warren.wire.field_tables import Field

FILTER: Final = "x-stream-filter"
MATCH_UNFILTERED: Final = "x-stream-match-unfiltered"
_NAME: Final = b"\x15x-stream-filter-value"
"""Name of the header in a header table, with its length in front."""
_U32: Final = struct.Struct(">I")
_HEADERS_AT: Final = 21
"""Position in a message's content behind which its properties are."""


class StreamFilter:
    """Filter values of a consumer.

    :param values: values of which a message must have one.
    :param match_unfiltered: True to accept messages without a value as well.
    """

    def __init__(self, values: list[bytes], match_unfiltered: bool) -> None:
        self.match_unfiltered = match_unfiltered
        self.needles = [b"".join((_NAME, b"S", _U32.pack(len(value)), value)) for value in values]
        """The header with each of the values, as it is encoded in a header table."""

    def may_match(self, payload: bytes) -> bool:
        """Return whether a chunk (batch of messages) may hold a message that the filter accepts.

        :param payload: the encoded messages of the chunk.
        """
        if self.match_unfiltered:
            return True
        return any(needle in payload for needle in self.needles)

    def accepts(self, content: bytes) -> bool:
        """Return whether the filter accepts a message.

        :param content: frames of the message, the content header frame first.
        """
        end: i64 = 7 + i64(_U32.unpack_from(content, 3)[0])
        if content.find(_NAME, _HEADERS_AT, end) < 0:
            return self.match_unfiltered
        return any(content.find(needle, _HEADERS_AT, end) >= 0 for needle in self.needles)


def parse_stream_filter(fields: dict[str, Field]) -> Optional[StreamFilter]:  # noqa: UP045
    """Return the filter of a consumer, from the arguments of its basic.consume; None without one.

    As in RabbitMQ, x-stream-filter is a string or an array of strings; other values are ignored.

    :param fields: the decoded arguments, by name.
    """
    field = fields.get(FILTER)
    if field is None:
        return None
    values: list[bytes] = []
    if field.kind == "S":
        values.append(field.raw[5:])
    elif field.kind == "A" and isinstance(field.value, list):
        texts = [value for value in field.value if isinstance(value, str)]
        values += [text.encode("utf-8", "surrogateescape") for text in texts]
    if not values:
        return None
    match = fields.get(MATCH_UNFILTERED)
    return StreamFilter(values, match is not None and match.kind == "t" and match.value is True)


__all__ = ["StreamFilter", "parse_stream_filter"]
