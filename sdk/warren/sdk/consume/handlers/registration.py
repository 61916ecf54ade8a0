"""Handler registration: endpoints by queue, and the topology that handlers need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from copy import copy
from functools import partial
from typing import Any, Protocol, TypeAlias, cast

from warren.sdk.app.middleware import Middlewares
from warren.sdk.choices import check_whole_number
from warren.sdk.consume.batches import BatchCollector
from warren.sdk.consume.consumer_options import CONCURRENCY, ConsumerOptions
from warren.sdk.consume.dead_letters import CopySize, dead_letter_copy, publish_fitting
from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.dependencies import DependencyInjector
from warren.sdk.consume.endpoint import Endpoint
from warren.sdk.consume.handler_threads import HandlerThreads, ThreadInvoker
from warren.sdk.consume.handlers.decorator_arguments import check_idempotency, check_message, check_options
from warren.sdk.consume.handlers.handler_options import HandlerOptions
from warren.sdk.consume.handlers.handler_spec import HandlerSpec
from warren.sdk.consume.handlers.signature import caller_names, check_signature, is_async
from warren.sdk.consume.retry import check_retry_policy
from warren.sdk.consume.settlement import Send
from warren.sdk.consume.streams.reader_options import (
    ReaderOptions,
    StreamHandlerOptions,
    check_no_queue,
    check_no_stream_options,
    reader_consumer_options,
    reader_name,
    reader_topology,
    stream_queue,
)
from warren.sdk.consume.streams.stream_endpoint import StreamEndpoint
from warren.sdk.durations import Duration, duration
from warren.sdk.errors import ConfigError, DeadLetter
from warren.sdk.messages.types import Command, Event, Request, RequestMessage
from warren.sdk.protocols import Clock, DelayBackend, Idempotency, RetryPolicy
from warren.sdk.rpc.reply_types import reply_codec
from warren.sdk.topology.binding import Binding
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.queue import Queue
from warren.sdk.topology.registry import TopologyRegistry

Register: TypeAlias = Callable[[Callable[..., Any]], None]
"""Function that registers a decorated function as a handler."""


class Registrar(Protocol):
    """Destination of decorated functions: the `HandlerRegistry` of an App, or a router, which keeps them for its Apps.

    Each method checks the arguments of a decorator and returns the function that registers a handler with them.
    """

    def registrar(
        self, message: Any, queue: str | Queue | None, keys: Iterable[str] | None, options: HandlerOptions, /
    ) -> Register: ...

    def batch_registrar(
        self,
        message: Any,
        queue: str | Queue | None,
        keys: Iterable[str] | None,
        size: int,
        within: Duration,
        options: HandlerOptions,
        /,
    ) -> Register: ...


class HandlerRegistry:
    """The handlers of an App: for each queue name an `Endpoint`, which passes messages to the handlers of the queue.

    :param registry: topology registry of the App, to which the topology that the handlers need is added.
    :param send: publishes replies as mandatory, with confirm, through the publish middlewares.
    :param forward: publishes dead letter copies as mandatory, with confirm, without middlewares.
    :param retry: policy for handlers that have none of their own.
    :param delay: returns the backend for delayed redeliveries.
    :param context: objects, by type, that are passed to parameters of handlers and dependencies with that type.
    :param prepare_once: prepares the `once=` object of a handler for the App.
    :ivar observe: replaces each handler that is added while the App runs; for the test kit.
    :ivar threads: pool in which handlers that are plain functions run.
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
        prepare_once: Callable[[Idempotency], None],
        threads: HandlerThreads,
    ) -> None:
        check_retry_policy(retry)
        self.endpoints: dict[str, Endpoint] = {}
        self._registry = registry
        self._queue_of: Callable[[str], Queue] = registry.queue
        self.observe: Callable[[HandlerSpec], HandlerSpec] | None = None
        self._send = send
        self._forward = forward
        self._middlewares = middlewares
        self.clock: Clock = clock
        self.threads: HandlerThreads = threads
        self._retry = retry
        self._delay = delay
        self._context = context
        self._prepare_once = prepare_once
        self._overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._injectors: list[DependencyInjector] = []

    def registrar(
        self,
        message: Any,
        queue: str | Queue | None,
        keys: Iterable[str] | None,
        options: HandlerOptions,
        /,
        middlewares: Middlewares | None = None,
        local_names: Mapping[str, Any] | None = None,
    ) -> Register:
        """Check the arguments of `app.handle`; return a function that registers a handler with them.

        :param message: message class, or a type for content of other publishers.
        :param queue: queue to consume; None for a message class with a queue of its own.
        :param keys: binding keys of an Event, instead of its own key.
        :param middlewares: those of the handler's router, or None for the App's only.
        :param local_names: local names at the place where the function is defined; by default those of the caller.
        :raises ConfigError: if an option is unknown or out of its range. The returned function raises it if the message
            has no queue or key, or the signature of the handler does not fit.
        """
        if "stream" in options:
            chosen = cast(StreamHandlerOptions, options)
            return self._stream_registrar(message, queue, keys, chosen, middlewares, local_names)
        consumer_options = consumer_options_of("app.handle", message, options)
        self._prepare(options)

        def register(function: Callable[..., Any]) -> None:
            injector = self._injector(function, message, local_names=local_names)
            reply = reply_codec(message) if _is_request(message) else None
            if reply is not None:
                reply.check_writable()
            handler = HandlerSpec(
                message,
                function,
                self._invoker(function, injector),
                options.get("retry"),
                options.get("once"),
                reply,
                middlewares,
            )
            self._add(handler, consumer_options, queue, keys)

        return register

    def _stream_registrar(
        self,
        message: Any,
        queue: str | Queue | None,
        keys: Iterable[str] | None,
        options: StreamHandlerOptions,
        middlewares: Middlewares | None,
        local_names: Mapping[str, Any] | None,
    ) -> Register:
        """Check the arguments of `app.handle(..., stream=...)`; return a function that registers a handler with them.

        :raises ConfigError: as `registrar`.
        """
        check_no_queue(queue)
        options_of_consumer = consumer_options_of("app.handle", message, options)
        self._prepare(options)
        stream = stream_queue(options["stream"])
        name = options.get("reader")

        def register(function: Callable[..., Any]) -> None:
            injector = self._injector(function, message, local_names=local_names)
            handler = HandlerSpec(
                message,
                function,
                self._invoker(function, injector),
                options.get("retry"),
                options.get("once"),
                None,
                middlewares,
            )
            reader = ReaderOptions.of(stream.name, name or reader_name(function), options)
            _, items = queue_and_topology(message, stream, keys)
            self._registry.add([*items, *reader_topology(reader)])
            self._stream_endpoint(reader, options_of_consumer).add(handler)

        return register

    def batch_registrar(
        self,
        message: Any,
        queue: str | Queue | None,
        keys: Iterable[str] | None,
        size: int,
        within: Duration,
        options: HandlerOptions,
        /,
        middlewares: Middlewares | None = None,
        local_names: Mapping[str, Any] | None = None,
    ) -> Register:
        """Check the arguments of `app.handle.batch`; return a function that registers a batch handler with them.

        :param message: message class, or a type for content of other publishers.
        :param queue: queue to consume; None for a message class with a queue of its own.
        :param keys: binding keys of an Event, instead of its own key.
        :param size: largest number of messages in a batch.
        :param within: longest time that the first message of a batch waits for others.
        :param middlewares: those of the handler's router, or None for the App's only.
        :param local_names: local names at the place where the function is defined; by default those of the caller.
        :raises ConfigError: if the message is a Request, or an option is out of its range. The returned function raises
            it if the message has no queue or key, or the signature of the handler does not fit.
        """
        consumer_options, concurrency = batch_consumer_options_of("app.handle.batch", message, size, options)
        self._prepare(options)

        def register(function: Callable[..., Any]) -> None:
            injector = self._injector(function, list[message], list[Delivery], local_names)
            source, _ = queue_and_topology(message, queue, keys)
            statistics = self._endpoint(source, consumer_options).statistics

            def count_waiting(change: int) -> None:
                statistics.gathering += change

            batches = BatchCollector(
                function,
                self._invoker(function, injector),
                size=size,
                within=duration(within, "within"),
                concurrency=concurrency,
                clock=self.clock,
                count_waiting=count_waiting,
            )
            handler = HandlerSpec(
                message,
                batches.handle,
                batches,
                options.get("retry"),
                options.get("once"),
                None,
                middlewares,
            )
            self._add(handler, consumer_options, queue, keys)

        return register

    def stage(self, topology: TopologyRegistry) -> HandlerRegistry:
        """Return an empty registry for handlers that are added while the App runs, with the settings of this one.

        :param topology: collects the topology that these handlers need.
        """
        staged = copy(self)
        staged.endpoints = {}
        staged._registry = topology
        staged._injectors = []
        return staged

    def admit(self, staged: HandlerRegistry) -> None:
        """Add the handlers of a registry that `stage` returned."""
        if self.observe is not None:
            for endpoint in staged.endpoints.values():
                endpoint.replace_handlers(self.observe)
        self.endpoints.update(staged.endpoints)
        self._injectors += staged._injectors

    def dismiss(self, staged: HandlerRegistry) -> None:
        """Remove the handlers that `admit` added."""
        for queue in staged.endpoints:
            self.endpoints.pop(queue, None)
        gone = set(map(id, staged._injectors))
        self._injectors = [injector for injector in self._injectors if id(injector) not in gone]

    async def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Publish the dead letter copy of a message that was fetched with `app.get`; return after the confirm.

        :param reason: text that is sent in a header of the copy.
        :raises ConfigError: if its queue has no dead letter exchange.
        """
        queue = self._registry.queue(delivery.queue)
        if queue.dead_letter_exchange is None:
            raise ConfigError(f"queue {queue.name!r} has no dead letter exchange")
        make = partial(dead_letter_copy, delivery, queue, "rejected", DeadLetter(reason), self.clock.now())
        await publish_fitting(self._forward, make, (CopySize.WHOLE, CopySize.BRIEF))

    def override(self, dependency: Callable[..., Any], other: Callable[..., Any]) -> ExitStack:
        """Replace a function on which handlers depend; used by `app.override`.

        :param dependency: the function to replace.
        :param other: the replacement, which may have dependencies of its own.
        :return: context whose end restores the function that was in effect before.
        :raises ConfigError: if nothing supplies one of the parameters of the replacement.
        """
        before = self._overrides.get(dependency)

        def replace(function: Callable[..., Any] | None) -> None:
            if function is None:
                self._overrides.pop(dependency, None)
            else:
                self._overrides[dependency] = function
            for injector in self._injectors:
                injector.resolve()

        try:
            replace(other)
        except ConfigError:
            replace(before)
            raise
        end = ExitStack()
        end.callback(replace, before)
        return end

    def _prepare(self, options: HandlerOptions) -> None:
        once = options.get("once")
        if once is not None:
            self._prepare_once(once)

    def _injector(
        self,
        function: Callable[..., Any],
        kind: Any,
        delivery: Any = Delivery,
        local_names: Mapping[str, Any] | None = None,
    ) -> DependencyInjector:
        if local_names is None:
            local_names = caller_names()
        check_signature(function, kind, local_names)
        injector = DependencyInjector(
            function,
            kind,
            context=self._context,
            overrides=self._overrides,
            local_names=local_names,
            delivery=delivery,
        )
        self._injectors.append(injector)
        return injector

    def _invoker(
        self, function: Callable[..., Any], injector: DependencyInjector
    ) -> DependencyInjector | ThreadInvoker | None:
        """Return the invoker of a handler: None for an async function that takes the message only, which is called
        directly.
        """
        dependencies = None if injector.is_empty else injector
        return dependencies if is_async(function) else ThreadInvoker(self.threads, dependencies)

    def _add(
        self,
        handler: HandlerSpec,
        options: ConsumerOptions,
        queue: str | Queue | None,
        keys: Iterable[str] | None,
    ) -> None:
        source, items = queue_and_topology(handler.kind, queue, keys)
        self._registry.add(items)
        if delays := (handler.retry or self._retry).delays:
            self._registry.add(self._delay().reach(source, delays))
        self._endpoint(source, options).add(handler)

    def _stream_endpoint(self, reader: ReaderOptions, options: ConsumerOptions) -> Endpoint:
        endpoint = self.endpoints.get(reader.name)
        if endpoint is None:
            endpoint = self.endpoints[reader.name] = StreamEndpoint(
                lambda: self._queue_of(reader.stream),
                reader,
                options=options,
                send=self._send,
                forward=self._forward,
                middlewares=self._middlewares,
                clock=self.clock,
                retry=self._retry,
                delay=self._delay,
            )
        elif (
            not isinstance(endpoint, StreamEndpoint)
            or endpoint.reader != reader
            or endpoint.options != options
        ):
            raise ConfigError(
                f"the handlers of reader {reader.reader!r} of stream {reader.stream!r} must have the same options, except"
                " retry and once; reader=... names another reader"
            )
        return endpoint

    def _endpoint(self, source: str, options: ConsumerOptions) -> Endpoint:
        endpoint = self.endpoints.get(source)
        if endpoint is None:
            endpoint = self.endpoints[source] = Endpoint(
                lambda: self._queue_of(source),
                options=options,
                send=self._send,
                forward=self._forward,
                middlewares=self._middlewares,
                clock=self.clock,
                retry=self._retry,
                delay=self._delay,
            )
        elif endpoint.options != options:
            raise ConfigError(
                f"the handlers of queue {source!r} must have the same concurrency, prefetch, ordered_by and breaker"
            )
        return endpoint


def consumer_options_of(decorator: str, message: Any, options: HandlerOptions) -> ConsumerOptions:
    """Check the message and the options of `app.handle` or `router.handle`; return those of the queue's consumer.

    :param decorator: name of the decorator, for error texts.
    :raises ConfigError: if the message is no type that pydantic reads, or an option is unknown or out of its range.
    """
    check_message(decorator, message)
    check_retry_policy(options.get("retry"))
    check_idempotency(options.get("once"))
    if "stream" in options:
        return reader_consumer_options(decorator, message, cast(StreamHandlerOptions, options))
    check_no_stream_options(decorator, options)
    check_options(decorator, options, ("queue", "keys", *HandlerOptions.__annotations__))
    return ConsumerOptions.of(
        options.get("concurrency", CONCURRENCY),
        options.get("prefetch"),
        options.get("ordered_by"),
        options.get("breaker"),
    )


def batch_consumer_options_of(
    decorator: str, message: Any, size: int, options: HandlerOptions
) -> tuple[ConsumerOptions, int]:
    """Check the message and the options of `app.handle.batch` or `router.handle.batch`; return those of the queue's
    consumer, and the number of batches that are handled at the same time.

    :param decorator: name of the decorator, for error texts.
    :param size: largest number of messages in a batch.
    :raises ConfigError: if the message is a Request, or an option is unknown or out of its range.
    """
    check_message(decorator, message)
    if _is_request(message):
        raise ConfigError(
            f"{message.__name__} is a Request: a batch handler cannot reply, use"
            f" {decorator.removesuffix('.batch')} instead"
        )
    if options.get("ordered_by") is not None:
        raise ConfigError("a batch handler takes no ordered_by: a batch is in the order of the queue")
    known = ("queue", "keys", "size", "within", *HandlerOptions.__annotations__)
    check_options(decorator, options, (name for name in known if name != "ordered_by"))
    check_retry_policy(options.get("retry"))
    check_idempotency(options.get("once"))
    check_whole_number("size", size)
    concurrency = options.get("concurrency", 1)
    check_whole_number("concurrency", concurrency)
    # One batch more than are handled: the next batch is collected meanwhile.
    workers = size * (concurrency + 1)
    prefetch = options.get("prefetch")
    return ConsumerOptions.of(
        workers, workers if prefetch is None else prefetch, None, options.get("breaker")
    ), concurrency


def _is_request(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, RequestMessage)


def queue_and_topology(
    message: Any, queue: str | Queue | None, keys: Iterable[str] | None
) -> tuple[str, list[Declarable]]:
    """Return the name of the queue that a handler consumes, and the exchanges, queues and bindings to declare for it.

    :param message: message class, or a type for foreign content.
    :param queue: queue that the user gave; None for a message class with a queue of its own.
    :param keys: binding keys of an Event, instead of its own key.
    """
    if isinstance(keys, str):
        raise ConfigError(f"keys is a list of binding keys, not the text {keys!r}")
    own = Queue(queue) if isinstance(queue, str) else queue
    if isinstance(message, type) and issubclass(message, Command | Request):
        items = message.required_topology()
        name = message.wire_key or ""
        if keys is not None or (own is not None and own != message.queue_value):
            raise ConfigError(f"{message.__name__} has its own queue {name!r}: leave out queue= and keys=")
        return name, items
    if own is None:
        kind = getattr(message, "__name__", message)
        raise ConfigError(
            f"a handler of {kind} needs queue=..., the queue that it consumes: write handle({kind}, queue='NAME')"
        )
    if isinstance(message, type) and issubclass(message, Event):
        items = message.required_topology()
        bound = list(keys) if keys is not None else [message.wire_key] if message.wire_key else []
        if not bound:
            raise ConfigError(f"{message.__name__} has no key: handle(..., keys=[...])")
        return own.name, [*items, own, *(Binding(message.wire_exchange, own.name, key) for key in bound)]
    return own.name, [own]
