"""Operations of an App on the sending side: publish, submit, call, gather;
each first declares the topology it requires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Final, Literal, TypeVar

from warren.sdk.app.runtime import Runtime
from warren.sdk.choices import check_choice, check_whole_number
from warren.sdk.errors import TransportUnavailable
from warren.sdk.messages.codec import MessageOptions, encode
from warren.sdk.messages.types import Message, Request, Scatter
from warren.sdk.protocols import Clock
from warren.sdk.publish.bulk_publish import PUBLISH_SECONDS
from warren.sdk.publish.outgoing import TRANSIENT, Outgoing
from warren.sdk.publish.transaction import TransactionChannels
from warren.sdk.rpc.reply_types import reply_codec
from warren.sdk.rpc.request_argument import check_call, check_gather
from warren.sdk.rpc.scatter_gather import GatherCall, PreparedScatter
from warren.sdk.telemetry.publish_spans import batch_span, record_publish
from warren.sdk.topology.registry import DeclarePolicy

CALL_SECONDS = 30.0
"""Seconds that `call` waits for its reply by default."""

Reliability = Literal["at_least_once", "at_most_once"]
"""Guarantee of a publish. `at_least_once`: a persistent message, and the broker's confirm. `at_most_once`: a transient
message, without a confirm."""
RELIABILITY_HINT: Final = "; for effects that happen once, publish at least once and handle with once="
Answer = TypeVar("Answer")


class PublishOperations:
    """Sends the messages and requests of an App; one object serves all runs of the App.

    :param running: returns the current run of the App; raises `TransportUnavailable` if it is not running.
    """

    def __init__(self, running: Callable[[], Runtime], clock: Clock, policy: DeclarePolicy) -> None:
        self._running = running
        self._clock = clock
        self._policy = policy
        self._declared: set[type[Message]] = set()
        self._called: set[type[Message]] = set()
        """The classes of requests that were sent with `app.call`."""
        self.declared_publishes: list[type[Message]] = []
        """The message classes that were registered with `app.publishes`."""

    def declare_publish(self, kind: type[Message]) -> None:
        """Register a message class that was passed to `app.publishes`: its topology is
        declared at each start of the App, instead of before the first message.
        """
        if kind not in self.declared_publishes:
            self.declared_publishes.append(kind)
        self._declared.add(kind)

    async def publish(
        self, message: object, timeout: float, reliability: Reliability, options: MessageOptions
    ) -> None:
        """Publish a message and await its confirm within `timeout` seconds; parameters as for `App.publish`."""
        transient = False
        if reliability != "at_least_once":
            check_choice("reliability", reliability, Reliability, RELIABILITY_HINT)
            if transient := not options.get("persistent"):
                options = {**options, "persistent": None}
        runtime = self._running()
        outgoing = encode(message, now=self._clock.now(), **options)
        if isinstance(message, Message) and type(message) not in self._declared:
            timeout = await self._declare_required(runtime, type(message), timeout)
        if reliability == "at_most_once":
            if transient:
                outgoing.set("delivery_mode", TRANSIENT)
            await runtime.sender.publish_unconfirmed(outgoing, timeout)
        else:
            await runtime.sender.publish(outgoing, timeout)

    async def submit(self, message: object, timeout: float, options: MessageOptions) -> asyncio.Future[None]:
        """Write a message and return the future of its confirm; parameters as for `App.submit`."""
        runtime = self._running()
        outgoing = encode(message, now=self._clock.now(), **options)
        if isinstance(message, Message) and type(message) not in self._declared:
            timeout = await self._declare_required(runtime, type(message), timeout)
        return await runtime.sender.submit(outgoing, timeout)

    async def encode_for(self, message: object, options: MessageOptions) -> Outgoing:
        """Declare the topology that the message requires, and return the encoded message."""
        if isinstance(message, Message) and type(message) not in self._declared:
            await self._declare_required(self._running(), type(message), PUBLISH_SECONDS)
        return encode(message, now=self._clock.now(), **options)

    async def pass_through(self, outgoing: Outgoing, write: Callable[[Outgoing], Awaitable[None]]) -> None:
        """Pass a message of a transaction through the publish middlewares, and call `write` with the result."""
        runtime = self._running()
        if runtime.instruments is not None:
            write = record_publish(runtime.instruments, write)
        await runtime.middlewares.send(outgoing, write)

    def transaction_channels(self) -> TransactionChannels:
        """Return the pool of transaction channels of the current run of the App."""
        return self._running().transactions

    async def prepare(self, message: object, timeout: float, options: MessageOptions) -> Outgoing:
        """Declare the topology that the message requires, and return the encoded message; for bulk publishing.

        :param timeout: seconds for the declaration.
        :param options: address, headers and properties of each message.
        """
        if isinstance(message, Message) and type(message) not in self._declared:
            await self._declare_required(self._running(), type(message), timeout)
        return encode(message, now=self._clock.now(), **options)

    async def write(
        self, outgoing: Outgoing, timeout: float, before_write: Callable[[], None] | None = None
    ) -> asyncio.Future[None]:
        """Write an encoded message as soon as there is a connection and room in
        the window; return the future of its confirm.

        A message that is written for the second time has been through the publish middlewares, and skips them.

        :param timeout: seconds for the write and the confirm together.
        :param before_write: called directly before each write, also before the message is published again because its
            channel was lost; if it raises, nothing is written, and its error is the outcome.
        """
        runtime = self._running()
        sender = runtime.direct_sender if outgoing.middlewares_applied else runtime.sender
        return await sender.submit(outgoing, timeout, before_write)

    async def call(self, request: Request[Answer], *, timeout: float, message_id: str | None) -> Answer:
        """Send a request and return its reply; parameters as for `App.call`."""
        runtime = self._running()
        kind = type(request)
        if kind not in self._called:
            check_call(request)
            self._called.add(kind)
        if kind not in self._declared and self._policy == "always":
            timeout = await self._declare_required(runtime, kind, timeout)
        outgoing = encode(
            request, now=self._clock.now(), message_id=message_id, expiration=timedelta(seconds=timeout)
        )
        submit = runtime.submit_for(outgoing.routing_key)
        answer: Answer = await runtime.caller.call(outgoing, reply_codec(kind), timeout, submit)
        return answer

    def gather(
        self,
        request: Request[Answer] | Scatter[Answer],
        *,
        replies: int | None,
        timeout: float,
        exchange: str | None,
        key: str | None,
    ) -> GatherCall[Answer]:
        """Return a scatter-gather call for `App.gather`; it publishes the request when it is awaited or iterated.

        Parameters as for `App.gather`.

        :raises ConfigError: if `replies` is below 1, or the message is neither a Request nor a Scatter.
        """
        if replies is not None:
            check_whole_number("replies", replies)
        check_gather(request)
        kind = type(request)

        async def prepare(timeout: float) -> PreparedScatter:
            runtime = self._running()
            if exchange is None and kind not in self._declared and self._policy == "always":
                timeout = await self._declare_required(runtime, kind, timeout)
            outgoing = encode(
                request,
                now=self._clock.now(),
                exchange=exchange,
                key="" if exchange is not None and key is None else key,
                expiration=timedelta(seconds=timeout),
            )
            audience = frozenset(queue.name for queue in getattr(request, "wire_audience", ()))
            return PreparedScatter(
                runtime.caller, reply_codec(kind), runtime.sender.submit, outgoing, audience
            )

        return GatherCall(prepare, replies, timeout)

    def batch(self) -> AbstractContextManager[None]:
        """Return a context manager that records one OpenTelemetry span for all messages that are published within it.

        Without telemetry it does nothing.
        """
        instruments = self._running().instruments
        return nullcontext() if instruments is None else batch_span(instruments)

    async def send(self, outgoing: Outgoing) -> None:
        """Publish a reply and await its confirm, for at most `PUBLISH_SECONDS`."""
        await self._running().reply(outgoing, PUBLISH_SECONDS)

    async def forward(self, outgoing: Outgoing, timeout: float = PUBLISH_SECONDS) -> None:
        """Publish a received message and await the confirm, without the publish middlewares.

        :param timeout: seconds until the confirm must have arrived.
        """
        await self._running().direct_sender.publish(outgoing, timeout)

    async def _declare_required(self, runtime: Runtime, kind: type[Message], timeout: float) -> float:
        """Declare the topology that a message class requires, unless it has been declared in this run; return the
        seconds of `timeout` that are left.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        if kind.wire_key is not None:
            try:
                async with asyncio.timeout(timeout), runtime.required_topology_lock:
                    if kind not in self._declared:
                        await runtime.declare(kind.required_topology())
            except TimeoutError:
                raise TransportUnavailable(
                    "there was no connection to the broker within the deadline"
                ) from None
        self._declared.add(kind)
        return max(0.0, timeout - (loop.time() - started))
