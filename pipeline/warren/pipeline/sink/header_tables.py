"""Encoding of message headers from a column of text maps (`headers`), a column of encoded tables (`headers_raw`), or
both.
"""

from __future__ import annotations

import struct
from typing import Any

from warren.pipeline.errors import PipelineError
from warren.pipeline.sink.arrow_bytes import Cells, cells
from warren.pipeline.source.header_decoder import value_as_text
from warren.wire import field_tables
from warren.wire.content import MalformedProperties, walk_table

_LENGTH = struct.Struct(">I")
_VOID = b"V"
_LONGEST_NAME = 255


def header_tables(texts: Any, raws: Any) -> Cells:
    """Return the encoded header table of each row; None if the row is null in both columns.

    If a row has values in both columns, `texts` decides which headers there are and their values. A header whose text
    equals that of the same header in `raws` keeps the type that it has there. If one of the two values is null, the
    other one is used.

    :param texts: Arrow column of map<string,string>, or None if there is no such column
    :param raws: Arrow column of encoded tables, or None if there is no such column
    """
    if texts is None:
        return checked_tables(cells(raws))
    pairs = encode_pairs(texts)
    if raws is None:
        return [None if row is None else b"".join(row) for row in pairs]
    return [merge_pairs(row, raw) for row, raw in zip(pairs, checked_tables(cells(raws)), strict=True)]


def encode_pairs(texts: Any) -> list[list[bytes] | None]:
    """Return for each row its encoded headers, name and value of one header in each bytes object; None if the map is
    null.

    A value is encoded as a long string, or as void if it is null.

    :param texts: Arrow column of map<string,string>
    :raises PipelineError: if a name is longer than 255 bytes
    """
    encoded = []
    for name, value in zip(cells(texts.keys), cells(texts.items), strict=True):
        assert name is not None
        if len(name) > _LONGEST_NAME:
            raise PipelineError(
                f"the name of a header is longer than 255 bytes: {name[:40].decode(errors='replace')!r}..."
            )
        encoded_value = _VOID if value is None else b"S" + _LENGTH.pack(len(value)) + value
        encoded.append(bytes((len(name),)) + name + encoded_value)
    edges = texts.offsets.to_pylist()
    there = texts.is_valid().to_pylist()
    return [
        encoded[begin:end] if valid else None
        for begin, end, valid in zip(edges, edges[1:], there, strict=False)
    ]


def checked_tables(raws: Cells) -> Cells:
    """Return the encoded tables unchanged, after a check that each is a valid field table.

    :param raws: encoded table of each row; None for null
    :raises PipelineError: if one of them is not valid; the broker would close the connection because of it
    """
    last = b""
    for raw in raws:
        if raw is None or raw == last:
            continue
        try:
            walk_table(raw, 0, len(raw), 0)
        except (MalformedProperties, IndexError, struct.error):
            raise PipelineError(
                "a value of column 'headers_raw' is not a field table of AMQP 0-9-1"
            ) from None
        last = raw
    return raws


def merge_pairs(pairs: list[bytes] | None, raw: bytes | None) -> bytes | None:
    """Return the encoded header table of one row, merged from its two columns; None if both are null, and the other one
    if one is null.

    If both have a value, `pairs` decides which headers there are and their values; a header whose text is the same in
    `raw` keeps the type that it has there.

    :param pairs: encoded headers from the text map; None if it is null
    :param raw: encoded table; None if it is null
    """
    if pairs is None or raw is None:
        return raw if pairs is None else b"".join(pairs)
    typed = {}
    for name, field in field_tables.decode_fields(raw).items():
        text = value_as_text(field.value)
        encoded_value = _VOID if text is None else field_tables.encode_value(text)
        typed[field_tables.name_bytes(name) + encoded_value] = field_tables.name_bytes(name) + field.raw
    return b"".join(typed.get(pair, pair) for pair in pairs)
