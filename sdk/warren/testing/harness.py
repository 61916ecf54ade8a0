"""A test as a story: Apps run, messages are published, time passes, and what was handled can be asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, Unpack

from warren.sdk import App, Clock, Delivery, Message, MessageOptions, Outgoing, Request, State
from warren.sdk.extend import CALL_SECONDS, PUBLISH_SECONDS, Reliability, decode, override_for_test
from warren.testing.clocks import HandlerClock
from warren.testing.dead_letters import DeadLettered, DeadLetters
from warren.testing.environments import LiveEnvironment, TestEnvironment, VirtualEnvironment

Content = TypeVar("Content")
Sent = TypeVar("Sent", bound=Message)
Answer = TypeVar("Answer")

GRACE_SECONDS = 0.2
"""What still runs when a test is over waits for nothing that would come."""
STEP_SECONDS = 0.05


class Warren:
    """Apps on a broker and its time: an hour passes as soon as all in it is done.

    Handlers, delays, deadlines, leases and TTLs go by that time; the timeouts of `publish` and `call`, heartbeats and
    sockets by real time.

    :param url: a live broker; by default one in this process, whose time stands still until `advance` moves it.
    :param scale: how many times as fast the time passes on a live broker.
    """

    def __init__(self, url: str | None = None, scale: float = 1.0) -> None:
        self._stage: TestEnvironment = VirtualEnvironment() if url is None else LiveEnvironment(url, scale)
        self._clock = HandlerClock(self._stage.clock)
        self._apps: tuple[App, ...] = ()
        self._own: App | None = None
        self._url: str | None = None
        self._handled: list[tuple[Any, Any]] = []
        self._published: list[Outgoing] = []
        self._dead_letters = DeadLetters()

    # The stage

    @asynccontextmanager
    async def running(self, *apps: App) -> AsyncIterator[Warren]:
        """Run the Apps on the test's broker, by the test's clock, until the block ends.

        They must not run yet, and may be run again afterwards. What Apps are given of their own (URL, clock) comes back.
        """
        if self._url is not None:
            raise RuntimeError("this test runs its Apps already: warren.running(first, second)")
        async with AsyncExitStack() as stack:
            self._url = url = await stack.enter_async_context(self._stage.open(self._unfinished))
            stack.callback(self._leave)
            self._dead_letters = DeadLetters()
            self._handled.clear()
            self._published.clear()
            own = App(url, name="test", clock=self._clock)
            self._dead_letters.listen(own)
            self._own = await stack.enter_async_context(own)
            for app in apps:
                stack.enter_context(
                    override_for_test(
                        app,
                        url=url,
                        clock=self._clock,
                        grace=GRACE_SECONDS,
                        handled=self._hear,
                        published=self._published.append,
                    )
                )
            for app in apps:
                await self._dead_letters.follow(own, app.topology)
                await stack.enter_async_context(app)
            self._apps = apps
            yield self

    @property
    def url(self) -> str:
        """The broker's, for clients that are no App.

        :raises RuntimeError: outside of `running`.
        """
        if self._url is None:
            raise RuntimeError("there is no broker yet: async with warren.running(app): ...")
        return self._url

    @property
    def clock(self) -> Clock:
        """The test's time, for stores and services that take a clock."""
        return self._clock

    @property
    def patience(self) -> float:
        """Seconds of real time that what was started has to end: 5, and 15 on a live broker."""
        return self._stage.patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        self._stage.patience = seconds

    @property
    def now(self) -> datetime:
        """The test's time; it begins with the real one."""
        return datetime.fromtimestamp(self._stage.now(), UTC)

    # The story

    async def publish(
        self,
        message: object,
        *,
        timeout: float = PUBLISH_SECONDS,
        reliability: Reliability = "at_least_once",
        **options: Unpack[MessageOptions],
    ) -> None:
        """`app.publish` from outside of the Apps, and all that follows from it now.

        :raises Unsettled: if that takes more than `patience` seconds of real time.
        """
        player = self._player()
        if isinstance(message, Message):
            await self._dead_letters.follow(player, type(message).required_topology())
        await player.publish(message, timeout=timeout, reliability=reliability, **options)
        await self.settle()

    async def call(
        self, request: Request[Answer], *, timeout: float = CALL_SECONDS, message_id: str | None = None
    ) -> Answer:
        """`app.call` from outside of the Apps; time passes for as long as the handlers that it comes to sleep."""
        player = self._player()
        calling = asyncio.ensure_future(player.call(request, timeout=timeout, message_id=message_id))
        try:
            while not calling.done():
                await self.settle()
                if self._clock.asleep():
                    await self._stage.advance(STEP_SECONDS)
                else:
                    await asyncio.wait((calling,), timeout=STEP_SECONDS)
        finally:
            calling.cancel()
        return await calling

    async def advance(
        self,
        duration: timedelta = timedelta(),
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Let time pass: what falls due on the way happens at its time, in order, each with all that follows from it.

        :raises Unsettled: if something takes more than `patience` seconds of real time: a handler that waits for what
            is outside.
        """
        duration += timedelta(
            days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
        )
        await self._follow()
        await self._stage.advance(duration.total_seconds())

    async def settle(self) -> None:
        """Wait until all that is due now has been done: published, handled, acknowledged.

        :raises Unsettled: if that takes more than `patience` seconds of real time.
        """
        await self._follow()
        await self._stage.settle()

    # What came of it

    def handled(self, kind: type[Content]) -> list[Content]:
        """The messages of this class (or of a subclass) whose handlers returned, in that order.

        A message that several queues handle counts once for each.
        """
        return [
            message
            for declared, message in self._handled
            if isinstance(message, kind)
            if not isinstance(declared, type) or issubclass(declared, kind) or issubclass(kind, declared)
        ]

    def published(self, kind: type[Sent]) -> list[Sent]:
        """The messages of this class (or of a subclass) that the Apps published, in the order of their confirms.

        What the test publishes is not among them.
        """
        # Of two classes of one name on the wire, the one that is asked for comes first.
        kinds = {each.wire_type: each for each in reversed(list(_family(kind)))}
        return [
            decode(kinds[str(sent.properties["type"])], _arrived(sent))
            for sent in self._published
            if sent.properties.get("type") in kinds
        ]

    @property
    def dead_letters(self) -> list[DeadLettered]:
        """What died in the Apps' queues, in that order, whether a handler, the SDK or the broker gave it up."""
        return list(self._dead_letters.heard)

    # Inside

    def _player(self) -> App:
        if self._own is None:
            raise RuntimeError("there is no broker yet: async with warren.running(app): ...")
        return self._own

    async def _follow(self) -> None:
        """Queues that were declared meanwhile may hold dead letters as well."""
        own = self._player()
        for app in self._apps:
            await self._dead_letters.follow(own, app.topology)

    def _hear(self, kind: Any, message: Any) -> None:
        self._handled.append((kind, message))

    def _leave(self) -> None:
        self._own = self._url = None
        self._apps = ()

    def _unfinished(self) -> str:
        """What the Apps are working on; empty if nothing."""
        running, calls = Counter[str](), 0
        for app in (self._player(), *self._apps):
            if app.state is State.CLOSED:
                continue
            statistics = app.statistics()
            if statistics.publisher.unconfirmed:
                return "a publish that is not confirmed"
            if app.busy:
                return app.busy
            calls += statistics.calls.in_flight
            for queue, subscription in statistics.subscriptions.items():
                gathering = statistics.handlers[queue].gathering if queue in statistics.handlers else 0
                # What waits for the rest of its batch waits for the time.
                running[queue] += subscription.running - gathering
        asleep = self._clock.asleep()
        awake = running - asleep
        if asleep and awake.total() <= calls:
            return ""  # They wait for the answers of those that sleep.
        return f"a handler of queue {min(awake)}" if awake else ""


def _arrived(sent: Outgoing) -> Delivery:
    return Delivery(
        sent.body, sent.exchange, sent.routing_key, "", False, headers=None, properties=sent.properties
    )


def _family(kind: type[Sent]) -> Iterator[type[Sent]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _family(below)
