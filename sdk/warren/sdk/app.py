"""The App: what a user declares, publishes, calls and runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

from warren.sdk import telemetry
from warren.sdk.clock import SystemClock
from warren.sdk.codec import adapter_of, encode
from warren.sdk.connection import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS
from warren.sdk.endpoint import Endpoint
from warren.sdk.errors import BatchError, ConfigError, TransportUnavailable, Unroutable, WarrenError
from warren.sdk.handler import HandlerSpec, source_of
from warren.sdk.handles import Answers, Handles
from warren.sdk.messages import Message, Request
from warren.sdk.outgoing import TRANSIENT, Outgoing
from warren.sdk.process import serve
from warren.sdk.protocols import Clock, Component, DelayBackend, Once, RetryPolicy
from warren.sdk.publisher import WINDOW
from warren.sdk.registry import DeclarePolicy, Registry
from warren.sdk.report import Failure, PublishReport
from warren.sdk.retry import InProcess
from warren.sdk.runtime import Runtime, State, Statistics
from warren.sdk.topology import Declarable, Queue
from warren.wire.url import parse_url

log = logging.getLogger("warren.sdk")

CONCURRENCY = 10
PUBLISH_SECONDS = 30.0
CALL_SECONDS = 30.0
CONNECT_SECONDS = 30.0
GRACE_SECONDS = 25.0

Content = TypeVar("Content")
Answer = TypeVar("Answer")


class App:
    """A process's view of its broker: `async with App("amqp://...") as app:`.

    :param url: `amqp://` or `amqps://`; else the environment's `AMQP_URL`, else a broker in memory in this process.
    :param name: shown by the broker for its connections.
    :param declare: `always` declares what messages must reach; `never` only checks, and says what is missing.
    :param window: unconfirmed messages at a time.
    :param connect_timeout: seconds for the first connection, and for the consumers to stand.
    :param grace: seconds that running handlers have to end when the App stops.
    :param first_retry: seconds; the first wait for a new connection is random below it, and each later bound doubles.
    :param longest_retry: seconds; the cap of that bound.
    :param clock: the time of messages, retries and patterns.
    :param retry: the default policy of handlers: 3 attempts in this process.
    :param delay: brings messages back that a policy delays.
    :raises ConfigError: if the URL is no AMQP URL.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = "warren",
        declare: DeclarePolicy = "always",
        window: int = WINDOW,
        connect_timeout: float = CONNECT_SECONDS,
        grace: float = GRACE_SECONDS,
        first_retry: float = FIRST_RETRY_SECONDS,
        longest_retry: float = LONGEST_RETRY_SECONDS,
        clock: Clock | None = None,
        retry: RetryPolicy | None = None,
        delay: DelayBackend | None = None,
    ) -> None:
        self._url = url or os.environ.get("AMQP_URL")
        if self._url is not None:
            try:
                parse_url(self._url)
            except ValueError as error:
                raise ConfigError(str(error)) from None
        self.clock: Clock = clock or SystemClock()
        self._name = name
        self._window = window
        self._connect_timeout = connect_timeout
        self._grace = grace
        self._first_retry = first_retry
        self._longest_retry = longest_retry
        self._policy = declare
        self._retry = retry or InProcess(self.clock)
        self._delay = delay
        self._registry = Registry(declare)
        self._endpoints: dict[str, Endpoint] = {}
        self._components: list[Component] = []
        self._on_return: list[Callable[[Unroutable], object]] = []
        self._reached: set[type[Message]] = set()
        self._runtime: Runtime | None = None

    # Declaring

    def declare(self, *items: Declarable) -> None:
        """Name topology that is declared at start and after each reconnect.

        :raises ConfigError: if a name already stands for something else.
        """
        self._registry.add(items)

    async def declare_now(self, *items: Declarable) -> None:
        """`declare` on the running App, and on the broker before it returns.

        :raises TopologyMismatch: if something exists with other arguments.
        """
        await self._running().declare(items)

    @property
    def topology(self) -> tuple[Declarable, ...]:
        """All that this App declares, with the dead letter queues that its queues imply."""
        return self._registry.items()

    def include(self, component: Component) -> None:
        """Add a pattern; it starts and stops with the App."""
        self._not_running("include a component")
        self._components.append(component)
        component.register(self)

    def on_return(self, callback: Callable[[Unroutable], object]) -> None:
        """Call back with every message that the broker returned, for those who do not await their publishes."""
        self._on_return.append(callback)

    # A Request is content too; the first overload wins, and says more.
    @overload
    def handle(  # type: ignore[overload-overlap]
        self,
        message: type[Request[Answer]],
        *,
        concurrency: int = ...,
        retry: RetryPolicy | None = ...,
        once: Once | None = ...,
    ) -> Answers[Answer]: ...

    @overload
    def handle(
        self,
        message: type[Content],
        *,
        queue: str | Queue | None = ...,
        concurrency: int = ...,
        keys: Iterable[str] | None = ...,
        retry: RetryPolicy | None = ...,
        once: Once | None = ...,
    ) -> Handles[Content]: ...

    def handle(
        self,
        message: Any,
        *,
        queue: str | Queue | None = None,
        concurrency: int = CONCURRENCY,
        keys: Iterable[str] | None = None,
        retry: RetryPolicy | None = None,
        once: Once | None = None,
    ) -> Any:
        """Decorate an async function that handles these messages; it stays what it was.

        It is acknowledged when the function returns. When it raises, it is tried again as `retry` says, then goes to
        the dead letter queue with the reason; a Request is answered with the error instead.

        :param message: an Event, Command or Request class; or `bytes`, `str`, `dict` or another type that pydantic reads,
            for foreign content.
        :param queue: of an Event or of foreign content: its name, or a `Queue` that says more.
        :param concurrency: handlers at a time on this queue; the prefetch is twice that.
        :param keys: the binding keys of an Event, instead of its own key.
        :raises ConfigError: if the message has no queue, or the function's signature does not fit.
        """
        self._not_running("add a handler")
        if concurrency < 1:
            raise ConfigError("concurrency must be at least 1")

        def register(function: Callable[..., Any]) -> None:
            handler = HandlerSpec.of(message, function, retry, once)
            source, items = source_of(message, queue, keys)
            self._registry.add(items)
            endpoint = self._endpoints.get(source)
            if endpoint is None:
                endpoint = Endpoint(
                    lambda: self._registry.queue(source),
                    concurrency=concurrency,
                    send=self._send,
                    clock=self.clock,
                    retry=self._retry,
                    delay=self._delay,
                )
                self._endpoints[source] = endpoint
            elif endpoint.concurrency != concurrency:
                raise ConfigError(f"the handlers of queue {source!r} must have the same concurrency")
            endpoint.add(handler)

        if isinstance(message, type) and issubclass(message, Request):
            return Answers[Any](register)
        return Handles[Any](register)

    # Sending

    async def publish(
        self,
        message: object,
        *,
        timeout: float = PUBLISH_SECONDS,
        exchange: str | None = None,
        key: str | None = None,
        message_id: str | None = None,
        headers: Mapping[str, Any] | None = None,
        expiration: timedelta | None = None,
        reliability: Literal["at_least_once", "at_most_once"] = "at_least_once",
    ) -> None:
        """Publish and return when the broker has it.

        Waiting for a connection, for room in the window and for the confirm all count in `timeout`. A message whose
        connection is lost is published again on the next one, with the same id and `warren-republished`.

        :param message: a Message; or bytes, text or anything that JSON can carry, with `exchange` and `key`.
        :param timeout: seconds.
        :param headers: added to the header table.
        :param expiration: the message leaves its queue when it has waited so long.
        :param reliability: `at_most_once` sends transient, without mandatory and without awaiting a confirm.
        :raises Unroutable, Nacked, PublishTimeout, TransportUnavailable: see there.
        """
        runtime = self._running()
        with telemetry.publishing(*_address(message, exchange, key)):
            outgoing = encode(
                message,
                now=self.clock.now(),
                exchange=exchange,
                key=key,
                message_id=message_id,
                headers=headers,
                expiration=expiration,
            )
            if isinstance(message, Message) and type(message) not in self._reached:
                timeout = await self._reach(runtime, type(message), timeout)
            if reliability == "at_most_once":
                outgoing.set("delivery_mode", TRANSIENT)
                await runtime.publisher.publish_unconfirmed(outgoing, timeout)
            else:
                await runtime.publisher.publish(outgoing, timeout)

    async def publish_many(
        self,
        messages: Iterable[object],
        *,
        timeout: float = PUBLISH_SECONDS,
        exchange: str | None = None,
        key: str | None = None,
        on_error: Literal["raise", "report"] = "raise",
    ) -> PublishReport:
        """Publish all with their confirms in a window, and return when every one has its outcome.

        :param timeout: seconds for each message, from when its turn came.
        :raises BatchError: with the report, if any was not confirmed and `on_error` is `raise`.
        """
        runtime = self._running()
        waiting: list[tuple[object, asyncio.Future[None] | WarrenError]] = []
        try:
            for message in messages:
                if isinstance(message, Message) and type(message) not in self._reached:
                    await self._reach(runtime, type(message), timeout)
                try:
                    outgoing = encode(message, now=self.clock.now(), exchange=exchange, key=key)
                    waiting.append((message, await runtime.publisher.submit(outgoing, timeout)))
                except WarrenError as error:
                    waiting.append((message, error))
            await _all([entry for _, entry in waiting if isinstance(entry, asyncio.Future)])
        except asyncio.CancelledError:
            for _, entry in waiting:
                if isinstance(entry, asyncio.Future):
                    entry.cancel()
            raise
        failures = []
        for index, (message, entry) in enumerate(waiting):
            problem = entry.exception() if isinstance(entry, asyncio.Future) else entry
            if isinstance(problem, WarrenError):
                failures.append(Failure(index, message, problem))
        report = PublishReport(len(waiting), tuple(failures))
        if failures and on_error == "raise":
            raise BatchError(report)
        return report

    async def call(
        self, request: Request[Answer], *, timeout: float = CALL_SECONDS, message_id: str | None = None
    ) -> Answer:
        """Send a request and return its reply; the request expires with its caller.

        :param timeout: seconds.
        :raises RemoteError: the server answered with an error. :raises NoServer: its queue does not exist.
        :raises CallTimeout: no reply in time. :raises TransportUnavailable: the connection was lost meanwhile.
        """
        runtime = self._running()
        kind = type(request)
        address = _address(request, None, None)
        with telemetry.publishing(*address):
            if kind not in self._reached and self._policy == "always":
                timeout = await self._reach(runtime, kind, timeout)
            outgoing = encode(
                request, now=self.clock.now(), message_id=message_id, expiration=timedelta(seconds=timeout)
            )
            return await runtime.caller.call(outgoing, adapter_of(kind.reply_type()), timeout)

    # Running

    async def start(self) -> App:
        """Connect, declare, start components and consumers; returns when all consumers are confirmed.

        :raises WarrenError: why that is not possible; everything that was started is stopped again.
        """
        self._not_running("start")
        runtime = Runtime(
            self._url,
            self._name,
            registry=self._registry,
            endpoints=self._endpoints,
            components=self._components,
            window=self._window,
            on_return=self._returned,
            first_retry=self._first_retry,
            longest_retry=self._longest_retry,
        )
        self._runtime = runtime
        try:
            await runtime.start(self._connect_timeout)
        except BaseException:
            await runtime.stop(0.0)
            self._runtime = None
            raise
        return self

    async def stop(self) -> None:
        """Cancel the consumers, requeue what has not started, let what has started end, flush the confirms, close."""
        runtime = self._runtime
        if runtime is not None:
            try:
                await runtime.stop(self._grace)
            finally:
                self._runtime = None

    async def __aenter__(self) -> App:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, then stop cleanly; a second signal ends at once."""
        asyncio.run(serve(self))

    @property
    def state(self) -> State:
        return State.STOPPED if self._runtime is None else self._runtime.state

    @property
    def ready(self) -> bool:
        """Both connections are up and the broker has confirmed every consumer."""
        return self.state is State.READY

    @property
    def url(self) -> str | None:
        """The broker's URL; of the embedded broker only while the App runs."""
        return self._url if self._runtime is None else self._runtime.url

    def statistics(self) -> Statistics:
        """Counts of this run.

        :raises TransportUnavailable: if the App does not run.
        """
        return self._running().statistics()

    # Inside

    async def _reach(self, runtime: Runtime, kind: type[Message], timeout: float) -> float:
        """Declare what the class must reach, once; returns what is left of `timeout`."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        if kind.wire_key is not None:
            try:
                async with asyncio.timeout(timeout), runtime.reaching:
                    if kind not in self._reached:
                        await runtime.declare(kind.reach())
            except TimeoutError:
                raise TransportUnavailable(
                    "there was no connection to the broker within the deadline"
                ) from None
        self._reached.add(kind)
        return max(0.0, timeout - (loop.time() - started))

    async def _send(self, outgoing: Outgoing) -> None:
        await self._running().publisher.publish(outgoing, PUBLISH_SECONDS)

    def _returned(self, error: Unroutable) -> None:
        for callback in self._on_return:
            with contextlib.suppress(Exception):
                callback(error)

    def _running(self) -> Runtime:
        if self._runtime is None:
            raise TransportUnavailable("the App does not run: async with app: ...", retryable=False)
        self._runtime.check_loop()
        return self._runtime

    def _not_running(self, what: str) -> None:
        if self._runtime is not None:
            raise ConfigError(f"the App runs already: {what} before it starts")


def _address(message: object, exchange: str | None, key: str | None) -> tuple[str, str]:
    if isinstance(message, Message):
        return (
            message.wire_exchange if exchange is None else exchange,
            (message.wire_key or "") if key is None else key,
        )
    return exchange or "", key or ""


async def _all(futures: list[asyncio.Future[None]]) -> None:
    if futures:
        await asyncio.wait(futures)
