"""On-disk format of the manifest: a journal of records that name the segments which must exist.

The file consists of records of `RECORD` bytes. The first one is the header: title, format version, generation (grows
with each rewriting of the file) and number of the records that were written together with the header. All numbers are
little-endian. The CRC of a record has an initial value (seed) made of the folder's identity, the generation and the
record's number in the file, so that no record passes at another place or in another file. Zeros follow the last record.

    LOG_SEGMENT     number, size, flag: the segment exists; size 0 while it is being written, its final size when it is
                    closed; flag 1 if places in it cannot be read
    LOG_REMOVED     number: the segment is removed, or about to be
    STREAM_SEGMENT  incarnation, first offset, size, next offset: the segment exists. It is at least `size` bytes long,
                    and the stream's messages up to the next offset (exclusive) were written
    STREAM_REMOVED  incarnation, first offset: the segment is removed, or about to be
    STREAM_NEXT     incarnation, next offset: the stream has given out all offsets below it
    CLEAN_STOP      CRC of the file `log/clean`, which was written before this record
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

VERSION: Final = 1
RECORD: Final = 40
"""Size of a record in bytes."""

LOG_SEGMENT: Final = 1
LOG_REMOVED: Final = 2
STREAM_SEGMENT: Final = 3
STREAM_REMOVED: Final = 4
STREAM_NEXT: Final = 5
CLEAN_STOP: Final = 6

_TITLE: Final = b"warrenmf"
_HEADER = struct.Struct("<8sIQQQ")
_RECORD = struct.Struct("<IQQQQ")
_CRC = struct.Struct("<I")
_SEED = struct.Struct("<QQQ")
_EMPTY: Final = bytes(RECORD)

Values = tuple[int, int, int, int]
"""The numbers of a record, in the order of the table above; those that its kind does not use are 0."""


class ManifestContent(NamedTuple):
    """Content of a manifest as it was read.

    :param generation: the generation of the file; 0 if its header is damaged or of an unknown version.
    :param snapshot: number of the records that were written together with the header.
    :param records: the intact records by their number in the file, each as (kind, its numbers), in order.
    """

    generation: int
    snapshot: int
    records: dict[int, tuple[int, Values]]


def encode_manifest_header(identity: int, generation: int, count: int) -> bytes:
    """Return the header of a manifest.

    :param identity: the data folder's random number.
    :param count: number of the records that are written together with the header.
    """
    data = _HEADER.pack(_TITLE, VERSION, generation, count, 0)
    return data + _CRC.pack(zlib.crc32(data, _header_seed(identity)))


def encode_manifest_record(identity: int, generation: int, number: int, kind: int, values: Values) -> bytes:
    """Return a record of a manifest.

    :param identity: the data folder's random number.
    :param number: the record's number in the file; the header has the number 0.
    """
    data = _RECORD.pack(kind, *values)
    return data + _CRC.pack(zlib.crc32(data, _seed(identity, generation, number)))


def decode_manifest(data: bytes, identity: int) -> ManifestContent:
    """Return the content of a manifest's file."""
    header = data[:RECORD]
    if len(header) < RECORD or _CRC.unpack_from(header, RECORD - 4)[0] != zlib.crc32(
        header[: RECORD - 4], _header_seed(identity)
    ):
        return ManifestContent(0, 0, {})
    title, version, generation, count, _ = _HEADER.unpack_from(header)
    if title != _TITLE or version != VERSION:
        return ManifestContent(0, 0, {})
    records: dict[int, tuple[int, Values]] = {}
    for number in range(1, len(data) // RECORD):
        record = data[number * RECORD : (number + 1) * RECORD]
        if record == _EMPTY:
            continue
        check = zlib.crc32(record[: RECORD - 4], _seed(identity, generation, number))
        if _CRC.unpack_from(record, RECORD - 4)[0] == check:
            kind, first, second, third, fourth = _RECORD.unpack_from(record)
            records[number] = (kind, (first, second, third, fourth))
    return ManifestContent(generation, count, records)


def _header_seed(identity: int) -> int:
    return zlib.crc32(_SEED.pack(identity, 0, 0))


def _seed(identity: int, generation: int, number: int) -> int:
    return zlib.crc32(_SEED.pack(identity, generation, number))


__all__ = [
    "CLEAN_STOP",
    "LOG_REMOVED",
    "LOG_SEGMENT",
    "RECORD",
    "STREAM_NEXT",
    "STREAM_REMOVED",
    "STREAM_SEGMENT",
    "ManifestContent",
    "Values",
    "decode_manifest",
    "encode_manifest_header",
    "encode_manifest_record",
]
