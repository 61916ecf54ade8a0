"""Apply the caller's handle middlewares to a reply."""

from __future__ import annotations

from warren.sdk.app.middleware import Middlewares
from warren.sdk.consume.delivery import Delivery
from warren.sdk.errors import HandlerOutcome, RemoteError
from warren.sdk.rpc.reply_types import RawReply


class ReplyMiddleware:
    """Applies the caller's handle middlewares to replies, for
    example to decrypt those that the server's middlewares encrypted.
    """

    def __init__(self, middlewares: Middlewares) -> None:
        self._middlewares = middlewares

    async def __call__(self, answer: RawReply, address: str) -> RawReply:
        """Pass the reply through all middlewares, each of which may change its headers and body, and return it.

        :param address: name of the queue in which the reply arrived.
        :raises RemoteError: with the code `rejected_reply`, if a middleware raised an exception that ends a message
            (`DeadLetter`, `Requeue`, `RetryLater`) or did not pass the reply on.
        """
        passed: list[Delivery] = []

        async def innermost(changed: Delivery) -> None:
            passed.append(changed)

        delivery = Delivery(
            answer.body, "", address, address, False, None, answer.properties, table=answer.table
        )
        try:
            await self._middlewares.receive(delivery, innermost)
        except HandlerOutcome as outcome:
            raise RemoteError("rejected_reply", str(outcome) or type(outcome).__name__) from outcome
        if not passed:
            raise RemoteError("rejected_reply", "a middleware kept the reply")
        return RawReply(dict(passed[-1].properties), answer.table, passed[-1].body)
