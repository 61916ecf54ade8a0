"""Work queue with priorities: the most urgent work first, and nothing waits for ever.

A priority queue of a broker (`Queue("q", max_priority=10)`) is strict: while there is urgent work, other work does not
begin, however long it has waited. Here each priority has a queue of its own, and the process that works chooses.

Guarantees: work is handled at least once; of what waits in a process the highest priority goes first, but of any
lower one with work waiting, one begins after at most `bypass` that were more urgent. With `n` before it in its queue, work
begins after at most `n * (bypass + 1)` others. Costs a quorum queue a priority, and as many messages prefetched from each.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from warren.sdk import App, ConfigError, Queue, RetryPolicy

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[None]])


@dataclass(slots=True)
class WorkQueueStatistics:
    """What this process has begun.

    :ivar begun: by priority, the lowest first.
    :ivar spared: how often work began before more urgent work, because it had been passed over `bypass` times.
    """

    begun: list[int]
    spared: int = 0


class WorkQueue:
    """`app.include(work)`, `@work.handle(Render)`, `await work.put(Render(...), priority=2)`.

    :param priorities: how many; 0 is the lowest.
    :param concurrency: how much is worked on at a time in this process, all priorities together. Default 10.
    :param bypass: how often more urgent work may go before work that waits. Default 10.
    :raises ConfigError: one of them is below 1.
    """

    def __init__(self, name: str, *, priorities: int = 3, concurrency: int = 10, bypass: int = 10) -> None:
        if min(priorities, concurrency, bypass) < 1:
            raise ConfigError(f"work queue {name}: priorities, concurrency and bypass are at least 1")
        self.name: str = name
        self.statistics: WorkQueueStatistics = WorkQueueStatistics([0] * priorities)
        self._concurrency = concurrency
        self._slots = _Slots(concurrency, priorities, bypass, self.statistics)
        self._app: App | None = None

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The queue of each priority, the lowest first: `<name>.0` and so on."""
        return tuple(Queue(f"{self.name}.{priority}") for priority in range(len(self.statistics.begun)))

    def register(self, app: App) -> None:
        self._app = app
        app.declare(*self.queues)

    async def on_start(self) -> None:
        """Nothing to begin: work comes as messages."""

    async def on_stop(self) -> None:
        """Nothing to end."""

    def handle(self, message: Any, *, retry: RetryPolicy | None = None) -> Callable[[Handler], Handler]:
        """Decorate the function that does the work, as `app.handle` does; `message` is a `Message` without a queue of
        its own, or another type that pydantic reads."""
        app = self._included()

        def register(function: Handler) -> Handler:
            for priority, queue in enumerate(self.queues):
                worked = self._in_turn(function, priority)
                app.handle(message, queue=queue, concurrency=self._concurrency, retry=retry)(worked)
            return function

        return register

    async def put(self, message: object, *, priority: int = 0, message_id: str | None = None) -> None:
        """Publish work; returns when the broker has it.

        :raises ConfigError: there is no such priority.
        :raises PublishError: as `app.publish`.
        """
        if not 0 <= priority < len(self.queues):
            raise ConfigError(
                f"work queue {self.name}: priority is {priority}, not from 0 to {len(self.queues) - 1}"
            )
        await self._included().publish(
            message, exchange="", key=self.queues[priority].name, message_id=message_id
        )

    def _in_turn(
        self, function: Callable[..., Awaitable[None]], priority: int
    ) -> Callable[..., Coroutine[Any, Any, None]]:
        @functools.wraps(function)
        async def worked(*arguments: Any, **named: Any) -> None:
            await self._slots.take(priority)
            try:
                await function(*arguments, **named)
            finally:
                self._slots.give()

        return worked

    def _included(self) -> App:
        if self._app is None:
            raise ConfigError(f"the work queue {self.name} belongs to no App: app.include(work) comes first")
        return self._app


class _Slots:
    """So many at a time, by priority, with a bound on how often one is passed over."""

    def __init__(self, slots: int, priorities: int, bypass: int, statistics: WorkQueueStatistics) -> None:
        self._free = slots
        self._looking = False
        self._bypass = bypass
        self._waiting: list[deque[asyncio.Future[None]]] = [deque() for _ in range(priorities)]
        self._passed_over = [0] * priorities
        self._statistics = statistics

    async def take(self, priority: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting[priority].append(turn)
        self._look()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()
            raise

    def give(self) -> None:
        self._free += 1
        self._look()

    def _look(self) -> None:
        """Choose a little later: who has just ended takes its next message first, and that may be the most urgent."""
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._looking = False
        while self._free:
            for waiting in self._waiting:
                while waiting and waiting[0].done():
                    waiting.popleft()
            present = [priority for priority, waiting in enumerate(self._waiting) if waiting]
            if not present:
                return
            # The one that was passed over most often, if that was too often.
            chosen = max(present, key=lambda priority: self._passed_over[priority])
            if self._passed_over[chosen] < self._bypass:
                chosen = present[-1]
            elif chosen != present[-1]:
                self._statistics.spared += 1
            for priority in present:
                self._passed_over[priority] += priority < chosen
            self._passed_over[chosen] = 0
            self._statistics.begun[chosen] += 1
            self._free -= 1
            self._waiting[chosen].popleft().set_result(None)


__all__ = ["WorkQueue", "WorkQueueStatistics"]
