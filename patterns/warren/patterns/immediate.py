"""Immediate: a message is handled now or not at all; if no consumer takes it, its publisher gets an error.

RabbitMQ has refused AMQP's `immediate` flag since 3.0 (reply code 540, not implemented). Its replacement is a TTL of 0
with a dead letter exchange (RabbitMQ, "Time-to-Live and Expiration"): a message that no consumer can take at once
expires and returns to its publisher.

Guarantees: `publish` returns when a consumer has the message, and raises `NoConsumer` when none could take it and it is
gone from the queue. A message whose consumer died while handling it goes to `<queue>.dead`, never back to the queue.
Costs: a classic queue, an exclusive queue per publisher, and a second small message, the receipt, which the consumer
sends to the publisher before it handles the message.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final, TypeVar

from warren.sdk import (
    App,
    Binding,
    Delivery,
    Exchange,
    PublishError,
    PublishTimeout,
    Queue,
    RetryPolicy,
    current_delivery,
)
from warren.sdk.extend import (
    DEAD_QUEUE,
    DEAD_REASON,
    Duration,
    IncludedComponent,
    MessageOutcome,
    seconds,
    uuid7,
)

RECEIPT_HEADER: Final = "warren-taken"

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[None]])


class NoConsumer(PublishError):
    """Error: no consumer could take the message at once. There is none, or all have reached their prefetch."""

    help_section: ClassVar[str] = "patterns"
    retryable: bool = True
    outcome: MessageOutcome = "refused"


class Immediate(IncludedComponent):
    """Queue whose messages are handled at once or returned to their publisher: `@calls.handle(Ring)` in the consumer,
    `await calls.publish(Ring())` in the publisher.

    Both call `app.include(calls)` first.

    :param queue: name of the queue, the same for consumers and publishers.
    :param timeout: seconds that `publish` waits for the broker's confirm, and for the receipt that the consumer sends
        before it handles the message. Default 10.
    """

    def __init__(self, queue: str, *, timeout: Duration = 10.0) -> None:
        self._timeout = seconds(timeout, "Immediate: timeout")
        self._return_exchange = Exchange(f"{queue}.back", type="headers", alternate_exchange=f"{queue}.dead")
        self._dead = Queue(f"{queue}.dead", dead_letter_exchange=None)
        self._queue = Queue(queue, type="classic", dead_letter_exchange=self._return_exchange.name)
        # Deleted with its connection, and its binding with it: a message without a publisher becomes a dead letter.
        self._returns = Queue(
            f"{queue}.returns.{secrets.token_hex(8)}",
            type="classic",
            exclusive=True,
            dead_letter_exchange=None,
        )
        self._pending: dict[str, asyncio.Future[None]] = {}
        super().__init__()

    @property
    def inclusion_title(self) -> str:
        return f"Immediate {self._queue.name}"

    def register(self, app: App) -> None:
        super().register(app)
        app.declare(
            self._return_exchange,
            Exchange(self._dead.name, type="fanout"),
            self._dead,
            self._queue,
            Binding(self._dead.name, self._dead.name),
            Binding(
                self._return_exchange.name,
                self._dead.name,
                arguments={"x-match": "all", DEAD_QUEUE: self._queue.name},
            ),
            Binding(
                self._return_exchange.name,
                self._returns.name,
                arguments={"x-match": "all", RECEIPT_HEADER: self._returns.name},
            ),
        )
        app.handle(bytes, queue=self._returns)(self._handle_return)

    async def on_start(self) -> None:
        """Do nothing when the App starts: the App's own consumer reads the queue to which receipts and returned
        messages come."""

    async def on_stop(self) -> None:
        """Do nothing: this process's queue for receipts and returned messages is exclusive, so the broker deletes it
        when the connection closes."""

    def handle(
        self, message: Any, *, concurrency: int = 10, retry: RetryPolicy | None = None
    ) -> Callable[[Handler], Handler]:
        """Decorate the handler of the queue's messages, as `app.handle` does.

        :param message: message class without a queue of its own, or another type that pydantic can decode,
            such as a dataclass.
        :param concurrency: largest number of messages handled at a time.
        :param retry: retry policy of the handler.
        """
        app = self.included_in()

        def register(function: Handler) -> Handler:
            @functools.wraps(function)
            async def acknowledged(*arguments: Any, **named: Any) -> None:
                await self._send_receipt(app)
                await function(*arguments, **named)

            app.handle(message, queue=self._queue, concurrency=concurrency, retry=retry)(acknowledged)
            return function

        return register

    async def publish(self, message: object, *, message_id: str | None = None) -> None:
        """Publish a message, and return when a consumer has received it.

        :param message_id: id of the message; a new one by default.
        :raises NoConsumer: no consumer could take the message at once.
        :raises PublishTimeout: it is unknown whether a consumer took it.
        :raises PublishError: the broker did not confirm the message: it was refused or unroutable, or no confirm came.
        """
        app = self.included_in()
        message_key = message_id or uuid7(int(app.clock.now() * 1000))
        receipt = self._pending[message_key] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._timeout):
                await app.publish(
                    message,
                    exchange="",
                    key=self._queue.name,
                    message_id=message_key,
                    headers={RECEIPT_HEADER: self._returns.name},
                    expiration=timedelta(0),
                    timeout=self._timeout,
                )
                await receipt
        except TimeoutError:
            raise PublishTimeout(
                f"no receipt arrived within {self._timeout:g} s: a consumer may have the message"
            ) from None
        finally:
            self._pending.pop(message_key, None)

    async def _send_receipt(self, app: App) -> None:
        """Send the publisher a receipt for the delivery that is being handled. It is sent before the handler runs,
        because the publisher waits for it and the handler may take long."""
        delivery = current_delivery()
        returns = delivery.headers.get(RECEIPT_HEADER) if delivery is not None else None
        if delivery is not None and isinstance(returns, str):
            await app.publish(
                b"", exchange="", key=returns, message_id=delivery.message_id, reliability="at_most_once"
            )

    async def _handle_return(self, body: bytes, delivery: Delivery) -> None:
        """Handle a message in the publisher's own queue.

        A receipt, by which a consumer reports that it has received a message, ends the wait of `publish`. A message
        that expired because no consumer took it ends the wait with `NoConsumer`. A message whose consumer lost or
        rejected it is forwarded to `<queue>.dead`.

        :param body: not read.
        :param delivery: id and headers of the message.
        """
        pending = self._pending.get(delivery.message_id or "")
        if "x-death" not in delivery.headers and DEAD_REASON not in delivery.headers:
            if pending is not None and not pending.done():
                pending.set_result(None)
            return
        if DEAD_REASON in delivery.headers:
            return  # Its handler has dead-lettered it.
        if _has_expired(delivery.headers) and pending is not None and not pending.done():
            pending.set_exception(
                NoConsumer(f"no consumer of {self._queue.name!r} could take the message now")
            )
            return
        # A consumer took it and lost it, or rejected it: no publisher waits for it any more.
        await self.included_in().forward(delivery, key=self._dead.name)


def _has_expired(headers: Mapping[str, Any]) -> bool:
    deaths = headers.get("x-death")
    latest = deaths[0] if isinstance(deaths, list) and deaths else None
    return isinstance(latest, Mapping) and latest.get("reason") == "expired"


__all__ = ["Immediate", "NoConsumer"]
