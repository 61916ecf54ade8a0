"""Client side of calls: reply address, correlation ids, timeouts and lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol
from uuid import uuid4

from warren.sdk.consume.delivery import Delivery
from warren.sdk.errors import (
    CallTimeout,
    NoServer,
    PublishTimeout,
    RemoteError,
    TransportUnavailable,
    Unroutable,
    WarrenError,
)
from warren.sdk.logger import log
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.rpc.reply_middleware import ReplyMiddleware
from warren.sdk.rpc.reply_types import RawReply, ReplyCodec
from warren.sdk.telemetry.consume_spans import ConsumeTelemetry
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import translate_errors
from warren.sdk.transport.session import Session
from warren.wire.delivery_scanner import decode_content_header

ReplyMode = Literal["queue", "direct"]
"""Transport of replies. `queue`: an exclusive reply queue on the consuming connection, so that calls survive the loss of the
publishing connection. `direct`: RabbitMQ's "Direct Reply-to", without a queue: faster, but calls are lost with the
connection that published them."""

DIRECT = "amq.rabbitmq.reply-to"
"""Pseudo-queue of RabbitMQ's "Direct Reply-to"."""
SETUP_SECONDS = 10.0
"""Longest wait for the declaration and the consumer of the reply queue."""
LOST: Final = "the connection was lost before the reply came"
DELETED: Final = "the reply queue was deleted before the reply came"

Submit = Callable[[Outgoing, float], Awaitable["asyncio.Future[None]"]]
"""Function that writes a message within a number of seconds. The future completes
with the confirm, or with the error of the publish."""


@dataclass(slots=True)
class CallStatistics:
    """Counts of calls since the App started.

    :ivar replies: replies that reached their caller, error replies included.
    :ivar remote_errors: calls that were answered with an error.
    :ivar unserved: calls that no queue accepted (`NoServer`).
    :ivar interrupted: calls that a lost connection ended.
    :ivar discarded_replies: replies that were late, duplicate or never requested.
    :ivar in_flight: calls that wait for a reply now.
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
    """Receiver of the replies with one correlation id."""

    def receive(self, reply: RawReply) -> bool:
        """Accept a reply; return False if it comes too late."""
        ...

    def fail(self, error: TransportUnavailable) -> None:
        """End the wait with an error: no reply can arrive, because the channel that consumes replies is lost."""
        ...


class PendingCall:
    """A call that waits for its only reply."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[RawReply]) -> None:
        self.future: asyncio.Future[RawReply] = future

    def receive(self, reply: RawReply) -> bool:
        if self.future.done():
            return False
        self.future.set_result(reply)
        return True

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def publish_ended(self, confirm: asyncio.Future[None]) -> None:
        """End the wait with the error of the publish, if it failed: no reply will come.

        :param confirm: future of the request's publisher confirm, which is done.
        """
        if not confirm.cancelled() and (error := confirm.exception()) is not None and not self.future.done():
            self.future.set_exception(error)


