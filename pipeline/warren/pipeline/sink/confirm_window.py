"""Window of unconfirmed messages: publisher confirms, negative confirms and returns of one channel."""

from __future__ import annotations

from collections.abc import Sequence

from warren.wire.delivery_scanner import ReturnFields, decode_return


class ConfirmWindow:
    """Messages of one channel in confirm mode by sequence number, with their frames for publishing them again."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes of the unconfirmed and refused messages."""
        self.confirmed = 0
        """Messages confirmed so far, over all channels."""
        self.returned: ReturnFields | None = None
        """The last message that the broker returned because it reached no queue."""
        self.blocked_reason: str | None = None
        """Reason of `connection.blocked` while the connection is blocked; else None."""
        self.nacked: list[bytes] = []
        """Frames of messages that the broker refused (`basic.nack`)."""
        self._unconfirmed: dict[int, bytes] = {}
        self._oldest = self._next = 1

    def __len__(self) -> int:
        return len(self._unconfirmed) + len(self.nacked)

    @property
    def unconfirmed(self) -> int:
        """Number of messages without a confirm or a nack."""
        return len(self._unconfirmed)

    def add(self, frames: Sequence[bytes]) -> None:
        """Assign the next sequence numbers to messages that are about to be published."""
        self._unconfirmed.update(enumerate(frames, self._next))
        self._next += len(frames)
        self.size += sum(map(len, frames))

    def take_nacked(self) -> list[bytes]:
        """Return and remove the refused messages."""
        frames, self.nacked = self.nacked, []
        self.size -= sum(map(len, frames))
        return frames

    def take_unconfirmed(self) -> list[bytes]:
        """Return and remove all messages that are not confirmed, in order, for a new channel with numbers from 1."""
        frames = [*self.nacked, *self._unconfirmed.values()]
        self.nacked = []
        self._unconfirmed.clear()
        self._oldest = self._next = 1
        self.size = 0
        self.blocked_reason = None
        return frames

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        """Process a `basic.ack` or `basic.nack`."""
        numbers = range(self._oldest, sequence + 1) if multiple else (sequence,)
        if multiple:
            self._oldest = sequence + 1
        for number in numbers:
            frames = self._unconfirmed.pop(number, None)
            if frames is None:
                continue
            if ack:
                self.confirmed += 1
                self.size -= len(frames)
            else:
                self.nacked.append(frames)

    def message(self, method: bytes, header: bytes, body: bytes) -> None:
        """Store a returned message; in confirm mode no others arrive."""
        self.returned = decode_return(method)

    def blocked(self, reason: str | None) -> None:
        """Store the reason of `connection.blocked`; None when it is unblocked."""
        self.blocked_reason = reason
