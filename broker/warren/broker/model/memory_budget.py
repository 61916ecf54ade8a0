"""Memory budget of the messages in queues: decides which queues page contents out to disk, and how much.

Queues page out while all queues together are above the budget, or the process is near its memory limit. Above the
budget, each queue keeps the messages in memory that it will deliver in the next seconds at its current rate, and pages
out the rest. A queue in the mode lazy always pages out everything.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.model.queue.backing_queue import CONTENT_BYTES, HEAD, MESSAGE_BYTES
from warren.broker.model.queue.queue import Queue

TICK: Final = 0.1
"""Seconds between two checks of the budget."""
AHEAD: Final = 2.0
"""Seconds of deliveries at the current rate for which a queue keeps messages in memory above the budget."""
FLOOR: Final = 1024
"""Messages that a queue keeps in memory however slowly it delivers, unless they exceed its share of the budget.

The share is half of the budget, divided by the number of queues with waiting messages.
"""
RESTING_AFTER: Final = 10
"""Checks in which nothing has changed in a queue, after which it rests: it is not checked before a message arrives in it."""
RESTING_SECONDS: Final = 60.0
"""Seconds in which all resting queues are looked at once, because deliveries do not wake them."""
UNACKED_TICK: Final = 1.0
"""Least seconds between two checks of unacknowledged messages."""
UNACKED_REST: Final = 500
"""Time that passes until the next such check if nothing has changed, as a multiple of the time that this one has taken."""
UNACKED_LONGEST_REST: Final = 30.0
"""Most seconds until then."""
UNACKED_BUSY_REST: Final = 5.0
"""Most seconds until the next such check if something has changed."""
UNACKED_SLICE: Final = 50_000
"""Unacknowledged messages of one queue that each check (once a second) pages out at most."""
FEW: Final = 16
"""Messages at the head of a queue that stay in memory without content when memory is short.

All others are on disk only and take no memory.
"""
MANY_QUEUES: Final = 500
"""Queues with waiting messages from which on the budget is checked in slices: 10,000 take 50 ms."""
CHUNK: Final = 32
"""Queues that are checked before the time is, if there are so many."""
REST: Final = 20
"""Time that passes until the next check of so many queues, as a multiple of the time that this one has taken."""
LONGEST_REST: Final = 1.0
"""Most seconds until then."""
SLICE: Final = 250
"""Messages that are paged out between two checks of the elapsed time."""
SLICE_SECONDS: Final = 0.001
"""Seconds after which a check or paging is interrupted, so that the event loop can run other callbacks. An iteration of the
loop may have a slice of each of them, beside that of management work."""
SORTED_AT_ONCE: Final = 500
"""Queues that are put in order between two checks of the elapsed time."""


class ConsumptionRate:
    """Measured delivery rate of a queue, in messages a second."""

    def __init__(self, queue: Queue, now: float) -> None:
        self.queue = queue
        self.at = now
        self.delivered: i64 = queue.next_sequence - queue.ready.count
        self.rate: float = 0.0
        self.memory: i64 = 0
        """Bytes of memory that the queue's ready messages took at the last call of `measure`."""
        self.unchanged: i64 = 0
        """Calls of `measure` since the last change in the queue."""

    def measure(self, now: float) -> None:
        """Update the rate from the messages that were delivered since the last call.

        It rises at once and falls slowly, so that a short pause of the consumers does not page out the next messages.

        :param now: the time of `time.monotonic`.
        """
        queue = self.queue
        delivered: i64 = queue.next_sequence - queue.ready.count
        memory: i64 = queue.ready.memory_bytes()
        if delivered == self.delivered and memory == self.memory:
            self.unchanged += 1
        else:
            self.unchanged = 0
            self.memory = memory
        passed = now - self.at
        if passed > 0.0:
            current = float(delivered - self.delivered) / passed
            self.rate = (
                max(current, 0.0) if current > self.rate else self.rate * 0.8 + max(current, 0.0) * 0.2
            )
            self.delivered = delivered
            self.at = now


