"""Bulk publishing: many messages with one report, optionally in order, in batches, or with repeated attempts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, aclosing
from functools import partial
from typing import Any, Literal, Protocol, Unpack

from tenacity import AsyncRetrying, retry_if_result, stop_after_attempt, wait_random_exponential

from warren.sdk.choices import check_whole_number
from warren.sdk.consume.delivery import REPUBLISHED
from warren.sdk.durations import Duration, seconds
from warren.sdk.errors import BatchError, ConfigError, PublishError, WarrenError
from warren.sdk.messages.codec import MessageOptions
from warren.sdk.messages.message_properties import PropertyOptions
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.publish.report import Failure, PublishReport

PUBLISH_SECONDS = 30.0
"""Seconds that a publish waits for its confirm by default."""
PRUNE = 2000
"""Number of messages to add before the confirmed ones are removed from the list of messages, to save memory."""
FIRST_AGAIN_SECONDS = 0.1
LONGEST_AGAIN_SECONDS = 3.0

OnError = Literal["raise", "report"]
Messages = Iterable[object] | AsyncIterable[object]


class BatchOptions(PropertyOptions, total=False):
    """Options of bulk publishing. Address, headers and the AMQP properties (`PropertyOptions`) are those of each message."""

    timeout: Duration
    """Seconds, a `timedelta` or a text such as `5s` for each attempt to publish a message, counted from the beginning of
    that attempt; default 30 s."""
    exchange: str | None
    """Exchange to publish to, as in `publish`."""
    key: str | None
    """Routing key, as in `publish`."""
    headers: Mapping[str, Any] | None
    """Headers, which are added to the header table."""
    attempts: int
    """Largest number of times that a message is published if it is nacked or not confirmed in time; default 1. Further
    attempts have the same message id and the header `warren-republished`, after random waits of up to 3 s."""


class BulkSender(Protocol):
    """Interface by which bulk publishing encodes and writes messages; `PublishOperations` implements it."""

    async def prepare(self, message: object, timeout: float, options: MessageOptions) -> Outgoing: ...

    async def write(
        self, outgoing: Outgoing, timeout: float, before_write: Callable[[], None] | None = None
    ) -> asyncio.Future[None]: ...

    def batch(self) -> AbstractContextManager[None]:
        """Return a context manager that records one OpenTelemetry span for all messages that are published within it.

        Without telemetry it does nothing.
        """
        ...


class _OrderBroken(WarrenError):
    """Refusal of a write in an ordered bulk publish: an earlier message failed, and must be published again first."""

    def __init__(self) -> None:
        super().__init__("an earlier message of the ordered batch was not confirmed")


class BulkEntry:
    """One message of a bulk publish, and its result so far.

    :ivar outgoing: the encoded message; None until it is encoded, or if that failed.
    :ivar result: future of the confirm, or the error that prevented the write; None before the write.
    """

    __slots__ = ("index", "message", "outgoing", "result")

    def __init__(self, index: int, message: object, outgoing: Outgoing | None) -> None:
        self.index: int = index
        self.message: object = message
        self.outgoing: Outgoing | None = outgoing
        self.result: asyncio.Future[None] | WarrenError | None = None

    @property
    def confirmed(self) -> bool:
        """True if the broker confirmed the message."""
        result = self.result
        return (
            isinstance(result, asyncio.Future)
            and result.done()
            and not result.cancelled()
            and result.exception() is None
        )

    @property
    def error(self) -> WarrenError | None:
        """The reason why the message was not confirmed; None if it was. Read it only after the outcome is known."""
        if isinstance(self.result, WarrenError):
            return self.result
        if self.result is None or self.result.cancelled():
            return PublishError("the message was given up", outcome="unknown")
        error = self.result.exception()
        if error is None or isinstance(error, WarrenError):
            return error
        raise error


class BulkPublish:
    """One bulk publish: writes its messages and collects their outcomes.

    The parameters are those of `BatchOptions`, and `ordered` of `App.publish_many`.
    """

    def __init__(
        self,
        sender: BulkSender,
        *,
        timeout: Duration = PUBLISH_SECONDS,
        attempts: int = 1,
        ordered: bool = False,
        **options: Unpack[MessageOptions],
    ) -> None:
        check_whole_number("attempts", attempts)
        if options.get("message_id") is not None:
            raise ConfigError("message_id is the id of one message: publish many messages without it")
        self.total: int = 0
        self._entries: list[BulkEntry] = []
        """Messages that may be unconfirmed. Confirmed ones are removed from time
        to time, to limit the memory for many messages."""
        self._prune_at = PRUNE
        self._sender = sender
        self._timeout = seconds(timeout)
        self._options = options
        self._attempts = attempts
        self._ordered = ordered
        self._stopped: WarrenError | None = None
        """The error of the message that stopped an ordered bulk publish; None if it was not stopped."""
        self._in_flight: deque[asyncio.Future[None]] = deque()
        """Futures of the confirms that an ordered bulk publish awaits, oldest first; empty if it is not ordered."""
        self._order_broken = False
        """True after a message failed, until the failed messages have been published again."""

    def recorded(self) -> AbstractContextManager[None]:
        """Return a context manager that records one OpenTelemetry span for all messages of this bulk publish.

        Without telemetry it does nothing.
        """
        return self._sender.batch()

    async def add(self, message: object) -> None:
        """Write a message as soon as there is a connection and room in the window of unconfirmed messages.

        The confirm is not awaited. A `WarrenError` is not raised, but becomes the message's outcome in the report.
        """
        entry = BulkEntry(self.total, message, None)
        self.total += 1
        self._entries.append(entry)
        if len(self._entries) >= self._prune_at:
            self._entries = [entry for entry in self._entries if not entry.confirmed]
            self._prune_at = 2 * len(self._entries) + PRUNE
        try:
            entry.outgoing = await self._sender.prepare(message, self._timeout, self._options)
            if self._ordered:
                await self._write_behind(entry, entry.outgoing)
            else:
                entry.result = await self._sender.write(entry.outgoing, self._timeout)
        except WarrenError as error:
            entry.result = error
            self._order_broken = True

    def resume(self, failure: Failure) -> None:
        """Add a failed message from the report of an earlier bulk publish, with its error as the result so far.

        This does not publish it; `rewrite` publishes all messages that were added so.
        """
        entry = BulkEntry(failure.index, failure.message, failure.outgoing)
        entry.result = failure.error
        self.total += 1
        self._entries.append(entry)

    async def finish(self) -> PublishReport:
        """Wait until every message has its outcome, make further attempts where allowed, and return the report."""
        await self._settled()
        if self._ordered:
            await self._republish_in_order()
        elif self._attempts > 1 and self._retryable():
            await self.again(self._attempts - 1)
        return PublishReport(
            self.total,
            tuple(
                Failure(entry.index, entry.message, error, entry.outgoing)
                for entry in self._entries
                if (error := entry.error) is not None
            ),
        )

    async def again(self, attempts: int) -> None:
        """Publish the messages with retryable errors again, in at most `attempts` rounds, until none of them is left.

        The random waits between the rounds grow up to 3 s.
        """
        retrying = AsyncRetrying(
            stop=stop_after_attempt(attempts),
            wait=wait_random_exponential(multiplier=FIRST_AGAIN_SECONDS, max=LONGEST_AGAIN_SECONDS),
            retry=retry_if_result(bool),
            retry_error_callback=lambda state: None,
        )
        await retrying(self._retry_round)

    def abandon(self) -> None:
        """Cancel the unconfirmed messages, so that they are not published again after a reconnect."""
        for entry in self._entries:
            if isinstance(entry.result, asyncio.Future):
                entry.result.cancel()

    async def rewrite(self) -> None:
        """Publish all failed messages that `resume` added, with the same ids, even if their errors are not retryable.

        Only messages that could not be encoded are left out.
        """
        for entry in self._entries:
            if entry.outgoing is not None:
                await self._rewrite(entry)

    async def _settled(self) -> None:
        # Confirms arrive together and mostly in order: when the first is there, nearly all are.
        for entry in self._entries:
            if isinstance(entry.result, asyncio.Future) and not entry.result.done():
                await asyncio.wait((entry.result,))

    def _retryable(self) -> list[BulkEntry]:
        """Return the messages that failed with a retryable error and could be encoded."""
        return [
            entry
            for entry in self._entries
            if entry.outgoing is not None and (error := entry.error) is not None and error.retryable
        ]

    async def _retry_round(self) -> bool:
        """Publish each message whose error is retryable once more; return True if such messages remain."""
        for entry in self._retryable():
            await self._rewrite(entry)
        await self._settled()
        return bool(self._retryable())

    async def _rewrite(self, entry: BulkEntry) -> None:
        outgoing, error = entry.outgoing, entry.error
        assert outgoing is not None
        assert error is not None
        if error.outcome != "not_sent":
            outgoing.set_header(REPUBLISHED, True)
        try:
            entry.result = await self._sender.write(outgoing, self._timeout)
        except WarrenError as problem:
            entry.result = problem

    async def _write_behind(self, entry: BulkEntry, outgoing: Outgoing) -> None:
        """Write the next message of an ordered bulk publish, after publishing earlier failed messages again.

        :param entry: the message, which gets the future of its confirm as its result.
        :param outgoing: the encoded message.
        :raises PublishError: if an earlier message failed in its last attempt; nothing is written.
        """
        while True:
            if self._order_broken:
                await self._republish_in_order()
            if self._stopped is not None:
                raise _not_sent(self._stopped)
            try:
                written = await self._sender.write(outgoing, self._timeout, partial(self._check_order, entry))
                if written.done() and isinstance(written.exception(), _OrderBroken):
                    continue
            except _OrderBroken:
                continue
            entry.result = written
            self._in_flight.append(written)
            written.add_done_callback(self._check_result)
            return

    def _check_order(self, entry: BulkEntry) -> None:
        if entry.result is not None:
            return  # The message was written in its order. It is published again because its channel was lost.
        # The callback of a future runs one turn of the event loop later, and the next message may come before it.
        while self._in_flight and self._in_flight[0].done():
            self._check_result(self._in_flight.popleft())
        if self._order_broken:
            raise _OrderBroken

    def _check_result(self, done: asyncio.Future[None]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._order_broken = True

    async def _republish_in_order(self) -> None:
        """Publish failed messages of an ordered bulk publish again, one after the other, as far as `attempts` allows.

        The first message that still fails stops the bulk publish.
        """
        sent = [entry for entry in self._entries if entry.result is not None]
        await self._settled()
        self._in_flight.clear()
        self._order_broken = False
        for entry in sent:
            error = entry.error
            if error is not None and self._stopped is None:
                await self._retry_alone(entry, error)
                self._stopped = entry.error

    async def _retry_alone(self, entry: BulkEntry, error: WarrenError) -> None:
        if self._attempts == 1 or entry.outgoing is None or not error.retryable:
            return
        one = BulkPublish(self._sender, timeout=self._timeout)
        one._entries.append(entry)
        await one.again(self._attempts - 1)


def _not_sent(cause: WarrenError) -> PublishError:
    return PublishError(
        f"not sent, because an earlier message of the ordered batch was not confirmed: {cause}",
        retryable=True,
        outcome="not_sent",
    )


async def publish_all(batch: BulkPublish, messages: Messages, on_error: OnError) -> PublishReport:
    """Publish all messages and wait for their outcomes; return the report.

    :param batch: a new bulk publish, which writes the messages.
    :param on_error: `raise` raises `BatchError` if a message was not confirmed; `report` only lists it in the report.
    :raises BatchError: if a message was not confirmed, and `on_error` is `raise`.
    """
    try:
        with batch.recorded():
            if isinstance(messages, AsyncIterable):
                async for message in messages:
                    await batch.add(message)
            else:
                for message in messages:
                    await batch.add(message)
            report = await batch.finish()
    except BaseException:
        batch.abandon()
        raise
    return raise_failures(report, on_error)


async def publish_again(batch: BulkPublish, report: PublishReport, on_error: OnError) -> PublishReport:
    """Publish every failed message of a report once more, also those whose
    errors are not retryable; return a new report.

    :param batch: a new bulk publish, which writes the messages.
    :raises BatchError: if a message was not confirmed this time, and `on_error` is `raise`.
    """
    for failure in report.failures:
        batch.resume(failure)
    try:
        with batch.recorded():
            await batch.rewrite()
            again = await batch.finish()
    except BaseException:
        batch.abandon()
        raise
    return raise_failures(again, on_error)


def raise_failures(report: PublishReport, on_error: OnError) -> PublishReport:
    """Return the report, or raise an error with it if it has failures.

    :raises BatchError: if `on_error` is `raise`, and a message was not confirmed.
    """
    if report.failures and on_error == "raise":
        raise BatchError(report)
    return report


async def publish_batches(
    make: Callable[[], BulkPublish],
    messages: Messages,
    count: int | None,
    within: float | None,
    on_error: OnError,
) -> AsyncGenerator[PublishReport, None]:
    """Publish messages in batches; yield a report for each batch when all its messages have their outcome.

    :param make: creates the `BulkPublish` of a batch.
    :param count: number of messages that completes a batch; None for no limit.
    :param within: seconds after its start at which a batch ends even if it is not full; None for no limit.
    :raises ConfigError: if neither `count` nor `within` is given.
    :raises BatchError: if a message was not confirmed, and `on_error` is `raise`.
    """
    if count is None and within is None:
        raise ConfigError("a batch needs count= (1 or more), within= or both to close")
    if count is not None:
        check_whole_number("count", count)
    loop = asyncio.get_running_loop()
    async with aclosing(_Lookahead(messages)) as source:
        while await source.has_next(None):
            batch = make()
            closes = None if within is None else loop.time() + within
            try:
                with batch.recorded():
                    while batch.total != count and await source.has_next(closes):
                        await batch.add(source.take())
                    report = await batch.finish()
            except BaseException:
                batch.abandon()
                raise
            yield raise_failures(report, on_error)


class _Lookahead:
    """Reader of an iterable or async iterable that fetches one message ahead.

    If an awaited message comes after the deadline of `has_next`, it is kept for the next call.
    """

    def __init__(self, messages: Messages) -> None:
        self._sync = None if isinstance(messages, AsyncIterable) else iter(messages)
        self._async = aiter(messages) if isinstance(messages, AsyncIterable) else None
        self._coming: asyncio.Task[list[object]] | None = None
        self._next: list[object] = []
        self._loop = asyncio.get_running_loop()

    async def has_next(self, deadline: float | None) -> bool:
        """Fetch the next message, for `take`; return False if there is none, or none comes before the deadline.

        :param deadline: time of the event loop; None waits without limit.
        """
        if self._next:
            return True
        if deadline is not None and self._loop.time() >= deadline:
            return False
        if self._sync is not None:
            for message in self._sync:
                self._next = [message]
                break
            return bool(self._next)
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._one())
        left = None if deadline is None else deadline - self._loop.time()
        done, _ = await asyncio.wait((self._coming,), timeout=left)
        if not done:
            return False
        coming, self._coming = self._coming, None
        self._next = coming.result()
        return bool(self._next)

    def take(self) -> object:
        """Return the message that `has_next` has fetched."""
        return self._next.pop()

    async def aclose(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.wait((self._coming,))
            if not self._coming.cancelled():
                self._coming.exception()

    async def _one(self) -> list[object]:
        assert self._async is not None
        try:
            return [await anext(self._async)]
        except StopAsyncIteration:
            return []
