"""What has been published and not confirmed yet, and what the broker says about it."""

from __future__ import annotations

from collections.abc import Sequence

from warren.wire.delivery_scanner import ReturnFields, decode_return


class Confirms:
    """The messages of one channel in confirm mode, by their numbers, with the frames to publish them again."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes of what waits."""
        self.confirmed = 0
        """Messages, over all channels."""
        self.returned: ReturnFields | None = None
        """Why the last message came back that no queue took."""
        self.reason: str | None = None
        """Why the broker reads nothing at present, if it says so."""
        self.refused: list[bytes] = []
        """What the broker did not take (`basic.nack`)."""
        self._waiting: dict[int, bytes] = {}
        self._oldest = self._next = 1

    def __len__(self) -> int:
        return len(self._waiting) + len(self.refused)

    @property
    def waiting(self) -> int:
        """Messages of which the broker has said nothing yet."""
        return len(self._waiting)

    def add(self, frames: Sequence[bytes]) -> None:
        """Number what is published next."""
        self._waiting.update(enumerate(frames, self._next))
        self._next += len(frames)
        self.size += sum(map(len, frames))

    def take_refused(self) -> list[bytes]:
        frames, self.refused = self.refused, []
        self.size -= sum(map(len, frames))
        return frames

    def restart(self) -> list[bytes]:
        """Everything that is not confirmed, in order, for another channel: its numbers begin with 1 again."""
        frames = [*self.refused, *self._waiting.values()]
        self.refused = []
        self._waiting.clear()
        self._oldest = self._next = 1
        self.size = 0
        self.reason = None
        return frames

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        numbers = range(self._oldest, sequence + 1) if multiple else (sequence,)
        if multiple:
            self._oldest = sequence + 1
        for number in numbers:
            frames = self._waiting.pop(number, None)
            if frames is None:
                continue
            if ack:
                self.confirmed += 1
                self.size -= len(frames)
            else:
                self.refused.append(frames)

    def message(self, method: bytes, header: bytes, body: bytes) -> None:
        self.returned = decode_return(method)

    def blocked(self, reason: str | None) -> None:
        self.reason = reason
