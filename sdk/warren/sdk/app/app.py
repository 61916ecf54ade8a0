"""`App`, the entry point of the SDK: topology, handlers, publishing, requests, start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType, TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack

from warren.sdk.app.blocking import Sync
from warren.sdk.app.broker_choice import choose_broker
from warren.sdk.app.default_delay import DefaultDelay
from warren.sdk.app.embedded_broker import EmbeddedBroker, Storage
from warren.sdk.app.inclusion import IncludedComponent, note_decided
from warren.sdk.app.lifecycle import Lifecycle
from warren.sdk.app.lifespan import Hook, Hooks, Lifespan
from warren.sdk.app.loop_watchdog import STALL_SECONDS
from warren.sdk.app.middleware import Middlewares
from warren.sdk.app.router import Router, RouterPlace
from warren.sdk.app.running_router import RunningRouter, include_now
from warren.sdk.app.serve import serve
from warren.sdk.app.settings import Settings, StartMode
from warren.sdk.app.state import Health, State
from warren.sdk.app.statistics import Statistics
from warren.sdk.capture import Capture
from warren.sdk.choices import check_methods
from warren.sdk.clock import AppClock, SystemClock
from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.dependencies import RunValue
from warren.sdk.consume.get import FetchedMessage
from warren.sdk.consume.handler_threads import THREADS, HandlerThread, HandlerThreads
from warren.sdk.consume.handlers.decorator_arguments import check_message_class
from warren.sdk.consume.handlers.decorators import HandlerDecoratorFactory
from warren.sdk.consume.handlers.registration import HandlerRegistry
from warren.sdk.consume.retry import Retry
from warren.sdk.consume.streams.reader_options import StreamOffset
from warren.sdk.consume.streams.replay import ReplayReport
from warren.sdk.consume.subscription import Subscription
from warren.sdk.durations import Duration, seconds
from warren.sdk.errors import Unroutable
from warren.sdk.messages.codec import MessageOptions
from warren.sdk.messages.forwarding import forwarded
from warren.sdk.messages.type_codec import type_codec
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
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.queue import Queue
from warren.sdk.topology.registry import DeclarePolicy, MismatchPolicy, TopologyRegistry
from warren.sdk.transport.host_failover import HostOrder
from warren.sdk.transport.supervised_connection import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS

CONNECT_SECONDS = 30.0
GRACE_SECONDS = 25.0

Answer = TypeVar("Answer")
HookFunction = TypeVar("HookFunction", bound=Hook)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
StateCallback = TypeVar("StateCallback", bound=Callable[[State], object])


class App:
    """Messaging application of a process: topology, handlers, publishes, and the connections to its broker.

    Use it as `async with App("amqp://...") as app:`, or with `app.run()`.

    Every duration of the SDK is a number of seconds, a `timedelta`, or a text such as `250ms`, `5s` or `1h30m`.

    :param url: `amqp://` or `amqps://`, with parameters such as `?cafile=/etc/ssl/broker-ca.pem` for TLS or `?heartbeat=30`
        (seconds); docs/connections.md lists them. Several URLs (a list, or separated by commas) are nodes of one cluster;
        after a failed attempt to connect, the next one is tried. `memory://` runs a broker in this process that keeps
        messages in memory, `embedded:FOLDER` one that keeps them in a folder; each run of an App has its own. Without a
        URL, the environment variable `AMQP_URL` is used; if it is not set either, the App behaves as with `memory://`,
        logs a warning, and refuses to start with a pattern that needs a durable broker.
    :param hosts: order in which several URLs are tried: `random`, or `given`, as they are listed.
    :param name: name under which the broker lists the connections of the App.
    :param declare: `always` declares the exchanges, queues and bindings that messages and handlers need; `never` only
        checks that exchanges and queues exist, and raises `TopologyMismatch` with the missing ones.
    :param mismatch: treatment of a queue or exchange that exists with other arguments: `fail` raises `TopologyMismatch`
        with all differences, `adopt` logs them and uses it unchanged.
    :param window: largest number of published messages that wait for their confirm; further publishes wait for room.
    :param replies: transport of the replies to `call`: `queue`, an exclusive reply queue of
        the App; or `direct`, RabbitMQ's "Direct Reply-to".
    :param telemetry: OpenTelemetry options; by default the global providers are used, if they are set.
    :param capture: options for publishing an event to a stream for each publish, confirm,
        delivery and settlement; by default no events are published.
    :param start: `wait`: `start` returns when the App is connected and the broker has accepted every consumer, and raises
        an error after `connect_timeout`, or at once if another attempt cannot succeed. `background`: `start` returns
        without waiting for the broker, and whatever fails is tried again until the App stops; `ready` and `health` tell how
        far it is, publishes wait within their timeout, and handlers begin when the broker is there. For a service that has
        to start during an outage. A broker that the App runs itself is waited for.
    :param connect_timeout: seconds for the first connection, and for the
        broker's `basic.consume-ok` for every consumer. None waits for ever.
    :param grace: seconds that running handlers get to finish when the App stops.
    :param first_retry: seconds; upper bound of the random wait before the first attempt
        to reconnect. It doubles with each further attempt.
    :param longest_retry: seconds; the upper bound of the wait does not grow beyond this.
    :param clock: source of the time for message ids, retries and patterns; by default the system clock.
    :param retry: default retry policy of handlers: `Retry()`, 3 attempts in this process.
    :param delay: backend for delayed redeliveries; by default `WaitQueues`, with one queue for each delay.
    :param threads: largest number of threads in which handlers run that are plain functions (`def`); all queues share
        them.
    :param stall_threshold: seconds; a handler that blocks the event loop for longer is logged with its stack
        (`handler.blocked_loop`). None turns that off, and so does a clock other than the system's.
    :param lifespan: function of the App that returns an async context manager, as `@asynccontextmanager` makes one. It is
        entered at the start, when publishing works but nothing else runs, and left at the stop, after everything else but
        before publishing ends. What it yields is passed to parameters of handlers and dependencies that have the type
        with which the function is annotated: `AsyncIterator[Pool]`.
    :raises ConfigError: if a URL, or `AMQP_URL`, is empty, not such a URL, or has an unknown parameter, or another
        argument is not one of its values.
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
        start: StartMode = "wait",
        connect_timeout: Duration | None = CONNECT_SECONDS,
        grace: Duration = GRACE_SECONDS,
        first_retry: Duration = FIRST_RETRY_SECONDS,
        longest_retry: Duration = LONGEST_RETRY_SECONDS,
        clock: Clock | None = None,
        retry: RetryPolicy | None = None,
        delay: DelayBackend | None = None,
        threads: int = THREADS,
        stall_threshold: Duration | None = STALL_SECONDS,
        lifespan: Lifespan | None = None,
    ) -> None:
        check_methods(
            "delay=", delay, ("reach", "redeliver"), "a delay backend", "delay=Delay(), of warren.patterns"
        )
        check_methods("clock=", clock, ("now", "call_at", "sleep"), "a clock", "clock=SystemClock()")
        self.clock: AppClock = AppClock(clock or SystemClock())
        hooks = Hooks(self, lifespan)
        self._lifecycle = Lifecycle(
            Settings(
                broker=choose_broker(
                    url,
                    hosts,
                    # Only tests have another clock than the system's; they may lose messages.
                    unnamed=Storage.ASSUMED
                    if clock is None or isinstance(clock, SystemClock)
                    else Storage.MEMORY,
                ),
                name=name,
                window=window,
                replies=replies,
                telemetry=telemetry or Telemetry(),
                capture=capture,
                start=start,
                connect_timeout=math.inf
                if connect_timeout is None
                else seconds(connect_timeout, "connect_timeout"),
                grace=seconds(grace, "grace"),
                first_retry=seconds(first_retry, "first_retry"),
                longest_retry=seconds(longest_retry, "longest_retry"),
                stall_threshold=None
                if stall_threshold is None
                else seconds(stall_threshold, "stall_threshold"),
            ),
            hooks,
        )
        self._registry = TopologyRegistry(declare, mismatch)
        self._middlewares = Middlewares()
        self._routers: dict[Router, RouterPlace] = {}
        self._operations = PublishOperations(self._lifecycle.running, self.clock, declare)
        self._handlers = HandlerRegistry(
            self._registry,
            send=self._operations.send,
            forward=self._operations.forward,
            middlewares=self._middlewares,
            clock=self.clock,
            retry=retry or Retry(),
            delay=DefaultDelay(self, delay),
            context={App: self, RunValue: hooks.value},
            prepare_once=lambda once: once.register(self),
            threads=HandlerThreads(threads),
        )
        self.handle: HandlerDecoratorFactory = HandlerDecoratorFactory(
            self._handlers, lambda: self._lifecycle.not_running("add a handler"), "app.handle"
        )
        """Decorator for handlers: `@app.handle(OrderPlaced, queue="billing")`, and `@app.handle.batch(...)` for lists."""
        self.sync: Sync = Sync(self, self._lifecycle)
        """The methods of the App for threads without an event loop: `app.sync.publish(...)`."""
        backend: object = delay
        if isinstance(backend, Component):
            self.include(backend)

    def use_broker(self, url: str) -> None:
        """Connect to another broker than the one that the App was created with, from the next start on.

        :param url: AMQP URL, or several with commas between them for the nodes of one cluster; or `memory://` or
            `embedded:FOLDER`.
        :raises ConfigError: if it is not such a URL, or the App is running.
        """
        self._lifecycle.not_running("choose another broker")
        self._lifecycle.settings.broker = choose_broker(url)

    # Declaring

    def declare(self, *items: Declarable) -> None:
        """Register exchanges, queues and bindings that the App declares at its start and after each reconnect.

        :raises ConfigError: if the App already declares an item of that kind and name with other arguments.
        """
        self._registry.add(items)

    def publishes(self, *messages: type[Message]) -> None:
        """Register message classes that this App publishes, or sends with `call`, but does not handle.

        Their exchanges, queues and bindings are then declared at the start of the App, not before the first message,
        and are included in `app.topology`, `warren topology` and `warren asyncapi`.

        :raises ConfigError: if one is no message class, has no address or would not read back, or the App is running.
        """
        self._lifecycle.not_running("list what it publishes")
        for message in messages:
            check_message_class("app.publishes", message)
            if message.__pydantic_complete__:
                type_codec(message).check_writable()
            self._registry.add(message.required_topology())
            self._operations.declare_publish(message)

    async def declare_now(self, *items: Declarable) -> None:
        """Declare exchanges, queues and bindings on the running App, and again after each reconnect.

        Returns when the broker has them.

        :raises TopologyMismatch: if an item exists with other arguments.
        """
        await self._lifecycle.running().declare(items)

    async def check_now(self, *items: Exchange | Queue) -> None:
        """Check that exchanges and queues exist on the broker, with any arguments.

        :raises TopologyMismatch: names those that do not exist.
        :raises TransportUnavailable: if the App does not run.
        """
        await self._lifecycle.running().check(items)

    @property
    def topology(self) -> tuple[Declarable, ...]:
        """All exchanges, queues and bindings that this App declares, including the
        dead letter queue (`<name>.dead`) of each queue that has one by default.
        """
        return self._registry.items()

    @property
    def messages(self) -> tuple[type[Message], ...]:
        """All message classes that this App handles, or is known to publish (`publishes`)."""
        handled = (
            handler.kind for endpoint in self._handlers.endpoints.values() for handler in endpoint.handlers
        )
        classes = (kind for kind in handled if isinstance(kind, type) and issubclass(kind, Message))
        return tuple(dict.fromkeys((*classes, *self._operations.declared_publishes)))

    def include(self, component: Component | Router) -> None:
        """Add the handlers of a router; or a component, for example a pattern of `warren.patterns`, which starts and
        stops with the App.

        :raises ConfigError: if the App is running, or has the router already.
        """
        self._lifecycle.not_running("include a component")
        if isinstance(component, Router):
            component._join(self)
            return
        check_methods(
            "app.include",
            component,
            ("register", "on_start", "on_stop"),
            "a router or component",
            "app.include(Router()), or app.include with a pattern of warren.patterns",
        )
        self._lifecycle.components.append(component)
        component.register(self)

    def leave_out(self, *parts: Component | Router) -> None:
        """Declare that this process does without some routers and components, because another process includes them.

        An outbox that is left out still adds messages, for other processes to relay.

        Otherwise the start of an App logs those that were made in its process and that no App includes
        (`component.not_included`), because somebody may have forgotten it.
        """
        for part in parts:
            if isinstance(part, IncludedComponent):
                part.leave_out()
            note_decided(part)

    async def include_now(self, router: Router) -> RunningRouter:
        """Add the handlers of a router to the running App; return an object that removes them: `await running.remove()`.

        Returns when the broker has the queues and has accepted every consumer (`basic.consume-ok`). The handlers belong to
        this run of the App; after a reconnect they consume again.

        :raises ConfigError: if a queue of the router has handlers in the App already, the router contains a component or is
            included already, or the App is being started or stopped.
        :raises TopologyMismatch: if a queue or exchange exists with other arguments.
        :raises TransportUnavailable: if the App does not run, or the broker does not answer within `connect_timeout`.
        """
        return await include_now(self, router)

    def middleware(
        self, *, publish: PublishMiddleware | None = None, handle: HandleMiddleware | None = None
    ) -> None:
        """Add async functions around every publish, and around every attempt to handle a message.

        Those added first are nearest to the user's code: a publish passes them first to last, a delivery last to first.

        :param publish: takes an outgoing message, and the function to which it passes the message on.
        :param handle: takes a delivery, and the function to which it passes the delivery on.
        :raises ConfigError: if both are None, or the App runs.
        """
        self._lifecycle.not_running("add a middleware")
        self._middlewares.add(publish, handle)

    def override(
        self, dependency: Callable[..., Any], other: Callable[..., Any]
    ) -> contextlib.AbstractContextManager[object]:
        """Replace a function that supplies a dependency of handlers (`Depends`), for tests; in effect at once.

        `with app.override(open_ledger, fake_ledger):` ends the replacement with the block; without `with` it stays.

        :param other: the replacement, which may have dependencies of its own.
        :raises ConfigError: if nothing supplies one of the parameters of the replacement.
        """
        return self._handlers.override(dependency, other)

    def on_return(self, callback: Callable[[Unroutable], object]) -> None:
        """Register a callback for every message that the broker returns, even if no task awaits its publish."""
        self._lifecycle.return_callbacks.append(callback)

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """The consumers of the running App by the names of their queues, to `pause`, `resume` and `cancel`."""
        return MappingProxyType(self._lifecycle.running().subscriptions)

    # Sending

    async def publish(
        self,
        message: object,
        *,
        timeout: Duration = PUBLISH_SECONDS,
        reliability: Reliability = "at_least_once",
        **options: Unpack[MessageOptions],
    ) -> None:
        """Publish a message, and return when the broker has confirmed it.

        `timeout` includes waiting for a connection, for room in the window of unconfirmed messages,
        and for the confirm. If the connection is lost, the message is published again on the next
        one, with the same id and the header `warren-republished`.

        :param message: a Message; or bytes, text or any value that JSON can
            represent, with the options `exchange` and `key`.
        :param timeout: seconds, a `timedelta` or a text such as `5s`.
        :param reliability: `at_least_once` publishes a persistent message and waits for its confirm; the message is
            mandatory, unless it is an event without an audience;
            `at_most_once` publishes a transient message that is not mandatory, and does not wait for a confirm.
        :param options: address, `message_id`, `headers`, and AMQP properties such as `priority`: see `MessageOptions`.
        :raises Unroutable, Nacked, PublishTimeout, TransportUnavailable, TopologyMismatch: see these classes.
        :raises PublishError: the broker refused it, for example because its exchange does not exist.
        :raises ConfigError: a property is out of its range or would make the message undecodable, AMQP cannot encode a
            header, or `reliability` is another word.
        """
        await self._operations.publish(message, seconds(timeout), reliability, options)

    async def submit(
        self, message: object, *, timeout: Duration = PUBLISH_SECONDS, **options: Unpack[MessageOptions]
    ) -> asyncio.Future[None]:
        """Publish a message without waiting for its confirm; return a future
        that completes with the confirm, or its error.

        Returns when the message is in the write buffer of the connection, and waits while there is no connection or the
        window of unconfirmed messages is full. The error of a future that nobody awaits is logged.

        :param timeout: seconds for this wait and the confirm together.
        """
        return await self._operations.submit(message, seconds(timeout), options)

    async def publish_many(
        self,
        messages: Messages,
        *,
        ordered: bool = False,
        on_error: OnError = "raise",
        **options: Unpack[BatchOptions],
    ) -> PublishReport:
        """Publish all messages without waiting for each confirm; return a report when every message has its outcome.

        :param messages: an iterable, or an async one.
        :param ordered: keep the messages in order. After a message fails, for example with a nack, no new
            message is written before the failed ones have been published again, one by one, as far as
            `attempts` allows. If one still fails, no further message is written.
        :param on_error: `raise` raises `BatchError` if a message was not
            confirmed; `report` only lists it in the report.
        :param options: see `BatchOptions`.
        :raises BatchError: with the report, if a message was not confirmed and `on_error` is `raise`.
        """
        return await publish_all(
            BulkPublish(self._operations, ordered=ordered, **options), messages, on_error
        )

    def publish_batches(
        self,
        messages: Messages,
        *,
        count: int | None = 100,
        within: Duration | None = 0.05,
        on_error: OnError = "raise",
        **options: Unpack[BatchOptions],
    ) -> AsyncGenerator[PublishReport, None]:
        """Publish messages in batches, and yield a report when all messages of a batch have their outcome.

        Use it as `async for report in app.publish_batches(orders)`.

        :param count: number of messages that completes a batch; None for no limit.
        :param within: seconds after its first message at which a batch ends even if it is not full; None for no limit.
        :param on_error: `raise` raises `BatchError` if a message was not
            confirmed; `report` only lists it in the report.
        :raises BatchError: with the report of the batch, if a message was not confirmed and `on_error` is `raise`.
        """
        return publish_batches(
            lambda: BulkPublish(self._operations, **options),
            messages,
            count,
            None if within is None else seconds(within, "within"),
            on_error,
        )

    async def publish_again(
        self, report: PublishReport, *, timeout: Duration = PUBLISH_SECONDS, on_error: OnError = "raise"
    ) -> PublishReport:
        """Publish the failed messages of a report once more, with the same ids; return a report on this second attempt.

        :param timeout: seconds for each message.
        :param on_error: `raise` raises `BatchError` if a message was not
            confirmed; `report` only lists it in the report.
        :raises BatchError: with the new report, if a message was not confirmed and `on_error` is `raise`.
        """
        return await publish_again(BulkPublish(self._operations, timeout=timeout), report, on_error)

    def transaction(self, *, timeout: Duration = PUBLISH_SECONDS) -> Transaction:
        """Return a transaction: `async with app.transaction() as tx:` then `tx.publish(...)` and `tx.get(queue)`.

        The end of the block commits; an exception in it rolls back. Transactions are much slower than publisher
        confirms: use them only for publishes and acknowledgements that must take effect together.

        :param timeout: seconds to begin the transaction, and to commit it.
        :raises TransactionFailed: nothing took effect.
        :raises TransactionUnknown: the outcome of the commit is unknown; the SDK does not repeat it.
        :raises BatchError: the transaction took effect, but the broker returned some of the messages as unroutable.
        :raises TransportUnavailable: at the start of the block, if the App does not run or no channel can be opened.
        """
        return Transaction(self._operations, self._operations.transaction_channels, seconds(timeout))

    async def submit_encoded(
        self, outgoing: Outgoing, timeout: Duration, before_write: Callable[[], None] | None = None
    ) -> asyncio.Future[None]:
        """Publish a message that `warren.sdk.extend.encode` returned, without declaring its topology.

        Returns the future of its confirm when the message is written, as `submit` does.

        :param timeout: seconds for the write and the confirm together.
        :param before_write: called directly before each write, also before the message is published again because its
            channel was lost; if it raises a `WarrenError`, nothing is written, and the error is raised or is the exception
            of the returned future.
        """
        return await self._operations.write(outgoing, seconds(timeout), before_write)

    async def forward(
        self,
        delivery: Delivery,
        *,
        exchange: str = "",
        key: str,
        headers: Mapping[str, Any] | None = None,
        timeout: Duration = PUBLISH_SECONDS,
    ) -> None:
        """Publish a received message to another address; return when the broker has confirmed it.

        Id, type, body, properties and headers are unchanged, except that the copy is persistent and lacks the
        expiration, the user id, and the headers `CC`, `BCC` and `x-death` (and others in which a broker records
        dead-lettering). The copy of a request keeps the deadline of its caller, in the header `warren-deadline`: it is
        dead-lettered instead of being handled later. Acknowledge the delivery after this call, so that a failure in
        between cannot lose the message.

        :param exchange: exchange to publish to, with the routing key `key`; empty for the queue `key`.
        :param headers: headers to set on the copy; a value of None removes the header.
        :param timeout: seconds, a `timedelta` or a text such as `5s`.
        :raises Unroutable, Nacked, PublishTimeout, TransportUnavailable: see these classes.
        """
        await self._operations.forward(forwarded(delivery, exchange, key, headers), seconds(timeout))

    async def get(self, queue: str, *, timeout: Duration = 0.0) -> FetchedMessage | None:
        """Return one message of a queue, or None if none arrives within `timeout` seconds.

        Settle it with `ack()`, `requeue()` or `dead_letter(reason)`, or use it in an `async with` block, which
        acknowledges it at its end. Handle middlewares are not applied. To consume continuously, add a handler.

        :param timeout: seconds; 0 returns at once.
        :raises TopologyMismatch: if the queue does not exist, or is deleted meanwhile.
        :raises TransportUnavailable: without a connection.
        """
        return await self._lifecycle.running().fetch(queue, seconds(timeout), self._handlers.dead_letter)

    async def replay_stream(
        self,
        stream: str,
        *,
        reader: str | None = None,
        start: StreamOffset = "first",
        end: int | datetime | None = None,
    ) -> ReplayReport:
        """Pass messages of a stream once more to the handlers of a reader of this App, one after the other; return when
        the last one is handled.

        The reader goes on reading meanwhile, and its position does not change. Middlewares, retries, `once=` and
        `on_error` apply as always; `delivery.replayed` is True.

        :param reader: name of the reader; None if the App has only one for the stream.
        :param start: position of the first message, not `next`. A time is that of the first publish.
        :param end: offset, or time of the first publish, before which the replay ends; by default it ends behind the
            message that is the last one of the stream at the time of the call.
        :raises ReplayStopped: if the connection is lost, the stream is deleted, or a handler fails and the reader has
            `on_error="stop"`.
        :raises ConfigError: if the App has no such reader, or `start` or `end` is no position.
        """
        return await self._lifecycle.running().replay_stream(stream, reader, start, end)

    async def call(
        self, request: Request[Answer], *, timeout: Duration = CALL_SECONDS, message_id: str | None = None
    ) -> Answer:
        """Send a request and return its reply; the request expires when the timeout ends.

        :param timeout: seconds, a `timedelta` or a text such as `5s`.
        :param message_id: id of the request; by default a new UUID version 7.
        :raises RemoteError: the server replied with an error.
        :raises NoServer: the queue of the request does not exist.
        :raises CallTimeout: no reply in time.
        :raises TransportUnavailable: the connection was lost meanwhile.
        :raises Nacked, PublishError, TopologyMismatch, ConfigError: the request could not be published.
        """
        return await self._operations.call(request, timeout=seconds(timeout), message_id=message_id)

    def gather(
        self,
        request: Request[Answer] | Scatter[Answer],
        *,
        replies: int | None = None,
        timeout: Duration = CALL_SECONDS,
        exchange: str | None = None,
        key: str | None = None,
    ) -> GatherCall[Answer]:
        """Send a request to all servers: `await` it for all replies, or use `async for` for each reply as it arrives.

        The wait for replies ends when every queue of the request's audience (the queues that its class
        lists with `audience=`) has replied, after `replies` replies that are not errors, or at the
        deadline, whichever comes first. Too few replies are not an error.

        :param replies: number of replies after which the wait ends; error replies are returned too, but do not count.
        :param timeout: seconds, after which the request expires as well.
        :param exchange: publish the request to this exchange, with `key`, instead of to its
            own address. The App does not declare this exchange.
        :raises NoServer: no queue is bound for the request.
        :raises TransportUnavailable: the request could not be sent in time.
        """
        return self._operations.gather(
            request, replies=replies, timeout=seconds(timeout), exchange=exchange, key=key
        )

    async def run_in_thread(
        self,
        function: Callable[Parameters, Result],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """Call a plain function in one of the threads in which plain handlers run, and return its result.

        The function gets a copy of the context (`contextvars`). It waits for a thread if all of `App(threads=...)` are
        busy. It cannot be interrupted: if the caller is cancelled, it runs on.
        """
        thread = HandlerThread(self._handlers.threads, getattr(function, "__qualname__", repr(function)))
        try:
            return await thread.run(function, *arguments, **named)
        finally:
            thread.release()

    # Running

    @property
    def busy(self) -> str:
        """Description of the background work that a component of the App is doing now; empty if none is working.

        Test support reads it: while it is not empty, a virtual clock does not advance.
        """
        return next((busy for part in self._lifecycle.components if (busy := getattr(part, "busy", ""))), "")

    def on_start(self, function: HookFunction) -> HookFunction:
        """Register a function without parameters, plain or async, for each start, and return it: `@app.on_start`.

        The functions are called in the order in which they were added, when publishing works and patterns have started,
        before the first message is consumed. If one raises, the App stops again, and `start` raises the exception. A
        plain function runs on the event loop and must not block.

        :raises ConfigError: if the function has parameters, or the App is running.
        """
        self._lifecycle.not_running("add an on_start function")
        self._lifecycle.hooks.add_start(function)
        return function

    def on_stop(self, function: HookFunction) -> HookFunction:
        """Register a function without parameters, plain or async, for each stop, and return it: `@app.on_stop`.

        The functions are called in the reverse of the order in which they were added, when all handlers have ended, while
        publishing still works; also if the start failed after the lifespan was entered. An exception is logged
        (`on_stop.failed`), and the stop goes on.

        :raises ConfigError: if the function has parameters, or the App is running.
        """
        self._lifecycle.not_running("add an on_stop function")
        self._lifecycle.hooks.add_stop(function)
        return function

    async def start(self) -> App:
        """Connect, declare topology, enter the lifespan, start components, call the `on_start` functions, start consumers.

        Returns when the broker has accepted every consumer (`basic.consume-ok`); with `App(start="background")`, without
        waiting for the broker.

        :raises WarrenError: the reason for the failure; everything that was started is stopped again.
        :raises Exception: that of the lifespan or an `on_start` function, likewise.
        """
        await self._lifecycle.start(self._registry, self._handlers, self._middlewares)
        return self

    async def stop(self) -> None:
        """Stop: cancel consumers, requeue unstarted messages, let running handlers finish, call the `on_stop` functions,
        stop components, leave the lifespan, await confirms, close connections.
        """
        await self._lifecycle.stop()

    async def __aenter__(self) -> App:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, then stop gracefully; a second signal cancels the graceful stop."""
        asyncio.run(serve(self))

    @property
    def state(self) -> State:
        return self._lifecycle.state

    def on_state(self, callback: StateCallback) -> StateCallback:
        """Register a callback for each new state (`connecting`, `ready`, `blocked`, `closing`, `closed`), and return
        it, so that this can be used as a decorator. The callback must not block.
        """
        self._lifecycle.listeners.add(callback)
        return callback

    def health(self) -> Health:
        """Return the state of the App, its parts that are not ready, and the
        last error; `HealthProbe` serves this over HTTP.
        """
        return self._lifecycle.health()

    @property
    def ready(self) -> bool:
        """True if the App is connected, the broker has accepted every consumer (`basic.consume-ok`), and it does not
        block publishers (`connection.blocked`).
        """
        return self.state is State.READY

    @property
    def url(self) -> str | None:
        """The URL of the current or next connection attempt; None for an embedded broker while the App does not run."""
        return self._lifecycle.url

    @property
    def embedded_broker(self) -> EmbeddedBroker | None:
        """The broker that this App runs in its own process; None if it connects to brokers by their URLs."""
        broker = self._lifecycle.settings.broker
        return broker if isinstance(broker, EmbeddedBroker) else None

    def statistics(self) -> Statistics:
        """Return a copy of the statistics of this run: publishes, calls,
        deliveries and handler outcomes since the last start.

        :raises TransportUnavailable: if the App does not run.
        """
        return self._lifecycle.running().statistics()
