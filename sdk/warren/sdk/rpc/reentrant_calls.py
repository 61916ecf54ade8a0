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
        """Start to handle the request; return a future that completes when it is handled, in place of the confirm.

        :param timeout: seconds to publish the request, if it has to be published after all.
        """
        return asyncio.ensure_future(self._handle(request, timeout))

    async def _handle(self, request: Outgoing, timeout: float) -> None:
        delivery = Delivery(
            request.body, request.exchange, request.routing_key, self._queue, False,
            dict(request.headers), dict(request.properties),
        )  # fmt: skip
        settlement = await self._endpoint.process(delivery, 0)
        if settlement in (Settlement.REQUEUE, Settlement.RELEASE):
            await self._sender.publish(request, timeout)
