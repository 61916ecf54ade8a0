"""Deliveries that are not yet written to the spool's files and acknowledged, and the removal of duplicates among
them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from warren.core.blocking_connection import CHANNEL
from warren.pipeline.spool.deduplication_key import KeyExtractor
from warren.pipeline.spool.file_format import NO_KEY, SpooledMessage
from warren.wire.content import join_content
from warren.wire.delivery_scanner import decode_deliver

STREAM_HEADER = b"\x0fx-stream-offset"
"""Encoded name of a header that suggests that the queue is a stream: every delivery of a stream has it. A message that
was copied from a stream to a queue may have it too."""
_FRAME = struct.Struct(">BHI")


class PendingMessages:
    """Messages that a consumer has received, and has neither written to the spool's files nor acknowledged yet.

    A redelivered message without a deduplication key is marked as a possible duplicate: it may already be in the spool.
    """

    def __init__(self, key_extractor: KeyExtractor) -> None:
        self.tag = 0
        """Delivery tag of the last message received."""
        self.count = 0
        self.size = 0
        """Bytes of the pending messages."""
        self.may_be_stream = False
        """True if the first delivery had the header `x-stream-offset`, which every delivery of a stream has."""
        self._entries: list[SpooledMessage] = []
        self._key_extractor = key_extractor

    def message(self, method: bytes, header: bytes, body: bytes) -> None:
        """Add a delivered message, given as the payloads of its method, its content header and its body."""
        delivery = decode_deliver(method)
        if delivery.delivery_tag == 1 and STREAM_HEADER in header:
            self.may_be_stream = True
        key = self._key_extractor(header)
        frames = b"".join(
            (_FRAME.pack(1, CHANNEL, len(method)), method, b"\xce", join_content(CHANNEL, header, body))
        )
        self._entries.append(SpooledMessage(frames, key, delivery.redelivered and key == NO_KEY))
        self.tag = delivery.delivery_tag
        self.count += 1
        self.size += len(frames)

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        """Do nothing: a consumer publishes nothing, so no confirms arrive."""

    def blocked(self, reason: str | None) -> None:
        """Do nothing: a broker sends `connection.blocked` because of publishers, and this connection only consumes."""

    def take(self, known: Callable[[Sequence[bytes]], set[bytes]]) -> list[SpooledMessage]:
        """Remove the pending messages, and return them without duplicates: those whose deduplication keys were written
        to the spool before, and all but the first of those with the same key.

        :param known: returns which of the given keys were written to the spool before
        """
        entries, self._entries = self._entries, []
        self.count = self.size = 0
        old = known([entry.key for entry in entries if entry.key != NO_KEY])
        new = []
        for entry in entries:
            if entry.key != NO_KEY:
                if entry.key in old:
                    continue
                old.add(entry.key)
            new.append(entry)
        return new
