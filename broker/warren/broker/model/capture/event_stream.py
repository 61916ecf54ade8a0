"""Writing of life-cycle events (publishes, deliveries and so on) to a stream of the virtual host that they are from.

The stream is declared if it is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from warren.broker.model.capture.event_batcher import EventBatcher
from warren.broker.model.message import Message
from warren.broker.model.stream.stream import Stream
from warren.core.capture_events import EventBatch
from warren.wire import field_tables
from warren.wire.content import join_content
from warren.wire.reply_codes import AmqpError

if TYPE_CHECKING:
    from warren.broker.model.vhost.declarations import Declarations

logger = logging.getLogger(__name__)

DISK_ARGUMENTS: Final[dict[str, field_tables.Value]] = {
    "x-queue-type": "stream",
    "x-max-length-bytes": 1 << 30,
}
"""Arguments with which the event stream is declared on a broker with a data folder.

An operator who wants other arguments declares the stream beforehand.
"""
MEMORY_ARGUMENTS: Final[dict[str, field_tables.Value]] = {
    "x-queue-type": "stream",
    "x-max-length-bytes": 64 << 20,
    "x-stream-max-segment-size-bytes": 8 << 20,
}
"""Arguments with which the event stream is declared on a broker without a data folder."""


class CaptureError(Exception):
    """Failure to record life-cycle events: the configured event stream is no stream, or it cannot be declared."""


class EventStream:
    """Writer of captured life-cycle events to the event stream of one virtual host.

    The constructor makes it the writer of the batcher: it sets `batcher.write` to `self.write`.
    """

    def __init__(
        self, declarations: Declarations, batcher: EventBatcher, is_blocked: Callable[[], bool]
    ) -> None:
        """Create the writer, and register it with the batcher.

        :param declarations: topology of the virtual host, to look up and declare the event stream in.
        :param batcher: collects the events, and calls the writer for each batch.
        :param is_blocked: returns True while publishers are blocked; then no batch is written either.
        """
        self._declarations = declarations
        self._batcher = batcher
        self._dropping = False
        self._is_blocked = is_blocked
        batcher.write = self.write

    def stream(self) -> Stream:
        """Return the stream that holds the virtual host's life-cycle events; declare it if it is missing.

        :raises CaptureError: if a queue of its name exists and is no stream, or the stream cannot be declared.
        """
        declarations, name = self._declarations, self._batcher.stream
        queue = declarations.vhost.queues.get(name)
        if queue is None:
            arguments = MEMORY_ARGUMENTS if declarations.vhost.log is None else DISK_ARGUMENTS
            try:
                queue = declarations.declare_queue(
                    name, True, False, False, field_tables.encode(arguments), None
                )
            except AmqpError as error:
                raise CaptureError(f"capture_events: {error.text}") from None
        if not isinstance(queue, Stream):
            raise CaptureError(f"capture_events: {declarations.describe('queue', name)} is no stream")
        return queue

    def write(self, batch: EventBatch) -> bool:
        """Append a batch of events to the event stream.

        Return False if publishers are blocked or there is no such stream. The caller then drops the batch. Only the
        first of several failures in a row is logged.
        """
        reason = "publishers are blocked" if self._is_blocked() else ""
        if not reason:
            try:
                stream = self.stream()
            except CaptureError as error:
                reason = str(error)
        if reason:
            if not self._dropping:
                name = self._batcher.stream.decode(errors="replace")
                logger.warning("event=capture.events_dropped stream=%r reason=%r", name, reason)
            self._dropping = True
            return False
        self._dropping = False
        content = join_content(1, batch.header(), batch.body)
        stream.publish(Message(b"", self._batcher.stream, content, len(batch.body), 1))
        return True
