"""The memory that waiting messages take, shared among the queues of the node: who has to page, and how much.

Nothing is paged while all together stay below the budget. Above it, each queue keeps in memory what it will hand out in the
next seconds at the rate at which it is consumed, the rest leaves, a slice at a time. A queue that is lazy keeps nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.model.queue.backing_queue import CONTENT_BYTES, HEAD, MESSAGE_BYTES
from warren.broker.model.queue.queue import Queue

TICK: Final = 0.1
"""Seconds between looks."""
AHEAD: Final = 2.0
"""A queue keeps in memory what it hands out in so many seconds."""
FLOOR: Final = 1024
"""Messages that a queue may keep in any case."""
UNACKED_TICK: Final = 1.0
"""Seconds between looks at what is unacknowledged."""
UNACKED_SLICE: Final = 50_000
"""Unacknowledged messages of a queue that leave memory at once."""
FEW: Final = 16
"""Messages of a queue that stay in memory without their contents, if memory is short."""
SLICE: Final = 1000
"""Messages that are paged before the time is looked at."""
SLICE_SECONDS: Final = 0.005
"""After which the loop gets its turn."""


class ConsumptionRate:
    """How fast a queue hands out its messages, a second."""

    def __init__(self, queue: Queue, now: float) -> None:
        self.queue = queue
        self.at = now
        self.taken: i64 = queue.next_sequence - queue.ready.count
        self.rate: float = 0.0

    def measure(self, now: float) -> None:
        queue = self.queue
        taken: i64 = queue.next_sequence - queue.ready.count
        passed = now - self.at
        if passed > 0.0:
            current = float(taken - self.taken) / passed
            # It falls slowly: who pauses for a moment does not lose its place.
            self.rate = (
                max(current, 0.0) if current > self.rate else self.rate * 0.8 + max(current, 0.0) * 0.2
            )
            self.taken = taken
            self.at = now


class MemoryBudget:
    """The waiting messages of all queues.

    :param budget: bytes that they may take together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, budget: i64) -> None:
        self.loop = loop
        self.budget = budget
        self.on_overload: Callable[[bool], None] = _ignore
        """Called with True when paging cannot keep up (publishers have to wait), with False when it can again."""
        self.overloaded = False
        self.rates: dict[Queue, ConsumptionRate] = {}
        self.timer: Optional[asyncio.TimerHandle] = None  # noqa: UP045
        self.next_slice: Optional[asyncio.Handle] = None  # noqa: UP045
        self.unacked_timer: Optional[asyncio.TimerHandle] = None  # noqa: UP045
        self.queues: Callable[[], Iterable[Queue]] = _none
        self.process_limit: i64 = 0
        """What the whole process may take; 0 if it is not the broker's alone."""
        self.process_memory: Callable[[], int] = _nothing
        """What it takes."""
        self.on_pressure: Callable[[], None] = _noop
        """Called when what waits has to go to delta soon."""

    def track(self, queue: Queue) -> None:
        """Messages wait there."""
        self.rates[queue] = ConsumptionRate(queue, time.monotonic())
        if self.timer is None:
            self.timer = self.loop.call_later(TICK, self.tick)

    def start(self, queues: Callable[[], Iterable[Queue]]) -> None:
        """Look after what is unacknowledged, too.

        :param queues: all queues of the node.
        """
        self.queues = queues
        self.unacked_timer = self.loop.call_later(UNACKED_TICK, self.check_unacknowledged)

    def stop(self) -> None:
        for timer in (self.timer, self.next_slice, self.unacked_timer):
            if timer is not None:
                timer.cancel()
        self.timer = self.next_slice = self.unacked_timer = None

    def memory_bytes(self) -> i64:
        """About how many bytes they take."""
        total: i64 = 0
        for queue in self.rates:
            total += queue.ready.memory_bytes()
        return total

    def check_unacknowledged(self) -> None:
        """Consumers that take much and acknowledge nothing: contents leave memory, to be read again if they come back."""
        count: i64 = 0
        many: list[Queue] = []
        for queue in self.queues():
            if queue.unacked > FLOOR and not queue.is_stream:
                many.append(queue)
                count += queue.unacked
        # They are looked through only where they may matter.
        if count * (MESSAGE_BYTES + CONTENT_BYTES) > self.budget // 8 or (count and self.process_excess()):
            total: i64 = 0
            for queue in many:
                for message in queue.unacknowledged_messages():
                    total += MESSAGE_BYTES
                    if message.content:
                        total += CONTENT_BYTES + message.body_size
            if total > self.budget // 2 or self.process_excess():
                for queue in many:
                    if not queue.memory_tracked:
                        queue.vhost.track_memory(queue)
                    queue.page_out_unacknowledged(UNACKED_SLICE)
        self.unacked_timer = self.loop.call_later(UNACKED_TICK, self.check_unacknowledged)

    def tick(self) -> None:
        self.timer = None
        now = time.monotonic()
        for rate in list(self.rates.values()):
            queue = rate.queue
            if queue.deleted or not queue.ready.count:
                queue.memory_tracked = False
                del self.rates[queue]
            else:
                rate.measure(now)
        if self.next_slice is None:
            self.page()
        if self.rates:
            self.timer = self.loop.call_later(TICK, self.tick)

    def page(self) -> None:
        """Page for a few milliseconds, and go on later if that was not enough."""
        self.next_slice = None
        until = time.monotonic() + SLICE_SECONDS
        more = False
        used = self.memory_bytes()
        progress = False
        enough: i64 = self.budget if used <= self.budget else self.budget - self.budget // 4
        pressed: i64 = self.process_excess()
        if pressed:
            enough = max(min(enough, used - pressed), 0)
            self.on_pressure()
        rates = list(self.rates.values())
        stays: i64 = self.budget // 4 // max(len(rates), 1) // MESSAGE_BYTES
        stays = FEW if pressed else max(FEW, min(HEAD, stays))
        if used > enough:
            # What is consumed last leaves first.
            rates.sort(key=_rate)
        for rate in rates:
            waiting = rate.queue.ready
            if not waiting.lazy and used <= enough:
                waiting.release_written()
                continue
            keep: i64 = 0 if waiting.lazy or pressed else self.messages_to_keep(rate)
            waiting.set_delta_keep(stays)
            while not more:
                before: i64 = waiting.memory_bytes()
                done = waiting.page_out(keep, SLICE)
                progress = progress or done > 0 or waiting.has_pending_writes()
                used -= before - waiting.memory_bytes()
                if done < SLICE or (used <= enough and not waiting.lazy):
                    break
                more = time.monotonic() > until
            if more:
                break
        # Waiting would not help where nothing can leave.
        self.update_overload(used if progress else 0)
        if more:
            self.next_slice = self.loop.call_soon(self.page)

    def process_excess(self) -> i64:
        """How much the whole process should let go of: it comes near its limit, whatever takes the memory."""
        limit = self.process_limit
        if not limit:
            return 0
        resident: i64 = self.process_memory()
        return resident - limit * 7 // 10 if resident > limit * 8 // 10 else 0

    def messages_to_keep(self, rate: ConsumptionRate) -> i64:
        """How many of a queue's messages stay in memory: what it hands out soon, as far as its share of the budget goes."""
        waiting = rate.queue.ready
        wanted = i64(rate.rate * AHEAD)
        held: i64 = waiting.resident if waiting.resident > 0 else 1
        each: i64 = max(waiting.memory_bytes() // held, 1)
        share: i64 = self.budget // 2 // len(self.rates) // each
        return max(min(wanted, share), min(FLOOR, share))

    def update_overload(self, used: i64) -> None:
        """Whether publishers have to wait, and when they may go on."""
        if not self.overloaded and used > self.budget + self.budget // 2:
            self.overloaded = True
            self.on_overload(True)
        elif self.overloaded and used < self.budget:
            self.overloaded = False
            self.on_overload(False)


def _ignore(_: bool) -> None:
    return


def _none() -> Iterable[Queue]:
    return ()


def _noop() -> None:
    return


def _nothing() -> int:
    return 0


def _rate(rate: ConsumptionRate) -> float:
    return rate.rate
