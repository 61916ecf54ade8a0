"""Deduplication keys, by which a redelivered message that was already written to the spool is recognised: a digest of
16 bytes of a message property or header.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import TypeAlias

from warren.pipeline.errors import PipelineError
from warren.pipeline.spool.file_format import KEY_BYTES, NO_KEY
from warren.wire import field_tables
from warren.wire.delivery_scanner import decode_content_header

KeyExtractor: TypeAlias = Callable[[bytes], bytes]
"""Function that computes a message's deduplication key from the payload of its content header frame."""

PROPERTIES = ("message_id", "correlation_id")
HEADER = "header:"


def key_extractor(name: str) -> KeyExtractor:
    """Return a function that takes a content header's payload and returns the message's deduplication key: the digest
    of a property or header, or `NO_KEY` for a message without it.

    :param name: property or header that identifies a message: `message_id`, `correlation_id`, or `header:NAME`
    :raises PipelineError: if the name is none of these
    """

    def digest(value: bytes) -> bytes:
        return blake2b(value, digest_size=KEY_BYTES).digest()

    def by_property(header: bytes) -> bytes:
        value = decode_content_header(header).properties.get(name)
        return digest(str(value).encode("utf-8", "surrogateescape")) if value else NO_KEY

    def by_header(header: bytes) -> bytes:
        table = decode_content_header(header).table
        field = field_tables.decode_fields(table).get(wanted) if table else None
        return NO_KEY if field is None or field.value in (None, "", b"") else digest(field.raw)

    wanted = name.removeprefix(HEADER)
    if name.startswith(HEADER) and wanted:
        return by_header
    if name not in PROPERTIES:
        raise PipelineError(f"dedupKey is {name!r}: it must be {', '.join(PROPERTIES)} or header:NAME")
    return by_property
