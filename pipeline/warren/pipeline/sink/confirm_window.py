"""What has been published and not confirmed yet, and what the broker says about it."""

from __future__ import annotations

from collections.abc import Sequence

from warren.wire.delivery_scanner import ReturnFields, decode_return


class ConfirmWindow:
    """The messages of one channel in confirm mode, by their numbers, with the frames to publish them again."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes of what waits."""
        self.confirmed = 0
        """Messages, over all channels."""
        self.returned: ReturnFields | None = None
        """Why the last message came back that no queue took."""
        self.blocked_reason: str | None = None
        """Why the broker reads nothing at present, if it says so."""
        self.nacked: list[bytes] = []
        """What the broker did not take (`basic.nack`)."""
        self._unconfirmed: dict[int, bytes] = {}
        self._oldest = self._next = 1

    def __len__(self) -> int:
        return len(self._unconfirmed) + len(self.nacked)

    @property
    def unconfirmed(self) -> int:
        """Messages of which the broker has said nothing yet."""
        return len(self._unconfirmed)

    def add(self, frames: Sequence[bytes]) -> None:
        """Number what is published next."""
        self._unconfirmed.update(enumerate(frames, self._next))
        self._next += len(frames)
        self.size += sum(map(len, frames))

    def take_nacked(self) -> list[bytes]:
        frames, self.nacked = self.nacked, []
        self.size -= sum(map(len, frames))
        return frames

    def take_unconfirmed(self) -> list[bytes]:
        """Everything that is not confirmed, in order, for another channel: its numbers begin with 1 again."""
        frames = [*self.nacked, *self._unconfirmed.values()]
        self.nacked = []
        self._unconfirmed.clear()
        self._oldest = self._next = 1
        self.size = 0
        self.blocked_reason = None
        return frames

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
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
        self.returned = decode_return(method)

    def blocked(self, reason: str | None) -> None:
        self.blocked_reason = reason
