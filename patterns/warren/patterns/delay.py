"""Delay: messages that arrive later, by queues that expire them (TTL and dead letter exchange), on any AMQP
0-9-1 broker.

Guarantees: a message that was accepted arrives no earlier than its delay, once or, after a crash of the
broker, more than once; waiting survives restarts of broker and publisher; a long delay never holds up a short
one, because every queue holds one delay only and expires in the order in which it was filled (a TTL a message
in one queue would not: RabbitMQ, "Time-to-Live and Expiration", per-message TTL). A delayed message cannot be
taken back; what may be cancelled is a `Deadline`.

Two topologies, both of quorum queues that dead-letter at least once:

- `wait_queue(target, after)`: a constant delay before a queue. One queue a value, one hop.
- `Delay`: any delay, and any set time. One queue a power of two; a message passes those whose bits are set in
  its delay. Costs up to `levels` hops (half as many on average) and as many queues in the virtual host,
  whatever the number of messages and delays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from warren.sdk import App, Binding, ConfigError, Exchange, Queue
from warren.sdk.messages import Message
from warren.sdk.topology import Declarable

NAME_BYTES: Final = 255
LEVELS: Final = 28


def wait_queue(target: str, after: timedelta) -> Queue:
    """The queue `<target>.wait.<ms>`: what is published to it moves to the queue `target` after `after`.

    :param after: rounded up to whole milliseconds; the broker's greatest TTL bounds it (in RabbitMQ ten
        years).
    """
    milliseconds = -(-after // timedelta(milliseconds=1))
    return Queue(
        f"{target}.wait.{milliseconds}",
        message_ttl=timedelta(milliseconds=milliseconds),
        dead_letter_exchange="",
        dead_letter_routing_key=target,
        delivery_limit=None,
    )


class Delay:
    """Publishes messages that arrive after any delay, or at a set time.

    `app.include(delay)`; then `await delay.after(message, timedelta(minutes=7))`. The delay counts from when
    the broker has the message; each hop adds what the broker needs for it, so that a long delay arrives some
    milliseconds late.

    :param name: the prefix of its exchanges and queues. They carry unit and levels in their names, so that
        applications with other settings do not meet.
    :param unit: the step in which delays are measured; they are rounded up. Default 1 s. A smaller unit makes
        a shorter longest delay.
    :param levels: how many powers of two there are: the longest delay is `(2 ** levels - 1) * unit`, by
        default 8.5 years; 20 give 12 days.
    :raises ConfigError: unit or levels are out of range.
    """

    def __init__(
        self, name: str = "warren.delay", *, unit: timedelta = timedelta(seconds=1), levels: int = LEVELS
    ) -> None:
        if unit < timedelta(milliseconds=1) or unit % timedelta(milliseconds=1):
            raise ConfigError(f"Delay: unit is {unit}, it must be whole milliseconds")
        if not 1 <= levels <= LEVELS:
            raise ConfigError(f"Delay: levels is {levels}, it must be from 1 to {LEVELS}")
        self.longest: timedelta = (2**levels - 1) * unit
        self._unit = unit
        self._levels = levels
        self._prefix = f"{name}.{levels}x{unit // timedelta(milliseconds=1)}ms"
        self._out = Exchange(f"{self._prefix}.out", alternate_exchange=f"{self._prefix}.lost")
        self._app: App | None = None
        self._reached: set[str] = set()

    def register(self, app: App) -> None:
        self._app = app
        app.declare(*self.topology())

    async def on_start(self) -> None:
        """Nothing to begin: the broker does the waiting."""

    async def on_stop(self) -> None:
        """Nothing to end: what waits goes on waiting in the broker."""

    async def after(
        self,
        message: Message | bytes | Mapping[str, Any],
        delay: timedelta,
        *,
        exchange: str | None = None,
        key: str | None = None,
        message_id: str | None = None,
    ) -> None:
        """Publish `message` so that it arrives after `delay`, at least once; returns when the broker has it.

        Whether its queue still exists then cannot be known now: what arrives nowhere is kept in the queue
        `<name>...lost`.

        :param exchange: with `key`, where a message without a class goes.
        :raises ConfigError: the delay is longer than `longest`, the address too long, or there is none.
        :raises TopologyMismatch: there is no such queue or exchange now.
        :raises PublishError: as `app.publish`.
        """
        app = self._included()
        units = -(-delay // self._unit)
        if units > 2**self._levels - 1:
            raise ConfigError(
                f"a delay of {delay} is too long: {self.longest} is the longest with {self._levels} levels of {self._unit}"
            )
        if units <= 0:
            await app.publish(message, exchange=exchange, key=key, message_id=message_id)
            return
        address = await self._reach(app, message, exchange, key)
        bits = f"{units:0{self._levels}b}"
        await app.publish(
            message,
            exchange=self._level(units.bit_length() - 1),
            key=f"{'.'.join(bits)}.{address}",
            message_id=message_id,
        )

    async def at(self, message: Message | bytes | Mapping[str, Any], when: datetime, **address: Any) -> None:
        """Publish `message` so that it arrives at `when`, or now if that is past; parameters and errors as
        for `after`.

        The time is the publisher's clock's: the broker is told the difference.

        :raises ConfigError: `when` has no time zone.
        """
        if when.tzinfo is None:
            raise ConfigError(f"{when} has no time zone: datetime(..., tzinfo=UTC)")
        now = datetime.fromtimestamp(self._included().clock.now(), UTC)
        await self.after(message, max(when - now, timedelta(0)), **address)

    def topology(self) -> Iterator[Declarable]:
        """Levels, highest first; the exchange that they end in; and where what has no target any more is
        kept."""
        lost = f"{self._prefix}.lost"
        yield Exchange(lost, type="fanout")
        yield Queue(lost, dead_letter_exchange=None)
        yield Binding(lost, lost)
        yield self._out
        for level in range(self._levels):
            below = self._level(level - 1) if level else self._out.name
            skipped = "*." * (self._levels - 1 - level)
            yield Exchange(self._level(level))
            yield Queue(
                self._level(level),
                message_ttl=2**level * self._unit,
                dead_letter_exchange=below,
                delivery_limit=None,
            )
            yield Binding(self._level(level), self._level(level), f"{skipped}1.#")
            yield Binding(self._level(level), below, f"{skipped}0.#", to_exchange=True)

    def _level(self, level: int) -> str:
        return f"{self._prefix}.{level:02}"

    async def _reach(self, app: App, message: object, exchange: str | None, key: str | None) -> str:
        """Bind the message's address to the end of the levels, once an address; its words in the routing
        key."""
        wanted: list[Declarable] = []
        if isinstance(message, Message) and key is None:
            wanted += type(message).reach()
            exchange, key = type(message).wire_exchange, type(message).wire_key
        if key is None:
            raise ConfigError("a delayed message needs an address: a message class, or key= (and exchange=)")
        # The first word tells a queue from an exchange of so many words, so that no two addresses look alike.
        address = f"x{exchange.count('.') + 1}.{exchange}.{key}" if exchange else f"q.{key}"
        if address in self._reached:
            return address
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
            target = f"{self._prefix}.{address}"
            wanted.append(
                Queue(
                    target,
                    message_ttl=timedelta(0),
                    dead_letter_exchange=exchange,
                    dead_letter_routing_key=key,
                    delivery_limit=None,
                )
            )
        wanted.append(Binding(self._out.name, target, pattern))
        await app.declare_now(*wanted)
        self._reached.add(address)
        return address

    def _included(self) -> App:
        if self._app is None:
            raise ConfigError("this Delay belongs to no App: app.include(delay)")
        return self._app


__all__ = ["Delay", "wait_queue"]
