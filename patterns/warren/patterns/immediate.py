"""Immediate: a message is handled now or not at all; where no consumer takes it, its publisher hears so.

AMQP's `immediate` flag is refused by RabbitMQ since 3.0 (540). Its replacement is a TTL of 0 with a dead letter exchange
(RabbitMQ, "Time-to-Live and Expiration"): what no consumer can take at once expires, and comes
back to its publisher.

Guarantees: `publish` returns when a consumer has the message, and raises `NoConsumer` when none could take it and it is
gone from the queue. What a consumer had taken and lost (it died over it) is in `<queue>.dead`, never back in the
queue. Costs a classic queue, an exclusive one a publisher, and a second small message, the receipt, which the
consumer sends before it handles.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from warren.sdk import (
    App,
    Binding,
    ConfigError,
    Delivery,
    Exchange,
    PublishError,
    PublishTimeout,
    Queue,
    RetryPolicy,
    current_delivery,
)
from warren.sdk.extend import DEAD_QUEUE, DEAD_REASON, Outcome, uuid7

TAKEN: Final = "warren-taken"

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[None]])


class NoConsumer(PublishError):
    """No consumer could take the message at that moment: there is none, or all have as much as they prefetch."""

    retryable: bool = True
    outcome: Outcome = "refused"


class Immediate:
    """`app.include(calls)`, `@calls.handle(Ring)` in who answers, `await calls.publish(Ring())` in who asks.

    :param queue: its name; who handles and who publishes name the same.
    :param timeout: seconds for the confirm and the receipt. Default 10.
    """

    def __init__(self, queue: str, *, timeout: float = 10.0) -> None:
        self._timeout = timeout
        self._back = Exchange(f"{queue}.back", type="headers", alternate_exchange=f"{queue}.dead")
        self._dead = Queue(f"{queue}.dead", dead_letter_exchange=None)
        self._queue = Queue(queue, type="classic", dead_letter_exchange=self._back.name)
        # Gone with its connection, and its binding with it: what has no publisher any more is a dead letter.
        self._returns = Queue(
            f"{queue}.returns.{secrets.token_hex(8)}",
            type="classic",
            exclusive=True,
            dead_letter_exchange=None,
        )
        self._pending: dict[str, asyncio.Future[None]] = {}
        self._app: App | None = None

    def register(self, app: App) -> None:
        self._app = app
        app.declare(
            self._back,
            Exchange(self._dead.name, type="fanout"),
            self._dead,
            self._queue,
            Binding(self._dead.name, self._dead.name),
            Binding(
                self._back.name,
                self._dead.name,
                arguments={"x-match": "all", DEAD_QUEUE: self._queue.name},
            ),
            Binding(
                self._back.name,
                self._returns.name,
                arguments={"x-match": "all", TAKEN: self._returns.name},
            ),
        )
        app.handle(bytes, queue=self._returns)(self._answered)

    async def on_start(self) -> None:
        """Nothing to begin."""

    async def on_stop(self) -> None:
        """Nothing to end: the broker deletes the queue of returns with its connection."""

    def handle(
        self, message: Any, *, concurrency: int = 10, retry: RetryPolicy | None = None
    ) -> Callable[[Handler], Handler]:
        """Decorate the function that handles, as `app.handle` does; `message` is a `Message` without a queue of its own,
        or another type that pydantic reads."""
        app = self._included()

        def register(function: Handler) -> Handler:
            @functools.wraps(function)
            async def taken(*arguments: Any, **named: Any) -> None:
                await self._receipt(app)
                await function(*arguments, **named)

            app.handle(message, queue=self._queue, concurrency=concurrency, retry=retry)(taken)
            return function

        return register

    async def publish(self, message: object, *, message_id: str | None = None) -> None:
        """Publish; returns when a consumer has it.

        :raises NoConsumer: none could take it now.
        :raises PublishTimeout: it is not known whether one took it.
        :raises PublishError: as `app.publish`.
        """
        app = self._included()
        name = message_id or uuid7(int(app.clock.now() * 1000))
        answer = self._pending[name] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._timeout):
                await app.publish(
                    message,
                    exchange="",
                    key=self._queue.name,
                    message_id=name,
                    headers={TAKEN: self._returns.name},
                    expiration=timedelta(0),
                    timeout=self._timeout,
                )
                await answer
        except TimeoutError:
            raise PublishTimeout(f"no receipt within {self._timeout:g} s: a consumer may have it") from None
        finally:
            self._pending.pop(name, None)

    async def _receipt(self, app: App) -> None:
        """Tell the publisher, once a delivery: before the work, which may take long."""
        delivery = current_delivery()
        returns = delivery.headers.get(TAKEN) if delivery is not None else None
        if delivery is not None and isinstance(returns, str):
            await app.publish(
                b"", exchange="", key=returns, message_id=delivery.message_id, reliability="at_most_once"
            )

    async def _answered(self, body: bytes, delivery: Delivery) -> None:
        """A receipt, or the message itself because nobody took it."""
        pending = self._pending.get(delivery.message_id or "")
        if "x-death" not in delivery.headers and DEAD_REASON not in delivery.headers:
            if pending is not None and not pending.done():
                pending.set_result(None)
            return
        if DEAD_REASON in delivery.headers:
            return  # Its handler has put it where dead letters are.
        if _expired(delivery.headers) and pending is not None and not pending.done():
            pending.set_exception(
                NoConsumer(f"no consumer of {self._queue.name!r} could take the message now")
            )
            return
        # Somebody had taken it and lost it, or refused it: nobody waits for it any more.
        await self._included().forward(delivery, key=self._dead.name)

    def _included(self) -> App:
        if self._app is None:
            raise ConfigError(f"{self._queue.name}: app.include(...) comes first")
        return self._app


def _expired(headers: Mapping[str, Any]) -> bool:
    deaths = headers.get("x-death")
    latest = deaths[0] if isinstance(deaths, list) and deaths else None
    return isinstance(latest, Mapping) and latest.get("reason") == "expired"


__all__ = ["Immediate", "NoConsumer"]
