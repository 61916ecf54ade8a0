"""Virtual clock for tests: time moves only when the test advances it, and timers fire at their exact time, in order."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

Probe: TypeAlias = Callable[[], str]
"""Function that names work in progress, for which `VirtualClock.advance` waits; an empty text if there is none."""

QUIET_TURNS: Final = 12
"""Iterations of the event loop without work in progress, in a row, after which all work counts as done."""
SPINNING_TURNS: Final = 50
"""Iterations of the event loop with work in progress, after which `settle` polls every millisecond instead of at once.

A thread or a disk is then probably at work.
"""


class Unsettled(TimeoutError):
    """Work was still in progress when `patience`, the seconds of real time to wait for it, had passed.

    The text names the work.
    """


class VirtualTimer:
    """Scheduled call of a virtual clock."""

    def __init__(self, clock: VirtualClock, call: Callable[[], object]) -> None:
        self._clock = clock
        self._call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Cancel the call."""
        self._call = None

    def fire(self) -> None:
        """Make the call now, unless it was cancelled or made before."""
        call, self._call = self._call, None
        if call is not None:
            call()

    def fire_soon(self) -> None:
        """Schedule the call for the next iteration of the event loop, because its time is not in the future."""
        self._clock.soon += 1
        asyncio.get_running_loop().call_soon(self._fire_now)

    def _fire_now(self) -> None:
        self._clock.soon -= 1
        self.fire()

    @property
    def pending(self) -> bool:
        """True until the call is made or cancelled."""
        return self._call is not None


class _Poll(NamedTuple):
    """Scheduled look for work that other processes may have left.

    :ivar when: time from which it is due.
    :ivar events: number of events of the clock when it was scheduled.
    """

    when: float
    events: int
    timer: VirtualTimer


