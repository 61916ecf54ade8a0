"""The App: what a user declares, publishes, calls and runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar, Unpack

from warren.sdk.app.blocking import Sync
from warren.sdk.app.default_delay import DefaultDelay
from warren.sdk.app.lifecycle import Lifecycle
from warren.sdk.app.middleware import Middlewares
from warren.sdk.app.serve import serve
from warren.sdk.app.settings import Settings
from warren.sdk.app.state import Health, State
from warren.sdk.app.statistics import Statistics
from warren.sdk.capture import Capture
from warren.sdk.clock import AppClock, SystemClock
from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.get import HeldDelivery
from warren.sdk.consume.handlers.decorators import HandlerDecoratorFactory
from warren.sdk.consume.handlers.registration import HandlerRegistry
from warren.sdk.consume.retry import Retry
from warren.sdk.consume.subscription import Subscription
from warren.sdk.errors import Unroutable
from warren.sdk.messages.codec import MessageOptions
from warren.sdk.messages.forwarding import forwarded
from warren.sdk.messages.types import Message, Request, Scatter
from warren.sdk.protocols import (
    Clock,
    Component,
    DelayBackend,
    HandleMiddleware,
    PublishMiddleware,
    RetryPolicy,
)
from warren.sdk.publish.bulk_publish import (
    PUBLISH_SECONDS,
    BatchOptions,
    BulkPublish,
    Messages,
    OnError,
    publish_again,
    publish_all,
    publish_batches,
)
from warren.sdk.publish.operations import CALL_SECONDS, PublishOperations, Reliability
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.publish.publisher_confirms import WINDOW
from warren.sdk.publish.report import PublishReport
from warren.sdk.publish.transaction import Transaction
from warren.sdk.rpc.caller import ReplyMode
from warren.sdk.rpc.scatter_gather import GatherCall
from warren.sdk.telemetry import Telemetry
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.registry import DeclarePolicy, MismatchPolicy, TopologyRegistry
from warren.sdk.transport.host_failover import HostOrder, Hosts
from warren.sdk.transport.supervised_connection import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS

CONNECT_SECONDS = 30.0
GRACE_SECONDS = 25.0

Answer = TypeVar("Answer")
StateCallback = TypeVar("StateCallback", bound=Callable[[State], object])


class App:
    """A process's view of its broker: `async with App("amqp://...") as app:`.

    :param url: `amqp://` or `amqps://`; several (a list, or with commas between them) are nodes of one cluster, and each
        failed attempt goes on to the next. Else the environment's `AMQP_URL`, else a broker in memory in this process.
    :param hosts: the order of several: `random`, or `given`, which begins with the first.
    :param name: shown by the broker for its connections.
    :param declare: `always` declares what messages must reach; `never` only checks, and says what is missing.
    :param mismatch: what becomes of a queue or exchange that is on the broker with other arguments: `fail` raises
        `TopologyMismatch` with all that differs, `adopt` logs it and takes it as it is.
    :param window: unconfirmed messages at a time.
    :param replies: where the replies to calls come: to a `queue` of the App's own, or by RabbitMQ's `direct` reply-to.
    :param telemetry: what OpenTelemetry is told, and through which providers; by default the global ones, if they are set.
    :param capture: the life-cycle events of all messages go to a stream; by default none do, and nothing is spent on them.
    :param connect_timeout: seconds for the first connection, and for the consumers to stand.
    :param grace: seconds that running handlers have to end when the App stops.
    :param first_retry: seconds; the first wait for a new connection is random below it, and each later bound doubles.
    :param longest_retry: seconds; the cap of that bound.
    :param clock: the time of messages, retries and patterns.
    :param retry: the default policy of handlers: `Retry()`, 3 attempts in this process.
    :param delay: brings messages back that a policy delays; by default a queue for each delay (`WaitQueues`).
    :raises ConfigError: if the URL is no AMQP URL.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        hosts: HostOrder = "random",
        name: str = "warren",
        declare: DeclarePolicy = "always",
        mismatch: MismatchPolicy = "fail",
        window: int = WINDOW,
        replies: ReplyMode = "queue",
        telemetry: Telemetry | None = None,
        capture: Capture | None = None,
        connect_timeout: float = CONNECT_SECONDS,
        grace: float = GRACE_SECONDS,
        first_retry: float = FIRST_RETRY_SECONDS,
        longest_retry: float = LONGEST_RETRY_SECONDS,
        clock: Clock | None = None,
        retry: RetryPolicy | None = None,
        delay: DelayBackend | None = None,
    ) -> None:
        urls = (os.environ.get("AMQP_URL") or None) if url is None or url == "" else url
        self.clock: AppClock = AppClock(clock or SystemClock())
        self._lifecycle = Lifecycle(
            Settings(
                hosts=None if urls is None else Hosts.parse(urls, hosts),
                name=name,
                window=window,
                replies=replies,
                telemetry=telemetry or Telemetry(),
                capture=capture,
                connect_timeout=connect_timeout,
                grace=grace,
                first_retry=first_retry,
                longest_retry=longest_retry,
            )
        )
        self._registry = TopologyRegistry(declare, mismatch)
        self._middlewares = Middlewares()
        self._operations = PublishOperations(self._lifecycle.running, self.clock, declare)
        self._handlers = HandlerRegistry(
            self._registry,
            send=self._operations.send,
            forward=self._operations.forward,
            middlewares=self._middlewares,
            clock=self.clock,
            retry=retry or Retry(),
            delay=DefaultDelay(self, delay),
            context={App: self},
        )
        self.handle: HandlerDecoratorFactory = HandlerDecoratorFactory(self, self._handlers, self._lifecycle)
        self.sync: Sync = Sync(self, self._lifecycle)
        backend: object = delay
        if isinstance(backend, Component):
            self.include(backend)

    def use_broker(self, url: str) -> None:
        """Use another broker than the one that it was made with.

        :param url: as in `App(url)`.
        :raises ConfigError: if that is no AMQP URL, or the App runs.
        """
        self._lifecycle.not_running("name another broker")
        self._lifecycle.settings.hosts = Hosts.parse(url)

    # Declaring

    def declare(self, *items: Declarable) -> None:
        """Name topology that is declared at start and after each reconnect.

        :raises ConfigError: if a name already stands for something else.
        """
        self._registry.add(items)

    def publishes(self, *messages: type[Message]) -> None:
        """Say which messages this App publishes or calls, without handling them.

        What they must reach is then declared at start, with the rest, instead of before the first one; `app.topology`,
        `warren topology` and `warren asyncapi` know it.

        :raises ConfigError: if a class has no address, or the App runs.
        """
        self._lifecycle.not_running("say what it publishes")
        for message in messages:
            self._registry.add(message.required_topology())
            self._operations.declare_publish(message)

    async def declare_now(self, *items: Declarable) -> None:
        """`declare` on the running App, and on the broker before it returns.

        :raises TopologyMismatch: if something exists with other arguments.
        """
        await self._lifecycle.running().declare(items)

    @property
    def topology(self) -> tuple[Declarable, ...]:
        """All that this App declares, with the dead letter queues that its queues imply."""
        return self._registry.items()

    def include(self, component: Component) -> None:
        """Add a pattern; it starts and stops with the App."""
        self._lifecycle.not_running("include a component")
        self._lifecycle.components.append(component)
        component.register(self)

    def middleware(
        self, *, publish: PublishMiddleware | None = None, handle: HandleMiddleware | None = None
    ) -> None:
        """Put async functions around every publish, and around every attempt to handle a message.

        Those added first are nearest to the user's code: a publish passes them first to last, a delivery last to
        first. Without any, none costs anything.

        :raises ConfigError: if there is neither, or the App runs.
        """
        self._lifecycle.not_running("add a middleware")
        self._middlewares.add(publish, handle)

    def override(
        self, dependency: Callable[..., Any], other: Callable[..., Any]
    ) -> contextlib.AbstractContextManager[object]:
        """For tests: `other` stands in for a function that handlers depend on, at once.

        `with app.override(open_ledger, fake_ledger):` ends it with the block; without `with` it stays.

        :param other: may have dependencies of its own.
        :raises ConfigError: if one of its parameters cannot be filled.
        """
        return self._handlers.override(dependency, other)

    def on_return(self, callback: Callable[[Unroutable], object]) -> None:
        """Call back with every message that the broker returned, for those who do not await their publishes."""
        self._lifecycle.return_callbacks.append(callback)

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """The consumers of this run by their queues, to `pause`, `resume` and `cancel`."""
        return MappingProxyType(self._lifecycle.running().subscriptions)

    # Sending

    async def publish(
        self,
        message: object,
        *,
        timeout: float = PUBLISH_SECONDS,
        reliability: Reliability = "at_least_once",
        **options: Unpack[MessageOptions],
    ) -> None:
        """Publish and return when the broker has it.

        Waiting for a connection, for room in the window and for the confirm all count in `timeout`. A message whose
        connection is lost is published again on the next one, with the same id and `warren-republished`.

        :param message: a Message; or bytes, text or anything that JSON can carry, with `exchange` and `key`.
        :param timeout: seconds.
        :param reliability: `at_most_once` sends transient, without mandatory and without awaiting a confirm.
        :param options: `exchange`, `key`, `message_id`, `headers`, `expiration`, `priority`: see `MessageOptions`.
        :raises Unroutable, Nacked, PublishTimeout, TransportUnavailable, TopologyMismatch: see there.
        :raises PublishError: `refused`, as without its exchange. :raises ConfigError: the wire cannot carry it.
        """
        await self._operations.publish(message, timeout, reliability, options)

    async def submit(
        self, message: object, *, timeout: float = PUBLISH_SECONDS, **options: Unpack[MessageOptions]
    ) -> asyncio.Future[None]:
        """As `publish`, but return when the message is written; the future has its confirm, or its error.

        Waits while the window of unconfirmed messages is full. A future that nobody awaits logs its error.
        """
        return await self._operations.submit(message, timeout, options)

    async def publish_many(
        self,
        messages: Messages,
        *,
        ordered: bool = False,
        on_error: OnError = "raise",
        **options: Unpack[BatchOptions],
    ) -> PublishReport:
        """Publish all with their confirms in a window, and return when every one has its outcome.

        :param messages: an iterable, or an async one.
        :param ordered: nothing new is written after a nack or a lost connection before what was in flight has been
            published again, one after the other; if one of those cannot be, nothing behind it is sent.
        :param options: see `BatchOptions`.
        :raises BatchError: with the report, if any was not confirmed and `on_error` is `raise`.
        """
        return await publish_all(
            BulkPublish(self._operations, ordered=ordered, **options), messages, on_error
        )

    def publish_batches(
        self,
        messages: Messages,
        *,
        count: int | None = 100,
        within: float | None = 0.05,
        on_error: OnError = "raise",
        **options: Unpack[BatchOptions],
    ) -> AsyncGenerator[PublishReport, None]:
        """Publish in batches: `async for report in app.publish_batches(orders)`, one report a batch, when it is confirmed.

        :param count: messages that close a batch. `within`: seconds after it began that close it too; either may be None.
        :raises BatchError: with the report of the batch, if any was not confirmed and `on_error` is `raise`.
        """
        return publish_batches(
            lambda: BulkPublish(self._operations, **options), messages, count, within, on_error
        )

    async def publish_again(
        self, report: PublishReport, *, timeout: float = PUBLISH_SECONDS, on_error: OnError = "raise"
    ) -> PublishReport:
        """Publish once more what a report says was not confirmed, and only that, with the same ids; report on those.

        :raises BatchError: as `publish_many`.
        """
        return await publish_again(BulkPublish(self._operations, timeout=timeout), report, on_error)

    def transaction(self, *, timeout: float = PUBLISH_SECONDS) -> Transaction:
        """`async with app.transaction() as tx:` then `tx.publish(...)` and `tx.get(queue)`: all of it, or nothing.

        The end of the block commits; an error in it rolls back. Slower than confirms by far: for what belongs together.

        :param timeout: seconds to begin, and to commit.
        :raises TransactionFailed: nothing took place. :raises TransactionUnknown: whether is not known; never tried again.
        :raises BatchError: it took place, but no queue took some of the messages.
        :raises TransportUnavailable: at its begin: the App does not run, or no channel can be opened.
        """
        return Transaction(self._operations, self._operations.transaction_channels, timeout)

    async def submit_encoded(self, outgoing: Outgoing, timeout: float) -> asyncio.Future[None]:
        """As `submit`, of what `warren.sdk.messages.codec.encode` made, and declares nothing."""
        return await self._operations.write(outgoing, timeout)

    async def forward(
        self,
        delivery: Delivery,
        *,
        exchange: str = "",
        key: str,
        headers: Mapping[str, Any] | None = None,
        timeout: float = PUBLISH_SECONDS,
    ) -> None:
        """Publish a message that was delivered on to another address; returns when the broker has it.

        Id, type, body, properties and headers stay what they are, but for the expiration, the user id and what a
        broker noted about past deaths. Acknowledge the delivery afterwards, and nothing is lost in between.

        :param headers: set in the header table; None removes one.
        :param timeout: seconds.
        :raises Unroutable, Nacked, PublishTimeout, TransportUnavailable: see there.
        """
        await self._operations.forward(forwarded(delivery, exchange, key, headers), timeout)

    async def get(self, queue: str, *, timeout: float = 0.0) -> HeldDelivery | None:
        """One message of a queue, or None if none comes within `timeout` seconds: `ack()`, `requeue()` or
        `dead_letter(reason)` it, or `async with` it.

        For occasional use; what takes messages all the time is a handler. Passes no middleware.

        :param timeout: seconds; 0 takes what is there.
        :raises TopologyMismatch: if there is no such queue. :raises TransportUnavailable: without a connection.
        """
        return await self._lifecycle.running().fetch(queue, timeout, self._handlers.dead_letter)

    async def call(
        self, request: Request[Answer], *, timeout: float = CALL_SECONDS, message_id: str | None = None
    ) -> Answer:
        """Send a request and return its reply; the request expires with its caller.

        :param timeout: seconds.
        :raises RemoteError: the server answered with an error. :raises NoServer: its queue does not exist.
        :raises CallTimeout: no reply in time. :raises TransportUnavailable: the connection was lost meanwhile.
        :raises Nacked, PublishError, TopologyMismatch, ConfigError: as `publish`, of the request.
        """
        return await self._operations.call(request, timeout=timeout, message_id=message_id)

    def gather(
        self,
        request: Request[Answer] | Scatter[Answer],
        *,
        replies: int | None = None,
        timeout: float = CALL_SECONDS,
        exchange: str | None = None,
        key: str | None = None,
    ) -> GatherCall[Answer]:
        """Ask all who listen: `await` it for what came and who did not answer, or `async for` each reply as it comes.

        It ends when the request's whole audience has answered, after `replies` values, or at the deadline, whichever
        is first; being short of replies is no error.

        :param replies: so many values are enough; errors are passed on, but not counted.
        :param timeout: seconds; the request expires with them.
        :param exchange: where it goes instead of its own address, with `key`; not declared.
        :raises NoServer: no queue is bound for it. :raises TransportUnavailable: it could not be sent in time.
        """
        return self._operations.gather(request, replies=replies, timeout=timeout, exchange=exchange, key=key)

    # Running

    @property
    def busy(self) -> str:
        """What its components are working on in the background, one of them; empty if nothing."""
        return next((busy for part in self._lifecycle.components if (busy := getattr(part, "busy", ""))), "")

    async def start(self) -> App:
        """Connect, declare, start components and consumers; returns when all consumers are confirmed.

        :raises WarrenError: why that is not possible; everything that was started is stopped again.
        """
        await self._lifecycle.start(self._registry, self._handlers, self._middlewares)
        return self

    async def stop(self) -> None:
        """Cancel the consumers, requeue what has not started, let what has started end, flush the confirms, close."""
        await self._lifecycle.stop()

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
        return self._lifecycle.state

    def on_state(self, callback: StateCallback) -> StateCallback:
        """Call back with each new state: `connecting`, `ready`, `blocked`, `closing`, `closed`. It must not block."""
        self._lifecycle.listeners.add(callback)
        return callback

    def health(self) -> Health:
        """The state, what is missing and why, for probes; `HealthProbe` answers them over HTTP."""
        return self._lifecycle.health()

    @property
    def ready(self) -> bool:
        """Both connections are up and the broker has confirmed every consumer."""
        return self.state is State.READY

    @property
    def url(self) -> str | None:
        """The URL of the broker that it is or would be connected to; of the embedded broker only while the App runs."""
        return self._lifecycle.url

    def statistics(self) -> Statistics:
        """Counts of this run.

        :raises TransportUnavailable: if the App does not run.
        """
        return self._lifecycle.running().statistics()
