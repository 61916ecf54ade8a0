"""Many publishes with one outcome: in a window, in order, in batches, and again what was not confirmed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import AbstractContextManager, aclosing
from typing import Literal, Protocol, TypedDict

from tenacity import AsyncRetrying, retry_if_result, stop_after_attempt, wait_random_exponential

from warren.sdk.consume.delivery import REPUBLISHED
from warren.sdk.errors import BatchError, ConfigError, PublishError, WarrenError
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.publish.report import Failure, PublishReport

PUBLISH_SECONDS = 30.0
PRUNE = 2000
"""What is confirmed is forgotten when so many more are there than the last time."""
FIRST_AGAIN_SECONDS = 0.1
LONGEST_AGAIN_SECONDS = 3.0

OnError = Literal["raise", "report"]
Messages = Iterable[object] | AsyncIterable[object]


class BatchOptions(TypedDict, total=False):
    """How the messages of a batch are published.

    `timeout`: seconds for each attempt at a message, from when its turn came; 30. `exchange`, `key`: as in `publish`.
    `attempts`: what was nacked or not confirmed in time is published again, with the same id and `warren-republished`, until
    it was published so often; after waits that grow to 3 s. 1 by default.
    """

    timeout: float
    exchange: str | None
    key: str | None
    attempts: int


class BulkSender(Protocol):
    """What encodes a message and writes it; `PublishOperations` is one."""

    async def prepare(
        self, message: object, *, timeout: float, exchange: str | None, key: str | None
    ) -> Outgoing: ...

    async def write(
        self, outgoing: Outgoing, timeout: float, before_write: Callable[[], None] | None = None
    ) -> asyncio.Future[None]: ...

    def batch(self) -> AbstractContextManager[None]:
        """What is written inside is one batch to whoever records it."""
        ...


class _OrderBroken(WarrenError):
    """Another message is to be mended first; nobody but the batch sees it."""

    def __init__(self) -> None:
        super().__init__("an earlier message of the ordered batch was not confirmed")


class BulkEntry:
    """One message of a batch, and what became of it so far."""

    __slots__ = ("index", "message", "outgoing", "result")

    def __init__(self, index: int, message: object, outgoing: Outgoing | None) -> None:
        self.index: int = index
        self.message: object = message
        self.outgoing: Outgoing | None = outgoing
        self.result: asyncio.Future[None] | WarrenError | None = None

    @property
    def confirmed(self) -> bool:
        result = self.result
        return (
            isinstance(result, asyncio.Future)
            and result.done()
            and not result.cancelled()
            and result.exception() is None
        )

    @property
    def error(self) -> WarrenError | None:
        """Why it was not confirmed, once it is settled."""
        if isinstance(self.result, WarrenError):
            return self.result
        if self.result is None or self.result.cancelled():
            return PublishError("the message was given up", outcome="unknown")
        error = self.result.exception()
        if error is None or isinstance(error, WarrenError):
            return error
        raise error


class BulkPublish:
    """Messages that were submitted together; the parameters are those of `BatchOptions` and `publish_many`."""

    def __init__(
        self,
        sender: BulkSender,
        *,
        timeout: float = PUBLISH_SECONDS,
        exchange: str | None = None,
        key: str | None = None,
        attempts: int = 1,
        ordered: bool = False,
    ) -> None:
        if attempts < 1:
            raise ConfigError("attempts must be at least 1")
        self.total: int = 0
        self._entries: list[BulkEntry] = []
        """Those that are not known to be confirmed, so that a long source is not kept in memory."""
        self._prune_at = PRUNE
        self._sender = sender
        self._timeout = timeout
        self._exchange = exchange
        self._key = key
        self._attempts = attempts
        self._ordered = ordered
        self._stopped: WarrenError | None = None
        """Why nothing more is sent: an earlier message of an ordered batch could not be."""
        self._flying: deque[asyncio.Future[None]] = deque()
        """What may be unconfirmed (kept only where the order counts)."""
        self._refused = False
        """One of those was not confirmed."""

    def recorded(self) -> AbstractContextManager[None]:
        return self._sender.batch()

    async def add(self, message: object) -> None:
        """Write it as soon as there is a connection and room in the window."""
        entry = BulkEntry(self.total, message, None)
        self.total += 1
        self._entries.append(entry)
        if len(self._entries) >= self._prune_at:
            self._entries = [entry for entry in self._entries if not entry.confirmed]
            self._prune_at = 2 * len(self._entries) + PRUNE
        try:
            entry.outgoing = await self._sender.prepare(
                message, timeout=self._timeout, exchange=self._exchange, key=self._key
            )
            if self._ordered:
                await self._write_behind(entry, entry.outgoing)
            else:
                entry.result = await self._sender.write(entry.outgoing, self._timeout)
        except WarrenError as error:
            entry.result = error
            self._refused = True

    def resume(self, failure: Failure) -> None:
        """Take over what another batch could not confirm, for `again`."""
        entry = BulkEntry(failure.index, failure.message, failure.outgoing)
        entry.result = failure.error
        self.total += 1
        self._entries.append(entry)

    async def finish(self) -> PublishReport:
        """Wait until every message has its outcome, its last attempt included."""
        await self._settled()
        if self._ordered:
            await self._mend()
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
        """Publish again what was not confirmed and may be, at growing intervals, so many times at most."""
        retrying = AsyncRetrying(
            stop=stop_after_attempt(attempts),
            wait=wait_random_exponential(multiplier=FIRST_AGAIN_SECONDS, max=LONGEST_AGAIN_SECONDS),
            retry=retry_if_result(bool),
            retry_error_callback=lambda state: None,
        )
        await retrying(self._round)

    def abandon(self) -> None:
        """Nobody waits any more: what is in flight ends as it may, and is not published again after a reconnect."""
        for entry in self._entries:
            if isinstance(entry.result, asyncio.Future):
                entry.result.cancel()

    async def rewrite(self) -> None:
        """Publish again all that could be encoded."""
        for entry in self._entries:
            if entry.outgoing is not None:
                await self._rewrite(entry)

    async def _settled(self) -> None:
        # Confirms come together and mostly in order, so that nearly all are done when the first of them is.
        for entry in self._entries:
            if isinstance(entry.result, asyncio.Future) and not entry.result.done():
                await asyncio.wait((entry.result,))

    def _retryable(self) -> list[BulkEntry]:
        return [
            entry
            for entry in self._entries
            if entry.outgoing is not None and (error := entry.error) is not None and error.retryable
        ]

    async def _round(self) -> bool:
        """One more attempt at each; whether another one may help."""
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
        """Write it when all that was sent before is confirmed or may still be."""
        while True:
            if self._refused:
                await self._mend()
            if self._stopped is not None:
                raise _not_sent(self._stopped)
            try:
                written = await self._sender.write(outgoing, self._timeout, self._check_order)
                if written.done() and isinstance(written.exception(), _OrderBroken):
                    continue
            except _OrderBroken:
                continue
            entry.result = written
            self._flying.append(written)
            written.add_done_callback(self._look)
            return

    def _check_order(self) -> None:
        # A callback comes a turn of the event loop after its future is done, and the next message may come in between.
        while self._flying and self._flying[0].done():
            self._look(self._flying.popleft())
        if self._refused:
            raise _OrderBroken

    def _look(self, done: asyncio.Future[None]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._refused = True

    async def _mend(self) -> None:
        """Before anything else is sent: what was not confirmed, one after the other; the first that ends so stops all."""
        sent = [entry for entry in self._entries if entry.result is not None]
        await self._settled()
        self._flying.clear()
        self._refused = False
        for entry in sent:
            error = entry.error
            if error is not None and self._stopped is None:
                await self._alone(entry, error)
                self._stopped = entry.error

    async def _alone(self, entry: BulkEntry, error: WarrenError) -> None:
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
    """Add all, and wait for all.

    :raises BatchError: if any was not confirmed and `on_error` is `raise`.
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
    """One more attempt at every failure of a report, whatever its reason was."""
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
    """:raises BatchError: if there are failures and they are to be raised."""
    if report.failures and on_error == "raise":
        raise BatchError(report)
    return report


async def publish_batches(
    make: Callable[[], BulkPublish],
    messages: Messages,
    count: int | None,
    seconds: float | None,
    on_error: OnError,
) -> AsyncGenerator[PublishReport, None]:
    """A report for each batch; one closes at `count`, or so many seconds after it began, whichever comes first.

    :raises ConfigError: if nothing would close a batch. :raises BatchError: as `publish_all`.
    """
    if (count is None and seconds is None) or (count is not None and count < 1):
        raise ConfigError("a batch needs count= (1 or more), within= or both to close")
    loop = asyncio.get_running_loop()
    async with aclosing(_Lookahead(messages)) as source:
        while await source.has_next(None):
            batch = make()
            closes = None if seconds is None else loop.time() + seconds
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
    """Looks one message ahead, and gives up waiting for it at a deadline without losing it."""

    def __init__(self, messages: Messages) -> None:
        self._sync = None if isinstance(messages, AsyncIterable) else iter(messages)
        self._async = aiter(messages) if isinstance(messages, AsyncIterable) else None
        self._coming: asyncio.Task[list[object]] | None = None
        self._next: list[object] = []
        self._loop = asyncio.get_running_loop()

    async def has_next(self, deadline: float | None) -> bool:
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
