"""One run of an App: connections, publisher and consumers, and the order of their start and stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextvars import Context, copy_context
from datetime import datetime
from functools import partial

from warren.sdk.app.embedded_broker import BrokerProcess, EmbeddedBroker
from warren.sdk.app.lifespan import Hooks
from warren.sdk.app.loop_watchdog import LoopWatchdog
from warren.sdk.app.middleware import Middlewares, MiddlewareSender, OutgoingSender
from warren.sdk.app.operating_log import log_consumer, log_start, log_stop, log_waiting
from warren.sdk.app.settings import Settings
from warren.sdk.app.state import Health, State
from warren.sdk.app.statistics import Statistics, copy_of, statistics_of
from warren.sdk.capture import Capture
from warren.sdk.capture.stream_writer import CaptureStreamWriter
from warren.sdk.clock import AppClock, SystemClock
from warren.sdk.consume.circuit_breaker import Circuit
from warren.sdk.consume.delivery import current_delivery
from warren.sdk.consume.endpoint import Endpoint
from warren.sdk.consume.get import FetchedMessage, PublishDeadLetter, fetch
from warren.sdk.consume.handlers.registration import HandlerRegistry
from warren.sdk.consume.streams.reader_options import StreamOffset
from warren.sdk.consume.streams.replay import ReplayReport, replay
from warren.sdk.consume.streams.stream_endpoint import StreamEndpoint
from warren.sdk.consume.streams.stream_subscription import StreamSubscription
from warren.sdk.consume.subscription import Subscription
from warren.sdk.errors import ConfigError, TopologyMismatch, TransportUnavailable, Unroutable
from warren.sdk.logger import log
from warren.sdk.protocols import Component, Idempotency
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.publish.publish_channels import PublishChannels
from warren.sdk.publish.publisher_confirms import Publisher
from warren.sdk.publish.topology_recovery import TopologyRecovery
from warren.sdk.publish.transaction import TransactionChannels
from warren.sdk.rpc.caller import DIRECT, Caller, Submit
from warren.sdk.rpc.reentrant_calls import ReentrantCalls
from warren.sdk.rpc.reply_middleware import ReplyMiddleware
from warren.sdk.telemetry.consume_spans import ConsumeTelemetry
from warren.sdk.telemetry.instruments import Instruments
from warren.sdk.telemetry.publish_spans import TracedSender
from warren.sdk.telemetry.semantic_conventions import Attributes, connection_attributes
from warren.sdk.telemetry.statistics_metrics import observe_run, stop_observing
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.queue import Queue
from warren.sdk.topology.registry import TopologyRegistry
from warren.sdk.transport.control_channel import ControlChannel
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.host_failover import Hosts
from warren.sdk.transport.session import ChannelFactory, Session
from warren.sdk.transport.supervised_connection import SupervisedConnection

FLUSH_SECONDS = 5.0


class Runtime:
    """One run of an App: its connections, publisher, consumers and components, from `start` to `stop`.

    `Lifecycle` creates a runtime for each start of the App and discards it after the stop, so that nothing of one event
    loop or connection reaches the next run.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        registry: TopologyRegistry,
        handlers: HandlerRegistry,
        middlewares: Middlewares,
        components: Sequence[Component],
        hooks: Hooks,
        on_return: Callable[[Unroutable], None],
        on_state: Callable[[State], None],
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._endpoints: Mapping[str, Endpoint] = handlers.endpoints
        self._clock = handlers.clock
        self._threads = handlers.threads
        self.middlewares: Middlewares = middlewares
        self._components = components
        self._hooks = hooks
        self._on_state = on_state
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.hosts: Hosts | None = None if isinstance(settings.broker, EmbeddedBroker) else settings.broker
        self._broker: BrokerProcess | None = None
        self._publish_connection: SupervisedConnection | None = None
        self._consume_connection: SupervisedConnection | None = None
        self.instruments: Instruments | None = settings.telemetry.open()
        self._consume_telemetry: ConsumeTelemetry | None = (
            None if self.instruments is None else ConsumeTelemetry(self.instruments)
        )
        self._capture_writer: CaptureStreamWriter | None = None
        self.publisher: Publisher = Publisher(
            window=settings.window,
            on_return=on_return,
            recovery=TopologyRecovery(registry.route, self._declare_again),
        )
        self.direct_sender: OutgoingSender = (
            self.publisher if self.instruments is None else TracedSender(self.publisher, self.instruments)
        )
        """Sender for messages that skip the publish middlewares: forwarded
        messages, delayed copies and dead letter copies."""
        self.sender: OutgoingSender = (
            MiddlewareSender(self.direct_sender, middlewares) if middlewares.publish else self.direct_sender
        )
        """Sender for the messages of the user; it applies the publish middlewares, if there are any."""
        self.caller: Caller = Caller(ReplyMiddleware(middlewares) if middlewares.handle else None)
        self.caller.on_change = self._update_state
        self.caller.telemetry = self._consume_telemetry
        for endpoint in self._endpoints.values():
            self._attach(endpoint)
        self.at_end: list[Callable[[], None]] = []
        """Functions that are called when the run has ended."""
        self._removals: dict[asyncio.Task[None], list[Subscription]] = {}
        """Tasks that remove handlers, with the consumers that they stop."""
        self._channels = PublishChannels(
            self.publisher,
            self._update_state,
            self.caller.consume_direct_reply_to if settings.replies == "direct" else None,
        )
        self.transactions: TransactionChannels = TransactionChannels(
            self._use_publish_connection, self.publisher
        )
        self.subscriptions: dict[str, Subscription] = {}
        self._handler_context: Context = Context()
        """Context of the start of the App; each handler gets a copy of it."""
        self._changed = asyncio.Event()
        self.required_topology_lock: asyncio.Lock = asyncio.Lock()
        """Held while the topology of a message class that is published for the first time is declared."""
        self._watchdog: LoopWatchdog | None = None
        self._phase = State.CONNECTING
        self._ready_since: float | None = None
        """Time of the event loop at which the start ended; None before that."""
        self._waits_for_broker = settings.start == "wait" or isinstance(settings.broker, EmbeddedBroker)
        self._began = self.loop.time()
        self._start_is_logged = False

    @property
    def name(self) -> str:
        """The name of the App."""
        return self._settings.name

    @property
    def state(self) -> State:
        """The state, computed from the connections, the consumers and `connection.blocked`."""
        if self._phase is not State.READY:
            return self._phase
        if self._pending_parts():
            return State.CONNECTING
        return State.READY if self.publisher.blocked is None else State.BLOCKED

    def health(self) -> Health:
        """Return the state, the parts that are not ready, and the last error."""
        errors = [connection.error for connection in self._connections() if connection.error is not None]
        errors += [one.error for one in self.subscriptions.values() if one.error is not None]
        capture = self._capture_writer
        if capture is not None and not capture.has_connected and capture.error is not None:
            errors.append(capture.error)
        reason = self.publisher.blocked if not errors else str(errors[0])
        return Health(self.state, tuple(self._pending_parts()), reason)

    async def start(self) -> None:
        """Connect, declare topology, enter the lifespan, start components, call the `on_start` functions, start consumers.

        Returns when the broker has accepted every consumer (`basic.consume-ok`); with `start="background"`, without
        waiting for the broker.

        :raises WarrenError: the reason why that failed, or did not succeed within `connect_timeout`.
        """
        settings = self._settings
        deadline = self._began + settings.connect_timeout
        self._update_state()
        if isinstance(settings.broker, EmbeddedBroker):
            settings.broker.check_durability(self._components)
            self._broker = await settings.broker.start()
            self.hosts = Hosts([self._broker.url])
        assert self.hosts is not None
        channels: ChannelFactory = DataChannel
        if settings.capture is not None:
            channels = await self._start_capture(settings.capture)
        self._publish_connection = SupervisedConnection(
            self.hosts,
            f"{self.name} publisher",
            setup=self._set_up_publishing,
            on_up=self._publishing_up,
            on_down=self._publishing_down,
            on_blocked=self._blocked,
            channels=channels,
            first_retry=settings.first_retry,
            longest_retry=settings.longest_retry,
        )
        self._consume_connection = SupervisedConnection(
            self.hosts,
            f"{self.name} consumer",
            setup=self._set_up_consuming,
            on_up=self._consuming_up,
            on_down=self._update_state,
            on_blocked=lambda reason: None,
            channels=channels,
            first_retry=settings.first_retry,
            longest_retry=settings.longest_retry,
        )
        for connection in self._connections():
            if self._waits_for_broker:
                await connection.start(max(0.0, deadline - self.loop.time()))
            else:
                connection.start_in_background()
        entering = self.loop.time()
        await self._hooks.enter()
        # The time of the user's code does not count: what is left of the deadline is for the broker.
        deadline += self.loop.time() - entering
        for component in self._components:
            await component.on_start()
        starting = self.loop.time()
        await self._hooks.started()
        deadline += self.loop.time() - starting
        self._handler_context = copy_context()
        for name, endpoint in self._endpoints.items():
            self._start_consumer(self._consume_connection, name, endpoint)
        if self._waits_for_broker:
            await self._await_consumers(deadline, self._endpoints)
        self._phase = State.READY
        self._ready_since = self.loop.time()
        self._start_watchdog()
        if self.instruments is not None:
            observe_run(self.instruments.meters, self)
        self._update_state()
        if self._waits_for_broker and not self._start_is_logged:
            self._log_start()  # Although the connection has just been lost again.
        elif not self._start_is_logged:
            log_waiting(self.name, self.hosts.current, self._pending_parts())

    def check_stop(self) -> None:
        """Check that the App can be stopped by the present task.

        :raises ConfigError: if a handler calls: the stop would wait for it.
        """
        if _handled_in(self.subscriptions.values()):
            raise ConfigError(
                "app.stop() was called by a handler of the App, for which it would wait: call it in a task,"
                " asyncio.create_task(app.stop()), and let the handler end"
            )

    async def stop(self, grace: float) -> None:
        """Wait at most `grace` seconds for running handlers to finish, then close everything.

        If the caller is cancelled, handlers get no more time and connections are cut, but everything is still closed.
        """
        self._phase = State.CLOSING
        if self.instruments is not None:
            stop_observing(self.instruments.meters, self)
        self._update_state()
        draining = asyncio.ensure_future(self._drain(grace))
        ending = asyncio.ensure_future(self._end(draining, min(FLUSH_SECONDS, grace), self._requeued()))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            draining.cancel()
            self.publisher.close()
            for connection in self._connections():
                connection.abort()
            if self._capture_writer is not None:
                self._capture_writer.abort()
            await asyncio.wait((ending,), timeout=FLUSH_SECONDS)
            raise

    def _log_start(self) -> None:
        """Log the start when the App is ready for the first time."""
        assert self.hosts is not None
        self._start_is_logged = True
        seconds = self.loop.time() - self._began
        session = None if self._publish_connection is None else self._publish_connection.session
        server = ("a broker", "") if session is None else session.server
        log_start(self.name, self.hosts.current, server, len(self._endpoints), seconds)
        for queue, endpoint in self._endpoints.items():
            log_consumer(queue, endpoint)

    def _requeued(self) -> int:
        return sum(one.statistics.requeued for one in self.subscriptions.values())

    async def add_endpoints(self, endpoints: Mapping[str, Endpoint], items: Iterable[Declarable]) -> None:
        """Declare what handlers that are added while the App runs need, and start their consumers.

        Returns when the broker has accepted them, within `connect_timeout`. If it fails, call `remove_endpoints`.

        :raises ConfigError: if the App is being started or stopped.
        :raises TopologyMismatch: if an item exists with other arguments, or a queue cannot be consumed.
        :raises TransportUnavailable: if the deadline passes.
        """
        items = list(items)
        if self._phase is not State.READY:
            raise ConfigError(
                "the App is starting or stopping: include the router before the start, or while it runs"
            )
        deadline = self.loop.time() + self._settings.connect_timeout
        connection = self._consume_connection
        assert connection is not None
        try:
            async with asyncio.timeout_at(deadline):
                await self._registry.hold_and_declare(self._connection_for(items), items)
        except TimeoutError:
            raise TransportUnavailable(
                "the queues of the router were not declared within the deadline"
            ) from None
        if self._phase is not State.READY:
            raise ConfigError("the App is stopping: its handlers are not started")
        for name, endpoint in endpoints.items():
            self._attach(endpoint)
            self._start_consumer(connection, name, endpoint)
        await self._await_consumers(deadline, endpoints)
        if self._watchdog is None:
            self._start_watchdog()

    def remove_endpoints(
        self, endpoints: Mapping[str, Endpoint], on_removed: Callable[[], None]
    ) -> asyncio.Task[None]:
        """Stop the consumers of handlers that `add_endpoints` started; return the task that waits for their handlers.

        :param on_removed: called when the handlers have ended.
        """
        leaving = [self.subscriptions[name] for name in endpoints if name in self.subscriptions]
        if _handled_in(leaving):
            raise ConfigError(
                "remove() was called by a handler of the router, for which it would wait: call it in a task,"
                " asyncio.create_task(running.remove()), and let the handler end"
            )
        for name in endpoints:
            self.subscriptions.pop(name, None)

        async def remove() -> None:
            await asyncio.gather(*(subscription.stop(self._settings.grace) for subscription in leaving))
            if self._phase is State.READY:
                # Otherwise the stop of the App does this.
                await _stop_parts(once for endpoint in endpoints.values() for once in endpoint.onces)
            on_removed()
            self._update_state()

        task = asyncio.create_task(remove(), name="remove handlers")
        self._removals[task] = leaving
        task.add_done_callback(lambda done: self._removals.pop(done, None))
        return task

    def _attach(self, endpoint: Endpoint) -> None:
        """Prepare an endpoint for this run."""
        endpoint.telemetry = self._consume_telemetry
        endpoint.report.capture = None if self._capture_writer is None else self._capture_writer.recorder

    def _start_watchdog(self) -> None:
        """Start the watchdog of the event loop, unless it is turned off or the time is that of a test."""
        threshold = self._settings.stall_threshold
        followed = self._clock.followed if isinstance(self._clock, AppClock) else self._clock
        if threshold is None or not self.subscriptions or not isinstance(followed, SystemClock):
            return
        self._watchdog = LoopWatchdog(
            lambda: [handler.user_function for one in self._endpoints.values() for handler in one.handlers],
            lambda: any(one.statistics.running for one in self.subscriptions.values()),
            threshold,
        )
        self._watchdog.start()

    async def _start_capture(self, capture: Capture) -> ChannelFactory:
        """Start the capture of life-cycle events: connect the writer that publishes them to their stream.

        :return: factory of data channels, which record these events, for the App's connections.
        """
        assert self.hosts is not None
        writer = self._capture_writer = CaptureStreamWriter(
            capture,
            self.hosts,
            self.name,
            declare=self._registry.declares,
            on_change=self._update_state,
            first_retry=self._settings.first_retry,
            longest_retry=self._settings.longest_retry,
        )
        for endpoint in self._endpoints.values():
            endpoint.report.capture = writer.recorder
        if self._waits_for_broker:
            await writer.start(self._settings.connect_timeout)
        else:
            writer.start_in_background()
        return writer.channels

    def _start_consumer(self, connection: SupervisedConnection, name: str, endpoint: Endpoint) -> None:
        """Start the consumer of the queue or the stream reader `name`, with the handlers and options of its endpoint."""
        assert self._publish_connection is not None
        create: Callable[..., Subscription] = Subscription
        source = name
        if isinstance(endpoint, StreamEndpoint):
            source = endpoint.reader.stream
            create = partial(
                StreamSubscription,
                reader=endpoint.reader,
                lease_link=self._publish_connection,
                clock=self._clock,
                marks=self._registry.declares,
            )
        subscription = create(
            connection,
            self._registry.queue(source),
            prefetch=endpoint.options.prefetch,
            concurrency=endpoint.options.concurrency,
            process=endpoint.process,
            give_up=endpoint.give_up,
            close_batches=endpoint.close_batches,
            context=self._handler_context,
            telemetry=self._consume_telemetry,
            key=endpoint.ordering_key,
            recover=self._redeclare,
            on_change=self._update_state,
        )
        if isinstance(endpoint, StreamEndpoint) and isinstance(subscription, StreamSubscription):
            endpoint.stream_settler.stop_reader = subscription.halt
        breaker = endpoint.options.breaker
        endpoint.settler.circuit = subscription.circuit = (
            None if breaker is None else Circuit(breaker, subscription, self._clock, name)
        )
        self.subscriptions[name] = subscription
        endpoint.begin(self._handler_context)
        subscription.start()

    async def _drain(self, grace: float) -> None:
        """Stop all consumers and give running handlers `grace` seconds to finish."""
        await asyncio.gather(*(subscription.stop(grace) for subscription in self.subscriptions.values()))
        removals = dict(self._removals)
        if removals:
            if not grace:
                for task in removals:
                    task.cancel()
            await asyncio.wait(removals)
            if not grace:
                for leaving in removals.values():
                    await asyncio.gather(*(subscription.stop(0.0) for subscription in leaving))

    async def _end(self, draining: asyncio.Future[None], flush_seconds: float, requeued_before: int) -> None:
        """Wait until `draining`, the task that stops the consumers, is done; then close everything else.

        The order is that of the start, reversed: `on_stop` functions, components, lifespan, publisher, connections, capture,
        embedded broker.

        :param flush_seconds: longest wait for the confirms of published messages, and for the last capture events.
        :param requeued_before: number of messages that were requeued before the stop.
        """
        await asyncio.wait((draining,))
        if draining.cancelled():
            await self._drain(0.0)
        self._threads.close()
        if self._watchdog is not None:
            self._watchdog.stop()
        await self._hooks.stopping()
        onces = [once for endpoint in self._endpoints.values() for once in endpoint.onces]
        parts: list[Component | Idempotency] = [*reversed(self._components), *onces]
        await _stop_parts(parts)
        await self._hooks.exit()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(flush_seconds):
                await self.publisher.flush()
        self.publisher.close()
        self.caller.close()
        for connection in reversed(self._connections()):
            await connection.close()
        if self._capture_writer is not None:
            await self._capture_writer.stop(flush_seconds)
        if self._broker is not None:
            await self._broker.__aexit__(None, None, None)
        self._phase = State.CLOSED
        self._update_state()
        if self._ready_since is not None:
            seconds = self.loop.time() - self._ready_since
            log_stop(self.name, self.statistics(), self._requeued() - requeued_before, seconds)
        for function in list(self.at_end):
            function()
        draining.cancelled() or draining.result()

    def check_loop(self) -> None:
        """Check that the caller runs on the event loop of the App.

        :raises ConfigError: if it runs on another one.
        """
        if asyncio.get_running_loop() is not self.loop:
            raise ConfigError("this App belongs to another event loop: use it from the one that started it")

    async def declare(self, items: Iterable[Declarable]) -> None:
        """Declare exchanges, queues and bindings on the broker, and register them for later reconnects.

        :raises TopologyMismatch: if an item exists with other arguments.
        """
        items = list(items)
        await self._registry.add_and_declare(self._connection_for(items), items)

    async def check(self, items: Sequence[Exchange | Queue]) -> None:
        """Check that exchanges and queues exist on the broker.

        :raises TopologyMismatch: names those that do not exist.
        """
        await self._connection_for(items).run(lambda runner: self._registry.check(runner, items))

    async def _declare_again(self, items: Sequence[Declarable]) -> None:
        """Declare registered exchanges, queues and bindings that somebody has deleted."""
        await self._connection_for(items).run(lambda runner: self._registry.declare(runner, items))

    def _connection_for(self, items: Sequence[Declarable]) -> SupervisedConnection:
        """Return the connection that declares these items."""
        # An exclusive queue belongs to the connection that declares it, which must be the one that consumes it.
        connection = self._consume_connection if any(map(_is_exclusive, items)) else self._publish_connection
        assert connection is not None
        return connection

    def submit_for(self, queue: str) -> Submit:
        """Return the function with which `app.call` publishes a request to a queue; it takes the request and a timeout
        in seconds.

        A handler that calls its own queue could wait forever, because its request waits in the queue behind the message
        that it is handling. Such a request is passed directly to the endpoint, not through the broker.
        """
        current = current_delivery()
        endpoint = self._endpoints.get(queue)
        if endpoint is None or current is None or current.queue != queue:
            return self.sender.submit
        own = ReentrantCalls(endpoint, queue, self.publisher)
        return lambda request, timeout: self.middlewares.submit(
            request, lambda changed: own.submit(changed, timeout)
        )

    async def reply(self, outgoing: Outgoing, timeout: float) -> None:
        """Publish the reply to a request, or pass it to the caller directly
        if the request did not go through the broker.

        A request of a handler to its own queue does not go through the broker. With "Direct Reply-to" such a request
        still has the placeholder `amq.rabbitmq.reply-to`, which only the broker would replace by a real address. Its
        reply is passed to the waiting caller in this process.

        :param timeout: seconds until the confirm must have arrived.
        """
        if outgoing.routing_key == DIRECT and not outgoing.exchange:
            await self.middlewares.send(outgoing, self.caller.receive_local_reply)
        else:
            await self.sender.publish(outgoing, timeout)

    async def fetch(
        self, queue: str, timeout: float, publish_dead_letter: PublishDeadLetter
    ) -> FetchedMessage | None:
        """Return one message of the queue, or None if none arrives within `timeout` seconds; used by `App.get`.

        :param publish_dead_letter: publishes the dead letter copy if the caller dead-letters the message.
        """
        connection = self._consume_connection
        assert connection is not None
        return await fetch(
            lambda: connection.use(Session.channel),
            queue,
            timeout,
            publish_dead_letter,
            self._consume_telemetry,
        )

    async def replay_stream(
        self, stream: str, reader: str | None, start: StreamOffset, end: int | datetime | None
    ) -> ReplayReport:
        """Replay a range of a stream to the handlers of one of its readers; used by `App.replay_stream`.

        :param reader: name of the reader; None if the stream has only one here.
        """
        readers = {
            one.reader.reader: one
            for one in self._endpoints.values()
            if isinstance(one, StreamEndpoint) and one.reader.stream == stream
        }
        chosen = next(iter(readers.values())) if reader is None and len(readers) == 1 else None
        chosen = chosen if reader is None else readers.get(reader)
        if chosen is None:
            known = ", ".join(map(repr, readers)) or "none"
            raise ConfigError(f"which reader of stream {stream!r} is meant? Those of this App: {known}")
        connection = self._consume_connection
        assert connection is not None
        session = await connection.wait_up()
        return await replay(session, chosen, start=start, end=end, clock=self._clock)

    def statistics(self) -> Statistics:
        """Return a copy of the statistics of this run."""
        onces = [once for endpoint in self._endpoints.values() for once in endpoint.onces]
        components = statistics_of([*self._components, *onces])
        if self._capture_writer is not None:
            components["capture"] = self._capture_writer.statistics()
        return Statistics(
            state=self.state,
            reconnects=sum(max(0, connection.connects - 1) for connection in self._connections()),
            publisher=copy_of(self.publisher.snapshot()),
            calls=copy_of(self.caller.snapshot()),
            subscriptions={name: copy_of(one.snapshot()) for name, one in self.subscriptions.items()},
            handlers={name: copy_of(one.statistics) for name, one in self._endpoints.items()},
            components={name: copy_of(value) for name, value in components.items()},
        )

    async def _use_publish_connection(self, work: Callable[[Session], Awaitable[DataChannel]]) -> DataChannel:
        assert self._publish_connection is not None
        return await self._publish_connection.use(work)

    def _connections(self) -> list[SupervisedConnection]:
        return [
            connection
            for connection in (self._publish_connection, self._consume_connection)
            if connection is not None
        ]

    def _pending_parts(self) -> list[str]:
        """Return the names of the parts that are not ready: `publisher` (publish connection and its channels),
        `consumer` (consume connection and the reply queue), `capture` (the stream of captured events, until its first
        connection), and the queues on which the broker has not accepted the consumer.
        """
        publishing, consuming = self._publish_connection, self._consume_connection
        pending = []
        if publishing is None or publishing.session is None or not self.publisher.attached:
            pending.append("publisher")
        if consuming is None or consuming.session is None or not self.caller.active:
            pending.append("consumer")
        if self._capture_writer is not None and not self._capture_writer.has_connected:
            pending.append("capture")
        return pending + [name for name, one in self.subscriptions.items() if not one.in_desired_state]

    def _update_state(self) -> None:
        """Notify the state listeners, and wake the start of the App if it waits for consumers.

        Called after a change of anything that the state depends on.
        """
        self._changed.set()
        if not self._start_is_logged and self._phase is State.READY and not self._pending_parts():
            self._log_start()
        self._on_state(self.state)

    async def _await_consumers(self, deadline: float, queues: Collection[str]) -> None:
        """Wait until the broker has accepted the consumers of some queues (`basic.consume-ok`).

        :param deadline: time of the event loop.
        :raises TopologyMismatch: if a queue cannot be consumed.
        :raises TransportUnavailable: if the deadline passes.
        """
        while True:
            found = {name: one for name, one in self.subscriptions.items() if name in queues}
            if all(one.in_desired_state for one in found.values()):
                return
            self._changed.clear()
            for one in found.values():
                if isinstance(one.error, TopologyMismatch) and not one.error.retryable:
                    raise one.error
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                waiting = {name: one for name, one in found.items() if not one.in_desired_state}
                errors = [one.error for one in waiting.values() if one.error is not None]
                why = f": {errors[0]}" if errors else ""
                raise TransportUnavailable(
                    f"no consumer on {', '.join(waiting)} within the deadline{why}"
                ) from None

    async def _redeclare(self) -> None:
        assert self._consume_connection is not None
        await self._consume_connection.run(self._registry.declare_all)

    async def _set_up_publishing(self, session: Session, control: ControlChannel) -> None:
        await self._registry.declare_shared(control)
        await self._channels.open(session)

    def _publishing_up(self) -> None:
        if self.instruments is not None:
            self.instruments.publishing = self._connection_attributes(self._publish_connection)
        self._channels.attach()
        self._update_state()

    def _consuming_up(self) -> None:
        if self.instruments is not None:
            self.instruments.consuming = self._connection_attributes(self._consume_connection)
        self._update_state()

    def _connection_attributes(self, connection: SupervisedConnection | None) -> Attributes:
        assert connection is not None
        assert self.hosts is not None
        peer = None if connection.session is None else connection.session.peer
        return connection_attributes(self.hosts.current, connection.name, peer)

    def _publishing_down(self) -> None:
        self._channels.detach()
        self._update_state()

    def _blocked(self, reason: str | None) -> None:
        if reason is None:
            log.warning("event=connection.unblocked name=%s", f"{self.name} publisher")
        else:
            log.warning("event=connection.blocked name=%s reason=%s", f"{self.name} publisher", reason)
        self.publisher.set_blocked(reason)
        self._update_state()

    async def _set_up_consuming(self, session: Session, control: ControlChannel) -> None:
        await self._registry.declare_all(control)
        if self._settings.replies == "queue":
            await self.caller.consume_queue(session)


def _handled_in(subscriptions: Iterable[Subscription]) -> bool:
    """Return whether the present task is that of a handler of one of these subscriptions."""
    task = asyncio.current_task()
    return any(subscription.handles_in(task) for subscription in subscriptions)


async def _stop_parts(parts: Iterable[Component | Idempotency]) -> None:
    """Stop components and stores; log their exceptions."""
    for part in parts:
        try:
            await part.on_stop()
        except Exception:
            log.exception("event=component.stop_failed component=%s", type(part).__name__)


def _is_exclusive(item: Declarable) -> bool:
    return isinstance(item, Queue) and item.exclusive
