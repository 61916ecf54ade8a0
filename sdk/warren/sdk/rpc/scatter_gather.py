"""Scatter-gather: one request to many queues, and their replies as they arrive."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from warren.sdk.errors import RemoteError, TransportUnavailable
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.rpc.caller import Caller, Submit
from warren.sdk.rpc.remote_errors import ERROR_TYPE
from warren.sdk.rpc.replies import ANSWERED_BY
from warren.sdk.rpc.reply_types import RawReply, ReplyCodec
from warren.wire.field_tables import TableError, decode_fields

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class GatheredReply(Generic[Value]):
    """One reply to a scattered request.

    :ivar queue: queue that the server consumed the request from; None if the server is not built with Warren.
    :ivar error: the error that the server replied with, or None.
    """

    queue: str | None
    error: RemoteError | None
    result: Value | None

    @property
    def value(self) -> Value:
        """The value of the reply.

        :raises RemoteError: if the reply is an error.
        """
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # without an error it is a Value, which may be None


@dataclass(frozen=True, slots=True)
class GatherResult(Generic[Value]):
    """All replies to a scattered request, in the order of arrival.

    :ivar silent: queues of the request's audience that did not reply in time.
    :ivar interrupted: the error of a lost connection, after which no replies could arrive; else None.
    """

    replies: tuple[GatheredReply[Value], ...]
    silent: frozenset[str]
    interrupted: TransportUnavailable | None

    @property
    def values(self) -> list[Value]:
        """The value of each reply that is not an error."""
        return [reply.value for reply in self.replies if reply.error is None]

    @property
    def errors(self) -> list[RemoteError]:
        """The error of each reply that is an error."""
        return [reply.error for reply in self.replies if reply.error is not None]


@dataclass(slots=True)
class PreparedScatter:
    """A scatter-gather request that is encoded and ready to be published.

    :ivar submit: writes the request, and returns the future of its confirm.
    :ivar audience: queues whose replies are expected; empty if unknown.
    """

    caller: Caller
    codec: ReplyCodec
    submit: Submit
    request: Outgoing
    audience: frozenset[str]


class GatherCall(Generic[Value]):
    """A scattered request: await it for all replies (`GatherResult`), or iterate over them as they arrive (`async for`).

    It can be used once; the first `await` or iteration publishes the request. It ends when
    all queues of the audience have replied, after `replies` replies that are not errors,
    or at the deadline, whichever comes first. Later replies are discarded and counted.

    :ivar interruption: the error of a lost connection, or None.
    """

    def __init__(
        self, prepare: Callable[[float], Awaitable[PreparedScatter]], replies: int | None, timeout: float
    ) -> None:
        self._prepare = prepare
        self._wanted = replies
        self._timeout = timeout
        self._arrived: deque[tuple[str | None, RawReply]] = deque()
        self._replied: set[str] = set()
        """Queues that have replied."""
        self._values = 0
        self._more = asyncio.Event()
        self._ended = False
        self._scattering: PreparedScatter | None = None
        self._correlation_id = ""
        self._timer: asyncio.TimerHandle | None = None
        self.interruption: TransportUnavailable | None = None

    @property
    def silent(self) -> frozenset[str]:
        """Queues of the audience that have not replied yet."""
        return frozenset() if self._scattering is None else self._scattering.audience - self._replied

    def __await__(self) -> Generator[Any, None, GatherResult[Value]]:
        return self._all().__await__()

    async def _all(self) -> GatherResult[Value]:
        try:
            replies = tuple([reply async for reply in self])
        finally:
            self.close()
        return GatherResult(replies, self.silent, self.interruption)

    def __aiter__(self) -> GatherCall[Value]:
        return self

    async def __anext__(self) -> GatheredReply[Value]:
        if self._scattering is None:
            await self._scatter()
        while not self._arrived:
            if self._ended:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        return await self._read(*self._arrived.popleft())

    def close(self) -> None:
        """Discard further replies; called automatically at the deadline."""
        self._ended = True
        self._more.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._scattering is not None:
            self._scattering.caller.unregister(self._correlation_id)

    async def _scatter(self) -> None:
        """Publish the request, and begin to receive its replies until the deadline.

        :raises NoServer: if no queue is bound for it.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        scattering = self._scattering = await self._prepare(self._timeout)
        caller, request = scattering.caller, scattering.request
        left = await caller.wait_until_active(deadline)
        self._timer = loop.call_at(deadline, self.close)
        self._correlation_id = caller.register(request, self, deadline)
        caller.statistics.calls += 1
        try:
            await (await scattering.submit(request, left))
        except Exception as error:
            self.close()
            raise caller.call_error(error, request, self._timeout) from error
        except asyncio.CancelledError:
            self.close()
            raise

    # ReplyReceiver

    def receive(self, answer: RawReply) -> bool:
        scattering = self._scattering
        queue = _sender(answer)
        if self._ended or scattering is None or queue in self._replied:
            return False
        if queue is not None:
            self._replied.add(queue)
        self._arrived.append((queue, answer))
        self._values += answer.properties.get("type") != ERROR_TYPE
        self._more.set()
        enough = self._wanted is not None and self._values >= self._wanted
        if enough or (scattering.audience and scattering.audience <= self._replied):
            self.close()
        return True

    def fail(self, error: TransportUnavailable) -> None:
        self.interruption = error
        self.close()

    async def _read(self, queue: str | None, answer: RawReply) -> GatheredReply[Value]:
        assert self._scattering is not None
        try:
            value: Value = await self._scattering.caller.read(self._scattering.codec, answer)
        except RemoteError as error:
            return GatheredReply(queue, error, None)
        return GatheredReply(queue, None, value)


def _sender(answer: RawReply) -> str | None:
    """Return the queue from which the server consumed the request, from a
    header of the reply; None without that header.
    """
    try:
        field = decode_fields(answer.table).get(ANSWERED_BY)
    except TableError:
        return None
    return field.value if field is not None and isinstance(field.value, str) else None
