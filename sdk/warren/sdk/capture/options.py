"""Whether an App captures events, where they go, and how much of them may wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from warren.sdk.errors import ConfigError
from warren.sdk.topology.queue import Queue

STREAM = "warren.events"
BATCH = 500
WITHIN = 0.1
BUFFER = 100_000
MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Capture:
    """How an App captures the life-cycle events of its messages: `App(capture=Capture())`.

    They leave in batches, on a connection of their own, with confirms. Nothing of the App ever waits for them: what does
    not fit into the buffer while the broker takes none is dropped, counted, and seen as a gap by who reads the stream.

    :param stream: where they go. If there is no such queue, it is declared as a stream with the two bounds below; one that
        is there is taken as it is. With `App(declare="never")` it must be there.
    :param max_age: what is older may be removed from the stream; None keeps it.
    :param max_length_bytes: what is beyond may be removed, the oldest first; None keeps it.
    :param batch: so many events make a message.
    :param within: seconds after its first event that end a batch, too.
    :param buffer: events that may wait for their confirm, about 0.4 KB each; at least two batches.
    :raises ConfigError: for a number out of its range, or a stream that cannot be.
    """

    stream: str = STREAM
    max_age: timedelta | None = None
    max_length_bytes: int | None = MAX_BYTES
    batch: int = BATCH
    within: float = WITHIN
    buffer: int = BUFFER

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= 10_000:
            raise ConfigError("capture: a batch has 1 to 10000 events")
        if self.buffer < 2 * self.batch:
            raise ConfigError("capture: the buffer must hold two batches at least")
        if self.within <= 0:
            raise ConfigError("capture: within must be more than 0 seconds")
        self.queue()

    def queue(self) -> Queue:
        """The stream, as it is declared."""
        return Queue(self.stream, type="stream", max_age=self.max_age, max_length_bytes=self.max_length_bytes)


@dataclass(slots=True)
class CaptureStatistics:
    """Counts since the App started: every event is `written` (confirmed by the broker), `waiting` or `dropped`."""

    written: int = 0
    dropped: int = 0
    waiting: int = 0
