"""Knows where a stream ends, and asks again only when something has come."""

from __future__ import annotations

import time
from contextlib import suppress

from warren.core.blocking_connection import ClosedByBroker
from warren.pipeline.errors import PipelineError
from warren.pipeline.source.consumer import Consuming
from warren.pipeline.source.stream_replay import Replay

PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds before another attempt, the first one and the last ones."""


class Watch:
    """The end of a stream, for who asks again and again: Spark asks a hundred times a second where nothing comes.

    A consumer waits behind the last message. As long as it gets nothing the end is where it was, and asking costs nothing.

    :param whole: fail if the stream is deleted meanwhile: one that is made anew under its name has other messages
    """

    def __init__(self, replay: Replay, whole: bool = True) -> None:
        self._replay = replay
        self._whole = whole
        self._end = 0
        self._waiting: Consuming | None = None
        self._begun = False

    def end(self) -> int:
        """The offset behind the last message, 0 if there has never been one.

        A broker that has been there before, and is not any more, is waited for, for the address's timeout.

        :raises PipelineError: the stream cannot be read, or was deleted
        """
        if self._waiting is None or self._stirs(self._waiting):
            self._insist()
        return self._end

    def _insist(self) -> None:
        timeout, pause = self._replay.address.timeout, PAUSE
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._renew()
                return
            except PipelineError as error:
                if not (error.passing and self._begun):
                    raise
                if time.monotonic() >= deadline:
                    raise PipelineError(f"{error} (tried again for {timeout:g} s)") from None
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _renew(self) -> None:
        end = self._replay.end()
        waiting, before = self._replay.wait_at(end), self._waiting
        self._end, self._waiting, self._begun = end, waiting, True
        if before is not None:
            # The old one until now: a stream that is deleted and made anew in between would not be noticed.
            try:
                self._stirs(before)
            finally:
                close(before)

    def _stirs(self, waiting: Consuming) -> bool:
        """Whether something has come, or the consumer is lost, which an end may be behind.

        :raises PipelineError: the stream was deleted
        """
        try:
            waiting.hear(0)
        except PipelineError:
            if self._whole:
                raise PipelineError(
                    f"stream {self._replay.stream!r} at {self._replay.address.shown} was deleted while it was read: "
                    "if it was made anew, begin with another checkpoint, or set failOnDataLoss to false"
                ) from None
            return True
        except (ClosedByBroker, OSError):
            return True
        return waiting.deliveries.count > 0

    def close(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            close(waiting)


def close(waiting: Consuming) -> None:
    with suppress(OSError):
        waiting.close()
