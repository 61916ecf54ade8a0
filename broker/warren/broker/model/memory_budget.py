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
from warren.broker.model.queue.unacknowledged_paging import page_unacked, unacknowledged

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


class Rate:
    """How fast a queue hands out its messages, a second."""

    def __init__(self, queue: Queue, now: float) -> None:
        self.queue = queue
        self.at = now
        self.taken: i64 = queue.next_sequence - queue.waiting.count
        self.rate: float = 0.0

    def measure(self, now: float) -> None:
        queue = self.queue
        taken: i64 = queue.next_sequence - queue.waiting.count
        passed = now - self.at
        if passed > 0.0:
            current = float(taken - self.taken) / passed
            # It falls slowly: who pauses for a moment does not lose its place.
            self.rate = (
                max(current, 0.0) if current > self.rate else self.rate * 0.8 + max(current, 0.0) * 0.2
            )
            self.taken = taken
            self.at = now


class Memory:
    """The waiting messages of all queues.

    :param budget: bytes that they may take together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, budget: i64) -> None:
        self.loop = loop
        self.budget = budget
        self.on_behind: Callable[[bool], None] = _ignore
        """Called with True when paging cannot keep up (publishers have to wait), with False when it can again."""
        self.behind = False
        self.rates: dict[Queue, Rate] = {}
        self.timer: Optional[asyncio.TimerHandle] = None  # noqa: UP045
        self.soon: Optional[asyncio.Handle] = None  # noqa: UP045
        self.unacked_timer: Optional[asyncio.TimerHandle] = None  # noqa: UP045
        self.queues: Callable[[], Iterable[Queue]] = _none
        self.limit: i64 = 0
        """What the whole process may take; 0 if it is not the broker's alone."""
        self.resident: Callable[[], int] = _nothing
        """What it takes."""
        self.hurry: Callable[[], None] = _noop
        """Called when what waits has to go to delta soon."""

    def watch(self, queue: Queue) -> None:
        """Messages wait there."""
        self.rates[queue] = Rate(queue, time.monotonic())
        if self.timer is None:
            self.timer = self.loop.call_later(TICK, self.tick)

    def start(self, queues: Callable[[], Iterable[Queue]]) -> None:
        """Look after what is unacknowledged, too.

        :param queues: all queues of the node.
        """
        self.queues = queues
        self.unacked_timer = self.loop.call_later(UNACKED_TICK, self.look_at_unacked)

    def stop(self) -> None:
        for timer in (self.timer, self.soon, self.unacked_timer):
            if timer is not None:
                timer.cancel()
        self.timer = self.soon = self.unacked_timer = None

    def used(self) -> i64:
        """About how many bytes they take."""
        total: i64 = 0
        for queue in self.rates:
            total += queue.waiting.memory()
        return total

    def look_at_unacked(self) -> None:
        """Consumers that take much and acknowledge nothing: contents leave memory, to be read again if they come back."""
        count: i64 = 0
        many: list[Queue] = []
        for queue in self.queues():
            if queue.unacked > FLOOR and not queue.streamed:
                many.append(queue)
                count += queue.unacked
        # They are looked through only where they may matter.
        if count * (MESSAGE_BYTES + CONTENT_BYTES) > self.budget // 8 or (count and self.excess()):
            total: i64 = 0
            for queue in many:
                for message in unacknowledged(queue):
                    total += MESSAGE_BYTES
                    if message.content:
                        total += CONTENT_BYTES + message.body_size
            if total > self.budget // 2 or self.excess():
                for queue in many:
                    if not queue.watched:
                        queue.vhost.watch(queue)
                    page_unacked(queue, UNACKED_SLICE)
        self.unacked_timer = self.loop.call_later(UNACKED_TICK, self.look_at_unacked)

    def tick(self) -> None:
        self.timer = None
        now = time.monotonic()
        for rate in list(self.rates.values()):
            queue = rate.queue
            if queue.deleted or not queue.waiting.count:
                queue.watched = False
                del self.rates[queue]
            else:
                rate.measure(now)
        if self.soon is None:
            self.work()
        if self.rates:
            self.timer = self.loop.call_later(TICK, self.tick)

    def work(self) -> None:
        """Page for a few milliseconds, and go on later if that was not enough."""
        self.soon = None
        until = time.monotonic() + SLICE_SECONDS
        more = False
        used = self.used()
        progress = False
        enough: i64 = self.budget if used <= self.budget else self.budget - self.budget // 4
        pressed: i64 = self.excess()
        if pressed:
            enough = max(min(enough, used - pressed), 0)
            self.hurry()
        rates = list(self.rates.values())
        stays: i64 = self.budget // 4 // max(len(rates), 1) // MESSAGE_BYTES
        stays = FEW if pressed else max(FEW, min(HEAD, stays))
        if used > enough:
            # What is consumed last leaves first.
            rates.sort(key=_rate)
        for rate in rates:
            waiting = rate.queue.waiting
            if not waiting.lazy and used <= enough:
                waiting.settle()
                continue
            keep: i64 = 0 if waiting.lazy or pressed else self.keep(rate)
            waiting.set_stays(stays)
            while not more:
                before: i64 = waiting.memory()
                done = waiting.page_out(keep, SLICE)
                progress = progress or done > 0 or waiting.unsettled()
                used -= before - waiting.memory()
                if done < SLICE or (used <= enough and not waiting.lazy):
                    break
                more = time.monotonic() > until
            if more:
                break
        # Waiting would not help where nothing can leave.
        self.judge(used if progress else 0)
        if more:
            self.soon = self.loop.call_soon(self.work)

    def excess(self) -> i64:
        """How much the whole process should let go of: it comes near its limit, whatever takes the memory."""
        limit = self.limit
        if not limit:
            return 0
        resident: i64 = self.resident()
        return resident - limit * 7 // 10 if resident > limit * 8 // 10 else 0

    def keep(self, rate: Rate) -> i64:
        """How many of a queue's messages stay in memory: what it hands out soon, as far as its share of the budget goes."""
        waiting = rate.queue.waiting
        wanted = i64(rate.rate * AHEAD)
        held: i64 = waiting.resident if waiting.resident > 0 else 1
        each: i64 = max(waiting.memory() // held, 1)
        share: i64 = self.budget // 2 // len(self.rates) // each
        return max(min(wanted, share), min(FLOOR, share))

    def judge(self, used: i64) -> None:
        """Whether publishers have to wait, and when they may go on."""
        if not self.behind and used > self.budget + self.budget // 2:
            self.behind = True
            self.on_behind(True)
        elif self.behind and used < self.budget:
            self.behind = False
            self.on_behind(False)


def _ignore(_: bool) -> None:
    return


def _none() -> Iterable[Queue]:
    return ()


def _noop() -> None:
    return


def _nothing() -> int:
    return 0


def _rate(rate: Rate) -> float:
    return rate.rate
