"""What a peer may ask of the broker, and when it has to wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BEFORE_TUNE_FRAME_MAX: Final = 8192
"""How large a frame may be before connection.tune-ok has settled that."""
FRAME_MAX_FUDGE: Final = 8
"""RabbitMQ lets frames exceed frame_max by the frame's own overhead, for clients that forget it."""
UNWRITTEN_LIMIT: Final = 64 * 1024 * 1024
"""Publishing connections are not read while more bytes than this wait to be written; they go on at half."""
UNREAD_LIMIT: Final = 32 * 1024 * 1024
"""A client that leaves more bytes than this unread is not read either until it does. Deliveries stop long before."""
TRANSACTION_BYTES: Final = 128 * 1024 * 1024
"""So much content may wait for one tx.commit."""
TRANSACTION_ACTIONS: Final = 500_000
"""So many publishes and acknowledgements may."""


@dataclass(frozen=True)
class Limits:
    """The bounds that a connection is told of, or runs into."""

    channel_max: int
    frame_max: int
    heartbeat: int
    """Seconds; what the server proposes."""
    max_message_size: int
    handshake_timeout: float
    max_connections: int | None = None
    """Of the whole broker; None is no limit."""
    consumer_timeout: int = 0
    """Milliseconds that a delivered message may stay unacknowledged where nothing else is said; 0 is for ever."""
    honours_immediate: bool = False
    timestamps: str = ""
    """Whether messages that come in are stamped: `missing`, `always`, or not at all."""
