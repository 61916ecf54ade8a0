"""Knows where a stream ends, and asks again only when something has come."""

from __future__ import annotations

from contextlib import suppress

from warren.pipeline.consuming import Consuming
from warren.pipeline.errors import PipelineError
from warren.pipeline.replay import Replay
from warren.wire.conversation import Refused


class Watch:
    """The end of a stream, for who asks again and again: Spark asks a hundred times a second where nothing comes.

    A consumer waits behind the last message. As long as it gets nothing the end is where it was, and asking costs nothing.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._end = 0
        self._waiting: Consuming | None = None

    def end(self) -> int:
        """The offset behind the last message, 0 if there has never been one.

        :raises PipelineError: the stream cannot be read
        """
        if self._waiting is None or self._stirs(self._waiting):
            self.close()
            self._end = self._replay.end()
            self._waiting = self._replay.wait_at(self._end)
        return self._end

    def _stirs(self, waiting: Consuming) -> bool:
        """Whether something has come, or the consumer is lost, which an end may be behind."""
        try:
            waiting.hear(0)
        except (PipelineError, Refused, OSError):
            return True
        return waiting.deliveries.count > 0

    def close(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            with suppress(OSError):
                waiting.close()
