"""A handler that calls its own queue: the request is handled here and now, because its own place is taken."""

from __future__ import annotations

import asyncio

from warren.sdk.app.middleware import OutgoingSender
from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.endpoint import Endpoint
from warren.sdk.consume.settlement import Settlement
from warren.sdk.publish.outgoing import Outgoing


class ReentrantCalls:
    """Hands requests straight to the endpoint of their queue.

    In the queue they would wait for a handler that waits for them, for ever at concurrency 1, and behind a backlog at
    any. The reply travels as every other. What the endpoint gives back is published after all.
    """

    def __init__(self, endpoint: Endpoint, queue: str, outlet: OutgoingSender) -> None:
        self._endpoint = endpoint
        self._queue = queue
        self._outlet = outlet

    async def submit(self, request: Outgoing, timeout: float) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._handle(request, timeout))

    async def _handle(self, request: Outgoing, timeout: float) -> None:
        delivery = Delivery(
            request.body, request.exchange, request.routing_key, self._queue, False,
            dict(request.headers), dict(request.properties),
        )  # fmt: skip
        settlement = await self._endpoint.process(delivery, 0)
        if settlement in (Settlement.REQUEUE, Settlement.RELEASE):
            await self._outlet.publish(request, timeout)
