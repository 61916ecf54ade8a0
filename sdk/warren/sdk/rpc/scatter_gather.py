"""Scatter-gather: one request to all who listen, and their replies as they come, up to a number, a deadline or the last."""

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
from warren.sdk.rpc.reply_types import Answer, ReplyCodec
from warren.wire.field_tables import TableError, decode_fields

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class GatheredReply(Generic[Value]):
    """One reply.

    :ivar queue: the queue that its server took the request from; None of a server that does not say so.
    :ivar error: what the server answered instead of a value.
    """

    queue: str | None
    error: RemoteError | None
    result: Value | None

    @property
    def value(self) -> Value:
        """:raises RemoteError: the `error`, if it is one."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # without an error it is a Value, which may be None


@dataclass(frozen=True, slots=True)
class GatherResult(Generic[Value]):
    """What came, in the order of its arrival, and who did not answer.

    :ivar silent: those of the request's audience that did not answer in time.
    :ivar interrupted: the connection was lost, and with it what was still to come.
    """

    replies: tuple[GatheredReply[Value], ...]
    silent: frozenset[str]
    interrupted: TransportUnavailable | None

    @property
    def values(self) -> list[Value]:
        """The replies that are no errors."""
        return [reply.value for reply in self.replies if reply.error is None]

    @property
    def errors(self) -> list[RemoteError]:
        return [reply.error for reply in self.replies if reply.error is not None]


@dataclass(slots=True)
class PreparedScatter:
    """A request on its way to those who listen."""

    caller: Caller
    form: ReplyCodec
    submit: Submit
    request: Outgoing
    audience: frozenset[str]


class GatherCall(Generic[Value]):
    """Await it for all replies (`GatherResult`), or iterate over them as they come (`async for`); once.

    The request is sent by the first step of either. It ends with the last of the audience, with the `replies`th value,
    or at the deadline, whichever is first; what comes afterwards is discarded and counted.
    """

    def __init__(
        self, prepare: Callable[[float], Awaitable[PreparedScatter]], replies: int | None, timeout: float
    ) -> None:
        self._prepare = prepare
        self._wanted = replies
        self._timeout = timeout
        self._arrived: deque[tuple[str | None, Answer]] = deque()
        self._heard: set[str] = set()
        self._values = 0
        self._more = asyncio.Event()
        self._over = False
        self._scattering: PreparedScatter | None = None
        self._identity = ""
        self._timer: asyncio.TimerHandle | None = None
        self.interruption: TransportUnavailable | None = None
        """Why no more replies can come, if the connection was lost."""

    @property
    def silent(self) -> frozenset[str]:
        """Those of the audience that have not answered yet."""
        return frozenset() if self._scattering is None else self._scattering.audience - self._heard

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
            if self._over:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        return await self._read(*self._arrived.popleft())

    def close(self) -> None:
        """Wait for no more replies. At the deadline it is closed without this."""
        self._over = True
        self._more.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._scattering is not None:
            self._scattering.caller.forget(self._identity)

    async def _scatter(self) -> None:
        """:raises NoServer: if nobody listens."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        scattering = self._scattering = await self._prepare(self._timeout)
        caller, request = scattering.caller, scattering.request
        left = await caller.wait_until_active(deadline)
        self._timer = loop.call_at(deadline, self.close)
        self._identity = caller.expect(request, self, deadline)
        caller.statistics.calls += 1
        try:
            await (await scattering.submit(request, left))
        except Exception as error:
            self.close()
            raise caller.failure(error, request, self._timeout) from error
        except asyncio.CancelledError:
            self.close()
            raise

    # What the Caller tells

    def answered(self, answer: Answer) -> bool:
        scattering = self._scattering
        queue = _sender(answer)
        if self._over or scattering is None or queue in self._heard:
            return False
        if queue is not None:
            self._heard.add(queue)
        self._arrived.append((queue, answer))
        self._values += answer.properties.get("type") != ERROR_TYPE
        self._more.set()
        enough = self._wanted is not None and self._values >= self._wanted
        if enough or (scattering.audience and scattering.audience <= self._heard):
            self.close()
        return True

    def interrupted(self, error: TransportUnavailable) -> None:
        self.interruption = error
        self.close()

    async def _read(self, queue: str | None, answer: Answer) -> GatheredReply[Value]:
        assert self._scattering is not None
        try:
            value: Value = await self._scattering.caller.read(self._scattering.form, answer)
        except RemoteError as error:
            return GatheredReply(queue, error, None)
        return GatheredReply(queue, None, value)


def _sender(answer: Answer) -> str | None:
    try:
        field = decode_fields(answer.table).get(ANSWERED_BY)
    except TableError:
        return None
    return field.value if field is not None and isinstance(field.value, str) else None
