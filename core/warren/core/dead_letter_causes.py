"""Causes of dead-letterings: normalised error texts, and ids of groups of dead letters with one cause."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

ERROR_CHARACTERS: Final = 200
"""Number of characters of a normalised error text that count, and are kept."""

_VALUES: Final = re.compile(
    r"""
    (?P<url>\b[a-z][a-z0-9+.-]*://[^\s'"<>]+)
    | (?P<email>\b[\w.+-]+@[\w-]+\.[\w.-]*\w)
    | (?P<uuid>\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b)
    | (?P<time>\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)
    | (?P<ip>\b\d{1,3}(?:\.\d{1,3}){3}\b(?::\d+)?)
    | (?P<hex>\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*\d)[0-9a-f]{16,}\b)
    | (?P<number>(?<![a-z_])-?\d+(?:[.,]\d+)*)
    """,
    re.VERBOSE | re.IGNORECASE,
)


def group_id(parts: Iterable[str]) -> str:
    """Return the eight hexadecimal digits that name a group of dead letters, the same in every process and release.

    :param parts: queue, message type, reason and normalised error that the letters share.
    """
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def normalise_error(text: str) -> str:
    """Return an error text without the values that differ from message to message.

    URLs, email addresses, UUIDs, times, IP addresses, long hexadecimal numbers and numbers become `<url>`, `<email>`,
    `<uuid>`, `<time>`, `<ip>`, `<hex>` and `<number>`. Words stay, also quoted ones: `KeyError: 'price'` and
    `KeyError: 'name'` have different causes. Line breaks become spaces; the text is cut to 200 characters.
    """
    replaced = _VALUES.sub(lambda found: f"<{found.lastgroup}>", text)
    return " ".join(replaced.split())[:ERROR_CHARACTERS]


__all__ = ["ERROR_CHARACTERS", "group_id", "normalise_error"]