class VirtualClock:
    """Clock that stands still until `advance` moves it. Pass it to `Broker(clock=...)` or an `App`.

    Expiry, delays, retries and timeouts use it; heartbeats and socket timeouts use real time. A virtual clock belongs
    to the event loop that runs `advance`.

    :param start: the time at the beginning, in seconds since 1970.
    :param patience: seconds of real time that `advance` waits for work in progress before it raises `Unsettled`.
    """

    def __init__(self, start: float = 1_000_000_000.0, *, patience: float = 5.0) -> None:
        self.patience = patience
        self.quiet_seconds: float = 0.0
        """Seconds of real time without work in progress after which all work counts as done, and after QUIET_TURNS at the
        earliest. A broker sets it on systems that do not report all work."""
        self.soon = 0
        """Number of calls that the next iteration of the event loop makes, because their time has come."""
        self._now = start
        self._timers: list[tuple[float, int, VirtualTimer]] = []
        self._count = itertools.count()
        self._polls: list[_Poll] = []
        self._events = 0
        """Number of calls of `advance`, and of timers that have fired: what may have left work for a poll."""
        self.fired: int = 0
        """Number of timers and polls that `advance` has fired."""
        self._probes: list[Probe] = []
        self._advancing = False

    def now(self) -> float:
        """Return the virtual time in seconds since 1970."""
        return self._now

    def wall(self) -> float:
        """Return the virtual time, which clients see as well."""
        return self._now

    def call_at(self, when: float, call: Callable[[], object]) -> VirtualTimer:
        """Schedule one call for the virtual time `when`.

        If `when` is not in the future, the call is made in the next iteration of the event loop.
        """
        timer = VirtualTimer(self, call)
        if when <= self._now:
            timer.fire_soon()
        else:
            heapq.heappush(self._timers, (when, next(self._count), timer))
        return timer

    def poll_at(self, when: float, call: Callable[[], object]) -> VirtualTimer:
        """Schedule one call that looks for work of other processes at the time `when`, or later.

        Without an event there is no work to be found, so `advance` makes the call only if the test has called `advance`
        or a timer has fired since it was scheduled, and when `advance` ends. A loop that polls every 100 ms thus makes
        a few calls in an hour of virtual time instead of 36,000.
        """
        timer = VirtualTimer(self, call)
        self._polls.append(_Poll(when, self._events, timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has moved the virtual time by `seconds`."""
        done = asyncio.Event()
        timer = self.call_at(self._now + seconds, done.set)
        try:
            await done.wait()
        finally:
            timer.cancel()

    @property
    def timers(self) -> int:
        """Number of calls that are scheduled and not cancelled."""
        return sum(timer.pending for _, _, timer in self._timers)

    def watch(self, probe: Probe) -> Callable[[], None]:
        """Make `advance` wait as long as a function reports work in progress. Return a function that removes it again.

        :param probe: returns the name of the work in progress; an empty text if there is none.
        """
        self._probes.append(probe)
        return lambda: self._probes.remove(probe)

    async def advance(self, seconds: float) -> None:
        """Move the time forward by `seconds` and fire the timers that become due, each at its time.

        Before and after each timer, wait until all work is done: no bytes are on the way between the broker and its
        clients in this process, no publisher confirm and no change of definitions waits for the disk, and no function
        that was passed to `watch` reports work in progress.

        :raises Unsettled: if that takes more than `patience` seconds of real time.
        :raises RuntimeError: if another `advance` is under way.
        """
        if self._advancing:
            raise RuntimeError("cannot advance the clock: another advance() is in progress; await it first")
        self._advancing = True
        try:
            end = self._now + seconds
            await self.settle()
            self._events += 1
            while True:
                while self._timers and not self._timers[0][2].pending:
                    heapq.heappop(self._timers)
                poll = self._next_poll()
                if poll is not None and poll.when <= min(end, self._timers[0][0] if self._timers else end):
                    await self._fire_poll(poll)
                elif self._timers and self._timers[0][0] <= end:
                    when, _, timer = heapq.heappop(self._timers)
                    self._now = max(self._now, when)
                    self.fired += 1
                    timer.fire()
                    await self.settle()
                    self._events += 1
                else:
                    break
            self._now = end
            for poll in list(self._polls):
                if poll.when <= end and poll.timer.pending:
                    await self._fire_poll(poll)
        finally:
            self._advancing = False

    def _next_poll(self) -> _Poll | None:
        """Return the first poll that may find something, because there was an event since it was scheduled."""
        self._polls = [poll for poll in self._polls if poll.timer.pending]
        return min((poll for poll in self._polls if poll.events < self._events), default=None, key=_due)

    async def _fire_poll(self, poll: _Poll) -> None:
        self._polls.remove(poll)
        self._now = max(self._now, poll.when)
        self.fired += 1
        poll.timer.fire()
        await self.settle()

    def jump(self, seconds: float) -> None:
        """Move the time forward without firing timers, to simulate an event loop that is late."""
        self._now += seconds

    async def settle(self) -> None:
        """Wait until no work is in progress. The time does not change.

        :raises Unsettled: if that takes more than `patience` seconds of real time.
        """
        deadline = time.monotonic() + self.patience
        quiet = turns = 0
        quiet_since = time.monotonic()
        while quiet < QUIET_TURNS or (
            self.quiet_seconds and time.monotonic() - quiet_since < self.quiet_seconds
        ):
            await asyncio.sleep(0 if turns < SPINNING_TURNS and quiet < QUIET_TURNS else 0.001)
            busy = self._busy()
            if not busy:
                quiet += 1
                continue
            quiet = 0
            quiet_since = time.monotonic()
            turns += 1
            if time.monotonic() > deadline:
                raise Unsettled(f"after {self.patience:g} s of real time there is still {busy}")

    def _busy(self) -> str:
        if self.soon:
            return "a call that is due"
        found = (probe() for probe in self._probes)
        return ", ".join(name for name in found if name)


def _due(poll: _Poll) -> float:
    return poll.when
