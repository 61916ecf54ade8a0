"""Protocols of the extension points: clock, components, middlewares, `once=`, `retry=`, `delay=`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tenacity import AsyncRetrying

if TYPE_CHECKING:
    from warren.sdk.app.app import App
    from warren.sdk.consume.delivery import Delivery
    from warren.sdk.publish.outgoing import Outgoing
    from warren.sdk.topology.declarable import Declarable


class Timer(Protocol):
    """A scheduled callback; `TimerHandle` of asyncio is one."""

    def cancel(self) -> None:
        """Cancel the callback if it has not been called."""
        ...


class Clock(Protocol):
    """Time of an App and its patterns, which a test can replace. Heartbeats and sockets use the event loop's time
    instead.
    """

    def now(self) -> float:
        """Return the Unix time in seconds."""
        ...

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` at the Unix time `when`, in seconds; if that is past, soon. Needs a running event loop."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds of the clock."""
        ...


@runtime_checkable
class PollingClock(Clock, Protocol):
    """Clock of a test that knows when a poll can find nothing, and leaves it out."""

    def poll_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call `callback`, which looks for work of other processes, at the Unix time `when`, in seconds, or as soon
        after it as there may be work."""
        ...


@runtime_checkable
class Component(Protocol):
    """A pattern with its own topology, handlers and background work, for `app.include`.

    A component that works in the background may have a property `busy`: a text that names its present work, empty while
    it waits. While that text is not empty, a test with a virtual clock does not advance the time.

    A component whose promise is broken if the broker loses messages has a class attribute `requires_durable_broker =
    True`. An App without a URL then does not start: its broker would be in memory.
    """

    def register(self, app: App) -> None:
        """Declare topology (`app.declare`) and add handlers (`app.handle`); `app.include` calls this once."""
        ...

    async def on_start(self) -> None:
        """Start background work; called at the start of the App, and must not block.

        Topology is declared and publishing works already; no handler runs yet.
        """
        ...

    async def on_stop(self) -> None:
        """Stop background work; called when the last handler of the App has ended. Publishing still works.

        Also called if `on_start` failed.
        """
        ...


class PublishMiddleware(Protocol):
    """An async function around every publish, reply and request of an App: `app.middleware(publish=...)`.

    It may change the message (`outgoing.set_body`, `.set`, `.set_header`), then awaits `call_next(outgoing)`, which
    returns after the confirm, or raises the error of the publish.
    """

    def __call__(
        self, outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]], /
    ) -> Awaitable[None]: ...


class HandleMiddleware(Protocol):
    """An async function around every attempt to handle a message: `app.middleware(handle=...)`.

    It may read the delivery before the body is decoded, and passes it or `delivery.replace(...)` to `call_next`.
    Exceptions of the handler are raised by `call_next`. The middleware's own exceptions count as the handler's:
    `DeadLetter("reason")` dead-letters the message as it was received, `Requeue` requeues it. If it does not call
    `call_next`, the message is acknowledged unhandled.
    """

    def __call__(
        self, delivery: Delivery, call_next: Callable[[Delivery], Awaitable[None]], /
    ) -> Awaitable[None]: ...


class Idempotency(Protocol):
    """Idempotency of a handler, `once=`: let it take effect at most once for each key, and store its result.

    For a duplicate, the stored result is returned without running the handler. While another consumer still handles a
    message with that key, `run` waits, or raises `Requeue` to try again later.
    """

    def register(self, app: App) -> None:
        """Prepare for the App, for example keep its `app.clock`; called by `app.handle`, before the App starts."""
        ...

    async def run(self, message: Any, delivery: Delivery, handler: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the stored result for the key of `message`; if there is none, run `handler` and store its result.

        While the handler runs, the key is claimed under a lease, so that no other consumer
        handles a duplicate; with the result it is marked as done.

        :param message: the decoded message, from which the key can be computed.
        :param handler: runs the user's function and returns its result encoded as JSON (`null` for None). Its
            exceptions, `CancelledError` included, must come through unchanged, with the claim released.
        :return: the encoded result, of this run or the stored one. It answers a Request.
        """
        ...

    async def on_stop(self) -> None:
        """Close the store; called once for each handler that uses this object, after the last handler has ended. `run`
        may be called again when the App starts again.
        """
        ...


@runtime_checkable
class RetryPolicy(Protocol):
    """Retries of a handler, `retry=`: attempts in this process first, then delayed redeliveries, then the dead letter
    queue.
    """

    @property
    def delays(self) -> Collection[timedelta]:
        """All delays that `delay` may return. Queues that the delay backend needs for these are declared at the start
        of the App, and for any other delay at its first use.
        """
        ...

    def attempts(self, clock: Clock) -> AsyncRetrying:
        """Return a new tenacity object that makes the attempts in this process; it must reraise the last error.

        :param clock: the clock of the App; waits use its `sleep`.
        """
        ...

    def delay(self, error: Exception, delivery: Delivery) -> timedelta | None:
        """Return the delay of the redelivery after the last attempt (needs a `DelayBackend`), or None to dead-letter the
        message.

        `delivery.attempt` is 1 for the first delivery of the message, and one more for each delayed redelivery.
        """
        ...


class DelayBackend(Protocol):
    """Delayed redelivery of messages to a queue. If a backend passed to an App is also a `Component`, the App includes
    it, as `App.include` does.
    """

    def reach(self, queue: str, delays: Collection[timedelta]) -> Iterable[Declarable]:
        """Return the exchanges, queues and bindings that are needed to delay messages of `queue` by these durations.

        The App declares them.
        """
        ...

    async def redeliver(self, delivery: Delivery, queue: str, after: timedelta) -> None:
        """Publish a copy of the message that arrives in `queue` after that time,
        with the header `warren-attempt` one higher.

        Returns after the broker's confirm; the caller then acknowledges the original.

        :raises PublishError: if the copy was not confirmed.
        """
        ...
