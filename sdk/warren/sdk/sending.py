"""What `app.publish`, `app.publish_many` and `app.call` do: declare what is reached, encode, send, report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeVar

from warren.sdk import telemetry
from warren.sdk.codec import encode
from warren.sdk.errors import BatchError, TransportUnavailable, WarrenError
from warren.sdk.messages import Message, Request
from warren.sdk.outgoing import TRANSIENT, Outgoing
from warren.sdk.protocols import Clock
from warren.sdk.registry import DeclarePolicy
from warren.sdk.report import Failure, PublishReport
from warren.sdk.rpc.forms import reply_form
from warren.sdk.runtime import Runtime

PUBLISH_SECONDS = 30.0
CALL_SECONDS = 30.0

Reliability = Literal["at_least_once", "at_most_once"]
Answer = TypeVar("Answer")


class Sending:
    """The sending side of an App, across its runs.

    :param running: the run, or `TransportUnavailable` if there is none.
    """

    def __init__(self, running: Callable[[], Runtime], clock: Clock, policy: DeclarePolicy) -> None:
        self._running = running
        self._clock = clock
        self._policy = policy
        self._reached: set[type[Message]] = set()
        self.said: list[type[Message]] = []
        """What `app.publishes` named."""

    def reaches(self, kind: type[Message]) -> None:
        """What the class must reach is declared at each start, so that its first message need not do it."""
        if kind not in self.said:
            self.said.append(kind)
        self._reached.add(kind)

    async def publish(
        self,
        message: object,
        *,
        timeout: float,
        exchange: str | None,
        key: str | None,
        message_id: str | None,
        headers: Mapping[str, Any] | None,
        expiration: timedelta | None,
        reliability: Reliability,
    ) -> None:
        runtime = self._running()
        with telemetry.publishing(*_address(message, exchange, key)):
            outgoing = encode(
                message,
                now=self._clock.now(),
                exchange=exchange,
                key=key,
                message_id=message_id,
                headers=headers,
                expiration=expiration,
            )
            if isinstance(message, Message) and type(message) not in self._reached:
                timeout = await self._reach(runtime, type(message), timeout)
            if reliability == "at_most_once":
                outgoing.set("delivery_mode", TRANSIENT)
                await runtime.outlet.publish_unconfirmed(outgoing, timeout)
            else:
                await runtime.outlet.publish(outgoing, timeout)

    async def publish_many(
        self,
        messages: Iterable[object],
        *,
        timeout: float,
        exchange: str | None,
        key: str | None,
        on_error: Literal["raise", "report"],
    ) -> PublishReport:
        runtime = self._running()
        waiting: list[tuple[object, asyncio.Future[None] | WarrenError]] = []
        try:
            for message in messages:
                if isinstance(message, Message) and type(message) not in self._reached:
                    await self._reach(runtime, type(message), timeout)
                try:
                    outgoing = encode(message, now=self._clock.now(), exchange=exchange, key=key)
                    waiting.append((message, await runtime.outlet.submit(outgoing, timeout)))
                except WarrenError as error:
                    waiting.append((message, error))
            await _all([entry for _, entry in waiting if isinstance(entry, asyncio.Future)])
        except asyncio.CancelledError:
            for _, entry in waiting:
                if isinstance(entry, asyncio.Future):
                    entry.cancel()
            raise
        failures = []
        for index, (message, entry) in enumerate(waiting):
            problem = entry.exception() if isinstance(entry, asyncio.Future) else entry
            if isinstance(problem, WarrenError):
                failures.append(Failure(index, message, problem))
        report = PublishReport(len(waiting), tuple(failures))
        if failures and on_error == "raise":
            raise BatchError(report)
        return report

    async def call(self, request: Request[Answer], *, timeout: float, message_id: str | None) -> Answer:
        runtime = self._running()
        kind = type(request)
        with telemetry.publishing(*_address(request, None, None)):
            if kind not in self._reached and self._policy == "always":
                timeout = await self._reach(runtime, kind, timeout)
            outgoing = encode(
                request, now=self._clock.now(), message_id=message_id, expiration=timedelta(seconds=timeout)
            )
            submit = runtime.submitting(outgoing.routing_key)
            answer: Answer = await runtime.caller.call(outgoing, reply_form(kind), timeout, submit)
            return answer

    async def send(self, outgoing: Outgoing) -> None:
        """Publish a reply, with confirm, within the usual deadline."""
        await self._running().reply(outgoing, PUBLISH_SECONDS)

    async def forward(self, outgoing: Outgoing, timeout: float = PUBLISH_SECONDS) -> None:
        """As `send`, of what came from the wire: it passes no middleware a second time."""
        await self._running().publisher.publish(outgoing, timeout)

    async def _reach(self, runtime: Runtime, kind: type[Message], timeout: float) -> float:
        """Declare what the class must reach, once; returns what is left of `timeout`."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        if kind.wire_key is not None:
            try:
                async with asyncio.timeout(timeout), runtime.reaching:
                    if kind not in self._reached:
                        await runtime.declare(kind.reach())
            except TimeoutError:
                raise TransportUnavailable(
                    "there was no connection to the broker within the deadline"
                ) from None
        self._reached.add(kind)
        return max(0.0, timeout - (loop.time() - started))


def _address(message: object, exchange: str | None, key: str | None) -> tuple[str, str]:
    if isinstance(message, Message):
        return (
            message.wire_exchange if exchange is None else exchange,
            (message.wire_key or "") if key is None else key,
        )
    return exchange or "", key or ""


async def _all(futures: list[asyncio.Future[None]]) -> None:
    if futures:
        await asyncio.wait(futures)
