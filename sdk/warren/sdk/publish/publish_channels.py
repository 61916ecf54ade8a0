"""The channels that an App publishes on: one with publisher confirms, one without."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from warren.sdk.errors import WarrenError
from warren.sdk.logger import log
from warren.sdk.publish.publisher_confirms import Publisher
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import ChannelClosed, to_sdk_error
from warren.sdk.transport.session import Session


class PublishChannels:
    """Opens two channels on each connection, one with publisher confirms and one without, and
    replaces one that the broker closed because of a message.

    :param on_change: called when a channel is lost or replaced.
    :param prepare: called with each new channel with confirms, before anything
        is published on it; None for no preparation.
    """

    def __init__(
        self,
        publisher: Publisher,
        on_change: Callable[[], None],
        prepare: Callable[[DataChannel], Awaitable[None]] | None = None,
    ) -> None:
        self._publisher = publisher
        self._on_change = on_change
        self._prepare = prepare
        self._session: Session | None = None
        self._opened: tuple[DataChannel, DataChannel] | None = None
        self._reopening: set[asyncio.Task[None]] = set()

    async def open(self, session: Session) -> None:
        """Open both channels on the connection; `attach` passes them to the publisher later."""
        self._session = session
        self._opened = await self._open(session, confirms=True), await self._open(session, confirms=False)

    def attach(self) -> None:
        """Let the publisher publish on the channels that `open` has opened."""
        assert self._opened is not None
        confirmed, unconfirmed = self._opened
        self._publisher.attach_unconfirmed(unconfirmed)
        self._publisher.attach(confirmed)

    def detach(self) -> None:
        """Stop publishing on the channels, because their connection is lost."""
        self._session = None
        for task in self._reopening:
            task.cancel()
        self._publisher.detach()
        self._publisher.set_blocked(None)

    async def _open(self, session: Session, *, confirms: bool) -> DataChannel:
        channel = await session.channel(confirms=confirms)
        channel.ended.add_done_callback(partial(self._ended, session, channel, confirms))
        if confirms and self._prepare is not None:
            await self._prepare(channel)
        return channel

    def _ended(
        self, session: Session, channel: DataChannel, confirms: bool, ended: asyncio.Future[None]
    ) -> None:
        """Open a new channel in place of one that the broker closed because of a message.

        Do nothing if the connection was lost.

        :param session: connection on which `channel`, the one that ended, was opened.
        :param confirms: True if it was the channel with publisher confirms.
        :param ended: future of the channel's end, with the cause.
        """
        cause = None if ended.cancelled() else ended.exception()
        if session is not self._session or not isinstance(cause, ChannelClosed) or not cause.args:
            return
        error = to_sdk_error("the broker refused a publish", cause)
        log.error("event=publish_channel.closed error=%s", error)
        if confirms:
            self._publisher.refused(error)
            self._publisher.detach()
            self._on_change()
        else:
            self._publisher.declare_missing(error)
        task = asyncio.ensure_future(self._reopen(session, channel, confirms))
        self._reopening.add(task)
        task.add_done_callback(self._reopening.discard)

    async def _reopen(self, session: Session, lost: DataChannel, confirms: bool) -> None:
        try:
            channel = await self._open(session, confirms=confirms)
        except WarrenError:
            # A connection that cannot open a channel is of no use; a new one can.
            lost.abort()
            return
        if session is self._session:
            (self._publisher.attach if confirms else self._publisher.attach_unconfirmed)(channel)
            self._on_change()
