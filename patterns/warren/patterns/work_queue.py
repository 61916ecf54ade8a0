"""Work queue with priorities: the most urgent work first, without starving the rest.

A priority queue of a broker (`Queue("q", max_priority=10)`) is strict: while urgent work arrives, other work does not
begin, however long it has waited. Here each priority has a queue of its own, and the worker process chooses the queue
of the next message.

Guarantees: work is handled at least once. Of the messages waiting in a process the highest priority goes first, but of
any lower priority with waiting work, one message begins after at most `bypass` more urgent ones. With `n` messages
before it in its queue, work begins after at most `n * (bypass + 1)` others. Costs: a quorum queue per priority, and as
many messages prefetched from each queue as may be handled at a time.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from warren.sdk import App, Queue, RetryPolicy
from warren.sdk.extend import IncludedComponent, check_async, check_decorated, check_whole_number

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[None]])


@dataclass(slots=True)
class WorkQueueStatistics:
    """Counters of one `WorkQueue` in this process.

    :ivar started: number of messages whose handler was started, for each priority, the lowest first.
    :ivar promoted: number of messages that were started before more urgent ones, because `bypass` more urgent messages
        had gone before them.
    """

    started: list[int]
    promoted: int = 0


class WorkQueue(IncludedComponent):
    """Work queue with priorities: `app.include(work)`, `@work.handle(Render)`, `await work.put(Render(...),
    priority=2)`.

    :param priorities: number of priorities; 0 is the lowest.
    :param concurrency: messages handled at a time in this process, all priorities together. Default 10.
    :param bypass: number of more urgent messages that may start before a waiting message of a lower priority does.
        Default 10.
    :raises ConfigError: one of these numbers is below 1.
    """

    requires_durable_broker: ClassVar[bool] = True

    def __init__(self, name: str, *, priorities: int = 3, concurrency: int = 10, bypass: int = 10) -> None:
        for option, number in (("priorities", priorities), ("concurrency", concurrency), ("bypass", bypass)):
            check_whole_number(f"work queue {name}: {option}", number)
        self.name: str = name
        self.statistics: WorkQueueStatistics = WorkQueueStatistics([0] * priorities)
        """Counters of what this object has done in this process."""
        self._concurrency = concurrency
        self._slots = _Slots(concurrency, priorities, bypass, self.statistics)
        super().__init__()

    @property
    def queues(self) -> tuple[Queue, ...]:
        """Queues of the work queue, one for each priority, the lowest first: `<name>.0` and so on."""
        return tuple(Queue(f"{self.name}.{priority}") for priority in range(len(self.statistics.started)))

    def register(self, app: App) -> None:
        super().register(app)
        app.declare(*self.queues)

    async def on_start(self) -> None:
        """Do nothing when the App starts: the App's own consumers read the queue of each priority."""

    async def on_stop(self) -> None:
        """Do nothing when the App stops: there is no connection, file or task to close."""

    def handle(self, message: Any, *, retry: RetryPolicy | None = None) -> Callable[[Handler], Handler]:
        """Decorate the handler of the work queue's messages, of all priorities, as `app.handle` does.

        :param message: message class without a queue of its own, or another type that pydantic can decode,
            such as a dataclass.
        :param retry: retry policy of the handler.
        """
        check_decorated("WorkQueue.handle", message, example="work.handle")
        app = self.included_in()

        def register(function: Handler) -> Handler:
            check_async(function)
            for priority, queue in enumerate(self.queues):
                limited = self._limit(function, priority)
                app.handle(message, queue=queue, concurrency=self._concurrency, retry=retry)(limited)
            return function

        return register

    async def put(self, message: object, *, priority: int = 0, message_id: str | None = None) -> None:
        """Publish a message with a priority; return when the broker has confirmed it.

        :param priority: 0 is the lowest.
        :param message_id: id of the message; a new one by default.
        :raises ConfigError: there is no such priority.
        :raises PublishError: the broker did not confirm the message: it was refused or unroutable, or no confirm came.
        """
        check_whole_number(f"work queue {self.name}: priority", priority, 0, len(self.queues) - 1)
        await self.included_in().publish(
            message, exchange="", key=self.queues[priority].name, message_id=message_id
        )

    def _limit(
        self, function: Callable[..., Awaitable[None]], priority: int
    ) -> Callable[..., Coroutine[Any, Any, None]]:
        @functools.wraps(function)
        async def limited(*arguments: Any, **named: Any) -> None:
            await self._slots.acquire(priority)
            try:
                await function(*arguments, **named)
            finally:
                self._slots.release()

        return limited


class _Slots:
    """Slots for concurrent handlers, granted to waiting messages by priority. A priority with waiting messages that was
    passed over `bypass` times gets the next slot before higher ones."""

    def __init__(self, slots: int, priorities: int, bypass: int, statistics: WorkQueueStatistics) -> None:
        self._free = slots
        self._dispatch_scheduled = False
        self._bypass = bypass
        self._waiting: list[deque[asyncio.Future[None]]] = [deque() for _ in range(priorities)]
        self._passed_over = [0] * priorities
        self._statistics = statistics

    async def acquire(self, priority: int) -> None:
        granted = asyncio.get_running_loop().create_future()
        self._waiting[priority].append(granted)
        self._schedule_dispatch()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release()
            raise

    def release(self) -> None:
        self._free += 1
        self._schedule_dispatch()

    def _schedule_dispatch(self) -> None:
        """Arrange that free slots are granted after the next iteration of the event loop. In that one begins the task of
        the prefetched message that takes the place of one that was just handled; it may be the most urgent of the
        waiting ones."""
        if not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_scheduled = False
        while self._free:
            for waiting in self._waiting:
                while waiting and waiting[0].done():
                    waiting.popleft()
            present = [priority for priority, waiting in enumerate(self._waiting) if waiting]
            if not present:
                return
            # The priority that was passed over most often, if it was too often.
            chosen = max(present, key=lambda priority: self._passed_over[priority])
            if self._passed_over[chosen] < self._bypass:
                chosen = present[-1]
            elif chosen != present[-1]:
                self._statistics.promoted += 1
            for priority in present:
                self._passed_over[priority] += priority < chosen
            self._passed_over[chosen] = 0
            self._statistics.started[chosen] += 1
            self._free -= 1
            self._waiting[chosen].popleft().set_result(None)


__all__ = ["WorkQueue", "WorkQueueStatistics"]
