"""A reply on its way through the middlewares of its caller: sealed by the server's, it is opened by these."""

from __future__ import annotations

from warren.sdk.app.middleware import Middlewares
from warren.sdk.consume.delivery import Delivery
from warren.sdk.errors import HandlerOutcome, RemoteError
from warren.sdk.rpc.reply_types import Answer


class ReplyMiddleware:
    """Passes replies through the middlewares of handlers."""

    def __init__(self, middlewares: Middlewares) -> None:
        self._middlewares = middlewares

    async def __call__(self, answer: Answer, address: str) -> Answer:
        """:raises RemoteError: `rejected_reply`, if a middleware ended the reply or kept it."""
        opened: list[Delivery] = []

        async def innermost(changed: Delivery) -> None:
            opened.append(changed)

        delivery = Delivery(
            answer.body, "", address, address, False, None, answer.properties, table=answer.table
        )
        try:
            await self._middlewares.receive(delivery, innermost)
        except HandlerOutcome as outcome:
            raise RemoteError("rejected_reply", str(outcome) or type(outcome).__name__) from outcome
        if not opened:
            raise RemoteError("rejected_reply", "a middleware kept the reply")
        return Answer(dict(opened[-1].properties), answer.table, opened[-1].body)
