"""Any delay by queues alone: one queue for each power of two, which a message passes by the bits of its delay."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from warren.patterns.delay.strategy import EntryPoint
from warren.sdk import Binding, ConfigError, Declarable, Exchange, Queue

NAME_BYTES: Final = 255
LEVELS: Final = 28


class BinaryDelayQueues:
    """On any AMQP 0-9-1 broker: quorum queues that dead-letter at least once, one a power of two of the unit.

    A message waits in the queues of its ones and passes by its zeros: up to `levels` hops, half as many on
    average. Each adds what the broker needs for it, so that a long delay arrives some milliseconds late. What
    finds no target in the end goes to the queue `...lost`: the last exchange has an alternate, or the message
    would stay at the head of a level's queue and hold up all others behind it.

    :param unit: the step in which delays are measured; they are rounded up. Default 1 s. A smaller unit makes
        a shorter longest delay.
    :param levels: how many powers of two there are: the longest delay is `(2 ** levels - 1) * unit`, by
        default 8.5 years; 20 give 12 days.
    :raises ConfigError: unit or levels are out of range.
    """

    silent: bool = False

    def __init__(self, *, unit: timedelta = timedelta(seconds=1), levels: int = LEVELS) -> None:
        if unit < timedelta(milliseconds=1) or unit % timedelta(milliseconds=1):
            raise ConfigError(f"Delay: unit is {unit}, it must be whole milliseconds")
        if not 1 <= levels <= LEVELS:
            raise ConfigError(f"Delay: levels is {levels}, it must be from 1 to {LEVELS}")
        self.longest: timedelta = (2**levels - 1) * unit
        self._unit = unit
        self._levels = levels
        # In every name, so that applications with other settings do not meet.
        self._marks = f"{levels}x{unit // timedelta(milliseconds=1)}ms"

    def topology(self, name: str) -> Iterator[Declarable]:
        """Levels, lowest first; the exchange that they end in; and where what has no target any more is kept."""
        lost = f"{name}.{self._marks}.lost"
        yield Exchange(lost, type="fanout")
        yield Queue(lost, dead_letter_exchange=None)
        yield Binding(lost, lost)
        out = self._out(name)
        yield Exchange(out, alternate_exchange=lost)
        for level in range(self._levels):
            here = self._level(name, level)
            below = self._level(name, level - 1) if level else out
            skipped = "*." * (self._levels - 1 - level)
            yield Exchange(here)
            yield Queue(
                here,
                message_ttl=2**level * self._unit,
                dead_letter_exchange=below,
                delivery_limit=None,
            )
            yield Binding(here, here, f"{skipped}1.#")
            yield Binding(here, below, f"{skipped}0.#", to_exchange=True)

    def reach(self, name: str, exchange: str, key: str) -> Iterator[Declarable]:
        address = _address(exchange, key)
        pattern = f"{'*.' * self._levels}{address}"
        if len(pattern.encode()) > NAME_BYTES:
            raise ConfigError(
                f"the address {address!r} is too long to be delayed: {NAME_BYTES - 2 * self._levels} bytes are left for it"
            )
        if {"*", "#"} & set(address.split(".")):
            raise ConfigError(
                f"the address {address!r} has a word that is a wildcard: such a key cannot be delayed"
            )
        target = key
        if exchange:
            # The routing key still holds the bits. This queue expires at once what comes, to the exchange,
            # with its own key.
            target = f"{name}.{self._marks}.{address}"
            yield Queue(
                target,
                message_ttl=timedelta(0),
                dead_letter_exchange=exchange,
                dead_letter_routing_key=key,
                delivery_limit=None,
            )
        yield Binding(self._out(name), target, pattern)

    def entry(self, name: str, exchange: str, key: str, delay: timedelta) -> EntryPoint:
        units = -(-delay // self._unit)
        bits = f"{units:0{self._levels}b}"
        return EntryPoint(
            self._level(name, units.bit_length() - 1), f"{'.'.join(bits)}.{_address(exchange, key)}", {}
        )

    def _out(self, name: str) -> str:
        return f"{name}.{self._marks}.out"

    def _level(self, name: str, level: int) -> str:
        return f"{name}.{self._marks}.{level:02}"


def _address(exchange: str, key: str) -> str:
    # The first word tells a queue from an exchange of so many words, so that no two addresses look alike.
    return f"x{exchange.count('.') + 1}.{exchange}.{key}" if exchange else f"q.{key}"


__all__ = ["BinaryDelayQueues"]
