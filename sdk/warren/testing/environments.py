"""Where a test plays: on a broker of its own whose time stands still, or on a live one whose time runs faster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol
from uuid import uuid4

from warren.broker import Broker, VirtualClock
from warren.broker.model.virtual_clock import Probe, Unsettled
from warren.sdk import Clock, Timer
from warren.testing.name_rewriting import NameRewriter
from warren.testing.proxy import RewritingProxy

QUIET_SECONDS: Final = 0.15
"""On a live broker all is done when nothing has moved for so long: it says nothing of what it does inside."""
POLL_SECONDS: Final = 0.01


class TestEnvironment(Protocol):
    """A broker, its time, and how to wait until all is done.

    :ivar patience: seconds of real time that what was started has to end.
    """

    patience: float

    @property
    def clock(self) -> Clock: ...

    def now(self) -> float:
        """How far the story is, in seconds since 1970."""
        ...

    def open(self, probe: Probe) -> AbstractAsyncContextManager[str]:
        """Start; the URL for clients.

        :param probe: says what clients are working on.
        """
        ...

    async def advance(self, seconds: float) -> None: ...

    async def settle(self) -> None:
        """:raises Unsettled: if something is not done in time."""
        ...


class VirtualEnvironment:
    """A broker in this process on a virtual clock."""

    def __init__(self) -> None:
        # Whole seconds: sums of times and delays are exact to the millisecond then.
        self._clock = VirtualClock(start=float(int(time.time())))

    @property
    def clock(self) -> Clock:
        return self._clock

    def now(self) -> float:
        return self._clock.now()

    @property
    def patience(self) -> float:
        return self._clock.patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        self._clock.patience = seconds

    @asynccontextmanager
    async def open(self, probe: Probe) -> AsyncIterator[str]:
        async with Broker(clock=self._clock) as broker:
            unwatch = self._clock.watch(probe)
            try:
                yield broker.url
            finally:
                unwatch()

    async def advance(self, seconds: float) -> None:
        await self._clock.advance(seconds)

    async def settle(self) -> None:
        await self._clock.settle()


class LiveEnvironment:
    """A live broker behind a relay that gives the test names of its own and divides its waiting times.

    The broker's time runs on while nothing happens, the story's does not: it is where the last thing happened, or what
    `advance` went to. `advance` counts from there, so that finding out that all is done costs the story no time.
    """

    def __init__(self, url: str, scale: float) -> None:
        self._url = url
        self._clock = ScaledClock(scale)
        self._scale = scale
        self._relay: RewritingProxy | None = None
        self._probe: Probe = str
        self._told = self._clock.now()
        self.patience: float = 15.0

    @property
    def clock(self) -> Clock:
        return self._clock

    def now(self) -> float:
        return self._told

    @asynccontextmanager
    async def open(self, probe: Probe) -> AsyncIterator[str]:
        self._probe = probe
        async with RewritingProxy(self._url, NameRewriter(f".t{uuid4().hex[:8]}", self._scale)) as relay:
            self._relay = relay
            yield relay.url

    async def advance(self, seconds: float) -> None:
        await self.settle()
        self._told += seconds
        await self._clock.sleep(self._told - self._clock.now())
        await self.settle()

    async def settle(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._relay is not None
        began = quiet = loop.time()
        while loop.time() < quiet + QUIET_SECONDS:
            await asyncio.sleep(POLL_SECONDS)
            busy = self._probe()
            quiet = loop.time() if busy else max(quiet, self._relay.moved)
            if busy and loop.time() > began + self.patience:
                raise Unsettled(f"after {self.patience:g} s of real time there is still {busy}")
        happened = self._clock.now() - (loop.time() - quiet) * self._scale
        if quiet > began:
            self._told = max(self._told, happened)


class ScaledClock:
    """Time that runs `scale` times as fast as the real one, from now on."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._began = time.time()
        self._real = time.monotonic()

    def now(self) -> float:
        return self._began + (time.monotonic() - self._real) * self._scale

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, when - self.now()) / self._scale, callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self._scale)
