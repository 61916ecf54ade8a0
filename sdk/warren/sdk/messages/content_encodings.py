"""Content encodings and character sets of other clients: bodies that are compressed, in Base64, or not in UTF-8."""

from __future__ import annotations

import binascii
import codecs
import zlib
from collections.abc import Callable
from encodings import normalize_encoding
from encodings.aliases import aliases
from functools import lru_cache, partial
from typing import Final

from warren.sdk.errors import UnknownContentEncoding
from warren.sdk.messages.content_types import charset_of, is_msgpack, media_type

LARGEST_BODY: Final = 16 * 1024 * 1024
"""Largest size in bytes of a decompressed body, as large as the largest message of RabbitMQ 4 by default."""
MOST_ENCODINGS: Final = 4
"""Most encodings of one body: each may multiply its size."""
MOST_MEMBERS: Final = 16
"""Most members of compressed data, each of which costs a copy of those behind it."""
PLAIN: Final = frozenset({"", "identity", "binary", "utf-8", "utf8", "us-ascii", "ascii", "7bit", "8bit"})
"""Values of `content_encoding` and `charset` that leave a body as it is."""
BOM: Final = codecs.BOM_UTF8

_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
_RAW_DEFLATE: Final = -zlib.MAX_WBITS
_TEXT_CODECS: Final = frozenset(
    {name for name in aliases.values() if not name.endswith("_codec")} - {"rot_13", "mbcs"}
    | {"cp720", "cp737", "cp874", "koi8_u", "utf_8_sig"}
)


@lru_cache(256)
def is_plain(content_encoding: object, content_type: object) -> bool:
    """Return whether a body with these properties is neither compressed nor in another character set than UTF-8."""
    names = str(content_encoding or "").lower()
    return names in PLAIN and charset_of(content_type) in PLAIN


def decode_body(body: bytes, content_encoding: object, content_type: object) -> bytes:
    """Return a body without its content encodings: decompressed, and, if it is text, in UTF-8.

    Encodings are undone in the reverse of their order (RFC 9110 section 8.4): gzip, deflate, Base64. The name of a character
    set among them is that of the text, as Celery writes it; the `charset` of the content type takes precedence.

    :param content_encoding: the property of the message, such as `gzip`, or None.
    :param content_type: the property of the message, such as `text/plain; charset=iso-8859-1`, or None.
    :raises UnknownContentEncoding: if an encoding or a character set is not known.
    :raises ValueError: if the body is not encoded as the properties say, or is larger than 16 MiB when it is decompressed.
        The text contains none of the content.
    """
    names = [name.strip().lower() for name in str(content_encoding or "").split(",")]
    if len(names) > MOST_ENCODINGS:
        raise UnknownContentEncoding(
            f"the content has {len(names)} encodings, and at most {MOST_ENCODINGS} are read"
        )
    charset = charset_of(content_type)
    for name in reversed(names):
        if name in PLAIN:
            continue
        decoder = _DECODERS.get(name)
        if decoder is not None:
            body = decoder(body)
        elif (codec := _text_codec(name)) is not None:
            charset = charset or codec
        else:
            raise UnknownContentEncoding(f"the content encoding {name[:40]!r} is not known")
    if charset in PLAIN or is_msgpack(media_type(content_type)):
        return body
    return _as_utf8(body, charset)


def _as_utf8(body: bytes, charset: str) -> bytes:
    codec = _text_codec(charset)
    if codec is None:
        raise UnknownContentEncoding(f"the character set {charset[:40]!r} is not known")
    try:
        text = body.decode(codec)
        return text.removeprefix("\ufeff").encode()
    except (UnicodeError, OverflowError):
        # The text of the error would contain bytes of the content.
        raise ValueError(f"the content is not valid {charset[:40]}") from None


def _text_codec(name: str) -> str | None:
    """Return the name of Python's codec for a character set; None if there is none.

    Only names of Python's table of aliases count: others would be imported, and kept for ever, and some of Python's own
    codecs take a time that grows with the square of the length.
    """
    normalized = normalize_encoding(name) if name.isascii() else ""
    codec = aliases.get(normalized, normalized)
    return codec if codec in _TEXT_CODECS else None


def _inflate(body: bytes, name: str, window: int) -> bytes:
    """Return a decompressed body, of one or several members (RFC 1952 section 2.2).

    :param window: zlib's parameter `wbits`, which chooses the format.
    """
    parts: list[bytes] = []
    left = LARGEST_BODY + 1
    for _ in range(MOST_MEMBERS):
        decompressor = zlib.decompressobj(window)
        try:
            part = decompressor.decompress(body, left)
        except zlib.error:
            raise ValueError(f"the content is not valid {name}") from None
        left -= len(part)
        if left <= 0:
            raise ValueError(f"the decompressed content is larger than {LARGEST_BODY} bytes")
        if not decompressor.eof:
            raise ValueError(f"the content ends within its {name} data")
        parts.append(part)
        body = decompressor.unused_data
        if not body:
            return b"".join(parts)
    raise ValueError(f"the content has more than {MOST_MEMBERS} members of {name} data")


def _inflate_deflate(body: bytes) -> bytes:
    # "deflate" is zlib's format (RFC 9110 section 8.4.1.2), but some clients send its data without the header.
    has_header = len(body) > 1 and body[0] & 0x0F == zlib.DEFLATED and int.from_bytes(body[:2]) % 31 == 0
    return _inflate(body, "deflate", _GZIP_OR_ZLIB if has_header else _RAW_DEFLATE)


def _from_base64(body: bytes) -> bytes:
    try:
        return binascii.a2b_base64(b"".join(body.split()), strict_mode=True)
    except binascii.Error:
        raise ValueError("the content is not valid Base64") from None


_DECODERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": partial(_inflate, name="gzip", window=_GZIP_OR_ZLIB),
    "x-gzip": partial(_inflate, name="gzip", window=_GZIP_OR_ZLIB),
    "deflate": _inflate_deflate,
    "zlib": _inflate_deflate,
    "base64": _from_base64,
}

__all__ = ["BOM", "LARGEST_BODY", "decode_body", "is_plain"]
