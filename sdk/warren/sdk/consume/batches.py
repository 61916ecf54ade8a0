"""Batch handling: collect messages by count or time, call one handler for all of them, settle each by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

from warren.sdk.consume.attempts import Abandoned
from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.handlers.handler_spec import HandlerInvoker
from warren.sdk.errors import HandlerOutcome
from warren.sdk.protocols import Clock, Timer

BatchResult: TypeAlias = "Sequence[Exception | None] | Exception | None"
"""Result of a batch handler: None (all acknowledged), one outcome for all messages, or a list with one for each in their
order: None, an outcome (`Ack()`, `Requeue()`, `RetryLater()`, `DeadLetter()`), or the exception that it failed with."""

BATCH_SIZE = 100
"""Default number of messages that completes a batch."""
BATCH_WITHIN = timedelta(milliseconds=50)
"""Default longest time that the first message of a batch waits for others before the batch is handled."""


class BatchEntry(NamedTuple):
    """A message in a batch, and the future of its outcome: None or the outcome that the handler chose, or the exception
    with which handling the message failed.

    The exception is the result of the future: awaiting a future that raises GeneratorExit would close the coroutine.
    """

    message: Any
    delivery: Delivery
    outcome: asyncio.Future[BaseException | None]


class Batch:
    """Messages that are handled together, and the task that handles them."""

    __slots__ = ("entries", "task")

    def __init__(self) -> None:
        self.entries: list[BatchEntry] = []
        self.task: asyncio.Task[None] | None = None

    def cancel_if_abandoned(self) -> None:
        """Cancel the task of the batch handler if nobody awaits an outcome of this batch any more."""
        if self.task is not None and all(entry.outcome.cancelled() for entry in self.entries):
            self.task.cancel()


class BatchCollector:
    """Collector of messages for one batch handler: it calls the handler with the list of messages of
    each batch.

    The endpoint calls `handle` for each message, as it calls a handler of single messages, so that retries, outcomes,
    `once=` and middlewares apply to each message. A message that is retried comes in a later batch.

    :param function: the handler, which takes a list of messages.
    :param invoker: calls the handler with its other parameters or in a thread; None if it is async and takes the
        messages only.
    :param size: number of messages that completes a batch.
    :param within: longest time that the first message of a batch waits for others.
    :param concurrency: batches that are handled at the same time.
    :param count_waiting: called with the difference whenever the number of messages in incomplete batches changes.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        invoker: HandlerInvoker | None,
        *,
        size: int,
        within: timedelta,
        concurrency: int,
        clock: Clock,
        count_waiting: Callable[[int], None],
    ) -> None:
        self.function = function
        self._invoker = invoker
        self._size = size
        self._within = within.total_seconds()
        self._running = asyncio.Semaphore(concurrency)
        self._clock = clock
        self._count_waiting = count_waiting
        self._batch = Batch()
        self.context: Context = Context()
        """Context of which the batch handler gets a copy, so that it does not run in that of one of its messages."""
        self._timer: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, function: Callable[..., Awaitable[Any]], message: Any, delivery: Any) -> Any:
        """Call `function`, which adds one message to the current batch, and return its result. Dependencies of the
        batch handler are not injected here but once for the whole batch.

        :param function: `handle`, or the wrapper that a test puts around it.
        :param delivery: the message's `Delivery`.
        """
        return await function(message, delivery)

    async def handle(self, message: Any, delivery: Delivery) -> HandlerOutcome | None:
        """Add the message to the current batch, and wait until the handler has handled the batch.

        :return: the outcome that the handler chose for this message; None if it chose none, so the message is
            acknowledged.
        :raises Exception: the error with which the handler failed, or which it returned for this message.
        """
        entry = BatchEntry(message, delivery, asyncio.get_running_loop().create_future())
        batch = self._batch
        batch.entries.append(entry)
        self._count_waiting(1)
        if len(batch.entries) >= self._size:
            self.close_batch()
        elif self._timer is None:
            self._timer = self._clock.call_at(self._clock.now() + self._within, self.close_batch)
        try:
            outcome = await entry.outcome
        except asyncio.CancelledError:
            if batch is self._batch:
                self._remove(entry)
            batch.cancel_if_abandoned()
            raise
        if outcome is None or isinstance(outcome, HandlerOutcome):
            return outcome
        raise outcome

    def _remove(self, entry: BatchEntry) -> None:
        """Remove a message whose handling was cancelled from the incomplete batch; it is back in its queue."""
        self._batch.entries.remove(entry)
        self._count_waiting(-1)
        if not self._batch.entries and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close_batch(self) -> None:
        """End the current batch: start a task that calls the handler with its messages, and begin the next batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._batch = self._batch, Batch()
        self._count_waiting(-len(batch.entries))
        for entry in batch.entries:
            handling = entry.delivery.handling
            if handling is not None and handling.orphaned and not entry.outcome.done():
                # The broker delivers it again, for another batch.
                entry.outcome.set_result(Abandoned())
        batch.entries = [entry for entry in batch.entries if not entry.outcome.done()]
        if not batch.entries:
            return
        batch.task = asyncio.create_task(self._run(batch.entries), context=self.context.copy())
        self._tasks.add(batch.task)
        batch.task.add_done_callback(self._tasks.discard)

    async def _run(self, entries: list[BatchEntry]) -> None:
        async with self._running:
            outcomes: Sequence[BaseException | None]
            try:
                outcomes = _outcome_of_each(await self._call(entries), len(entries))
            except asyncio.CancelledError:
                for entry in entries:
                    entry.outcome.cancel()
                raise
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                outcomes = [error] * len(entries)
        for entry, outcome in zip(entries, outcomes, strict=True):
            if not entry.outcome.done():
                entry.outcome.set_result(outcome)

    async def _call(self, entries: list[BatchEntry]) -> object:
        messages = [entry.message for entry in entries]
        if self._invoker is None:
            return await self.function(messages)
        return await self._invoker.call(self.function, messages, [entry.delivery for entry in entries])


def _outcome_of_each(returned: object, count: int) -> Sequence[Exception | None]:
    """Return one result for each message of a batch: an outcome, an error, or None to acknowledge the message.

    :param returned: return value of the batch handler; None, an outcome or an error applies to all messages.
    :param count: number of messages of the batch.
    :raises TypeError: if the handler returned anything but `BatchResult`.
    """
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
