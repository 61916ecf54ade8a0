"""Asynchronous publisher confirms: a bounded window, exact returns, and a republish after a lost connection."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pamqp import commands as spec

from warren.sdk.codec import Outgoing, set_properties
from warren.sdk.delivery import REPUBLISHED, RETURN_TOKEN
from warren.sdk.errors import (
    ConfigError,
    Nacked,
    PublishError,
    PublishTimeout,
    TransportUnavailable,
    Unroutable,
    WarrenError,
)
from warren.sdk.transport import Content, DataChannel

WINDOW = 1000
WINDOW_BYTES = 16 * 1024 * 1024
"""Bodies of unconfirmed messages beyond this are not written until confirms come; one message may exceed it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One message of a batch that was not confirmed: its place in the batch, and why."""

    index: int
    message: object
    error: WarrenError


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What became of a batch: `total` messages, and those that were not confirmed."""

    total: int
    failures: tuple[Failure, ...]

    @property
    def confirmed(self) -> int:
        return self.total - len(self.failures)


@dataclass(slots=True)
class PublisherStatistics:
    """Counts since the App started; `unconfirmed` is what is in the window now."""

    published: int = 0
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    timed_out: int = 0
    republished: int = 0
    unconfirmed: int = 0


class Pending:
    """A message between its write and its confirm."""

    __slots__ = ("_statistics", "_timer", "error", "future", "identity", "outgoing", "size")

    def __init__(self, outgoing: Outgoing, deadline: float, statistics: PublisherStatistics) -> None:
        loop = asyncio.get_running_loop()
        self.outgoing = outgoing
        self.size = len(outgoing.body)
        self.future: asyncio.Future[None] = loop.create_future()
        self.error: Unroutable | None = None
        self.identity: tuple[str | None, int | None] = (None, None)
        self._statistics = statistics
        self._timer = loop.call_at(deadline, self._expire)

    def settle(self, error: WarrenError | None) -> None:
        self._timer.cancel()
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)

    def _expire(self) -> None:
        self._statistics.timed_out += not self.future.done()
        self.settle(PublishTimeout("no confirm came within the deadline; the message may have arrived"))


