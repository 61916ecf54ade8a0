"""Control channel: synchronous AMQP methods (declare, bind, check), one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiormq.abc import AbstractChannel

from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import translate_errors
from warren.sdk.transport.session import Session

SETUP_SECONDS = 30.0

Result = TypeVar("Result")


class ControlChannel:
    """Synchronous methods (declare, bind, check) on a channel of their own, one at a time.

    The caller may be cancelled; the method runs on, because aiormq closes a channel whose method is cancelled.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._channel: DataChannel | None = None
        self._lock = asyncio.Lock()

    async def run(self, what: str, method: Callable[[AbstractChannel], Awaitable[Result]]) -> Result:
        """Run `method`; `what` begins the text of the error.

        :raises TopologyMismatch: if the broker closed the channel over it (403, 404, 405, 406).
        :raises TransportUnavailable: if the connection is lost, or there is no answer within 30 s.
        """
        task = asyncio.ensure_future(self._run(what, method))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _run(self, what: str, method: Callable[[AbstractChannel], Awaitable[Result]]) -> Result:
        async with self._lock:
            if self._channel is None or not self._channel.usable:
                self._channel = await self._session.channel()
            with translate_errors(what):
                async with asyncio.timeout(SETUP_SECONDS):
                    return await method(self._channel.methods)
