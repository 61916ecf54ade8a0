"""Test harness: run Apps, publish, advance the time, and check what was handled and published."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, Unpack

from warren.sdk import App, Clock, Delivery, Duration, Message, MessageOptions, Outgoing, Request, State
from warren.sdk.extend import (
    CALL_SECONDS,
    PUBLISH_SECONDS,
    Reliability,
    decode,
    override_for_test,
    seconds,
    wire_names,
)
from warren.sdk.extend import duration as parse_duration
from warren.testing.clocks import HandlerClock
from warren.testing.dead_letters import DeadLettered, DeadLetters
from warren.testing.environments import LiveEnvironment, TestEnvironment, VirtualEnvironment

Content = TypeVar("Content")
Sent = TypeVar("Sent", bound=Message)
Answer = TypeVar("Answer")

GRACE_SECONDS = 0.2
"""Real seconds that running handlers get to finish at the end of a test. Longer is of no use, because the test's time
no longer passes."""
STEP_SECONDS = 0.05
"""Seconds of the test's time by which the clock advances in one step while `call` waits for a handler that sleeps."""


class Warren:
    """Harness that runs Apps on a broker with a clock that the test controls, so that an hour of waiting takes no real
    time.

    Handlers, delays, deadlines, leases and TTLs use the test's clock. The timeouts of `publish` and `call`, heartbeats
    and sockets use real time.

    :param url: URL of a live broker; by default the broker runs in this process, and its time passes only by `advance`.
    :param scale: how many times faster than real time the time passes on a live broker.
    """

    def __init__(self, url: str | None = None, scale: float = 1.0) -> None:
        self._environment: TestEnvironment = (
            VirtualEnvironment() if url is None else LiveEnvironment(url, scale)
        )
        self._clock = HandlerClock(self._environment.clock)
        self._apps: tuple[App, ...] = ()
        self._own: App | None = None
        self._url: str | None = None
        self._handled: list[tuple[Any, Any]] = []
        self._published: list[Outgoing] = []
        self._dead_letters = DeadLetters()

    # Environment

    @asynccontextmanager
    async def running(self, *apps: App) -> AsyncIterator[Warren]:
        """Run the Apps on the test's broker and clock until the block ends.

        The Apps must not be running already. At the end they get back their own URL and clock, and may run again.
        """
        if self._url is not None:
            raise RuntimeError("this test runs its Apps already: warren.running(first, second)")
        async with AsyncExitStack() as stack:
            self._url = url = await stack.enter_async_context(self._environment.open(self._pending_work))
            stack.callback(self._reset)
            self._dead_letters = DeadLetters()
            self._handled.clear()
            self._published.clear()
            own = App(url, name="test", clock=self._clock)
            self._dead_letters.consume_with(own)
            self._own = await stack.enter_async_context(own)
            for app in apps:
                stack.enter_context(
                    override_for_test(
                        app,
                        url=url,
                        clock=self._clock,
                        grace=GRACE_SECONDS,
                        handled=self._record_handled,
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
        """URL of the broker, for clients that are not Apps.

        :raises RuntimeError: outside of `running`.
        """
        if self._url is None:
            raise RuntimeError("there is no broker yet: async with warren.running(app): ...")
        return self._url

    @property
    def clock(self) -> Clock:
        """Clock that follows the test's time, for stores and services that take one."""
        return self._clock

    @property
    def patience(self) -> float:
        """Seconds of real time that unfinished work may take before a wait fails: 5 by default, 15 on a live broker."""
        return self._environment.patience

    @patience.setter
    def patience(self, length: Duration) -> None:
        self._environment.patience = seconds(length, "patience")

    @property
    def now(self) -> datetime:
        """Return the test's current time. It starts at the real time."""
        return datetime.fromtimestamp(self._environment.now(), UTC)

    # Actions

    async def publish(
        self,
        message: object,
        *,
        timeout: Duration = PUBLISH_SECONDS,
        reliability: Reliability = "at_least_once",
        **options: Unpack[MessageOptions],
    ) -> None:
        """Publish as a client outside of the Apps, and wait until the message and the messages that its handlers
        publish are handled.

        Messages that are delayed, and handlers that sleep, are not awaited. Parameters are those of `App.publish`;
        `timeout` bounds the wait for the broker's confirm.

        :raises Unsettled: if the handlers take more than `patience` seconds (an attribute of this object) of real time.
        """
        client = self._client()
        if isinstance(message, Message):
            await self._dead_letters.follow(client, type(message).required_topology())
        await client.publish(message, timeout=timeout, reliability=reliability, **options)
        await self.settle()

    async def call(
        self, request: Request[Answer], *, timeout: Duration = CALL_SECONDS, message_id: str | None = None
    ) -> Answer:
        """Publish a request as a client outside of the Apps, and return the answer of its handler.

        While a handler of the request sleeps, the test's time advances, so that the handler can finish.

        :param timeout: seconds, a `timedelta` or a text such as `5s`, in real time, to wait for the answer.
        :param message_id: id of the request; by default a new one.
        """
        client = self._client()
        calling = asyncio.ensure_future(client.call(request, timeout=timeout, message_id=message_id))
        try:
            while not calling.done():
                await self.settle()
                if self._clock.asleep():
                    await self._environment.advance(STEP_SECONDS)
                else:
                    await asyncio.wait((calling,), timeout=STEP_SECONDS)
        finally:
            calling.cancel()
        return await calling

    async def advance(
        self,
        duration: Duration = 0.0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Let the test's time pass. Delays, TTLs, deadlines and sleeps that end meanwhile do so at their times and in
        order, each with all the work that follows from it.

        :param duration: time to let pass (a `timedelta`, seconds, or a text such as `1h30m`), to which the
            other parameters (`days` to `milliseconds`) are added.
        :raises Unsettled: if something takes more than `patience` seconds of real time, such as a handler that waits
            for an external service.
        """
        length = parse_duration(duration, "duration") + timedelta(
            days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
        )
        await self._follow()
        await self._environment.advance(length.total_seconds())

    async def settle(self) -> None:
        """Wait until all messages that can be delivered now have been published, handled and acknowledged.

        Delayed messages, timers and handlers that sleep are not awaited.

        :raises Unsettled: if that takes more than `patience` seconds of real time.
        """
        await self._follow()
        await self._environment.settle()

    # Results

    def handled(self, kind: type[Content]) -> list[Content]:
        """Return the messages of this class (or of a subclass) whose handlers returned, in the order in which they
        returned.

        A message that several queues handle is listed once for each queue.
        """
        return [
            message
            for declared, message in self._handled
            if isinstance(message, kind)
            if not isinstance(declared, type) or issubclass(declared, kind) or issubclass(kind, declared)
        ]

    def published(self, kind: type[Sent]) -> list[Sent]:
        """Return the messages of this class (or of a subclass) that the Apps published, in the order of the broker's
        confirms.

        Messages that the test published are not included.
        """
        # If two classes have the same name on the wire, the requested class takes precedence.
        kinds = {name: each for each in reversed(list(_family(kind))) for name in wire_names(each)}
        return [
            decode(kinds[str(sent.properties["type"])], _as_delivery(sent))
            for sent in self._published
            if sent.properties.get("type") in kinds
        ]

    @property
    def dead_letters(self) -> list[DeadLettered]:
        """Messages that the Apps' queues dead-lettered, in the order of arrival, whether a handler, the SDK or the
        broker was the cause."""
        return list(self._dead_letters.received)

    # Internals

    def _client(self) -> App:
        if self._own is None:
            raise RuntimeError("there is no broker yet: async with warren.running(app): ...")
        return self._own

    async def _follow(self) -> None:
        """Bind the test's queue for dead letters so that it also gets those of the queues that the Apps have declared
        since the last call."""
        own = self._client()
        for app in self._apps:
            await self._dead_letters.follow(own, app.topology)

    def _record_handled(self, kind: Any, message: Any) -> None:
        self._handled.append((kind, message))

    def _reset(self) -> None:
        self._own = self._url = None
        self._apps = ()

    def _pending_work(self) -> str:
        """Return a description of the Apps' unfinished work, such as a running handler; empty if they are idle."""
        running, calls = Counter[str](), 0
        for app in (self._client(), *self._apps):
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
                # Messages that wait for the rest of their batch wait for the clock.
                # A delivery has the name of its stream, a subscription that of the stream and its reader.
                running[app.subscriptions[queue].queue.name] += subscription.running - gathering
        asleep = self._clock.asleep()
        awake = running - asleep
        if asleep and awake.total() <= calls:
            return ""  # They wait for replies of handlers that sleep.
        return f"a handler of queue {min(awake)}" if awake else ""


def _as_delivery(sent: Outgoing) -> Delivery:
    """Return a published message as a delivery, as its consumer would receive it, so that it can be decoded."""
    return Delivery(
        sent.body, sent.exchange, sent.routing_key, "", False, headers=None, properties=sent.properties
    )


def _family(kind: type[Sent]) -> Iterator[type[Sent]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _family(below)
