"""One run of an App: its two connections and what uses them, and their order of start and stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from warren.sdk.app.embedded_broker import EmbeddedBroker, embedded_broker
from warren.sdk.app.middleware import Middlewares, MiddlewareSender, OutgoingSender
from warren.sdk.app.state import Health, State
from warren.sdk.app.statistics import Statistics, copy_of, statistics_of
from warren.sdk.capture import Capture
from warren.sdk.capture.stream_writer import CaptureStreamWriter
from warren.sdk.consume.circuit_breaker import Circuit
from warren.sdk.consume.delivery import current_delivery
from warren.sdk.consume.endpoint import Endpoint
from warren.sdk.consume.get import HeldDelivery, PublishDeadLetter, fetch
from warren.sdk.consume.subscription import Subscription
from warren.sdk.errors import ConfigError, TopologyMismatch, TransportUnavailable, Unroutable
from warren.sdk.logger import log
from warren.sdk.protocols import Clock, Component, Once
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.publish.publish_channels import PublishChannels
from warren.sdk.publish.publisher_confirms import Publisher
from warren.sdk.publish.transaction import TransactionChannels
from warren.sdk.rpc.caller import DIRECT, Caller, ReplyMode, Submit
from warren.sdk.rpc.reentrant_calls import ReentrantCalls
from warren.sdk.rpc.reply_middleware import ReplyMiddleware
from warren.sdk.telemetry import Telemetry
from warren.sdk.telemetry.consume_spans import ConsumeTelemetry
from warren.sdk.telemetry.instruments import Instruments
from warren.sdk.telemetry.publish_spans import TracedSender
from warren.sdk.telemetry.semantic_conventions import Attributes, of_connection
from warren.sdk.telemetry.statistics_metrics import unwatch, watch
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.queue import Queue
from warren.sdk.topology.registry import TopologyRegistry
from warren.sdk.transport.control_channel import ControlChannel
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.host_failover import Hosts
from warren.sdk.transport.session import ChannelFactory, Session
from warren.sdk.transport.supervised_connection import SupervisedConnection

FLUSH_SECONDS = 5.0


class Runtime:
    """Made by `App.start`, thrown away by `App.stop`."""

    def __init__(
        self,
        hosts: Hosts | None,
        name: str,
        *,
        registry: TopologyRegistry,
        endpoints: Mapping[str, Endpoint],
        components: Sequence[Component],
        middlewares: Middlewares,
        clock: Clock,
        window: int,
        replies: ReplyMode,
        telemetry: Telemetry,
        capture: Capture | None,
        on_return: Callable[[Unroutable], None],
        on_state: Callable[[State], None],
        first_retry: float,
        longest_retry: float,
    ) -> None:
        self.hosts = hosts
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.name: str = name
        self._registry = registry
        self._endpoints = endpoints
        self._components = components
        self.middlewares: Middlewares = middlewares
        self._clock = clock
        self._retry = {"first_retry": first_retry, "longest_retry": longest_retry}
        self._broker: EmbeddedBroker | None = None
        self.publisher: Publisher = Publisher(window=window, on_return=on_return)
        self.instruments: Instruments | None = telemetry.open()
        self.direct_sender: OutgoingSender = (
            self.publisher if self.instruments is None else TracedSender(self.publisher, self.instruments)
        )
        """What leaves without passing a middleware goes to."""
        self.sender: OutgoingSender = (
            MiddlewareSender(self.direct_sender, middlewares) if middlewares.publish else self.direct_sender
        )
        """What the user's publishes go to."""
        self.caller: Caller = Caller(ReplyMiddleware(middlewares) if middlewares.handle else None)
        self.consuming: ConsumeTelemetry | None = (
            None if self.instruments is None else ConsumeTelemetry(self.instruments)
        )
        self.caller.telemetry = self.consuming
        for endpoint in endpoints.values():
            endpoint.telemetry = self.consuming
            endpoint.report.capture = None
            endpoint.settler.redeclare = self._redeclare
        self._capture = capture
        self._capturing: CaptureStreamWriter | None = None
        self._replies = replies
        self._publishing: SupervisedConnection | None = None
        self._consuming: SupervisedConnection | None = None
        self._channels = PublishChannels(
            self.publisher, self._moved, self.caller.consume_direct_reply_to if replies == "direct" else None
        )
        self.transactions: TransactionChannels = TransactionChannels(self._on_publishing, self.publisher)
        self.subscriptions: dict[str, Subscription] = {}
        self._changed = asyncio.Event()
        self.required_topology_lock: asyncio.Lock = asyncio.Lock()
        """Held while a message class that is published for the first time is declared."""
        self._on_state = on_state
        self._phase = State.CONNECTING

    @property
    def state(self) -> State:
        if self._phase is not State.READY:
            return self._phase
        if self._missing():
            return State.CONNECTING
        return State.READY if self.publisher.blocked is None else State.BLOCKED

    def health(self) -> Health:
        errors = [link.error for link in self._links() if link.error is not None]
        errors += [one.error for one in self.subscriptions.values() if one.error is not None]
        reason = self.publisher.blocked if not errors else str(errors[0])
        return Health(self.state, tuple(self._missing()), reason)

    async def start(self, timeout: float) -> None:
        deadline = self.loop.time() + timeout
        self._moved()
        if self.hosts is None:
            self._broker = embedded_broker()
            await self._broker.__aenter__()
            self.hosts = Hosts([self._broker.url])
        channels: ChannelFactory = DataChannel
        if self._capture is not None:
            declares = self._registry.declares
            capturing = CaptureStreamWriter(
                self._capture, self.hosts, self.name, declare=declares, **self._retry
            )
            self._capturing, channels = capturing, capturing.channels
            for endpoint in self._endpoints.values():
                endpoint.report.capture = capturing.recorder
            await capturing.start(timeout)
        self._publishing = SupervisedConnection(
            self.hosts,
            f"{self.name} publisher",
            setup=self._set_up_publishing,
            on_up=self._publishing_up,
            on_down=self._publishing_down,
            on_blocked=self._blocked,
            channels=channels,
            **self._retry,
        )
        self._consuming = SupervisedConnection(
            self.hosts,
            f"{self.name} consumer",
            setup=self._set_up_consuming,
            on_up=self._consuming_up,
            on_down=self._moved,
            on_blocked=lambda reason: None,
            channels=channels,
            **self._retry,
        )
        await self._publishing.start(max(0.0, deadline - self.loop.time()))
        await self._consuming.start(max(0.0, deadline - self.loop.time()))
        for component in self._components:
            await component.on_start()
        for name, endpoint in self._endpoints.items():
            subscription = Subscription(
                self._consuming,
                self._registry.queue(name),
                prefetch=endpoint.options.prefetch,
                concurrency=endpoint.options.concurrency,
                process=endpoint.process,
                telemetry=self.consuming,
                key=endpoint.ordering_key if endpoint.options.ordered_by is not None else None,
                recover=self._redeclare,
                on_change=self._moved,
            )
            breaker = endpoint.options.breaker
            endpoint.settler.circuit = subscription.circuit = (
                None if breaker is None else Circuit(breaker, subscription, self._clock, name)
            )
            self.subscriptions[name] = subscription
            subscription.start()
        await self._await_consumers(deadline)
        self._phase = State.READY
        if self.instruments is not None:
            watch(self.instruments.meters, self)
        self._moved()

    async def stop(self, grace: float) -> None:
        """Drain for `grace` seconds, then end all; a cancellation ends the draining, and nothing is left open either way."""
        self._phase = State.CLOSING
        if self.instruments is not None:
            unwatch(self.instruments.meters, self)
        self._moved()
        draining = asyncio.ensure_future(self._drain(grace))
        ending = asyncio.ensure_future(self._end(draining, min(FLUSH_SECONDS, grace)))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            draining.cancel()
            self.publisher.close()
            for link in self._links():
                link.abort()
            if self._capturing is not None:
                self._capturing.abort()
            await asyncio.wait((ending,), timeout=FLUSH_SECONDS)
            raise

    async def _drain(self, grace: float) -> None:
        await asyncio.gather(*(subscription.stop(grace) for subscription in self.subscriptions.values()))

    async def _end(self, draining: asyncio.Future[None], flush_seconds: float) -> None:
        await asyncio.wait((draining,))
        if draining.cancelled():
            await self._drain(0.0)
        onces = [once for endpoint in self._endpoints.values() for once in endpoint.onces]
        parts: list[Component | Once] = [*reversed(self._components), *onces]
        for part in parts:
            try:
                await part.on_stop()
            except Exception:
                log.exception("not stopped cleanly: part=%s", type(part).__name__)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(flush_seconds):
                await self.publisher.flush()
        self.publisher.close()
        self.caller.detach()
        for link in reversed(self._links()):
            await link.close()
        if self._capturing is not None:
            await self._capturing.stop(flush_seconds)
        if self._broker is not None:
            await self._broker.__aexit__(None, None, None)
        self._phase = State.CLOSED
        self._moved()
        draining.cancelled() or draining.result()

    def check_loop(self) -> None:
        """:raises ConfigError: if the caller runs on another event loop than the App."""
        if asyncio.get_running_loop() is not self.loop:
            raise ConfigError("this App belongs to another event loop: use it from the one that started it")

    async def declare(self, items: Iterable[Declarable]) -> None:
        items = list(items)
        # What is exclusive belongs to the connection that consumes it.
        link = self._consuming if any(map(_exclusive, items)) else self._publishing
        assert link is not None
        await self._registry.add_and_declare(link, items)

    def submit_for(self, queue: str) -> Submit:
        """How a request to the queue is sent; from a handler of that very queue, straight to its endpoint."""
        current = current_delivery()
        endpoint = self._endpoints.get(queue)
        if endpoint is None or current is None or current.queue != queue:
            return self.sender.submit
        own = ReentrantCalls(endpoint, queue, self.publisher)
        return lambda request, timeout: self.middlewares.submit(
            request, lambda changed: own.submit(changed, timeout)
        )

    async def reply(self, outgoing: Outgoing, timeout: float) -> None:
        """Publish a reply; to a request that never left this process, without the broker, which knows no such address."""
        if outgoing.routing_key == DIRECT and not outgoing.exchange:
            await self.middlewares.send(outgoing, self.caller.receive_local_reply)
        else:
            await self.sender.publish(outgoing, timeout)

    async def fetch(
        self, queue: str, timeout: float, publish_dead_letter: PublishDeadLetter
    ) -> HeldDelivery | None:
        link = self._consuming
        assert link is not None
        return await fetch(
            lambda: link.use(Session.channel), queue, timeout, publish_dead_letter, self.consuming
        )

    def statistics(self) -> Statistics:
        onces = [once for endpoint in self._endpoints.values() for once in endpoint.onces]
        components = statistics_of([*self._components, *onces])
        if self._capturing is not None:
            components["capture"] = self._capturing.statistics()
        return Statistics(
            state=self.state,
            reconnects=sum(max(0, link.connects - 1) for link in self._links()),
            publisher=copy_of(self.publisher.snapshot()),
            calls=copy_of(self.caller.snapshot()),
            subscriptions={name: copy_of(one.snapshot()) for name, one in self.subscriptions.items()},
            handlers={name: copy_of(one.statistics) for name, one in self._endpoints.items()},
            components={name: copy_of(value) for name, value in components.items()},
        )

    async def _on_publishing(self, work: Callable[[Session], Awaitable[DataChannel]]) -> DataChannel:
        assert self._publishing is not None
        return await self._publishing.use(work)

    def _links(self) -> list[SupervisedConnection]:
        return [link for link in (self._publishing, self._consuming) if link is not None]

    def _missing(self) -> list[str]:
        """What is not there, of all that an App needs to be ready."""
        publishing, consuming = self._publishing, self._consuming
        missing = []
        if publishing is None or publishing.session is None or not self.publisher.attached:
            missing.append("publisher")
        if consuming is None or consuming.session is None or not self.caller.active:
            missing.append("consumer")
        return missing + [name for name, one in self.subscriptions.items() if not one.in_desired_state]

    def _moved(self) -> None:
        """Something that the state depends on has changed."""
        self._changed.set()
        self._on_state(self.state)

    async def _await_consumers(self, deadline: float) -> None:
        """:raises WarrenError: if a consumer cannot stand, or not in time."""
        while not all(one.in_desired_state for one in self.subscriptions.values()):
            self._changed.clear()
            for one in self.subscriptions.values():
                if isinstance(one.error, TopologyMismatch) and not one.error.retryable:
                    raise one.error
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                waiting = {name: one for name, one in self.subscriptions.items() if not one.in_desired_state}
                errors = [one.error for one in waiting.values() if one.error is not None]
                why = f": {errors[0]}" if errors else ""
                raise TransportUnavailable(
                    f"no consumer on {', '.join(waiting)} within the deadline{why}"
                ) from None

    async def _redeclare(self) -> None:
        assert self._consuming is not None
        await self._consuming.run(self._registry.declare_all)

    async def _set_up_publishing(self, session: Session, control: ControlChannel) -> None:
        await self._registry.declare_shared(control)
        await self._channels.open(session)

    def _publishing_up(self) -> None:
        if self.instruments is not None:
            self.instruments.publishing = self._connection(self._publishing)
        self._channels.attach()
        self._moved()

    def _consuming_up(self) -> None:
        if self.instruments is not None:
            self.instruments.consuming = self._connection(self._consuming)
        self._moved()

    def _connection(self, link: SupervisedConnection | None) -> Attributes:
        assert link is not None
        assert self.hosts is not None
        peer = None if link.session is None else link.session.peer
        return of_connection(self.hosts.current, link.name, peer)

    def _publishing_down(self) -> None:
        self._channels.detach()
        self._moved()

    def _blocked(self, reason: str | None) -> None:
        if reason is None:
            log.warning("the broker reads publishers again")
        else:
            log.warning("the broker blocks publishers: reason=%s", reason)
        self.publisher.set_blocked(reason)
        self._moved()

    async def _set_up_consuming(self, session: Session, control: ControlChannel) -> None:
        await self._registry.declare_all(control)
        if self._replies == "queue":
            await self.caller.consume_queue(session)


def _exclusive(item: Declarable) -> bool:
    return isinstance(item, Queue) and item.exclusive
