"""What a peer may ask of the broker, and when it has to wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNWRITTEN_LIMIT: Final = 64 * 1024 * 1024
"""Publishing connections are not read while more bytes than this wait to be written; they go on at half."""


UNREAD_LIMIT: Final = 32 * 1024 * 1024
"""A client that leaves more bytes than this unread is not read either until it does. Deliveries stop long before."""


@dataclass(frozen=True)
class Limits:
    """The bounds that a connection is told of, or runs into."""

    channel_max: int
    frame_max: int
    heartbeat: int
    """Seconds; what the server proposes."""
    max_message_size: int
    handshake_timeout: float
