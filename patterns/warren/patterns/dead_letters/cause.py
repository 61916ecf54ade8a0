"""Cause of a dead-lettering: what dead letters with the same defect have in common, and its id."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple

from warren.patterns.dead_letters.parked_message import ParkedMessage

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


class Cause(NamedTuple):
    """Cause of a dead-lettering. Letters with equal causes are one group.

    :ivar queue: queue in which the message was dead-lettered, and so the handlers that it had.
    :ivar type: type of the message; empty if it has none.
    :ivar reason: reason of the dead-lettering, such as `failed` or `expired`.
    :ivar error: type and text of the exception, normalised by `normalise_error`.
    """

    queue: str
    type: str
    reason: str
    error: str

    @classmethod
    def of(cls, message: ParkedMessage) -> Cause:
        """Return the cause of a dead letter."""
        return cls(message.queue, message.delivery.type or "", message.reason, normalise_error(message.error))

    @property
    def id(self) -> str:
        """Eight hexadecimal digits that name the group. Equal causes have the same id in every process and release."""
        return blake2b("\0".join(self).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def normalise_error(text: str) -> str:
    """Return an error text without the values that differ from message to message.

    URLs, email addresses, UUIDs, times, IP addresses, long hexadecimal numbers and numbers become `<url>`, `<email>`,
    `<uuid>`, `<time>`, `<ip>`, `<hex>` and `<number>`. Words stay, also quoted ones: `KeyError: 'price'` and
    `KeyError: 'name'` have different causes. Line breaks become spaces; the text is cut to 200 characters.
    """
    replaced = _VALUES.sub(lambda found: f"<{found.lastgroup}>", text)
    return " ".join(replaced.split())[:ERROR_CHARACTERS]


__all__ = ["Cause", "normalise_error"]