class Caller:
    """Sends the requests of one App and passes each reply to the call that waits for it.

    :ivar telemetry: creates spans for replies, or None.
    :ivar address: the `reply_to` of requests; a new one after each reconnect, and after the reply queue was deleted; or
        always the pseudo-queue of "Direct Reply-to".
    :ivar on_change: called after `active` has changed, except by the loss of the connection or its return.
    """

    def __init__(self, middleware: ReplyMiddleware | None = None) -> None:
        """Create a caller without a reply address; `consume_queue` or `consume_direct_reply_to` sets it.

        :param middleware: applied to replies before they are decoded.
        """
        self._middleware = middleware
        self.telemetry: ConsumeTelemetry | None = None
        self._receivers: dict[str, ReplyReceiver] = {}
        """Receivers by correlation id."""
        self._channel: DataChannel | None = None
        self.on_change: Callable[[], None] = _nothing
        self._active = asyncio.Event()
        self._closed = False
        self._replacing: set[asyncio.Task[None]] = set()
        """Tasks that replace deleted reply queues."""
        self._prefix = uuid4().hex
        self._count = 0
        self.address: str = ""
        self.statistics: CallStatistics = CallStatistics()

    @property
    def active(self) -> bool:
        """True if the channel that consumes replies is open; otherwise no reply could arrive."""
        return self._channel is not None and self._channel.usable

    async def consume_queue(self, session: Session) -> None:
        """Declare a reply queue that is exclusive to this connection, and consume it without acknowledgements.

        Acknowledgements would be of no use: if the connection ends, the broker deletes the queue with its replies.
        """
        channel = await session.channel()
        name = f"warren.reply.{uuid4().hex}"
        with translate_errors("cannot make the reply queue"):
            async with asyncio.timeout(SETUP_SECONDS):
                await channel.topology().declare_queue(name, {"exclusive": True, "auto_delete": True}, {})
        await self._consume(channel, name)
        channel.consumer_ended.add_done_callback(lambda done: self._replace_queue(session, channel, name))

    async def consume_direct_reply_to(self, channel: DataChannel) -> None:
        """Consume replies on the channel that publishes requests, as RabbitMQ's "Direct Reply-to" requires."""
        await self._consume(channel, DIRECT)

    async def _consume(self, channel: DataChannel, name: str) -> None:
        channel.on_delivery = self._receive
        with translate_errors("cannot consume replies"):
            async with asyncio.timeout(SETUP_SECONDS):
                await channel.consume(name, no_ack=True)
        self.address, self._channel = name, channel
        self._active.set()
        channel.consumer_ended.add_done_callback(lambda done: self._ended(channel))

    def _ended(self, channel: DataChannel) -> None:
        if self._channel is channel:
            self.detach(DELETED if channel.usable else LOST)
            self.on_change()

    def _replace_queue(self, session: Session, channel: DataChannel, name: str) -> None:
        """Declare another reply queue on the connection, because the broker has cancelled the consumer of this one, or has
        closed its channel. After the loss of the connection do nothing: a new one brings a new reply queue.
        """
        if self._closed or session.ended:
            return
        reason = channel.consumer_error("no replies come")
        channel.close_in_background()
        task = asyncio.ensure_future(self._consume_again(session, channel, name, reason))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _consume_again(
        self, session: Session, lost: DataChannel, name: str, reason: WarrenError
    ) -> None:
        try:
            await self.consume_queue(session)
        except WarrenError as error:
            if not session.ended:
                # A connection that cannot have a reply queue is of no use; a new one can.
                log.warning("event=reply_queue.not_replaced queue=%s error=%s", name, error)
                lost.abort()
            return
        log.warning("event=reply_queue.replaced queue=%s new_queue=%s reason=%s", name, self.address, reason)
        self.on_change()

    def close(self) -> None:
        """Fail all calls in flight, because the App stops."""
        self._closed = True
        for task in self._replacing:
            task.cancel()
        self.detach()

    def detach(self, reason: str = LOST) -> None:
        """Fail all calls in flight, because the channel that consumes their replies is lost.

        :param reason: text of their errors.
        """
        self._channel = None
        self._active.clear()
        for receiver in list(self._receivers.values()):
            receiver.fail(TransportUnavailable(reason, outcome="unknown"))

    async def call(self, request: Outgoing, codec: ReplyCodec, timeout: float, submit: Submit) -> Any:
        """Publish the request and wait for its reply, both within `timeout` seconds; return the reply's value.

        :param codec: decodes the reply.
        :param submit: writes the request, and returns the future of its confirm.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        statistics = self.statistics
        pending = PendingCall(loop.create_future())
        left = timeout
        if not self.active:
            left = await self.wait_until_active(deadline)
        correlation_id = self.register(request, pending, deadline)
        statistics.calls += 1
        confirm: asyncio.Future[None] | None = None
        try:
            confirm = await submit(request, left)
            confirm.add_done_callback(pending.publish_ended)
            async with asyncio.timeout_at(deadline):
                answer = await pending.future
            if self._middleware is None and self.telemetry is None:
                value = codec.read(answer)
            else:
                value = await self.read(codec, answer)
        except (Unroutable, PublishTimeout, TimeoutError, TransportUnavailable) as error:
            raise self.call_error(error, request, timeout) from error
        except RemoteError:
            statistics.remote_errors += 1
            raise
        finally:
            self.unregister(correlation_id)
            if confirm is not None:
                confirm.cancel()
            pending.future.cancel()
        return value

    async def read(self, codec: ReplyCodec, answer: RawReply) -> Any:
        """Apply the middlewares to a reply, decode it within a span, and return its value.

        :raises RemoteError: if the reply is an error.
        """
        if self._middleware is not None:
            answer = await self._middleware(answer, self.address)
        if self.telemetry is None:
            return codec.read(answer)
        came = Delivery(
            answer.body, "", self.address, self.address, False, None, answer.properties, table=answer.table
        )
        return self.telemetry.answered(came, partial(codec.read, answer))

    def register(self, request: Outgoing, receiver: ReplyReceiver, deadline: float) -> str:
        """Prepare a request for replies: set its correlation id, reply address and deadline; return the correlation id.

        Pass that id to `unregister` after the call.

        :param receiver: gets the replies with this correlation id.
        :param deadline: time of the event loop.
        """
        self._count += 1
        correlation_id = f"{self._prefix}{self._count:x}"
        request.set("correlation_id", correlation_id)
        request.set("reply_to", self.address)
        request.deadline = deadline
        self._receivers[correlation_id] = receiver
        return correlation_id

    def unregister(self, correlation_id: str) -> None:
        """Discard replies with this correlation id from now on."""
        self._receivers.pop(correlation_id, None)

    def call_error(self, error: Exception, request: Outgoing, timeout: float) -> Exception:
        """Count a failed call in the statistics, by its error; return the error to raise for the user.

        :param error: error of the publish, or of the wait for the reply.
        :param timeout: seconds that the call was allowed to take, for the error's text.
        """
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
        """Wait until the channel that consumes replies is open; return the seconds that are left until the deadline.

        :param deadline: time of the event loop.
        :raises TransportUnavailable: if it is not open at the deadline.
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
        """Return the statistics, with the current number of calls in flight."""
        self.statistics.in_flight = len(self._receivers)
        return self.statistics

    async def receive_local_reply(self, reply: Outgoing) -> None:
        """Pass the reply to the call that waits for it, without the broker.

        Used for the request of a handler to its own queue, which is handled in this process directly.
        """
        self._receive(b"", reply.header(), reply.body)

    def _receive(self, method: bytes, header: bytes, body: bytes) -> None:
        answer = RawReply(*decode_content_header(header), body)
        receiver = self._receivers.get(str(answer.properties.get("correlation_id", "")))
        if receiver is None or not receiver.receive(answer):
            self.statistics.discarded_replies += 1
        else:
            self.statistics.replies += 1


def _nothing() -> None:
    """Do nothing; takes the place of `Caller.on_change` before the App sets it."""
