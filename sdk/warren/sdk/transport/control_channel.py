"""Control channel: synchronous AMQP methods (declare, bind, check), one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aio_pika.abc import AbstractChannel

from warren.sdk.transport.aio_pika_connection import AmqpChannel
from warren.sdk.transport.error_translation import translate_errors
from warren.sdk.transport.session import Session
from warren.sdk.transport.topology_methods import TopologyMethods

SETUP_SECONDS = 30.0

Result = TypeVar("Result")


class ControlChannel:
    """A channel of aio-pika for synchronous methods; replaced by a new one when the broker closed it over an error.

    If the caller is cancelled, the method continues: aiormq closes a channel whose method is cancelled.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._channel: AbstractChannel | None = None
        self._lock = asyncio.Lock()

    async def run(self, what: str, method: Callable[[TopologyMethods], Awaitable[Result]]) -> Result:
        """Call `method` with the topology methods of the channel, once earlier calls have ended; return its result.

        :param what: the beginning of error texts, such as `cannot declare queue 'billing'`.
        :raises TopologyMismatch: if the broker closed the channel because of the call (403, 404, 405, 406).
        :raises TransportUnavailable: if the connection is lost, or no reply comes within 30 s.
        """
        task = asyncio.ensure_future(self._run(what, method))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _run(self, what: str, method: Callable[[TopologyMethods], Awaitable[Result]]) -> Result:
        async with self._lock:
            if self._channel is None or self._channel.is_closed:
                self._channel = await self._session.control_channel()
            with translate_errors(what):
                async with asyncio.timeout(SETUP_SECONDS):
                    channel = await self._channel.get_underlay_channel()
                    assert isinstance(channel, AmqpChannel)
                    return await method(TopologyMethods(channel, self._session.frame_max))
