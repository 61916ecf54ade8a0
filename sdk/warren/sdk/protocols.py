"""What the App takes from outside: retry, once, delay, clock, components. Implementations live in warren.patterns."""

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
    """A callback that is due; asyncio's `TimerHandle` is one."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time as the App and the patterns see it, so that a test can move it. Heartbeats and sockets do not use it."""

    def now(self) -> float:
        """Unix time in seconds."""
        ...

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call back at a Unix time; at once if it is past. Needs a running event loop."""
        ...

    async def sleep(self, seconds: float) -> None: ...


@runtime_checkable
class Component(Protocol):
    """What `app.include` takes: a pattern with its own topology, handlers and background work.

    One that works in the background may have a property `busy`, a text that says what it is working on, empty while it
    waits: a test on virtual time lets no time pass meanwhile.
    """

    def register(self, app: App) -> None:
        """Called once, by `app.include`: declare topology (`app.declare`), add handlers (`app.handle`)."""
        ...

    async def on_start(self) -> None:
        """Called when the topology stands and publishing works, before any handler runs; must not block."""
        ...

    async def on_stop(self) -> None:
        """Called after the last handler ended, while publishing still works; also if `on_start` failed."""
        ...


class PublishMiddleware(Protocol):
    """`app.middleware(publish=...)`: an async function around every publish, reply and request of the App.

    It may change the message (`outgoing.set_body`, `.set`, `.set_header`), then awaits `call_next(outgoing)`, which
    returns after the confirm and raises what became of the message instead.
    """

    def __call__(
        self, outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]], /
    ) -> Awaitable[None]: ...


class HandleMiddleware(Protocol):
    """`app.middleware(handle=...)`: an async function around every attempt to handle a message.

    It may look at the delivery, before it is decoded, and passes it or `delivery.replace(...)` to `call_next`. What
    the handler raises comes through. What it raises itself counts as the handler's: `DeadLetter("reason")` ends the
    message as it came, `Requeue` gives it back. Without `call_next` the message is acknowledged unhandled.
    """

    def __call__(
        self, delivery: Delivery, call_next: Callable[[Delivery], Awaitable[None]], /
    ) -> Awaitable[None]: ...


class Once(Protocol):
    """`once=` of a handler: run it at most once with effect for each key, keep its result, return it again.

    A duplicate returns the kept result without running the handler. While another consumer holds the claim,
    wait, or raise `Requeue` to try again later.
    """

    def register(self, app: App) -> None:
        """Called by `app.handle`, before anything runs: take the time from `app.clock`."""
        ...

    async def run(self, message: Any, delivery: Delivery, handler: Callable[[], Awaitable[bytes]]) -> bytes:
        """Claim the key of `message`, run `handler` under the lease, keep what it returns, mark the key done.

        :param message: the decoded message (for a key function).
        :param handler: runs the user's function and returns its result encoded as JSON (`null` for None). Its
            exceptions must come through unchanged, with the claim released; so must `CancelledError`.
        :return: the encoded result, of this run or of the one that was kept. A Request is answered with it.
        """
        ...

    async def on_stop(self) -> None:
        """Called for every handler that has it, after the last handler ended; close the store. It may start again."""
        ...


class RetryPolicy(Protocol):
    """`retry=` of a handler: attempts in this process first, then delayed redeliveries, then the dead letter queue."""

    @property
    def delays(self) -> Collection[timedelta]:
        """Every delay that it may ask for; others cost a declaration when they are first needed."""
        ...

    def attempts(self, clock: Clock) -> AsyncRetrying:
        """The attempts in this process, as a fresh tenacity object; it must reraise the last error.

        :param clock: the App's; waits are its `sleep`.
        """
        ...

    def delay(self, error: Exception, delivery: Delivery) -> timedelta | None:
        """After the last attempt: redeliver after so long (needs a `DelayBackend`), or None to dead-letter.

        `delivery.attempt` counts the deliveries, from 1.
        """
        ...


class DelayBackend(Protocol):
    """Brings a message back to a queue later; one that is a `Component` as well is included by the App that takes it."""

    def reach(self, queue: str, delays: Collection[timedelta]) -> Iterable[Declarable]:
        """What must exist so that messages of `queue` can be delayed by these; the App declares it."""
        ...

    async def redeliver(self, delivery: Delivery, queue: str, after: timedelta) -> None:
        """Publish a copy that reaches `queue` after that time, with `warren-attempt` one higher.

        Returns after the broker's confirm; the original is acknowledged then. Raises `PublishError`.
        """
        ...
