"""Options and statistics of event capture."""

from __future__ import annotations

from dataclasses import dataclass

from warren.sdk.choices import check_whole_number
from warren.sdk.durations import Duration, duration, optional_duration
from warren.sdk.errors import ConfigError
from warren.sdk.topology.queue import Queue

STREAM = "warren.events"
BATCH = 500
WITHIN = 0.1
BUFFER = 100_000
MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Capture:
    """Options of event capture: `App(capture=Capture())`.

    Events are published in batches, on a connection of their own, with publisher confirms. The
    App never waits for them: events that do not fit into the buffer are dropped and counted,
    and readers of the stream notice the gap in the numbering.

    :param stream: name of the stream. If it does not exist, it is declared with `max_age` and `max_length_bytes`; an
        existing one is used unchanged. With `App(declare="never")` it must exist.
    :param max_age: the broker may remove events that are older than this; None for no limit.
    :param max_length_bytes: the broker may remove the oldest events beyond this size of the stream; None for no limit.
    :param batch: largest number of events in one message of the stream, 1 to 10,000.
    :param within: seconds after its first event at which a batch is published even if it is not full.
    :param buffer: largest number of events that wait for their confirm, about 0.4 KB each; at least two batches.
    :raises ConfigError: for a number out of its range, or an invalid stream.
    """

    stream: str = STREAM
    max_age: Duration | None = None
    max_length_bytes: int | None = MAX_BYTES
    batch: int = BATCH
    within: Duration = WITHIN
    buffer: int = BUFFER

    def __post_init__(self) -> None:
        check_whole_number("capture: batch", self.batch, 1, 10_000)
        check_whole_number("capture: buffer", self.buffer)
        if self.buffer < 2 * self.batch:
            raise ConfigError("capture: the buffer must hold two batches at least")
        duration(self.within, "capture: within", positive=True)
        optional_duration(self.max_age, "capture: max_age")
        self.queue()

    def queue(self) -> Queue:
        """Return the `Queue` that declares the stream, with its limits of age and size."""
        return Queue(self.stream, type="stream", max_age=self.max_age, max_length_bytes=self.max_length_bytes)


@dataclass(slots=True)
class CaptureStatistics:
    """Numbers of the life-cycle events that were recorded since the App started.

    Every event is counted once: as `written` (confirmed by the broker), `waiting` or `dropped`.
    """

    written: int = 0
    dropped: int = 0
    waiting: int = 0
