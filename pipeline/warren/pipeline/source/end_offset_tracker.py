"""Knows where a stream ends, and asks again only when something has come."""

from __future__ import annotations

import time
from contextlib import suppress

from warren.core.blocking_connection import ClosedByBroker
from warren.pipeline.errors import PipelineError
from warren.pipeline.source.blocking_consumer import BlockingConsumer
from warren.pipeline.source.stream_client import StreamClient

PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds before another attempt, the first one and the last ones."""


class EndOffsetTracker:
    """The end of a stream, for who asks again and again: Spark asks a hundred times a second where nothing comes.

    A consumer waits behind the last message. As long as it gets nothing the end is where it was, and asking costs nothing.

    :param whole: fail if the stream is deleted meanwhile: one that is made anew under its name has other messages
    """

    def __init__(self, client: StreamClient, fail_on_data_loss: bool = True) -> None:
        self._stream = client
        self._whole = fail_on_data_loss
        self._end = 0
        self._consumer: BlockingConsumer | None = None
        self._has_succeeded = False

    def end(self) -> int:
        """The offset behind the last message, 0 if there has never been one.

        A broker that has been there before, and is not any more, is waited for, for the address's timeout.

        :raises PipelineError: the stream cannot be read, or was deleted
        """
        if self._consumer is None or self._has_news(self._consumer):
            self._renew_with_retries()
        return self._end

    def _renew_with_retries(self) -> None:
        timeout, pause = self._stream.address.timeout, PAUSE
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._renew()
                return
            except PipelineError as error:
                if not (error.transient and self._has_succeeded):
                    raise
                if time.monotonic() >= deadline:
                    raise PipelineError(f"{error} (tried again for {timeout:g} s)") from None
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _renew(self) -> None:
        end = self._stream.end_offset()
        consumer, previous = self._stream.consume_from(end), self._consumer
        self._end, self._consumer, self._has_succeeded = end, consumer, True
        if previous is not None:
            # The old one until now: a stream that is deleted and made anew in between would not be noticed.
            try:
                self._has_news(previous)
            finally:
                close(previous)

    def _has_news(self, consumer: BlockingConsumer) -> bool:
        """Whether something has come, or the consumer is lost, which an end may be behind.

        :raises PipelineError: the stream was deleted
        """
        try:
            consumer.receive(0)
        except PipelineError:
            if self._whole:
                raise PipelineError(
                    f"stream {self._stream.stream!r} at {self._stream.address.masked_url} was deleted while it was read: "
                    "if it was made anew, begin with another checkpoint, or set failOnDataLoss to false"
                ) from None
            return True
        except (ClosedByBroker, OSError):
            return True
        return consumer.deliveries.count > 0

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            close(consumer)


def close(consumer: BlockingConsumer) -> None:
    with suppress(OSError):
        consumer.close()
