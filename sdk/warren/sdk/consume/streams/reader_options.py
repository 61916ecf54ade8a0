"""Options of a stream reader: where it begins, how it resumes, its filter, and its policy for failed messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from warren.sdk.choices import check_choice, check_whole_number
from warren.sdk.consume.consumer_options import ConsumerOptions
from warren.sdk.consume.handlers.decorator_arguments import check_options
from warren.sdk.consume.handlers.handler_options import HandlerOptions
from warren.sdk.durations import Duration, duration
from warren.sdk.errors import ConfigError
from warren.sdk.messages.codec import FILTER_VALUE
from warren.sdk.messages.types import PointToPointMessage, RequestMessage
from warren.sdk.topology.declarable import Declarable, with_implied_topology
from warren.sdk.topology.queue import UNLIMITED_DELIVERIES, Queue

StreamOffset = Literal["first", "last", "next"] | int | datetime | timedelta
"""Position in a stream: `first`, the oldest message; `last`, the first message of the last chunk; `next`, the next message
that is published; an offset; a time; or a length of time before now."""

OnStreamError = Literal["dead_letter", "skip", "stop"]
"""Policy for a message whose handler has failed finally: `dead_letter` publishes a copy to the reader's dead letter queue
and goes on after its confirm; `skip` logs it and goes on; `stop` stops the reader before the message."""

OnRecreated = Literal["stop", "first"]
"""Policy of a reader with `resume` for a stream that was deleted and declared anew since the position was stored: `stop`
stops the reader with `StreamRecreated`; `first` logs that and begins with the first message of the new stream."""

STORE_EVERY: Final = 100
STORE_WITHIN: Final = "1s"
STREAM_PREFETCH: Final = 100


class StreamHandlerOptions(HandlerOptions, total=False):
    """Options of `app.handle(..., stream=...)`, beside those of every handler. By default one message is handled at a time,
    with a prefetch of 100; a larger `concurrency` keeps the order only of messages with the same `ordered_by` key."""

    stream: str | Queue
    """Stream to read: a name, or a `Queue` of the type `stream` with its retention."""
    offset: StreamOffset
    """Position at which a reader begins that has no stored one; by default `next`."""
    resume: bool
    """True to store the position, to continue there at the next start, and to let one process read at a time; by default
    False: each process reads by itself, from `offset`."""
    reader: str | None
    """Name of the reader, by default that of the function. Handlers with the same stream and reader share a position."""
    on_error: OnStreamError
    """Policy for a message whose handler has failed finally; by default `dead_letter`."""
    store_every: int
    """With `resume`: number of handled messages after which the position is stored, before the next one is handled."""
    store_within: Duration
    """With `resume`: time after which the position of a handled message is stored at the latest."""
    on_recreated: OnRecreated
    """With `resume`: policy for a stream that was deleted and declared anew; by default `stop`."""
    filter: str | Sequence[str] | None
    """Filter values: the reader gets only messages with one of them."""
    match_unfiltered: bool
    """With `filter`: True to get messages without a filter value as well."""


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """Options that all handlers of one reader share."""

    stream: str
    reader: str
    offset: StreamOffset
    resume: bool
    on_error: OnStreamError
    store_every: int
    store_within: timedelta
    filter: tuple[str, ...]
    match_unfiltered: bool
    on_recreated: OnRecreated

    @classmethod
    def of(cls, stream: str, reader: str, options: StreamHandlerOptions) -> ReaderOptions:
        """Check the options and return them.

        :raises ConfigError: if one is out of its range, or has no effect.
        """
        on_error = options.get("on_error", "dead_letter")
        check_choice("on_error", on_error, OnStreamError)
        offset = options.get("offset", "next")
        check_offset("offset", offset)
        store_every = options.get("store_every", STORE_EVERY)
        check_whole_number("store_every", store_every)
        resume = options.get("resume", False)
        if not resume and ("store_every" in options or "store_within" in options):
            raise ConfigError("store_every and store_within need resume=True: nothing is stored without it")
        on_recreated = options.get("on_recreated", "stop")
        check_choice("on_recreated", on_recreated, OnRecreated)
        if not resume and "on_recreated" in options:
            raise ConfigError("on_recreated needs resume=True: without it there is no stored position")
        values = options.get("filter") or ()
        chosen = (values,) if isinstance(values, str) else tuple(values)
        match_unfiltered = options.get("match_unfiltered", False)
        if match_unfiltered and not chosen:
            raise ConfigError("match_unfiltered needs filter=...: without it the reader gets all messages")
        return cls(
            stream,
            reader,
            offset,
            resume,
            on_error,
            store_every,
            duration(options.get("store_within", STORE_WITHIN)),
            chosen,
            match_unfiltered,
            on_recreated,
        )

    @property
    def name(self) -> str:
        """The name of the reader in `app.subscriptions`, and the beginning of the names of its queues."""
        return f"{self.stream}.{self.reader}"

    @property
    def position_queue(self) -> Queue:
        """The queue that holds the stored position, in one message, which is also the lease of the active reader."""
        return Queue(
            f"{self.name}.position",
            type="quorum",
            delivery_limit=UNLIMITED_DELIVERIES,
            dead_letter_exchange=None,
            single_active_consumer=True,
        )

    @property
    def dead_letter_source(self) -> Queue:
        """A queue value, never declared, with the dead letter queue of the reader: `<stream>.<reader>.dead`."""
        return Queue(self.name)

    def accepts(self, headers: Mapping[str, Any]) -> bool:
        """Return whether a message passes the filter, by its header `x-stream-filter-value`."""
        value = headers.get(FILTER_VALUE)
        if value is None:
            return not self.filter or self.match_unfiltered
        return not self.filter or value in self.filter

    def filter_arguments(self) -> dict[str, Any]:
        """Return the arguments of `basic.consume` for the filter; empty without one."""
        if not self.filter:
            return {}
        arguments: dict[str, Any] = {"x-stream-filter": list(self.filter)}
        if self.match_unfiltered:
            arguments["x-stream-match-unfiltered"] = True
        return arguments


def reader_consumer_options(
    decorator: str, message: object, options: StreamHandlerOptions
) -> ConsumerOptions:
    """Check the message and the options of a handler on a stream; return those of its consumer. By default one message is
    handled at a time, in the order of the stream.

    :param decorator: name of the decorator, such as `app.handle`.
    :raises ConfigError: if the message cannot be read from a stream, or an option is unknown or out of its range.
    """
    if isinstance(message, type) and issubclass(message, PointToPointMessage | RequestMessage):
        raise ConfigError(
            f"{message.__name__} cannot be read from a stream: only an Event or foreign content can"
        )
    check_options(decorator, options, ("queue", "keys", *StreamHandlerOptions.__annotations__))
    ReaderOptions.of(stream_queue(options["stream"]).name, options.get("reader") or "", options)
    concurrency = options.get("concurrency", 1)
    check_whole_number("concurrency", concurrency)
    prefetch = options.get("prefetch")
    if prefetch is None:
        prefetch = max(STREAM_PREFETCH, 2 * concurrency)
    return ConsumerOptions.of(concurrency, prefetch, options.get("ordered_by"), options.get("breaker"))


def check_no_queue(queue: object) -> None:
    """Check that a handler on a stream has no `queue=`.

    :raises ConfigError: if it has one.
    """
    if queue is not None:
        raise ConfigError("a handler takes queue=... or stream=..., not both")


def check_no_stream_options(decorator: str, options: Iterable[str]) -> None:
    """Check that a handler of a queue has no option that only a handler on a stream has.

    :param decorator: name of the decorator, such as `app.handle`.
    :raises ConfigError: if it has one.
    """
    own = set(StreamHandlerOptions.__annotations__) - set(HandlerOptions.__annotations__)
    if found := [name for name in options if name in own]:
        raise ConfigError(
            f"{found[0]} is an option of streams: write @{decorator}(..., stream=..., {found[0]}=...)"
        )


def reader_name(function: Callable[..., Any]) -> str:
    """Return the name of the reader of a handler that names none: that of the function.

    :raises ConfigError: if the function has none.
    """
    name = getattr(function, "__name__", "")
    if not name or name == "<lambda>":
        raise ConfigError(f"the handler {function!r} has no name for its reader: give it one with reader=...")
    return str(name)


def stream_queue(stream: str | Queue) -> Queue:
    """Return the stream to declare.

    :raises ConfigError: if it is a queue of another type.
    """
    queue = Queue(stream, type="stream") if isinstance(stream, str) else stream
    if queue.type != "stream":
        raise ConfigError(f"stream={queue.name!r} is a {queue.type} queue: write Queue(..., type='stream')")
    return queue


def reader_topology(options: ReaderOptions) -> list[Declarable]:
    """Return the queues of a reader, with the binding for its dead letters."""
    items: list[Declarable] = [options.position_queue] if options.resume else []
    if options.on_error == "dead_letter":
        items += with_implied_topology([options.dead_letter_source])[:-1]
    return items


def check_offset(what: str, offset: object) -> None:
    """Check a position in a stream.

    :param what: name of the parameter, for errors.
    :raises ConfigError: if it is no position, is negative, or a time without a time zone.
    """
    match offset:
        case bool():
            pass
        case "first" | "last" | "next":
            return
        case int() if offset >= 0:
            return
        case datetime():
            if offset.tzinfo is None:
                raise ConfigError(f"{what}={offset!r} has no time zone: give it one, such as UTC")
            return
        case timedelta() if offset >= timedelta(0):
            return
    raise ConfigError(
        f"{what}={offset!r} is no position in a stream: write 'first', 'last', 'next', an offset from 0 on, a datetime,"
        " or a timedelta before now"
    )


def offset_argument(offset: StreamOffset, now: float) -> str | int | datetime:
    """Return the value of `x-stream-offset` for a position; a time is rounded down to a second, as AMQP has it.

    :param now: Unix time in seconds.
    """
    if isinstance(offset, timedelta):
        return datetime.fromtimestamp(int(now - offset.total_seconds()), UTC)
    if isinstance(offset, datetime):
        return offset.astimezone(UTC).replace(microsecond=0)
    return offset
