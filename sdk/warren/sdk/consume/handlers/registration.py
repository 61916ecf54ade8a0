"""The handlers of an App: what `app.handle` registers, and the endpoint of each queue that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, TypedDict

from warren.sdk.app.middleware import Middlewares
from warren.sdk.consume.batches import Batches
from warren.sdk.consume.circuit_breaker import CircuitBreaker
from warren.sdk.consume.consumer_options import CONCURRENCY, ConsumerOptions, OrderedBy
from warren.sdk.consume.dead_letters import dead_letter_copy
from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.dependencies import Plan, caller_names
from warren.sdk.consume.endpoint import Endpoint, Send
from warren.sdk.consume.handlers.decorator_types import (
    BatchHandlerDecorator,
    HandlerDecorator,
    RequestHandlerDecorator,
)
from warren.sdk.consume.handlers.signature import HandlerSpec, check, reply_of, source_of
from warren.sdk.durations import Duration, duration
from warren.sdk.errors import ConfigError, DeadLetter
from warren.sdk.messages.types import RequestMessage
from warren.sdk.protocols import Clock, DelayBackend, Once, RetryPolicy
from warren.sdk.topology.queue import Queue
from warren.sdk.topology.registry import TopologyRegistry


class HandlerOptions(TypedDict, total=False):
    """How a handler is run."""

    concurrency: int
    """Handlers at a time on this queue, 10 by default; all handlers of a queue say the same."""
    prefetch: int | None
    """Messages that the broker sends ahead of their acknowledgement, twice the concurrency by default."""
    ordered_by: OrderedBy | None
    """A function of the message, or the name of a header: messages of one key are handled one at a time, in the order
    of the queue, while other keys go on. Redelivery and delays break the order."""
    breaker: CircuitBreaker | None
    """Pauses the queue while its handlers keep failing."""
    retry: RetryPolicy | None
    """What is tried again, here and later; the App's policy by default."""
    once: Once | None
    """Makes the effect of a message that comes twice happen once."""


class HandlerRegistry:
    """Endpoints by the name of their queue; what they need on the broker goes to the registry.

    :param send: publishes with confirm and mandatory; for replies.
    :param forward: the same for copies of what came, which pass no middleware again; for dead letters.
    :param retry: of handlers that name none.
    :param context: what handlers and dependencies find by its type.
    """

    def __init__(
        self,
        registry: TopologyRegistry,
        *,
        send: Send,
        forward: Send,
        middlewares: Middlewares,
        clock: Clock,
        retry: RetryPolicy,
        delay: Callable[[], DelayBackend],
        context: Mapping[type, object],
    ) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self._registry = registry
        self._send = send
        self._forward = forward
        self._middlewares = middlewares
        self.clock: Clock = clock
        self._retry = retry
        self._delay = delay
        self._context = context
        self._overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._plans: list[Plan] = []

    def decorator(
        self, message: Any, queue: str | Queue | None, keys: Iterable[str] | None, options: HandlerOptions
    ) -> RequestHandlerDecorator[Any] | HandlerDecorator[Any]:
        """What `app.handle` returns; see there."""
        intake = ConsumerOptions.of(
            options.get("concurrency", CONCURRENCY),
            options.get("prefetch"),
            options.get("ordered_by"),
            options.get("breaker"),
        )

        def register(function: Callable[..., Any]) -> None:
            plan = self._plan(function, message)
            handler = HandlerSpec(
                message,
                function,
                None if plan.empty else plan,
                options.get("retry"),
                options.get("once"),
                reply_of(message),
            )
            self._add(handler, intake, queue, keys)

        if isinstance(message, type) and issubclass(message, RequestMessage):
            return RequestHandlerDecorator[Any](register)
        return HandlerDecorator[Any](register)

    def batch_decorator(
        self,
        message: Any,
        queue: str | Queue | None,
        keys: Iterable[str] | None,
        size: int,
        within: Duration,
        options: HandlerOptions,
    ) -> BatchHandlerDecorator[Any]:
        """What `app.handle.batch` returns; see there."""
        if isinstance(message, type) and issubclass(message, RequestMessage):
            raise ConfigError(f"{message.__name__} is a Request: its answers are made one by one")
        if options.get("ordered_by") is not None:
            raise ConfigError("a handler of batches has no ordered_by: a batch is in the order of the queue")
        if size < 1:
            raise ConfigError("size must be at least 1")
        concurrency = options.get("concurrency", 1)
        if concurrency < 1:
            raise ConfigError("concurrency must be at least 1")
        # While batches are handled, the next one is gathered.
        places = size * (concurrency + 1)
        intake = ConsumerOptions.of(places, options.get("prefetch") or places, None, options.get("breaker"))

        def register(function: Callable[..., Any]) -> None:
            plan = self._plan(function, list[message], list[Delivery])
            source, _ = source_of(message, queue, keys)
            endpoint = self._endpoint(source, intake)
            batches = Batches(
                function,
                None if plan.empty else plan,
                size=size,
                within=duration(within),
                concurrency=concurrency,
                clock=self.clock,
                gathering=endpoint.gathering,
            )
            handler = HandlerSpec(
                message, batches.handle, batches, options.get("retry"), options.get("once"), None
            )
            self._add(handler, intake, queue, keys)

        return BatchHandlerDecorator[Any](register)

    def _plan(self, function: Callable[..., Any], kind: Any, delivery: Any = Delivery) -> Plan:
        local = caller_names()
        check(function, kind, local)
        plan = Plan(
            function,
            kind,
            context=self._context,
            overrides=self._overrides,
            local=local,
            delivery=delivery,
        )
        self._plans.append(plan)
        return plan

    def _add(
        self,
        handler: HandlerSpec,
        intake: ConsumerOptions,
        queue: str | Queue | None,
        keys: Iterable[str] | None,
    ) -> None:
        source, items = source_of(handler.kind, queue, keys)
        self._registry.add(items)
        if delays := (handler.retry or self._retry).delays:
            self._registry.add(self._delay().reach(source, delays))
        self._endpoint(source, intake).add(handler)

    async def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Publish the dead letter copy of a delivery that no handler has.

        :raises ConfigError: if its queue has no dead letter exchange.
        """
        queue = self._registry.queue(delivery.queue)
        copy = dead_letter_copy(delivery, queue, "rejected", DeadLetter(reason), self.clock.now())
        if copy is None:
            raise ConfigError(f"queue {queue.name!r} has no dead letter exchange")
        await self._forward(copy)

    def override(self, dependency: Callable[..., Any], other: Callable[..., Any]) -> ExitStack:
        """What `app.override` does; see there."""
        before = self._overrides.get(dependency)

        def put(function: Callable[..., Any] | None) -> None:
            if function is None:
                self._overrides.pop(dependency, None)
            else:
                self._overrides[dependency] = function
            for plan in self._plans:
                plan.resolve()

        try:
            put(other)
        except ConfigError:
            put(before)
            raise
        end = ExitStack()
        end.callback(put, before)
        return end

    def _endpoint(self, source: str, intake: ConsumerOptions) -> Endpoint:
        endpoint = self.endpoints.get(source)
        if endpoint is None:
            endpoint = self.endpoints[source] = Endpoint(
                lambda: self._registry.queue(source),
                intake=intake,
                send=self._send,
                forward=self._forward,
                middlewares=self._middlewares,
                clock=self.clock,
                retry=self._retry,
                delay=self._delay,
            )
        elif endpoint.intake != intake:
            raise ConfigError(
                f"the handlers of queue {source!r} must have the same concurrency, prefetch, ordered_by and breaker"
            )
        return endpoint
