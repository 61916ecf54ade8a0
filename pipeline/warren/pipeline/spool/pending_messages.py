"""Deliveries as they come, until they are on the disk: what to keep of them, what has come before, what to acknowledge."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from warren.core.blocking_connection import CHANNEL
from warren.pipeline.spool.deduplication_key import KeyExtractor
from warren.pipeline.spool.file_format import NO_KEY, SpooledMessage
from warren.wire.content import join_content
from warren.wire.delivery_scanner import decode_deliver

STREAM_HEADER = b"\x0fx-stream-offset"
"""The name of a header that each delivery of a stream has, and what was copied from one may have."""
_FRAME = struct.Struct(">BHI")


class PendingMessages:
    """The messages of one consumer that are not acknowledged.

    One without a key that is redelivered is doubtful: it may be in the spool already.
    """

    def __init__(self, key_extractor: KeyExtractor) -> None:
        self.tag = 0
        """The last one's delivery tag."""
        self.count = 0
        self.size = 0
        """Bytes."""
        self.may_be_stream = False
        """Whether the first one may be a stream's."""
        self._entries: list[SpooledMessage] = []
        self._key_extractor = key_extractor

    def message(self, method: bytes, header: bytes, body: bytes) -> None:
        delivery = received(method)
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
        """Nothing is published here."""

    def blocked(self, reason: str | None) -> None:
        """Who consumes is not blocked."""

    def take(self, known: Callable[[Sequence[bytes]], set[bytes]]) -> list[SpooledMessage]:
        """Those that are new, each once.

        :param known: tells which of some keys have come before
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