class MemoryBudget:
    """Guard of the memory that messages in queues take: pages contents out to disk, or blocks publishers.

    Publishers are blocked only while paging cannot keep up with them: the broker stops reading from their connections,
    without an alarm and without connection.blocked.

    :param budget: bytes that the messages of all queues may take together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, budget: i64) -> None:
        self.loop = loop
        self.budget = budget
        self.on_overload: Callable[[bool], None] = _ignore
        """Callback that blocks publishers (True) when paging cannot keep up with them, and unblocks them (False)."""
        self.overloaded = False
        """True while publishers are blocked, because paging cannot keep up with them."""
        self.paged_out: i64 = 0
        """Contents of messages that were paged out since the start, and messages that then left memory entirely."""
        self.rates: dict[Queue, ConsumptionRate] = {}
        """Queues with waiting messages, and the rates at which they deliver; without those that rest."""
        self.resting: dict[Queue, ConsumptionRate] = {}
        """Queues with waiting messages in which nothing has changed for a while, with their last rates."""
        self.resting_bytes: i64 = 0
        """Bytes of memory that the messages of resting queues took when they began to rest."""
        self.resting_look: Iterator[None] = iter(())
        """Look at the resting queues, one by one, of which each check does a part."""
        self.looked_at = 0.0
        """Time of the last part, by `time.monotonic()`."""
        self.wants_all = False
        """True if the next check has to wake the resting queues, because memory is short."""
        self.timer: Optional[asyncio.TimerHandle] = None  # noqa: UP045
        self.next_slice: Optional[asyncio.Handle] = None  # noqa: UP045
        self.many_queues: i64 = MANY_QUEUES
        """Queues with waiting messages from which on the budget is checked in slices."""
        self.slice_seconds = SLICE_SECONDS
        """Seconds of a slice. With 0, one chunk of queues is checked, or the messages of one are paged out."""
        self.check: Optional[Iterator[None]] = None  # noqa: UP045
        """Unfinished check of many queues."""
        self.check_seconds = 0.0
        """Seconds that this check has taken so far."""
        self.slice_end = 0.0
        """Time at which its current slice ends, by `time.monotonic()`."""
        self.unacked_timer: Optional[asyncio.TimerHandle] = None  # noqa: UP045
        self.unacked_slice: Optional[asyncio.Handle] = None  # noqa: UP045
        self.unacked_check: Optional[Iterator[None]] = None  # noqa: UP045
        """Unfinished check of unacknowledged messages."""
        self.unacked_seconds = 0.0
        """Seconds that this check has taken so far."""
        self.unacked_seen: tuple[i64, i64] = (0, 0)
        """Unacknowledged messages of the queues that have many at the last check, and all that ever arrived in them."""
        self.unacked_changed = False
        """True if these numbers differ from those of the check before."""
        self.queues: Callable[[], Iterable[Queue]] = _none
        self.process_limit: i64 = 0
        """Bytes of memory that the process may take; 0 is no limit, for an embedded broker."""
        self.process_memory: Callable[[], int] = _nothing
        """Function that returns the bytes of memory that the process takes."""
        self.on_pressure: Callable[[], None] = _noop
        """Callback that asks the log to index its newest segment, when memory is short.

        Only messages in indexed segments can leave memory entirely.
        """

    def track(self, queue: Queue) -> None:
        """Count the memory that a queue's ready messages take, and page them out when memory is short.

        The queue is tracked until it is empty or deleted.
        """
        rate = self.resting.pop(queue, None)
        if rate is None:
            rate = ConsumptionRate(queue, time.monotonic())
        else:
            self.resting_bytes -= rate.memory
            rate.unchanged = 0
        self.rates[queue] = rate
        # A check of many queues schedules the next one at its end.
        if self.timer is None and self.check is None:
            self.timer = self.loop.call_later(TICK, self.tick)

    def start(self, queues: Callable[[], Iterable[Queue]]) -> None:
        """Begin to check each second how much memory unacknowledged messages take, and to page them out if too much.

        :param queues: returns all queues of the node.
        """
        self.queues = queues
        self.unacked_timer = self.loop.call_later(UNACKED_TICK, self.check_unacknowledged)

    def stop(self) -> None:
        """Cancel all checks, because the broker stops."""
        for timer in (self.timer, self.next_slice, self.unacked_timer, self.unacked_slice):
            if timer is not None:
                timer.cancel()
        self.timer = self.next_slice = self.unacked_timer = self.unacked_slice = self.check = None

    def memory_bytes(self) -> i64:
        """Return the approximate bytes of memory that the messages of all queues with ready messages take."""
        total: i64 = self.resting_bytes
        for queue in self.rates:
            total += queue.ready.memory_bytes()
        return total

    def rest(self, rate: ConsumptionRate) -> None:
        """Check a queue no more until a message arrives in it, memory is short, or a look at it finds a change."""
        queue = rate.queue
        waiting = queue.ready
        if not waiting.has_pending_writes():
            # The next message that arrives tracks the queue again.
            queue.memory_tracked = False
            del self.rates[queue]
            self.resting[queue] = rate
            self.resting_bytes += rate.memory

    def forget(self, queue: Queue) -> None:
        """Keep a queue that is deleted no longer, so that it and the connection that owns it are freed at once."""
        self.rates.pop(queue, None)
        rate = self.resting.pop(queue, None)
        if rate is not None:
            self.resting_bytes -= rate.memory

    def wake(self, rate: ConsumptionRate) -> None:
        """Check a resting queue again, unless it is empty or deleted."""
        queue = rate.queue
        del self.resting[queue]
        self.resting_bytes -= rate.memory
        if not queue.deleted and queue.ready.count:
            rate.unchanged = 0
            queue.memory_tracked = True
            self.rates[queue] = rate

    def look_at_resting(self) -> Iterator[None]:
        """Wake the resting queues from which messages were delivered, and forget the empty ones; yield after each queue."""
        for rate in list(self.resting.values()):
            queue = rate.queue
            if queue in self.resting:
                delivered: i64 = queue.next_sequence - queue.ready.count
                if queue.deleted or not queue.ready.count or delivered != rate.delivered:
                    self.wake(rate)
                yield

    def look_at_some(self, now: float) -> None:
        """Look at so many resting queues that all are looked at in `RESTING_SECONDS`.

        :param now: the time of `time.monotonic`.
        """
        passed = min(now - self.looked_at, LONGEST_REST)
        count = i64(len(self.resting) * passed / RESTING_SECONDS) + 1
        self.looked_at = now
        while count > 0 and self.resting:
            count -= 1
            if next(self.resting_look, self) is self:
                self.resting_look = self.look_at_resting()
                break

    def check_unacknowledged(self) -> None:
        """Begin to check whether unacknowledged messages take too much memory."""
        self.unacked_timer = None
        self.unacked_check = self.check_unacknowledged_in_steps()
        self.unacked_seconds = 0.0
        self.continue_unacknowledged()

    def continue_unacknowledged(self) -> None:
        """Check unacknowledged messages for a slice; schedule the next slice, or the next check if this one is done."""
        self.unacked_slice = None
        begun = time.monotonic()
        check = self.unacked_check
        assert check is not None
        while next(check, self) is not self:
            now = time.monotonic()
            if now >= begun + self.slice_seconds:
                self.unacked_seconds += now - begun
                self.unacked_slice = self.loop.call_soon(self.continue_unacknowledged)
                return
        self.unacked_check = None
        self.unacked_seconds += time.monotonic() - begun
        if self.unacked_changed:
            rest = min(max(UNACKED_TICK, self.unacked_seconds * REST), UNACKED_BUSY_REST)
        else:
            rest = min(max(UNACKED_TICK, self.unacked_seconds * UNACKED_REST), UNACKED_LONGEST_REST)
        self.unacked_timer = self.loop.call_later(rest, self.check_unacknowledged)

    def check_unacknowledged_in_steps(self) -> Iterator[None]:
        """Page out unacknowledged messages if they take too much memory; yield after each small step.

        Too much is more than half of the budget, or any amount while the process is near its memory limit. If such a
        message is requeued, its content is read from disk for the next delivery.
        """
        count: i64 = 0
        arrived: i64 = 0
        many: list[Queue] = []
        left: i64 = CHUNK
        for queue in list(self.queues()):
            if queue.unacked > FLOOR and not queue.is_stream:
                many.append(queue)
                count += queue.unacked
                arrived += queue.next_sequence
            left -= 1
            if not left:
                left = CHUNK
                yield
        self.unacked_changed = self.unacked_seen != (count, arrived)
        self.unacked_seen = (count, arrived)
        # Collecting them is slow: it happens only when they may take an eighth of the budget, or memory is short.
        if count * (MESSAGE_BYTES + CONTENT_BYTES) > self.budget // 8 or (count and self.process_excess()):
            total: i64 = 0
            for queue in many:
                left = SLICE
                for message in queue.unacknowledged_messages():
                    total += MESSAGE_BYTES
                    if message.content:
                        total += CONTENT_BYTES + message.body_size
                    left -= 1
                    if not left:
                        left = SLICE
                        yield
                yield
            if total > self.budget // 2 or self.process_excess():
                # Not all may be paged out at once.
                self.unacked_changed = True
                for queue in many:
                    if queue.deleted:
                        continue
                    if not queue.memory_tracked:
                        queue.vhost.track_memory(queue)
                    queue.page_out_unacknowledged(UNACKED_SLICE)
                    yield

    def tick(self) -> None:
        """Check the budget: measure the delivery rates, forget empty queues, and page out."""
        self.timer = None
        now = time.monotonic()
        count: i64 = len(self.rates)
        if self.resting:
            self.look_at_some(now)
            self.wants_all = self.wants_all or self.process_excess() > 0
            if self.wants_all:
                count += len(self.resting)
        if count > self.many_queues:
            if self.next_slice is not None:
                self.next_slice.cancel()
            self.check = self.check_many()
            self.check_seconds = 0.0
            self.continue_check()
            return
        if self.wants_all:
            self.wants_all = False
            for rate in list(self.resting.values()):
                self.wake(rate)
        for rate in list(self.rates.values()):
            self.measure(rate, now)
        if self.next_slice is None:
            self.page()
        if self.rates or self.resting:
            self.timer = self.loop.call_later(TICK if self.rates else LONGEST_REST, self.tick)

    def measure(self, rate: ConsumptionRate, now: float) -> bool:
        """Measure the delivery rate of a queue; forget the queue and return False if it is empty or deleted.

        :param now: the time of `time.monotonic`.
        """
        queue = rate.queue
        if queue.deleted or not queue.ready.count:
            queue.memory_tracked = False
            self.rates.pop(queue, None)
            return False
        rate.measure(now)
        return True

    def continue_check(self) -> None:
        """Check the budget of many queues for a slice; schedule the next slice, or the next check if this one is done."""
        self.next_slice = None
        begun = time.monotonic()
        self.slice_end = begun + self.slice_seconds
        check = self.check
        assert check is not None
        done = next(check, self) is self
        self.check_seconds += time.monotonic() - begun
        if not done:
            self.next_slice = self.loop.call_soon(self.continue_check)
            return
        self.check = None
        if self.rates or self.resting:
            rest = min(max(TICK, self.check_seconds * REST), LONGEST_REST)
            self.timer = self.loop.call_later(rest, self.tick)

    def check_many(self) -> Iterator[None]:
        """Do for many queues what `tick` and `page` do for few; yield when a slice is over.

        The queues are looked at once, so that what is published meanwhile counts in the next check.
        """
        left: i64 = CHUNK
        now = time.monotonic()
        if self.wants_all:
            self.wants_all = False
            for rate in list(self.resting.values()):
                if rate.queue in self.resting:
                    self.wake(rate)
                left -= 1
                if not left:
                    left = CHUNK
                    if time.monotonic() >= self.slice_end:
                        yield
            now = time.monotonic()
        used: i64 = self.resting_bytes
        for rate in list(self.rates.values()):
            if self.measure(rate, now):
                used += rate.memory
            left -= 1
            if not left:
                left = CHUNK
                now = time.monotonic()
                if now >= self.slice_end:
                    yield
                    now = time.monotonic()
        progress = False
        enough, pressed = self.find_target(used)
        may_rest = self.may_rest(used, enough, pressed)
        rates = list(self.rates.values())
        stays = self.messages_that_stay(len(rates) + len(self.resting), pressed)
        order: Iterable[ConsumptionRate] = rates
        if used > enough:
            parts: list[list[ConsumptionRate]] = []
            while rates:
                parts.append(sorted(rates[-SORTED_AT_ONCE:], key=_rate))
                del rates[-SORTED_AT_ONCE:]
                if time.monotonic() >= self.slice_end:
                    yield
            # Slow queues first: their messages are consumed last.
            order = heapq.merge(*parts, key=_rate)
        for rate in order:
            waiting = rate.queue.ready
            done: i64 = 0
            if not waiting.lazy and used <= enough:
                waiting.release_written()
            elif rate.queue in self.rates:
                keep: i64 = 0 if waiting.lazy or pressed else self.messages_to_keep(rate)
                waiting.set_delta_keep(stays)
                while True:
                    before: i64 = waiting.memory_bytes()
                    done = waiting.page_out(keep, SLICE)
                    self.paged_out += done
                    progress = progress or done > 0 or waiting.has_pending_writes()
                    used -= before - waiting.memory_bytes()
                    if done < SLICE or (used <= enough and not waiting.lazy):
                        break
                    if time.monotonic() >= self.slice_end:
                        self.update_overload(used if progress else 0)
                        yield
            if may_rest and not done and rate.unchanged >= RESTING_AFTER and rate.queue in self.rates:
                self.rest(rate)
            left -= 1
            # Messages of one queue may have taken as long as a look at many.
            if left <= 0 or done > 0:
                left = CHUNK
                if time.monotonic() >= self.slice_end:
                    yield
        self.update_overload(used if progress else 0)

    def may_rest(self, used: i64, enough: i64, pressed: i64) -> bool:
        """Return whether queues in which nothing changes may rest: memory is not short.

        If it is, the next check wakes those that rest.
        """
        is_short = used > enough or pressed > 0
        self.wants_all = is_short and len(self.resting) > 0
        return not is_short

    def find_target(self, used: i64) -> tuple[i64, i64]:
        """Return the bytes that messages may take after paging, and those that the process should free.

        :param used: bytes that the messages take.
        """
        enough: i64 = self.budget if used <= self.budget else self.budget - self.budget // 4
        pressed: i64 = self.process_excess()
        if pressed:
            enough = max(min(enough, used - pressed), 0)
            self.on_pressure()
        return enough, pressed

    def messages_that_stay(self, count: i64, pressed: i64) -> i64:
        """Return how many messages at the head of a queue stay in memory without content.

        :param count: number of queues with ready messages.
        :param pressed: bytes that the process should free.
        """
        stays: i64 = self.budget // 4 // max(count, 1) // MESSAGE_BYTES
        return FEW if pressed else max(FEW, min(HEAD, stays))

    def page(self) -> None:
        """Page messages out for about 1 ms (`SLICE_SECONDS`) at most; then block or unblock publishers.

        Queues in the mode lazy page out everything, the others only while memory is short. If more is to be
        paged out, schedule the next call for the next iteration of the event loop.
        """
        self.next_slice = None
        until = time.monotonic() + self.slice_seconds
        more = False
        used = self.memory_bytes()
        progress = False
        enough, pressed = self.find_target(used)
        may_rest = self.may_rest(used, enough, pressed)
        rates = list(self.rates.values())
        stays = self.messages_that_stay(len(rates) + len(self.resting), pressed)
        if used > enough:
            # Slow queues first: their messages are consumed last.
            rates.sort(key=_rate)
        for rate in rates:
            waiting = rate.queue.ready
            if not waiting.lazy and used <= enough:
                waiting.release_written()
                if may_rest and rate.unchanged >= RESTING_AFTER:
                    self.rest(rate)
                continue
            paged_before: i64 = self.paged_out
            keep: i64 = 0 if waiting.lazy or pressed else self.messages_to_keep(rate)
            waiting.set_delta_keep(stays)
            while not more:
                before: i64 = waiting.memory_bytes()
                done = waiting.page_out(keep, SLICE)
                self.paged_out += done
                progress = progress or done > 0 or waiting.has_pending_writes()
                used -= before - waiting.memory_bytes()
                # Also between queues: each may have some messages to page out.
                more = done > 0 and time.monotonic() >= until
                if done < SLICE or (used <= enough and not waiting.lazy):
                    break
            if more:
                break
            if may_rest and self.paged_out == paged_before and rate.unchanged >= RESTING_AFTER:
                self.rest(rate)
        # Blocking publishers would not help if nothing can be paged out.
        self.update_overload(used if progress else 0)
        if more:
            self.next_slice = self.loop.call_soon(self.page)

    def process_excess(self) -> i64:
        """Return the bytes of memory that the process should free.

        They are 0 up to 80 % of the process's memory limit; above that, they are all bytes beyond 70 % of the limit.
        """
        limit = self.process_limit
        if not limit:
            return 0
        resident: i64 = self.process_memory()
        return resident - limit * 7 // 10 if resident > limit * 8 // 10 else 0

    def messages_to_keep(self, rate: ConsumptionRate) -> i64:
        """Return the number of messages whose contents a queue may keep in memory while the memory budget is exceeded.

        These are the messages that it delivers in 2 seconds (`AHEAD`) at its current rate, and at least 1024 (`FLOOR`);
        but never more than fit into its share, half of the budget divided equally among all queues with ready
        messages.

        :param rate: the queue's delivery rate.
        """
        waiting = rate.queue.ready
        wanted = i64(rate.rate * AHEAD)
        held: i64 = waiting.resident if waiting.resident > 0 else 1
        each: i64 = max(waiting.memory_bytes() // held, 1)
        share: i64 = self.budget // 2 // (len(self.rates) + len(self.resting)) // each
        return max(min(wanted, share), min(FLOOR, share))

    def update_overload(self, used: i64) -> None:
        """Stop reading from publishers if messages take over one and a half times the budget; resume below the budget.

        :param used: bytes that messages take; 0 if no content can be paged out, so that blocking would not help.
        """
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
