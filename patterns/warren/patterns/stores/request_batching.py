"""Decisions in batches: what is asked while a server answers goes out together as the next batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from warren.patterns.stores.store import StoreUnavailable, SwapResult

BATCH: Final = 500


class Request(NamedTuple):
    """One call of `compare_and_set`."""

    key: str
    expected: bytes | None
    record: bytes | None
    keep_ms: int


class RequestBatcher:
    """The conversation with a server on one event loop: one batch under way, the next one gathering.

    So a busy process pays for few round trips, and a quiet one waits for nobody.

    :param ask: decides a batch; for each request its answer, or why there is none.
    :param name: of the server, for errors and the task.
    """

    def __init__(
        self, ask: Callable[[list[Request]], Awaitable[list[SwapResult | Exception]]], name: str
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._ask = ask
        self._name = name
        self._waiting: list[tuple[Request, asyncio.Future[SwapResult]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def apply_rule(self, request: Request) -> SwapResult:
        """:raises StoreUnavailable: no answer came; the change may have been made or not."""
        answer: asyncio.Future[SwapResult] = self.loop.create_future()
        self._waiting.append((request, answer))
        if self._sender is None or self._sender.done():
            self._sender = self.loop.create_task(self._send(), name=f"decisions of {self._name}")
        return await answer

    async def finish(self) -> None:
        """Wait until all that was asked is answered."""
        if self._sender is not None:
            await self._sender

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            answers: list[SwapResult | Exception]
            try:
                answers = await self._ask([request for request, _ in batch])
            except Exception as error:  # Whatever it is, those who wait must hear of it.
                answers = [error] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():  # Its caller was cancelled.
                    continue
                if isinstance(answer, Exception):
                    problem = StoreUnavailable(f"no answer from {self._name}: {answer}")
                    problem.__cause__ = answer
                    future.set_exception(problem)
                else:
                    future.set_result(answer)


__all__ = ["Request", "RequestBatcher"]
