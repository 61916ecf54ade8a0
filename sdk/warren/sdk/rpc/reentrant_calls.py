"""Reentrant calls: a handler's request to its own queue is handled in this process at once."""

from __future__ import annotations

import asyncio

from warren.sdk.app.middleware import OutgoingSender
from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.endpoint import Endpoint
from warren.sdk.consume.settlement import Settlement
from warren.sdk.publish.outgoing import Outgoing


class ReentrantCalls:
    """Passes a handler's requests to its own queue directly to the endpoint of that queue, without the broker.

    In the queue, such a request would wait for the handler that waits for its reply: a deadlock at
    concurrency 1, and a wait behind the backlog at any concurrency. The reply is published as usual. A
    request that the endpoint requeues is published to the queue after all.
    """

    def __init__(self, endpoint: Endpoint, queue: str, sender: OutgoingSender) -> None:
        self._endpoint = endpoint
        self._queue = queue
        self._sender = sender

    async def submit(self, request: Outgoing, timeout: float) -> asyncio.Future[None]:
        """Pass the request to the endpoint of this process. Return a future that completes when the endpoint has settled the
        request, or, if it requeues the request, when the broker has confirmed its publish to the queue.

        :param timeout: seconds for that publish.
        """
        return asyncio.ensure_future(self._handle(request, timeout))

    async def _handle(self, request: Outgoing, timeout: float) -> None:
        delivery = Delivery(
            request.body, request.exchange, request.routing_key, self._queue, False,
            dict(request.headers), dict(request.properties),
        )  # fmt: skip
        if "expiration" in delivery.properties:
            delivery.note_deadline()
        settlement = await self._endpoint.process_apart(delivery, 0)
        if settlement in (Settlement.REQUEUE, Settlement.RELEASE):
            await self._sender.publish(request, timeout)
