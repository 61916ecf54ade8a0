"""A clock that a test moves: what falls due on the way happens at its exact time, in order, each thing worked off first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Final, TypeAlias

Probe: TypeAlias = Callable[[], str]
"""Says what is still being worked on; empty if nothing is."""

QUIET_TURNS: Final = 12
"""So many turns of the loop in a row have to find nothing to do before the clock moves on."""
SPINNING_TURNS: Final = 50
"""After so many busy turns it is a thread or a disk that works: the loop need not look all the time."""


class Unsettled(TimeoutError):
    """What was started did not come to its end in `patience` seconds of real time; the text says what it was."""


class VirtualTimer:
    """A call that is yet to come."""

    def __init__(self, clock: VirtualClock, call: Callable[[], object]) -> None:
        self._clock = clock
        self._call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self._call = None

    def fire(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()

    def fire_soon(self) -> None:
        """It was due when it was set: it does not wait for `advance`."""
        self._clock.soon += 1
        asyncio.get_running_loop().call_soon(self._fire_now)

    def _fire_now(self) -> None:
        self._clock.soon -= 1
        self.fire()

    @property
    def pending(self) -> bool:
        return self._call is not None


class VirtualClock:
    """Time that stands still until `advance` moves it, for `Broker(clock=...)`, an App, and whoever else takes a clock.

    Expiries, delays, retries and timeouts go by it, heartbeats and socket timeouts do not. It belongs to the event loop
    that `advance` runs on.

    :param start: the time at first, in seconds since 1970.
    :param patience: how many seconds of real time `advance` waits for what was started before it raises `Unsettled`.
    """

    def __init__(self, start: float = 1_000_000_000.0, *, patience: float = 5.0) -> None:
        self.patience = patience
        self.soon = 0
        """Calls that are due now, and come with the loop's next turn."""
        self._now = start
        self._timers: list[tuple[float, int, VirtualTimer]] = []
        self._count = itertools.count()
        self._probes: list[Probe] = []
        self._advancing = False

    def now(self) -> float:
        """Seconds since 1970."""
        return self._now

    def call_at(self, when: float, call: Callable[[], object]) -> VirtualTimer:
        """Call once when `now()` has reached `when`; with the loop's next turn if it has."""
        timer = VirtualTimer(self, call)
        if when <= self._now:
            timer.fire_soon()
        else:
            heapq.heappush(self._timers, (when, next(self._count), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        """Return when `advance` has moved the time so far."""
        done = asyncio.Event()
        timer = self.call_at(self._now + seconds, done.set)
        try:
            await done.wait()
        finally:
            timer.cancel()

    @property
    def timers(self) -> int:
        """How many calls are yet to come."""
        return sum(timer.pending for _, _, timer in self._timers)

    def watch(self, probe: Probe) -> Callable[[], None]:
        """Have `advance` wait whenever `probe()` names something that is being worked on. Returns what ends that."""
        self._probes.append(probe)
        return lambda: self._probes.remove(probe)

    async def advance(self, seconds: float) -> None:
        """Move the time on by `seconds`: wait until all is worked off; go to the earliest timer that is due, fire it, and
        wait again; and so on. Worked off is: no bytes between the broker and its clients in this process, no confirm or
        definition that waits for the disk, nothing that a probe names.

        :raises Unsettled: if that takes more than `patience` seconds of real time.
        :raises RuntimeError: if another `advance` is under way.
        """
        if self._advancing:
            raise RuntimeError("the clock is being advanced already")
        self._advancing = True
        try:
            end = self._now + seconds
            await self.settle()
            while self._timers and self._timers[0][0] <= end:
                when, _, timer = heapq.heappop(self._timers)
                if timer.pending:
                    self._now = max(self._now, when)
                    timer.fire()
                    await self.settle()
            self._now = end
        finally:
            self._advancing = False

    def jump(self, seconds: float) -> None:
        """Move the time on without firing anything, as it is on a loop that is behind."""
        self._now += seconds

    async def settle(self) -> None:
        """Wait until all that was started is worked off; the time stands still.

        :raises Unsettled: if that takes more than `patience` seconds of real time.
        """
        deadline = time.monotonic() + self.patience
        quiet = turns = 0
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0 if turns < SPINNING_TURNS else 0.001)
            busy = self._busy()
            if not busy:
                quiet += 1
                continue
            quiet = 0
            turns += 1
            if time.monotonic() > deadline:
                raise Unsettled(f"after {self.patience:g} s of real time there is still {busy}")

    def _busy(self) -> str:
        if self.soon:
            return "a call that is due"
        found = (probe() for probe in self._probes)
        return ", ".join(name for name in found if name)
