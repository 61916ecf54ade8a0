"""Publishing ids: the headers by which a stream recognises a message that a producer publishes a second time.

They are x-warren-producer, the name of a producer, and x-warren-publishing-id, a number that grows with each of its
messages. Both are an extension of Warren's.
"""

from __future__ import annotations

from typing import Final

from warren.broker.store.stream.producer_ids import (
    LONGEST_NAME,
    PRODUCER,
    PUBLISHING_ID,
    encode_publishing_id,
)
from warren.wire.content import header_table, replace_header_table
from warren.wire.field_tables import TableError, decode_outer_fields, join
from warren.wire.methods import BASIC
from warren.wire.reply_codes import AmqpError, Reply

PREFIX: Final = b"x-warren-p"
"""Beginning of the names of both headers: without it in its header table, a message has neither."""
_PUBLISH: Final = 40
_REPLACED: Final = ("x-stream-offset", "BCC", PRODUCER, PUBLISHING_ID)


def find_publishing_id(table: bytes) -> tuple[bytes, int] | None:
    """Return producer and publishing id of a message that a client publishes; None if it has neither of the headers.

    :param table: the encoded headers, without their length.
    :raises AmqpError: 406 if a header is missing or has no valid value.
    """
    try:
        fields = decode_outer_fields(table)
    except TableError:
        return None
    producer, number = fields.get(PRODUCER), fields.get(PUBLISHING_ID)
    if producer is None and number is None:
        return None
    if producer is None or producer.kind != "S" or not 0 < len(producer.raw) - 5 <= LONGEST_NAME:
        raise _invalid(PRODUCER, f"a text of 1 to {LONGEST_NAME} bytes")
    if number is None or not number.is_integer or not isinstance(number.value, int) or number.value < 0:
        raise _invalid(PUBLISHING_ID, "an integer from 0 to 2^63 - 1")
    return producer.raw[5:], number.value


def _invalid(name: str, expected: str) -> AmqpError:
    text = f"invalid header '{name}': a message with a publishing id needs {expected} there"
    return AmqpError(Reply.PRECONDITION_FAILED, text, BASIC, _PUBLISH)


def with_publishing_id(content: bytes, offset: int, producer: bytes, number: int) -> bytes:
    """Return the content of a message with a publishing id as it is stored in a stream.

    Its headers end with the offset, the producer and the id; it has no BCC.

    :param content: frames of the message as it was published.
    """
    fields = decode_outer_fields(header_table(content))
    for name in _REPLACED:
        fields.pop(name, None)
    return replace_header_table(content, join(fields) + encode_publishing_id(offset, producer, number))


__all__ = ["PREFIX", "find_publishing_id", "with_publishing_id"]
