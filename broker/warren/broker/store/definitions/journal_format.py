"""Encoding of the definitions' journal: a header, and a record for each transaction, all with checksums.

All numbers are little-endian. The checksums start from the folder's identity, so that a journal of another data folder
is not taken for its own.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

from warren.broker.store.definitions.row_statements import Statement

StatementBatch = tuple[str, list[tuple[object, ...]]]
"""SQL text, and the parameters of each of its executions in succession."""

_MAGIC: Final = b"warrendj"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sIIQI")
"""Magic, format version, schema version of the rows, identity, CRC-32 of the bytes before."""
_RECORD: Final = struct.Struct("<IQI")
"""Length of the payload, generation, CRC-32 of both and the payload."""
_COUNTS: Final = struct.Struct("<IIH")
"""Length of the SQL text, number of executions, number of parameters of each."""
_NONE, _INTEGER, _TEXT, _BLOB = range(4)
_VALUE: Final = struct.Struct("<Bq")
"""Type of a parameter, and its value (integers) or length (texts and blobs)."""


class JournalContent(NamedTuple):
    """Transactions that were read from a journal."""

    schema: int
    """Schema version for which the statements were written."""
    transactions: list[list[StatementBatch]]
    """Statements of each transaction; those of the first one insert all rows."""
    generation: int
    """Generation of the definitions after the last transaction."""
    end: int
    """Offset behind the last intact record."""
    snapshot_size: int
    """Bytes of the header and the first record."""
    damage: str
    """Description of the bytes behind the last intact record; empty if there are none."""


def encode_header(identity: int, schema: int) -> bytes:
    """Return the header of a journal.

    :param schema: schema version of the database for which the statements are.
    """
    data = _HEADER.pack(_MAGIC, _VERSION, schema, identity, 0)[:-4]
    return data + struct.pack("<I", zlib.crc32(data))


def encode_transaction(identity: int, generation: int, statements: Iterable[Statement]) -> bytes:
    """Return the record of a transaction.

    :param generation: generation of the definitions after it.
    """
    payload = _encode_statements(statements)
    return _RECORD.pack(len(payload), generation, _checksum(identity, generation, payload)) + payload


def decode_journal(data: bytes, identity: int) -> JournalContent | str:
    """Return the intact transactions at the beginning of a journal, or the reason why there are none."""
    if len(data) < _HEADER.size:
        return "it is cut short"
    magic, version, schema, owner, checksum = _HEADER.unpack_from(data)
    if zlib.crc32(data[: _HEADER.size - 4]) != checksum or magic != _MAGIC:
        return "its header is damaged"
    if owner != identity:
        return "it belongs to another data folder"
    if version != _VERSION:
        return f"it has the unknown version {version}"
    transactions: list[list[StatementBatch]] = []
    generation, end, snapshot_size, damage = 0, _HEADER.size, 0, ""
    while end < len(data) and not damage:
        found = _decode_record(data, end, identity)
        if isinstance(found, str):
            damage = f"{found} at offset {end}"
        elif transactions and found[0] != generation + 1:
            damage = f"generation {found[0]} follows {generation} at offset {end}"
        else:
            generation, batches, end = found
            transactions.append(batches)
            snapshot_size = snapshot_size or end
    if not transactions:
        return damage or "it is cut short"
    return JournalContent(schema, transactions, generation, end, snapshot_size, damage)


def _decode_record(data: bytes, start: int, identity: int) -> tuple[int, list[StatementBatch], int] | str:
    """Return generation, statements and end of the record at `start`, or why it cannot be read."""
    if start + _RECORD.size > len(data):
        return "a record is cut short"
    length, generation, checksum = _RECORD.unpack_from(data, start)
    begin = start + _RECORD.size
    payload = data[begin : begin + length]
    if len(payload) < length:
        return "a record is cut short"
    if _checksum(identity, generation, payload) != checksum:
        return "a record is damaged"
    try:
        return generation, _decode_statements(payload), begin + length
    except (struct.error, ValueError):
        return "a record cannot be decoded"


def _checksum(identity: int, generation: int, payload: bytes) -> int:
    seed = zlib.crc32(struct.pack("<QQI", identity, generation, len(payload)))
    return zlib.crc32(payload, seed)


def _encode_statements(statements: Iterable[Statement]) -> bytes:
    parts: list[bytes] = []
    for sql, group in groupby(statements, lambda statement: statement[0]):
        rows = [arguments for _, arguments in group]
        text = sql.encode()
        parts += (_COUNTS.pack(len(text), len(rows), len(rows[0])), text)
        for row in rows:
            for value in row:
                _encode_value(value, parts)
    return b"".join(parts)


def _encode_value(value: object, parts: list[bytes]) -> None:
    if value is None:
        parts.append(_VALUE.pack(_NONE, 0))
    elif isinstance(value, int):
        parts.append(_VALUE.pack(_INTEGER, value))
    elif isinstance(value, str):
        data = value.encode()
        parts += (_VALUE.pack(_TEXT, len(data)), data)
    else:
        assert isinstance(value, bytes), value
        parts += (_VALUE.pack(_BLOB, len(value)), value)


def _decode_statements(payload: bytes) -> list[StatementBatch]:
    batches: list[StatementBatch] = []
    position = 0
    while position < len(payload):
        length, count, width = _COUNTS.unpack_from(payload, position)
        position += _COUNTS.size
        sql = payload[position : position + length].decode()
        position += length
        values: list[object] = []
        for _ in range(count * width):
            kind, number = _VALUE.unpack_from(payload, position)
            position += _VALUE.size
            if kind == _NONE:
                values.append(None)
            elif kind == _INTEGER:
                values.append(number)
            else:
                data = payload[position : position + number]
                position += number
                values.append(data.decode() if kind == _TEXT else data)
        # A statement may have no parameters at all.
        rows: list[tuple[object, ...]] = [()] * count
        if width:
            rows = [tuple(values[at : at + width]) for at in range(0, len(values), width)]
        batches.append((sql, rows))
    return batches


__all__ = [
    "JournalContent",
    "StatementBatch",
    "decode_journal",
    "encode_header",
    "encode_transaction",
]
