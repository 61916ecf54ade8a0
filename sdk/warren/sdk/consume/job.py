"""Job: a delivery on its way through its handler, with the channel on which it is settled."""

from __future__ import annotations

from warren.sdk.consume.delivery import Delivery
from warren.sdk.transport.data_channel import DataChannel


class Job:
    """A delivery that is handled, its delivery tag, and the channel on which it is settled.

    :param is_redelivered: the broker delivers the message again if the channel is lost; False for a message of a stream,
        which the reader continues from its position.
    :ivar pausing: the handling waits for the time of the next attempt.
    :ivar taken_over: the channel was lost, and is now that of a later delivery of the message.
    :ivar stopping: the App stops: the handling must not begin to wait for another attempt.
    """

    __slots__ = (
        "channel", "delivery", "delivery_tag", "is_redelivered", "pausing", "stopping", "taken_over",
    )  # fmt: skip

    def __init__(
        self, channel: DataChannel, delivery_tag: int, delivery: Delivery, *, is_redelivered: bool = True
    ) -> None:
        self.channel: DataChannel = channel
        self.delivery_tag: int = delivery_tag
        self.delivery: Delivery = delivery
        self.is_redelivered: bool = is_redelivered
        self.pausing: bool = False
        self.stopping: bool = False
        self.taken_over: bool = False
        delivery.handling = self

    @property
    def orphaned(self) -> bool:
        """True while there is no channel for the settlement: the broker delivers the message again."""
        return self.is_redelivered and not self.channel.usable

    @property
    def lost(self) -> bool:
        """True once the channel on which the message arrived was lost."""
        return self.taken_over or self.orphaned


__all__ = ["Job"]
