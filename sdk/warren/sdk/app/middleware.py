"""Middlewares: functions around every publish and every handling of one App, and the senders that apply them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from warren.sdk.consume.delivery import Delivery
from warren.sdk.errors import ConfigError, PublishError, WarrenError
from warren.sdk.exception_text import describe_exception
from warren.sdk.protocols import HandleMiddleware, PublishMiddleware
from warren.sdk.publish.outgoing import Outgoing

CallNext = Callable[[Outgoing], Awaitable[None]]
"""Next step of a publish: a publish middleware awaits it with the message that it passes on."""
Handle = Callable[[Delivery], Awaitable[None]]
Submit = Callable[[Outgoing], Awaitable[asyncio.Future[None]]]


class Middlewares:
    """The middlewares of one App, or of one router in it, in order from the user's code to the wire.

    A publish passes them first to last, a delivery last to first.

    :param handle: the list of middlewares around handlers, which may grow later; by default an empty one.
    :param outer: middlewares around these: those of the App or router that includes the router.
    """

    def __init__(
        self, handle: list[HandleMiddleware] | None = None, outer: Middlewares | None = None
    ) -> None:
        self.publish: list[PublishMiddleware] = []
        self.handle: list[HandleMiddleware] = [] if handle is None else handle
        self._outer = outer

    @property
    def wrap_handlers(self) -> bool:
        """True if a delivery passes at least one middleware."""
        return bool(self.handle) or (self._outer is not None and self._outer.wrap_handlers)

    def add(self, publish: PublishMiddleware | None, handle: HandleMiddleware | None) -> None:
        """Add a middleware for publishes, one for the handling of messages, or both.

        :raises ConfigError: if both are None.
        """
        if publish is None and handle is None:
            raise ConfigError("a middleware needs publish= or handle=")
        if publish is not None:
            self.publish.append(publish)
        if handle is not None:
            self.handle.append(handle)

    async def send(self, outgoing: Outgoing, send: CallNext) -> None:
        """Pass the message through the publish middlewares, then call `send` with the message that they pass on.

        :param send: publishes a message, and returns after its confirm.
        """
        for middleware in reversed(self.publish):
            send = _around_publish(middleware, send)
        await send(outgoing)

    async def submit(self, outgoing: Outgoing, submit: Submit) -> asyncio.Future[None]:
        """Pass the message through the publish middlewares to `submit`; return when the message has been written.

        The returned future is done when all middlewares have returned, which is after the confirm. A caller that awaits
        one call before it makes the next keeps its messages in order, however long middlewares wait.

        :param submit: writes the message that the middlewares pass on, and returns the future of its confirm.
        """
        written = asyncio.Event()

        async def write_and_wait(changed: Outgoing) -> None:
            confirmed = await submit(changed)
            written.set()
            await confirmed

        async def whole() -> None:
            try:
                await self.send(outgoing, write_and_wait)
            except WarrenError:
                raise
            except Exception as error:
                raise PublishError(f"a middleware failed: {describe_exception(error)}") from error

        task = asyncio.ensure_future(whole())
        task.add_done_callback(lambda done: written.set())
        try:
            await written.wait()
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task

    async def receive(self, delivery: Delivery, handle: Handle) -> None:
        """Pass the delivery through the handle middlewares, then call `handle` with the delivery that they pass on.

        :param handle: decodes a delivery and calls its handler.
        """
        layer: Middlewares | None = self
        while layer is not None:
            for middleware in layer.handle:
                handle = _around_handle(middleware, handle)
            layer = layer._outer
        await handle(delivery)


class OutgoingSender(Protocol):
    """A sender of encoded messages: the `Publisher`, or a sender that wraps it."""

    async def publish(self, outgoing: Outgoing, timeout: float) -> None:
        """Publish the message and await its confirm, both within `timeout` seconds."""
        ...

    async def submit(
        self, outgoing: Outgoing, timeout: float, before_write: Callable[[], None] | None = None
    ) -> asyncio.Future[None]:
        """Write the message as soon as the window of unconfirmed messages has room; return the future of its confirm.

        :param timeout: seconds for the write and the confirm together.
        :param before_write: called directly before each write, also before the message is published again because its
            channel was lost; if it raises, nothing is written, and its error is the outcome.
        """
        ...

    async def publish_unconfirmed(self, outgoing: Outgoing, timeout: float) -> None:
        """Publish the message without a confirm; return when it is in the write buffer, within `timeout` seconds."""
        ...


class MiddlewareSender:
    """Sender that passes each message through the publish middlewares and then to another sender.

    The timeout of a publish includes the time that the middlewares take.
    """

    def __init__(self, sender: OutgoingSender, middlewares: Middlewares) -> None:
        self._sender = sender
        self._middlewares = middlewares
        self._now = asyncio.get_running_loop().time

    async def publish(self, outgoing: Outgoing, timeout: float) -> None:
        deadline = self._now() + timeout
        await self._middlewares.send(
            outgoing, lambda changed: self._sender.publish(_mark_applied(changed), deadline - self._now())
        )

    async def submit(
        self, outgoing: Outgoing, timeout: float, before_write: Callable[[], None] | None = None
    ) -> asyncio.Future[None]:
        deadline = self._now() + timeout
        return await self._middlewares.submit(
            outgoing,
            lambda changed: self._sender.submit(_mark_applied(changed), deadline - self._now(), before_write),
        )

    async def publish_unconfirmed(self, outgoing: Outgoing, timeout: float) -> None:
        deadline = self._now() + timeout
        await self._middlewares.send(
            outgoing, lambda changed: self._sender.publish_unconfirmed(changed, deadline - self._now())
        )


def _mark_applied(outgoing: Outgoing) -> Outgoing:
    outgoing.middlewares_applied = True
    return outgoing


def _around_publish(middleware: PublishMiddleware, send: CallNext) -> CallNext:
    return lambda outgoing: middleware(outgoing, send)


def _around_handle(middleware: HandleMiddleware, handle: Handle) -> Handle:
    return lambda delivery: middleware(delivery, handle)
