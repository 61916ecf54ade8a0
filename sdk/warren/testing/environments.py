"""Test environments: a broker in this process on a virtual clock, or a live broker with scaled time."""

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
"""Seconds without a frame from or to a live broker after which it counts as idle. The broker's internal work, such as
dead-lettering, cannot be observed."""
POLL_SECONDS: Final = 0.01


class TestEnvironment(Protocol):
    """Broker and clock of a test, with methods to let time pass and to wait until the broker and the Apps are idle.

    :ivar patience: seconds of real time that handlers and publishes may take before `settle` fails.
    """

    patience: float

    @property
    def clock(self) -> Clock: ...

    def now(self) -> float:
        """Return the test's current time, in seconds since 1970."""
        ...

    def open(self, probe: Probe) -> AbstractAsyncContextManager[str]:
        """Return a context that runs the broker, or a proxy to a live broker, until the block ends. It yields the URL
        for clients.

        :param probe: returns a description of the work that the Apps and the test have not finished, empty if they are
            idle. It is called repeatedly while `advance` and `settle` wait.
        """
        ...

    async def advance(self, seconds: float) -> None:
        """Let `seconds` of the test's time pass, and wait until all handlers
        and publishes that this started have finished.
        """
        ...

    async def settle(self) -> None:
        """Wait until the broker and the Apps are idle.

        They are idle when no message can be delivered now, no handler runs (except sleeping ones),
        and the next timer is in the future of the test's time.

        :raises Unsettled: if it takes longer than `patience`.
        """
        ...


class VirtualEnvironment:
    """Broker in this process on a virtual clock, whose time passes only when the test advances it."""

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
    """Live broker behind a proxy, which isolates the test by a suffix on the names of queues and exchanges, and divides
    TTLs and delays by `scale`.

    The broker's clock runs all the time, but the test's time stands still while the broker and the Apps are idle. It is
    the time of the last activity (a frame, or a handler that ran), or the end of the last `advance` if that is later.
    `advance` counts from there, so waiting for idleness does not use up the test's time.

    :param scale: how many times faster than real time the test's time passes.
    """

    def __init__(self, url: str, scale: float) -> None:
        self._url = url
        self._clock = ScaledClock(scale)
        self._scale = scale
        self._proxy: RewritingProxy | None = None
        self._probe: Probe = str
        self._test_time = self._clock.now()
        self.patience: float = 15.0

    @property
    def clock(self) -> Clock:
        return self._clock

    def now(self) -> float:
        return self._test_time

    @asynccontextmanager
    async def open(self, probe: Probe) -> AsyncIterator[str]:
        self._probe = probe
        async with RewritingProxy(self._url, NameRewriter(f".t{uuid4().hex[:8]}", self._scale)) as proxy:
            self._proxy = proxy
            yield proxy.url

    async def advance(self, seconds: float) -> None:
        await self.settle()
        self._test_time += seconds
        await self._clock.sleep(self._test_time - self._clock.now())
        await self.settle()

    async def settle(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._proxy is not None
        began = quiet = loop.time()
        while loop.time() < quiet + QUIET_SECONDS:
            await asyncio.sleep(POLL_SECONDS)
            busy = self._probe()
            quiet = loop.time() if busy else max(quiet, self._proxy.last_frame_at)
            if busy and loop.time() > began + self.patience:
                raise Unsettled(f"after {self.patience:g} s of real time there is still {busy}")
        last_activity = self._clock.now() - (loop.time() - quiet) * self._scale
        if quiet > began:
            self._test_time = max(self._test_time, last_activity)


class ScaledClock:
    """Clock that starts at the current time and runs `scale` times as fast as real time."""

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
