"""The handlers of an App: what `app.handle` registers, and the endpoint of each queue that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from warren.sdk.depends import Plan, caller_names
from warren.sdk.endpoint import Endpoint, Send
from warren.sdk.errors import ConfigError
from warren.sdk.handler import HandlerSpec, check, reply_of, source_of
from warren.sdk.handles import Answers, Handles
from warren.sdk.messages import Asking
from warren.sdk.middleware import Middlewares
from warren.sdk.protocols import Clock, DelayBackend, Once, RetryPolicy
from warren.sdk.registry import Registry
from warren.sdk.topology import Queue


class Handlers:
    """Endpoints by the name of their queue; what they need on the broker goes to the registry.

    :param send: publishes with confirm and mandatory; for replies.
    :param forward: the same for copies of what came, which pass no middleware again; for dead letters.
    :param retry: of handlers that name none.
    :param context: what handlers and dependencies find by its type.
    """

    def __init__(
        self,
        registry: Registry,
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
        self._clock = clock
        self._retry = retry
        self._delay = delay
        self._context = context
        self._overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._plans: list[Plan] = []

    def decorator(
        self,
        message: Any,
        *,
        queue: str | Queue | None,
        concurrency: int,
        keys: Iterable[str] | None,
        retry: RetryPolicy | None,
        once: Once | None,
    ) -> Answers[Any] | Handles[Any]:
        """What `app.handle` returns; see there.

        :raises ConfigError: if the concurrency is none.
        """
        if concurrency < 1:
            raise ConfigError("concurrency must be at least 1")

        def register(function: Callable[..., Any]) -> None:
            local = caller_names()
            check(function, message, local)
            plan = Plan(function, message, context=self._context, overrides=self._overrides, local=local)
            self._plans.append(plan)
            handler = HandlerSpec(
                message, function, None if plan.empty else plan, retry, once, reply_of(message)
            )
            source, items = source_of(message, queue, keys)
            self._registry.add(items)
            if delays := (retry or self._retry).delays:
                self._registry.add(self._delay().reach(source, delays))
            self._endpoint(source, concurrency).add(handler)

        if isinstance(message, type) and issubclass(message, Asking):
            return Answers[Any](register)
        return Handles[Any](register)

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

    def _endpoint(self, source: str, concurrency: int) -> Endpoint:
        endpoint = self.endpoints.get(source)
        if endpoint is None:
            endpoint = self.endpoints[source] = Endpoint(
                lambda: self._registry.queue(source),
                concurrency=concurrency,
                send=self._send,
                forward=self._forward,
                middlewares=self._middlewares,
                clock=self._clock,
                retry=self._retry,
                delay=self._delay,
            )
        elif endpoint.concurrency != concurrency:
            raise ConfigError(f"the handlers of queue {source!r} must have the same concurrency")
        return endpoint
