"""Messages that this process has settled without the broker knowing it, because their connection was lost: the broker
delivers them again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, Iterable
from time import monotonic
from typing import Final, NamedTuple

from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.job import Job
from warren.sdk.consume.message_identity import Identity, fingerprint
from warren.sdk.consume.settlement import Settlement
from warren.sdk.transport.data_channel import DataChannel

MOST_KEPT: Final = 1000
"""Number of messages of a queue that are remembered; the oldest are forgotten, and handled again."""
KEPT_SECONDS: Final = 600.0
"""Seconds after which a message is forgotten: more than the broker needs to notice by the heartbeats that a connection is
lost."""
BODY_KEPT: Final = 4096
"""Length in bytes of the largest body that is kept with the settlement of its message; of a larger one, the hash is."""
FINAL: Final = frozenset({Settlement.ACK, Settlement.REJECT})
"""Settlements that end a message; after others it may come again."""


class Settled(NamedTuple):
    """Settlement of a message, and the time when it is forgotten, by the monotonic clock."""

    settlement: Settlement
    until: float


class SettledMessages:
    """Settlements of messages of one queue that did not reach the broker, or may not have reached it.

    Each settles one delivery of an equal message. The broker may have delivered the message to another process meanwhile.
    That does no harm: of equal messages at least as many are handled as were published.

    :param prefetch: number of messages that the broker sends ahead of their settlement, and so of those that can be settled
        without the broker knowing it.
    """

    def __init__(self, prefetch: int) -> None:
        self._sent: deque[tuple[DataChannel, Delivery | Identity, Settlement]] = deque(
            maxlen=min(prefetch, MOST_KEPT)
        )
        """The last settlements that were sent, with their channels."""
        self._lost: OrderedDict[Hashable, list[Settled]] = OrderedDict()
        self._unsettled: Counter[Hashable] = Counter()
        """Number of equal messages that were not settled: they come again as well, and are to be handled."""

    def sent(self, job: Job, settlement: Settlement) -> None:
        """Remember a settlement that is sent: the broker gets it unless the channel is lost."""
        delivery = job.delivery
        # The identity takes longer than all the rest. It is needed only if the channel is lost, unless the body is large.
        message = delivery if len(delivery.body) <= BODY_KEPT else delivery.identity()
        self._sent.append((job.channel, message, settlement))

    def unsent(self, job: Job, settlement: Settlement) -> None:
        """Remember a settlement that cannot be sent, because the channel is lost."""
        if settlement in FINAL:
            self._add(job.delivery.identity(), settlement)

    def expect_again(self, unsettled: Iterable[Job]) -> None:
        """Prepare for the first deliveries on a new channel.

        :param unsettled: deliveries on former channels whose handling had not begun.
        """
        for channel, message, settlement in self._sent:
            if not channel.usable:
                self._add(message.identity() if isinstance(message, Delivery) else message, settlement)
        self._sent.clear()
        if self._lost:
            waiting = Counter(fingerprint(job.delivery.identity()) for job in unsettled)
            self._unsettled = Counter({key: count for key, count in waiting.items() if key in self._lost})

    def take(self, job: Job) -> Settlement | None:
        """Remove and return the settlement of a message that is delivered again; None if it is to be handled."""
        if not self._lost:
            return None
        key = fingerprint(job.delivery.identity())
        known = self._lost.get(key)
        if known is None:
            return None
        if self._unsettled[key]:
            self._unsettled[key] -= 1
            return None
        settled = known.pop()
        if not known:
            del self._lost[key]
        return settled.settlement if settled.until > monotonic() else None

    def _add(self, identity: Identity, settlement: Settlement) -> None:
        key = fingerprint(identity)
        if key is None:
            return
        self._lost.setdefault(key, []).append(Settled(settlement, monotonic() + KEPT_SECONDS))
        if len(self._lost) > MOST_KEPT:
            self._lost.popitem(last=False)


__all__ = ["SettledMessages"]
