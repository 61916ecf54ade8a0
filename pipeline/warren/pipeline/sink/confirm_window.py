"""Record of the messages that a channel has published and the broker has not confirmed yet."""

from __future__ import annotations

from collections.abc import Sequence

from warren.wire.delivery_scanner import ReturnFields, decode_return


class ConfirmWindow:
    """Unconfirmed messages of a channel in confirm mode, by sequence number, with their frames for publishing them
    again.

    It processes the broker's acks, nacks and returned messages.
    """

    def __init__(self) -> None:
        self.size = 0
        """Bytes of the messages that are unconfirmed, or refused by the broker (`basic.nack`) and not published again
        yet."""
        self.confirmed = 0
        """Number of messages confirmed so far, over all channels that a publisher has used."""
        self.returned: ReturnFields | None = None
        """The last message that the broker returned because it reached no queue."""
        self.blocked_reason: str | None = None
        """Reason that the broker gave for blocking the connection (`connection.blocked`); None while it is not
        blocked."""
        self.nacked: list[bytes] = []
        """Frames of messages that the broker refused (`basic.nack`)."""
        self._unconfirmed: dict[int, bytes] = {}
        self._oldest = self._next = 1

    def __len__(self) -> int:
        return len(self._unconfirmed) + len(self.nacked)

    @property
    def unconfirmed(self) -> int:
        """Number of published messages for which neither an ack nor a nack has arrived."""
        return len(self._unconfirmed)

    def add(self, frames: Sequence[bytes]) -> None:
        """Add messages that are about to be published; they get the next sequence numbers.

        :param frames: for each message one bytes object with all its frames
        """
        self._unconfirmed.update(enumerate(frames, self._next))
        self._next += len(frames)
        self.size += sum(map(len, frames))

    def take_nacked(self) -> list[bytes]:
        """Remove the messages that the broker refused (`basic.nack`), and return their frames for publishing them
        again.
        """
        frames, self.nacked = self.nacked, []
        self.size -= sum(map(len, frames))
        return frames

    def take_unconfirmed(self) -> list[bytes]:
        """Remove all messages that are not confirmed, and return their frames for publishing them on a new channel:
        first the refused messages, then the others in the order in which they were published.

        Sequence numbers begin at 1 again.
        """
        frames = [*self.nacked, *self._unconfirmed.values()]
        self.nacked = []
        self._unconfirmed.clear()
        self._oldest = self._next = 1
        self.size = 0
        self.blocked_reason = None
        return frames

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        """Process a `basic.ack` or `basic.nack`.

        :param sequence: delivery tag: the sequence number of a message
        :param multiple: whether all earlier messages are meant as well
        :param ack: whether it is a `basic.ack`
        """
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
        """Store the fields of a `basic.return`: the broker returned a message that reached no queue. Other messages do
        not arrive on this channel, because it consumes nothing.

        :param method: payload of the method frame, which has the reason of the return
        :param header: not used, nor is `body`
        """
        self.returned = decode_return(method)

    def blocked(self, reason: str | None) -> None:
        """Store the reason for which the broker blocks this connection, or that it no longer blocks it.

        :param reason: reason of `connection.blocked`; None for `connection.unblocked`
        """
        self.blocked_reason = reason
