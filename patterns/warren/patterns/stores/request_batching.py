"""Request batching: requests to a store that arrive while its server answers are sent together as the next batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from warren.patterns.stores.store import StoreUnavailable, SwapResult

BATCH: Final = 500
"""Largest number of requests that are sent to a store's server together."""


class Request(NamedTuple):
    """Arguments of one call of `Store.compare_and_set`."""

    key: str
    expected: bytes | None
    record: bytes | None
    keep_ms: int


class RequestBatcher:
    """Sender of requests to a store's server in batches, for one event loop: while one batch is in flight, the next one
    is collected.

    A busy process thus needs few round trips, and in an idle one a request is sent without waiting.

    :param send: sends a batch and returns, for each request, its result or the error.
    :param unavailable: returns the error for the caller of a request that failed with another error.
    :param name: name of the server, for the name of the task.
    """

    def __init__(
        self,
        send: Callable[[list[Request]], Awaitable[list[SwapResult | Exception]]],
        unavailable: Callable[[Exception], StoreUnavailable],
        name: str,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._send_batch = send
        self._unavailable = unavailable
        self._name = name
        self._waiting: list[tuple[Request, asyncio.Future[SwapResult]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def submit(self, request: Request) -> SwapResult:
        """Send a request with the next batch and return its result.

        :raises StoreUnavailable: no answer arrived; the change may have been made or not.
        """
        answer: asyncio.Future[SwapResult] = self.loop.create_future()
        self._waiting.append((request, answer))
        if self._sender is None or self._sender.done():
            self._sender = self.loop.create_task(self._send(), name=f"requests to {self._name}")
        return await answer

    async def finish(self) -> None:
        """Wait until every submitted request is answered."""
        if self._sender is not None:
            await self._sender

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            answers: list[SwapResult | Exception]
            try:
                answers = await self._send_batch([request for request, _ in batch])
            except Exception as error:  # Whatever failed, every waiting caller must get the error.
                answers = [error] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():  # Its caller was cancelled.
                    continue
                if isinstance(answer, Exception):
                    problem = self._unavailable(answer)
                    problem.__cause__ = answer
                    future.set_exception(problem)
                else:
                    future.set_result(answer)


__all__ = ["Request", "RequestBatcher"]
