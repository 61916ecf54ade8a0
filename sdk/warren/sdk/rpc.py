"""Calls: one reply queue a client, correlation ids, deadlines, and errors that are replies."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from warren.sdk.codec import encode
from warren.sdk.data_channel import DataChannel
from warren.sdk.delivery import Delivery
from warren.sdk.errors import (
    CallTimeout,
    NoServer,
    PublishTimeout,
    RemoteError,
    TransportUnavailable,
    Unroutable,
    WarrenError,
)
from warren.sdk.middleware import Outlet
from warren.sdk.outgoing import TRANSIENT, Outgoing
from warren.sdk.transport import Session
from warren.wire.received import content

log: logging.Logger = logging.getLogger("warren.sdk")

ERROR_TYPE = "warren.error"
"""The `type` of a reply that is an error: `{"code", "message", "details", "retryable"}`."""

Answer = TypeVar("Answer")


@dataclass(slots=True)
class CallStatistics:
    """Counts since the App started; `unknown_replies` came after their caller had given up, or twice."""

    calls: int = 0
    replies: int = 0
    unknown_replies: int = 0
    in_flight: int = 0


class Caller:
    """The client's side. Its reply queue is exclusive to the consuming connection and gone with it."""

    def __init__(self, publisher: Outlet) -> None:
        self._publisher = publisher
        self._waiting: dict[str, asyncio.Future[tuple[str, bytes]]] = {}
        self._channel: DataChannel | None = None
        self._queue = ""
        self._active = asyncio.Event()
        self.statistics: CallStatistics = CallStatistics()

    @property
    def active(self) -> bool:
        return self._channel is not None and self._channel.usable

    async def attach(self, session: Session) -> None:
        """Make the reply queue and consume it (without acknowledgements: nobody else can ever take a reply)."""
        channel = await session.channel()
        channel.on_delivery = self._reply
        name = f"warren.reply.{uuid4().hex}"
        await channel.methods.queue_declare(name, exclusive=True, auto_delete=True)
        await channel.methods.basic_consume(name, _unused, no_ack=True)
        self._queue, self._channel = name, channel
        self._active.set()
        channel.ended.add_done_callback(lambda done: self._ended(channel))

    def _ended(self, channel: DataChannel) -> None:
        if self._channel is channel:
            self.detach()
            # If only the channel ended, a new connection is the way to a new reply queue.
            channel.abort()

    def detach(self) -> None:
        """The reply queue is gone, and with it every reply that was on its way."""
        self._channel = None
        self._active.clear()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(
                    TransportUnavailable("the connection was lost before the reply came", outcome="unknown")
                )

    async def call(self, request: Outgoing, adapter: TypeAdapter[Answer], timeout: float) -> Answer:
        """Publish the request and await its reply, both within `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        await self._wait_active(deadline)
        identity = uuid4().hex
        request.set("correlation_id", identity)
        request.set("reply_to", self._queue)
        waiting: asyncio.Future[tuple[str, bytes]] = loop.create_future()
        self._waiting[identity] = waiting
        self.statistics.calls += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._publisher.publish(request, deadline - loop.time())
                kind, body = await waiting
        except Unroutable as error:
            raise NoServer(f"nobody serves queue {request.routing_key!r}: it does not exist") from error
        except PublishTimeout as error:
            raise CallTimeout(
                f"the request was not confirmed within {timeout:g} s", outcome=error.outcome
            ) from error
        except TimeoutError:
            raise CallTimeout(f"no reply from queue {request.routing_key!r} within {timeout:g} s") from None
        finally:
            del self._waiting[identity]
            # The exception of a future that nobody awaits any more is no news.
            if waiting.done() and not waiting.cancelled():
                waiting.exception()
            waiting.cancel()
        if kind == ERROR_TYPE:
            raise remote_error(body)
        try:
            return adapter.validate_json(body)
        except ValidationError as error:
            raise RemoteError(
                "undecodable_reply", f"the reply is not what the request says: {error}"
            ) from error

    async def _wait_active(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                while not self.active:
                    self._active.clear()
                    await self._active.wait()
        except TimeoutError:
            raise TransportUnavailable("there was no connection to the broker within the deadline") from None

    def snapshot(self) -> CallStatistics:
        self.statistics.in_flight = len(self._waiting)
        return self.statistics

    def _reply(self, method: bytes, header: bytes, body: bytes) -> None:
        properties, _ = content(header)
        waiting = self._waiting.get(str(properties.get("correlation_id", "")))
        if waiting is None or waiting.done():
            self.statistics.unknown_replies += 1
            return
        self.statistics.replies += 1
        waiting.set_result((str(properties.get("type", "")), body))


def reply(delivery: Delivery, body: bytes, now: float) -> Outgoing:
    """The answer to a request, at its reply queue, under its correlation id."""
    return _answer(delivery, body, None, now)


def error_reply(delivery: Delivery, error: Exception, now: float) -> Outgoing:
    """An error as a reply; the code is that of a `RemoteError`, else the name of the error's class."""
    if isinstance(error, RemoteError):
        shown: dict[str, Any] = {
            "code": error.code,
            "message": error.message,
            "details": error.details,
            "retryable": error.retryable,
        }
    else:
        retryable = error.retryable if isinstance(error, WarrenError) else False
        shown = {
            "code": type(error).__name__,
            "message": str(error),
            "details": None,
            "retryable": retryable,
        }
    return _answer(delivery, json.dumps(shown, default=str).encode(), ERROR_TYPE, now)


def remote_error(body: bytes) -> RemoteError:
    try:
        said = json.loads(body)
        return RemoteError(
            str(said["code"]),
            str(said["message"]),
            details=said.get("details"),
            retryable=bool(said.get("retryable")),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return RemoteError("undecodable_error", "the server answered with an error that cannot be read")


def _answer(delivery: Delivery, body: bytes, message_type: str | None, now: float) -> Outgoing:
    outgoing = encode(body, now=now, exchange="", key=str(delivery.properties["reply_to"]))
    outgoing.set("content_type", "application/json")
    outgoing.set("type", message_type)
    outgoing.set("correlation_id", delivery.properties.get("correlation_id"))
    # A reply lives no longer than its queue, which is in memory: a disk would only slow it down.
    outgoing.set("delivery_mode", TRANSIENT)
    return outgoing


async def _unused(message: object) -> None:
    """aiormq wants a callback; the data channel has its own."""
