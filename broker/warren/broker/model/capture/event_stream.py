"""Where a virtual host's events go: a stream of its own, which is made if it is not there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from warren.broker.model.capture.capture import Capture
from warren.broker.model.message import Message
from warren.broker.model.stream.stream import Stream
from warren.core.capture_events import EventBatch
from warren.wire import field_tables
from warren.wire.content import join_content
from warren.wire.reply_codes import AmqpError

if TYPE_CHECKING:
    from warren.broker.model.vhost.declarations import Declarations

logger = logging.getLogger(__name__)

ON_DISK: Final[dict[str, field_tables.Value]] = {"x-queue-type": "stream", "x-max-length-bytes": 1 << 30}
IN_MEMORY: Final[dict[str, field_tables.Value]] = {
    "x-queue-type": "stream",
    "x-max-length-bytes": 64 << 20,
    "x-stream-max-segment-size-bytes": 8 << 20,
}
"""How the stream is made. Whoever wants other bounds declares it before."""


class CaptureError(Exception):
    """Events cannot be captured as the configuration says."""


class EventStream:
    """The stream of one virtual host's events."""

    def __init__(self, topology: Declarations, capture: Capture, blocked: Callable[[], bool]) -> None:
        """:param blocked: whether no more may be written, as publishers may not write either."""
        self._topology = topology
        self._capture = capture
        self._dropping = False
        self._blocked = blocked
        capture.write = self.write

    def stream(self) -> Stream:
        """
        :raises CaptureError: if there is a queue of its name that is no stream.
        """
        topology, name = self._topology, self._capture.stream
        queue = topology.vhost.queues.get(name)
        if queue is None:
            arguments = IN_MEMORY if topology.vhost.log is None else ON_DISK
            try:
                queue = topology.declare_queue(name, True, False, False, field_tables.encode(arguments), None)
            except AmqpError as error:
                raise CaptureError(f"capture_events: {error.text}") from None
        if not isinstance(queue, Stream):
            raise CaptureError(f"capture_events: {topology.describe('queue', name)} is no stream")
        return queue

    def write(self, batch: EventBatch) -> bool:
        """Put a batch into the stream; False if that cannot be, which is logged once."""
        why = "publishers are blocked" if self._blocked() else ""
        if not why:
            try:
                stream = self.stream()
            except CaptureError as error:
                why = str(error)
        if why:
            if not self._dropping:
                name = self._capture.stream.decode(errors="replace")
                logger.warning("event=capture_drops stream=%r reason=%r", name, why)
            self._dropping = True
            return False
        self._dropping = False
        content = join_content(1, batch.header(), batch.body)
        stream.publish(Message(b"", self._capture.stream, content, len(batch.body), 1))
        return True
