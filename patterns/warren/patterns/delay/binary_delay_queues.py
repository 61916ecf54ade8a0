"""Delays by queues alone: one queue for each power of two, through which a message passes according to its delay's bits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from warren.patterns.delay.strategy import EntryPoint
from warren.patterns.delay.wait_queues import NAME_BYTES, forwarding_queue, target_address
from warren.sdk import Binding, ConfigError, Declarable, Exchange, Queue
from warren.sdk.extend import Duration, duration

LEVELS: Final = 28


class BinaryDelayQueues:
    """Delay strategy for any AMQP 0-9-1 broker: quorum queues with at-least-once dead-lettering, one for each power of
    two of the unit (a *level*).

    A delay is rounded up to a binary number of units: the message waits in the queue of each 1 bit, the highest first,
    and skips those of the 0 bits. It takes up to `levels` hops, half as many on average. Each hop adds the broker's own
    time, so a long delay arrives some milliseconds late. Then an exchange routes the message to a queue for its target,
    from which it is dead-lettered to the target. A message whose target no longer exists waits in that queue until the
    target is declared again, and holds up the messages for this target only. If somebody has deleted the queue for the
    target, the exchange's alternate exchange routes the message to a queue whose name ends with `.lost`.

    :param unit: resolution of delays, which are rounded up. Default 1 s. A smaller unit shortens the longest delay.
    :param levels: number of powers of two, and so of queues with a delay. The longest delay is `(2 ** levels - 1) *
        unit`, by default 8.5 years; 20 levels give 12 days.
    :raises ConfigError: unit or levels are out of range.
    """

    ignores_returns: bool = False

    def __init__(self, *, unit: Duration = timedelta(seconds=1), levels: int = LEVELS) -> None:
        unit = duration(unit, "BinaryDelayQueues: unit")
        if unit < timedelta(milliseconds=1) or unit % timedelta(milliseconds=1):
            raise ConfigError(f"BinaryDelayQueues: unit is {unit}, it must be whole milliseconds")
        if not 1 <= levels <= LEVELS:
            raise ConfigError(f"BinaryDelayQueues: levels is {levels}, it must be from 1 to {LEVELS}")
        self.longest: timedelta = (2**levels - 1) * unit
        self._unit = unit
        self._levels = levels
        # Part of every name, so that applications with different settings do not share queues.
        self._settings_name = f"{levels}x{unit // timedelta(milliseconds=1)}ms"

    def topology(self, name: str) -> Iterator[Declarable]:
        """Yield the exchanges, queues and bindings of the strategy. First come the exchange and queue for messages
        whose way was deleted, and the exchange that routes messages to the queues for their targets. Then each power of
        two of the unit, the lowest first, gets a queue that delays messages by that time, and an exchange before it
        that routes a message into the queue or past it. All their names begin with `name`."""
        lost = f"{name}.{self._settings_name}.lost"
        yield Exchange(lost, type="fanout")
        yield Queue(lost, dead_letter_exchange=None)
        yield Binding(lost, lost)
        out = self._out(name)
        yield Exchange(out, alternate_exchange=lost)
        for level in range(self._levels):
            own = self._level(name, level)
            below = self._level(name, level - 1) if level else out
            skipped = "*." * (self._levels - 1 - level)
            yield Exchange(own)
            yield Queue(
                own,
                message_ttl=2**level * self._unit,
                dead_letter_exchange=below,
                delivery_limit=None,
            )
            yield Binding(own, own, f"{skipped}1.#")
            yield Binding(own, below, f"{skipped}0.#", to_exchange=True)

    def target_topology(self, name: str, exchange: str, key: str) -> Iterator[Declarable]:
        address = target_address(exchange, key)
        pattern = f"{'*.' * self._levels}{address}"
        if len(pattern.encode()) > NAME_BYTES:
            raise ConfigError(
                f"the address {address!r} is too long to be delayed: it may have {NAME_BYTES - 2 * self._levels} bytes"
            )
        if {"*", "#"} & set(address.split(".")):
            raise ConfigError(
                f"the address {address!r} has a word that is a wildcard of topic exchanges, so it cannot be delayed"
            )
        # The routing key still contains the bits, so the message cannot go to its target directly.
        forwarding = forwarding_queue(f"{name}.{self._settings_name}", exchange, key)
        yield forwarding
        yield Binding(self._out(name), forwarding.name, pattern)

    def entry(self, name: str, exchange: str, key: str, delay: timedelta) -> EntryPoint:
        units = -(-delay // self._unit)
        bits = f"{units:0{self._levels}b}"
        return EntryPoint(
            self._level(name, units.bit_length() - 1),
            f"{'.'.join(bits)}.{target_address(exchange, key)}",
            {},
        )

    def _out(self, name: str) -> str:
        return f"{name}.{self._settings_name}.out"

    def _level(self, name: str, level: int) -> str:
        return f"{name}.{self._settings_name}.{level:02}"


__all__ = ["BinaryDelayQueues"]
