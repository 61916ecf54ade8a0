"""Tracking of a stream's end offset (the offset after its last message), without requests while no message arrives."""

from __future__ import annotations

from contextlib import suppress

from warren.core.blocking_connection import ClosedByBroker
from warren.pipeline.errors import PipelineError
from warren.pipeline.source.blocking_consumer import BlockingConsumer
from warren.pipeline.source.stream_client import StreamClient, StreamEnd


class EndOffsetTracker:
    """Tracker of a stream's end offset, for callers that poll it: Spark asks a hundred times a second while a stream is
    idle.

    A consumer waits at the end of the stream. While it receives nothing, the end has not moved, and `end` needs no
    request.

    :param fail_on_data_loss: raise an error if the stream is deleted, since a new stream with the same name would have
        other messages at the same offsets
    """

    def __init__(self, client: StreamClient, fail_on_data_loss: bool = True) -> None:
        self._stream = client
        self._whole = fail_on_data_loss
        self._end = StreamEnd(0)
        self._consumer: BlockingConsumer | None = None

    def end(self) -> int:
        """Return the stream's end offset: the offset after its last message, 0 if it never had one.

        If the broker is unreachable, retry for the address's timeout.

        :raises PipelineError: if the stream cannot be read, or was deleted
        """
        if self._consumer is None or self._has_news(self._consumer):
            self._renew()
        return self._end.offset

    @property
    def identity(self) -> str | None:
        """Identity of the stream when `end` was called last: a stream that is deleted and declared again has another.

        None if the broker gives none (RabbitMQ), or if the stream had no message.
        """
        return self._end.identity

    def _renew(self) -> None:
        """Look up the end offset, start a consumer there, and close the consumer that waited at the previous end."""
        end = self._stream.end()
        consumer, previous = self._stream.consume_from(end.offset), self._consumer
        self._end, self._consumer = end, consumer
        if previous is not None:
            # Check the old consumer only now, to notice a stream that was deleted and declared again in between.
            try:
                self._has_news(previous)
            finally:
                close(previous)

    def _has_news(self, consumer: BlockingConsumer) -> bool:
        """Return whether a message arrived or the consumer was lost, so that the end offset must be looked up again.

        :raises PipelineError: if the stream was deleted, unless `fail_on_data_loss` is false
        """
        try:
            consumer.receive(0)
        except PipelineError:
            if self._whole:
                raise PipelineError(
                    f"stream {self._stream.stream!r} at {self._stream.address.masked_url} was deleted while it was read: "
                    "if it was declared again, begin with another checkpoint, or set failOnDataLoss to false"
                ) from None
            return True
        except (ClosedByBroker, OSError):
            return True
        return consumer.deliveries.count > 0

    def close(self) -> None:
        """Close the consumer that waits at the end of the stream."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            close(consumer)


def close(consumer: BlockingConsumer) -> None:
    """Close a consumer; errors of a lost connection are ignored."""
    with suppress(OSError):
        consumer.close()