class Publisher:
    """One channel in confirm mode, used by all tasks of an App.

    Returns are told apart by the message id, which precedes the confirm in the same order; only while two messages
    of one id are in flight does the later one carry a private header `warren-token`.

    :param window: unconfirmed messages at a time; who publishes beyond it waits.
    :param on_return: called with each message that came back, also if nobody awaits its publish any more.
    """

    def __init__(self, *, window: int, on_return: Callable[[Unroutable], None]) -> None:
        self._window = window
        self._on_return = on_return
        self._channel: DataChannel | None = None
        self._unconfirmed_channel: DataChannel | None = None
        self._in_flight: dict[int, Pending] = {}
        self._by_identity: dict[tuple[str | None, int | None], Pending] = {}
        self._bytes = 0
        self._sequence = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._cut_off: list[Pending] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self.blocked: str | None = None
        """The reason that the broker gave for not reading (`connection.blocked`), or None."""
        self.statistics = PublisherStatistics()

    def attach(self, confirmed: DataChannel, unconfirmed: DataChannel) -> None:
        """The connection is up: publish again, in their order, what was cut off; then let the others go on."""
        confirmed.on_confirm = self._confirm
        confirmed.on_return = self._return
        unconfirmed.on_confirm = lambda tag, multiple, ack: None
        unconfirmed.on_return = lambda frame, content: None
        self._channel, self._unconfirmed_channel = confirmed, unconfirmed
        self._sequence = 0
        cut_off, self._cut_off = self._cut_off, []
        for pending in cut_off:
            if pending.future.done():
                continue
            headers = pending.outgoing.properties.headers
            assert headers is not None
            headers[REPUBLISHED] = True
            self.statistics.republished += 1
            self._write(confirmed, pending)
        self._settled()

    def detach(self) -> None:
        """The connection is lost: keep what was not confirmed for the next one."""
        self._channel = self._unconfirmed_channel = None
        self._cut_off += [pending for pending in self._in_flight.values() if not pending.future.done()]
        self._in_flight.clear()
        self._by_identity.clear()
        self._bytes = 0
        self._idle.set()

    def channel_refused(self, error: WarrenError) -> None:
        """The broker closed the channel over a publish: end what caused it, so that it is not sent again.

        A missing or forbidden exchange is named in the reply text, and the messages to it end; any other cause cannot
        be told from its neighbours, and all that was in flight ends, its outcome unknown.
        """
        named = re.search(r"exchange '([^']*)'", str(error))
        for pending in self._in_flight.values():
            if named is None:
                pending.settle(PublishError(str(error), outcome="unknown"))
            elif pending.outgoing.exchange == named[1]:
                pending.settle(PublishError(str(error), outcome="refused"))

    def set_blocked(self, reason: str | None) -> None:
        self.blocked = reason
        self._wake()

    async def publish(self, outgoing: Outgoing, timeout: float) -> None:
        """Publish and await the confirm.

        :raises Unroutable: the broker returned it. :raises Nacked: the broker refused it.
        :raises PublishTimeout: no confirm within `timeout` seconds. :raises TransportUnavailable: no connection in that
            time, so that it was never sent.
        """
        pending = await self.submit(outgoing, timeout)
        await pending.future

    async def submit(self, outgoing: Outgoing, timeout: float) -> Pending:
        """Write the message as soon as there is a connection and room; the confirm is the future's."""
        deadline = asyncio.get_running_loop().time() + timeout
        channel = self._room() if not self._waiters else None
        if channel is None:
            channel = await self._wait_for_room(deadline)
        pending = Pending(outgoing, deadline, self.statistics)
        self.statistics.published += 1
        self._write(channel, pending)
        return pending

    async def publish_unconfirmed(self, outgoing: Outgoing, timeout: float) -> None:
        """At most once: returns when the bytes are with the operating system or in its queue."""
        deadline = asyncio.get_running_loop().time() + timeout
        if self._unconfirmed_channel is None or self._room() is None:
            await self._wait_for_room(deadline)
        channel = self._unconfirmed_channel
        assert channel is not None
        # It takes no place in the window, so that no confirm will wake whoever waits behind it.
        self._wake()
        self.statistics.published += 1
        try:
            channel.publish(
                outgoing.exchange, outgoing.routing_key, False, outgoing.properties, outgoing.body
            )
        except Exception as error:
            raise _unwritable(error) from error
        try:
            async with asyncio.timeout_at(deadline):
                await channel.writer.drain()
        except TimeoutError:
            raise PublishTimeout("the broker does not read") from None
        except OSError as error:
            raise TransportUnavailable(f"the connection was lost: {error}", outcome="unknown") from error

    async def flush(self) -> None:
        """Wait until nothing is unconfirmed."""
        while self._in_flight or any(not pending.future.done() for pending in self._cut_off):
            if self._in_flight:
                await self._idle.wait()
            else:
                await asyncio.wait(
                    [pending.future for pending in self._cut_off if not pending.future.done()], timeout=0.1
                )

    def snapshot(self) -> PublisherStatistics:
        self.statistics.unconfirmed = len(self._in_flight) + len(self._cut_off)
        return self.statistics

    def close(self) -> None:
        """End what still waits: its outcome is unknown if it was written."""
        for pending in [*self._in_flight.values(), *self._cut_off]:
            pending.settle(TransportUnavailable("the App stopped before the confirm came", outcome="unknown"))
        self.detach()
        self._cut_off.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(TransportUnavailable("the App stopped"))
        self._waiters.clear()

    def _room(self) -> DataChannel | None:
        channel = self._channel
        if channel is None or self.blocked is not None or not channel.usable:
            return None
        if len(self._in_flight) >= self._window or (self._bytes >= WINDOW_BYTES and self._in_flight):
            return None
        return channel

    async def _wait_for_room(self, deadline: float) -> DataChannel:
        loop = asyncio.get_running_loop()
        first = True
        while True:
            waiter = loop.create_future()
            # Who was woken and found no room keeps its place in the line.
            (self._waiters.append if first else self._waiters.appendleft)(waiter)
            first = False
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                self._pass_on(waiter)
                raise self._why_not_sent() from None
            except asyncio.CancelledError:
                self._pass_on(waiter)
                raise
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            channel = self._room()
            if channel is not None:
                if len(self._in_flight) + 1 < self._window:
                    self._wake()
                return channel

    def _pass_on(self, waiter: asyncio.Future[None]) -> None:
        """Who was woken and goes away instead wakes the next; nobody else may be left to do it."""
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._wake()

    def _why_not_sent(self) -> WarrenError:
        self.statistics.timed_out += 1
        if self._channel is None or not self._channel.usable:
            return TransportUnavailable("there was no connection to the broker within the deadline")
        reason = (
            f"the broker blocks publishers ({self.blocked})" if self.blocked else "the window stayed full"
        )
        return PublishTimeout(f"{reason} until the deadline; the message was not sent", outcome="not_sent")

    def _write(self, channel: DataChannel, pending: Pending) -> None:
        outgoing = pending.outgoing
        properties = outgoing.properties
        assert properties.headers is not None
        self._sequence += 1
        identity: tuple[str | None, int | None] = (properties.message_id, None)
        properties.headers.pop(RETURN_TOKEN, None)
        if identity in self._by_identity:
            properties.headers[RETURN_TOKEN] = self._sequence
            identity = (properties.message_id, self._sequence)
        pending.identity = identity
        self._by_identity[identity] = pending
        self._in_flight[self._sequence] = pending
        self._bytes += pending.size
        self._idle.clear()
        try:
            channel.publish(
                outgoing.exchange, outgoing.routing_key, outgoing.mandatory, properties, outgoing.body
            )
        except Exception as error:
            # Nothing was written: the sequence of the broker has not moved. Whatever pamqp raises over a value (it
            # is no fixed list), a number that is left behind would let later confirms end the wrong publishes.
            self._forget(self._sequence)
            self._sequence -= 1
            pending.settle(_unwritable(error))
            self._settled()

    def _forget(self, sequence: int) -> Pending | None:
        pending = self._in_flight.pop(sequence, None)
        if pending is not None:
            self._by_identity.pop(pending.identity, None)
            self._bytes -= pending.size
        return pending

    def _return(self, frame: spec.Basic.Return, content: Content) -> None:
        header, body = content
        headers = dict(header.properties.headers or {})
        token = headers.pop(RETURN_TOKEN, None)
        error = Unroutable(
            reply_code=frame.reply_code or 0,
            reply_text=frame.reply_text or "",
            exchange=frame.exchange or "",
            routing_key=frame.routing_key or "",
            properties={**set_properties(header.properties), "headers": headers},
            body=body,
        )
        self.statistics.returned += 1
        pending = self._by_identity.get(
            (header.properties.message_id, token if isinstance(token, int) else None)
        )
        if pending is not None:
            pending.error = error
        self._on_return(error)

    def _confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        if multiple:
            covered = []
            for known in self._in_flight:
                if sequence and known > sequence:
                    break
                covered.append(known)
        else:
            covered = [sequence]
        for known in covered:
            pending = self._forget(known)
            if pending is None:
                continue
            if not ack:
                self.statistics.nacked += 1
                pending.settle(Nacked("the broker refused the message: a queue is full, or its disk failed"))
                continue
            self.statistics.confirmed += 1
            pending.settle(pending.error)
        self._settled()

    def _settled(self) -> None:
        if not self._in_flight:
            self._idle.set()
        self._wake()

    def _wake(self) -> None:
        """Let as many go on as there is room for; each of them wakes the next."""
        room = self._window - len(self._in_flight)
        while self._waiters and room > 0 and self._room() is not None:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1


def _unwritable(error: Exception) -> ConfigError:
    return ConfigError(
        f"a header or property cannot be written to the wire: {str(error) or type(error).__name__}"
    )
