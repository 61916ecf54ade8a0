"""Filters of stream consumers: by the header x-stream-filter-value, and by an expression.

RabbitMQ (3.13 and later, "Stream Filtering") filters chunks by x-stream-filter-value with a Bloom filter, and consumers have
to filter again. Here the broker looks at each message, and passes over chunks in which no value occurs without looking
at their messages. The expression (x-warren-filter) is Warren's own.
"""

from __future__ import annotations

import struct
from typing import Final, Optional

from warren.broker.model.stream.filter_expression import ExpressionError, FilterExpression
from warren.wire.content import header_table
from warren.wire.field_tables import Field, TableError, decode_outer_fields
from warren.wire.reply_codes import AmqpError, Reply

FILTER: Final = "x-stream-filter"
MATCH_UNFILTERED: Final = "x-stream-match-unfiltered"
EXPRESSION: Final = "x-warren-filter"
VALUE: Final = "x-stream-filter-value"
_NAME: Final = b"\x15x-stream-filter-value"
"""Name of the header in a header table, with its length in front."""
FEW_VALUES: Final = 16
"""Number of values up to which each is searched for in a chunk of messages."""
_U32: Final = struct.Struct(">I")


class ValueFilter:
    """Filter by the header x-stream-filter-value.

    :param values: values of which a message must have one. As in RabbitMQ, the empty text is that of a message without
        the header.
    :param match_unfiltered: True to accept messages without a value as well.
    """

    def __init__(self, values: list[bytes], match_unfiltered: bool) -> None:
        self.values = frozenset(values)
        self.match_unfiltered = match_unfiltered or b"" in self.values
        self._needles = [_NAME + b"S"]
        if len(self.values) <= FEW_VALUES:
            self._needles = [b"".join((_NAME, b"S", _U32.pack(len(value)), value)) for value in self.values]

    def may_match(self, data: bytes) -> bool:
        """Return False if no message within these bytes can be accepted."""
        return self.match_unfiltered or any(needle in data for needle in self._needles)

    def accepts(self, content: bytes) -> bool:
        """Return whether the filter accepts a message.

        :param content: frames of the message, the content header frame first.
        """
        value = filter_value(content)
        return value in self.values if value else self.match_unfiltered


class StreamFilter:
    """Filter of one consumer.

    :param by_value: the filter by x-stream-filter-value, or None.
    :param expression: a condition that messages have to fulfil as well, or None.
    """

    def __init__(
        self,
        by_value: Optional[ValueFilter],  # noqa: UP045
        expression: Optional[FilterExpression],  # noqa: UP045
    ) -> None:
        self._parts: list[ValueFilter | FilterExpression] = []
        if by_value is not None:
            self._parts.append(by_value)
        if expression is not None:
            self._parts.append(expression)

    def may_match(self, data: bytes) -> bool:
        """Return False if the filter accepts no message within these bytes.

        :param data: the encoded messages of a chunk (batch of messages), or the content of one message.
        """
        return all(part.may_match(data) for part in self._parts)

    def accepts(self, content: bytes) -> bool:
        """Return whether the filter accepts a message.

        :param content: frames of the message, the content header frame first.
        """
        return self.may_match(content) and all(part.accepts(content) for part in self._parts)


def filter_value(content: bytes) -> bytes:
    """Return the header x-stream-filter-value of a message; empty without one, or if it is no text.

    :param content: frames of the message, the content header frame first.
    """
    table = header_table(content)
    if _NAME not in table:
        return b""
    try:
        field = decode_outer_fields(table).get(VALUE)
    except TableError:
        return b""
    return field.raw[5:] if field is not None and field.kind == "S" else b""


def parse_stream_filter(fields: dict[str, Field], described: str) -> Optional[StreamFilter]:  # noqa: UP045
    """Return the filter of a consumer, from the arguments of its basic.consume; None without one.

    :param fields: the decoded arguments, by name.
    :param described: the stream as error texts name it, `queue 'q' in vhost '/'`.
    :raises AmqpError: 406 for an array of values without a text, or a malformed expression.
    """
    by_value = _parse_values(fields, described)
    expression = _parse_expression(fields.get(EXPRESSION), described)
    return None if by_value is None and expression is None else StreamFilter(by_value, expression)


def _parse_values(fields: dict[str, Field], described: str) -> Optional[ValueFilter]:  # noqa: UP045
    """Return the filter by x-stream-filter-value.

    As in RabbitMQ, x-stream-filter is a text or an array, in which items that are no texts are ignored, and an argument
    of any other type is ignored.
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
            # RabbitMQ's channel crashes.
            raise _invalid(FILTER, described, "the array has no text")
    else:
        return None
    match = fields.get(MATCH_UNFILTERED)
    return ValueFilter(values, match is not None and match.kind == "t" and match.value is True)


def _parse_expression(field: Field | None, described: str) -> Optional[FilterExpression]:  # noqa: UP045
    if field is None:
        return None
    if not isinstance(field.value, str):
        raise _invalid(EXPRESSION, described, f"{{unacceptable_type,{field.type_name}}}")
    try:
        return FilterExpression(field.value)
    except ExpressionError as error:
        raise _invalid(EXPRESSION, described, str(error)) from None


def _invalid(name: str, described: str, reason: str) -> AmqpError:
    return AmqpError(Reply.PRECONDITION_FAILED, f"invalid arg '{name}' for {described}: {reason}")


__all__ = ["EXPRESSION", "StreamFilter", "ValueFilter", "filter_value", "parse_stream_filter"]
