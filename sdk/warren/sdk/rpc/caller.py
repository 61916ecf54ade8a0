"""The client's side of calls: where replies come in, who waits for which, and what ends the waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol
from uuid import uuid4

from warren.sdk.consume.delivery import Delivery
from warren.sdk.errors import (
    CallTimeout,
    NoServer,
    PublishTimeout,
    RemoteError,
    TransportUnavailable,
    Unroutable,
)
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.rpc.reply_middleware import ReplyMiddleware
from warren.sdk.rpc.reply_types import Answer, ReplyCodec
from warren.sdk.telemetry.consume_spans import ConsumeTelemetry
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import translate_errors
from warren.sdk.transport.session import Session
from warren.wire.delivery_scanner import decode_content_header

ReplyMode = Literal["queue", "direct"]
"""`queue`: replies come to a queue of the client's own, which outlives the connection that publishes. `direct`: RabbitMQ's
"Direct Reply-to", without a queue: faster, and a call is lost with the connection that published it."""

DIRECT = "amq.rabbitmq.reply-to"
SETUP_SECONDS = 10.0

Submit = Callable[[Outgoing, float], Awaitable["asyncio.Future[None]"]]
"""Writes a message; the future is done with its confirm, or with what became of it instead."""


@dataclass(slots=True)
class CallStatistics:
    """Counts since the App started.

    `replies` are those that found their caller, errors (`remote_errors`) among them; `discarded_replies` came after
    their caller had given up, came twice, or were never asked for. `in_flight` waits now.
    """

    calls: int = 0
    replies: int = 0
    remote_errors: int = 0
    timed_out: int = 0
    unserved: int = 0
    interrupted: int = 0
    discarded_replies: int = 0
    in_flight: int = 0


class ReplyReceiver(Protocol):
    """Who waits for replies under one correlation id."""

    def answered(self, answer: Answer) -> bool:
        """Take it; False if it is not wanted any more."""
        ...

    def interrupted(self, error: TransportUnavailable) -> None:
        """No reply can come any more."""
        ...


class PendingCall:
    """Waits for the first reply."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self.future: asyncio.Future[Answer] = future

    def answered(self, answer: Answer) -> bool:
        if self.future.done():
            return False
        self.future.set_result(answer)
        return True

    def interrupted(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def published(self, confirm: asyncio.Future[None]) -> None:
        """A request that did not get through will not be answered."""
        if not confirm.cancelled() and (error := confirm.exception()) is not None and not self.future.done():
            self.future.set_exception(error)


class Caller:
    """Correlation ids and who waits for them, over one reply address at a time."""

    def __init__(self, opening: ReplyMiddleware | None = None) -> None:
        """:param opening: what replies pass before they are read."""
        self._opening = opening
        self.telemetry: ConsumeTelemetry | None = None
        """Where somebody listens."""
        self._waiting: dict[str, ReplyReceiver] = {}
        self._channel: DataChannel | None = None
        self._active = asyncio.Event()
        self._prefix = uuid4().hex
        self._count = 0
        self.address: str = ""
        """What requests name as their `reply_to`."""
        self.statistics: CallStatistics = CallStatistics()

    @property
    def active(self) -> bool:
        return self._channel is not None and self._channel.usable

    async def consume_queue(self, session: Session) -> None:
        """Make a reply queue, exclusive to this connection, and consume it.

        Without acknowledgements: nobody else can ever take a reply.
        """
        channel = await session.channel()
        name = f"warren.reply.{uuid4().hex}"
        with translate_errors("cannot make the reply queue"):
            async with asyncio.timeout(SETUP_SECONDS):
                await channel.methods.queue_declare(name, exclusive=True, auto_delete=True)
        await self._consume(channel, name)
        # If only the channel ends, a new connection is the way to a new reply queue.
        channel.ended.add_done_callback(lambda done: channel.abort())

    async def consume_direct_reply_to(self, channel: DataChannel) -> None:
        """Take replies on the channel that requests are published on (RabbitMQ, "Direct Reply-to": it must be the same)."""
        await self._consume(channel, DIRECT)

    async def _consume(self, channel: DataChannel, name: str) -> None:
        channel.on_delivery = self._reply
        with translate_errors("cannot consume replies"):
            async with asyncio.timeout(SETUP_SECONDS):
                await channel.consume(name, no_ack=True)
        self.address, self._channel = name, channel
        self._active.set()
        channel.ended.add_done_callback(lambda done: self._ended(channel))

    def _ended(self, channel: DataChannel) -> None:
        if self._channel is channel:
            self.detach()

    def detach(self) -> None:
        """The reply address is gone, and with it every reply that was on its way."""
        self._channel = None
        self._active.clear()
        for waiting in list(self._waiting.values()):
            waiting.interrupted(
                TransportUnavailable("the connection was lost before the reply came", outcome="unknown")
            )

    async def call(self, request: Outgoing, form: ReplyCodec, timeout: float, submit: Submit) -> Any:
        """Send the request and await its reply, both within `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        statistics = self.statistics
        waiting = PendingCall(loop.create_future())
        left = timeout
        if not self.active:
            left = await self.wait_until_active(deadline)
        identity = self.expect(request, waiting, deadline)
        statistics.calls += 1
        confirm: asyncio.Future[None] | None = None
        try:
            confirm = await submit(request, left)
            confirm.add_done_callback(waiting.published)
            async with asyncio.timeout_at(deadline):
                answer = await waiting.future
            if self._opening is None and self.telemetry is None:
                value = form.read(answer)
            else:
                value = await self.read(form, answer)
        except (Unroutable, PublishTimeout, TimeoutError, TransportUnavailable) as error:
            raise self.failure(error, request, timeout) from error
        except RemoteError:
            statistics.remote_errors += 1
            raise
        finally:
            self.forget(identity)
            if confirm is not None:
                confirm.cancel()
            waiting.future.cancel()
        return value

    async def read(self, form: ReplyCodec, answer: Answer) -> Any:
        """The reply's value, after all that it passes on its way.

        :raises RemoteError: if it is an error.
        """
        if self._opening is not None:
            answer = await self._opening(answer, self.address)
        if self.telemetry is None:
            return form.read(answer)
        came = Delivery(
            answer.body, "", self.address, self.address, False, None, answer.properties, table=answer.table
        )
        return self.telemetry.answered(came, partial(form.read, answer))

    def expect(self, request: Outgoing, awaiter: ReplyReceiver, deadline: float) -> str:
        """Give the request a correlation id, the address for its replies and its end; `forget` it afterwards."""
        self._count += 1
        identity = f"{self._prefix}{self._count:x}"
        request.set("correlation_id", identity)
        request.set("reply_to", self.address)
        request.deadline = deadline
        self._waiting[identity] = awaiter
        return identity

    def forget(self, identity: str) -> None:
        self._waiting.pop(identity, None)

    def failure(self, error: Exception, request: Outgoing, timeout: float) -> Exception:
        """What a caller gets for what became of its request."""
        target = f"queue {request.routing_key!r}"
        if request.exchange:
            target = f"exchange {request.exchange!r} with key {request.routing_key!r}"
        match error:
            case Unroutable():
                self.statistics.unserved += 1
                return NoServer(f"nobody serves {target}: no such queue takes it")
            case PublishTimeout():
                self.statistics.timed_out += 1
                return CallTimeout(
                    f"the request was not confirmed within {timeout:g} s", outcome=error.outcome
                )
            case TimeoutError():
                self.statistics.timed_out += 1
                return CallTimeout(f"no reply from {target} within {timeout:g} s")
            case _:
                self.statistics.interrupted += 1
                return error

    async def wait_until_active(self, deadline: float) -> float:
        """Wait for a reply address; returns the seconds that are left.

        :raises TransportUnavailable: if there is none by then.
        """
        try:
            async with asyncio.timeout_at(deadline):
                while not self.active:
                    self._active.clear()
                    await self._active.wait()
        except TimeoutError:
            raise TransportUnavailable("there was no connection to the broker within the deadline") from None
        return max(0.0, deadline - asyncio.get_running_loop().time())

    def snapshot(self) -> CallStatistics:
        self.statistics.in_flight = len(self._waiting)
        return self.statistics

    async def receive_local_reply(self, reply: Outgoing) -> None:
        """Take a reply of this process."""
        self._reply(b"", reply.header(), reply.body)

    def _reply(self, method: bytes, header: bytes, body: bytes) -> None:
        answer = Answer(*decode_content_header(header), body)
        waiting = self._waiting.get(str(answer.properties.get("correlation_id", "")))
        if waiting is None or not waiting.answered(answer):
            self.statistics.discarded_replies += 1
        else:
            self.statistics.replies += 1
