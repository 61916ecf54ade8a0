"""Load of plain publishes and handlers, recorded as a history for the checker of the chaos runs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

from tests.faults.chaos.checker import Tally, check_history
from tests.faults.chaos.history import EventType, History, QueueRules
from tests.faults.cluster.figures import Durations
from warren.sdk import App, Command, Delivery, WarrenError

QUEUE = "plain"
RULES = {QUEUE: QueueRules()}
PUBLISHERS = 2
CONSUMERS = 2
MOST_AT_ONCE = 10
"""Greatest number of publishes that a publisher has unconfirmed."""


class Plain(Command, queue=QUEUE):
    name: str
    sent: float


class PlainLoad:
    """Publishers and handlers of one quorum queue, and the history of what they did.

    While `disturbed` is true, an acknowledgement may get lost with its connection or its node, and the checker accepts that
    its message comes again. At all other times it does not.
    """

    def __init__(self, apps: list[App], random: Random) -> None:
        self.apps = apps
        self.history = History(RULES)
        self.disturbed = False
        self.tally = Tally()
        self.confirms = Durations()
        """Time from a publish to its confirm."""
        self.deliveries = Durations()
        """Time from a publish to its handler."""
        self.refused: list[str] = []
        """Errors of publishes: their outcome is unknown."""
        self._random = random
        self._numbers = itertools.count(1)
        self._handled: set[str] = set()
        self._confirmed: set[str] = set()

    async def publish(self, publisher: int) -> None:
        """Publish some messages at a time, and wait for their confirms."""
        name = f"p{publisher}"
        await asyncio.gather(
            *(self._publish(name, publisher) for _ in range(self._random.randint(1, MOST_AT_ONCE)))
        )

    async def _publish(self, name: str, publisher: int) -> None:
        message = f"{name}:{next(self._numbers)}"
        self.history.note(EventType.PUBLISH, name, message, QUEUE)
        began = time.monotonic()
        try:
            await self.apps[publisher].publish(Plain(name=message, sent=began))
        except WarrenError as error:
            self.refused.append(f"{type(error).__name__}: {error}"[:160])
        else:
            self.history.note(EventType.CONFIRMED, name, message)
            self._confirmed.add(message)
        self.confirms.add(time.monotonic() - began)

    def handled(self, consumer: str, message: Plain, delivery: Delivery) -> None:
        """Record that a handler ran: the SDK acknowledges after it."""
        self.deliveries.add(time.monotonic() - message.sent)
        again = delivery.redelivered
        if self.disturbed:
            self.history.note(EventType.DISTURBED)
            # A message that the publisher sent again is in the queue twice; the broker does not know that.
            again = again or message.name in self._handled
        self._handled.add(message.name)
        self.history.note(EventType.DELIVERED, consumer, message.name, QUEUE, redelivered=again)
        self.history.note(EventType.ACK, consumer, message.name, QUEUE)

    @property
    def missing(self) -> bool:
        """True while a confirmed message was not handled."""
        return not self._confirmed <= self._handled

    def judge(self) -> list[str]:
        """Check the history at a moment when all is handled; begin a new one."""
        self.history.note(EventType.DRAINED)
        checker = check_history(self.history)
        self.tally.add(checker.tally)
        self.history = History(RULES)
        return [f"plain: {fault}" for fault in checker.faults]


@asynccontextmanager
async def plain_load(url: str, random: Random) -> AsyncIterator[PlainLoad]:
    """Run the Apps of the load."""
    apps = [App(url, name=f"plain-{number}") for number in range(PUBLISHERS + CONSUMERS)]
    load = PlainLoad(apps, random)
    for number in range(PUBLISHERS, PUBLISHERS + CONSUMERS):
        _handle(apps[number], load, f"c{number}")
    async with AsyncExitStack() as stack:
        for app in reversed(apps):
            await stack.enter_async_context(app)
        yield load


def _handle(app: App, load: PlainLoad, consumer: str) -> None:
    @app.handle(Plain, concurrency=1)
    async def handle(message: Plain, delivery: Delivery) -> None:
        load.handled(consumer, message, delivery)
