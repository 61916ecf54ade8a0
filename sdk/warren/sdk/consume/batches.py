"""Batches: messages are handled together, by count or by time, whichever comes first; each keeps an end of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.dependencies import Plan
from warren.sdk.errors import HandlerOutcome
from warren.sdk.protocols import Clock, Timer

Outcomes: TypeAlias = "Sequence[Exception | None] | Exception | None"
"""What a handler of batches returns: None for all acknowledged, one outcome for all, or one for each message in their
order: None, an outcome (`Ack()`, `Requeue()`, `RetryLater()`, `DeadLetter()`), or the exception that it failed with."""

BATCH_SIZE = 100
BATCH_WITHIN = timedelta(milliseconds=50)


class Entry(NamedTuple):
    """A message that waits for its batch, and for what became of it."""

    message: Any
    delivery: Delivery
    outcome: asyncio.Future[HandlerOutcome | None]


class Batch:
    """Messages that are handled together."""

    __slots__ = ("entries", "task")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.task: asyncio.Task[None] | None = None

    def left(self) -> None:
        """Somebody waits no more: without anybody who does, its handler is cancelled."""
        if self.task is not None and all(entry.outcome.cancelled() for entry in self.entries):
            self.task.cancel()


class Batches:
    """Gathers the messages of one handler.

    To the endpoint it is a handler like any other, of one message: retries, outcomes, `once` and middlewares apply to
    each message. What is tried again comes in a later batch.

    :param function: takes a list of messages.
    :param plan: what fills its other parameters, or None if there are none.
    :param size: closes a batch.
    :param within: closes it too, counted from its first message.
    :param concurrency: batches at a time.
    :param gathering: told of messages that begin (1) and end (-1) to wait for their batch.
    """

    def __init__(
        self,
        function: Callable[..., Awaitable[Outcomes]],
        plan: Plan | None,
        *,
        size: int,
        within: timedelta,
        concurrency: int,
        clock: Clock,
        gathering: Callable[[int], None],
    ) -> None:
        self.function = function
        self._plan = plan
        self._size = size
        self._within = within.total_seconds()
        self._running = asyncio.Semaphore(concurrency)
        self._clock = clock
        self._gathering = gathering
        self._batch = Batch()
        self._timer: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, function: Callable[..., Awaitable[Any]], message: Any, delivery: Any) -> Any:
        """What a `Plan` does for the handler of one message."""
        return await function(message, delivery)

    async def handle(self, message: Any, delivery: Delivery) -> HandlerOutcome | None:
        """Wait for the batch of this message, and for what became of it."""
        entry = Entry(message, delivery, asyncio.get_running_loop().create_future())
        batch = self._batch
        batch.entries.append(entry)
        self._gathering(1)
        if len(batch.entries) >= self._size:
            self._close()
        elif self._timer is None:
            self._timer = self._clock.call_at(self._clock.now() + self._within, self._close)
        try:
            return await entry.outcome
        except asyncio.CancelledError:
            batch.left()
            raise

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._batch = self._batch, Batch()
        self._gathering(-len(batch.entries))
        # Who has been cancelled meanwhile has gone back to the queue.
        batch.entries = [entry for entry in batch.entries if not entry.outcome.done()]
        if not batch.entries:
            return
        batch.task = asyncio.create_task(self._run(batch.entries))
        self._tasks.add(batch.task)
        batch.task.add_done_callback(self._tasks.discard)

    async def _run(self, entries: list[Entry]) -> None:
        async with self._running:
            outcomes: Sequence[BaseException | None]
            try:
                outcomes = _each(await self._call(entries), len(entries))
            except asyncio.CancelledError:
                for entry in entries:
                    entry.outcome.cancel()
                raise
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                outcomes = [error] * len(entries)
        for entry, outcome in zip(entries, outcomes, strict=True):
            if entry.outcome.done():
                continue
            if outcome is None or isinstance(outcome, HandlerOutcome):
                entry.outcome.set_result(outcome)
            else:
                entry.outcome.set_exception(outcome)

    async def _call(self, entries: list[Entry]) -> object:
        messages = [entry.message for entry in entries]
        if self._plan is None:
            return await self.function(messages)
        return await self._plan.call(self.function, messages, [entry.delivery for entry in entries])


def _each(returned: object, count: int) -> Sequence[Exception | None]:
    """:raises TypeError: if it is no outcome for each message."""
    if returned is None or isinstance(returned, Exception):
        return [returned] * count
    if (
        isinstance(returned, list | tuple)
        and len(returned) == count
        and all(one is None or isinstance(one, Exception) for one in returned)
    ):
        return returned
    raise TypeError(
        f"a handler of batches returns None, an outcome, or a list with one outcome for each of its {count} messages"
    )
