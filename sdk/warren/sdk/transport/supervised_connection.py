"""Supervised connections: connect, set up, watch, and after a loss do all of it again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from warren.sdk.errors import ConfigError, TransportUnavailable, WarrenError
from warren.sdk.logger import log
from warren.sdk.transport.control_channel import SETUP_SECONDS, ControlChannel
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import to_sdk_error, translate_errors
from warren.sdk.transport.host_failover import Hosts
from warren.sdk.transport.session import ChannelFactory, Session

FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 3.0
STABLE_SECONDS = 1.0
"""A connection that lives shorter counts as a failed attempt, so that one that always drops is not tried in a loop."""
MOST_REFUSALS = 3
"""So often the broker may end the connection during one piece of work until that is taken for the reason."""

Result = TypeVar("Result")


class SupervisedConnection:
    """A connection that comes back.

    :param setup: brings a new session to use (channels, topology); it is up after that.
    :param went_up: called without a pause between `setup` and the first user of the session.
    :param went_down: called when the session is lost or closed.
    :param first_retry: seconds; the first wait is random below it, each later bound is doubled.
    :param longest_retry: seconds; the cap of that bound.
    :param channels: what the channels of its sessions are.
    """

    def __init__(
        self,
        hosts: Hosts,
        name: str,
        *,
        setup: Callable[[Session, ControlChannel], Awaitable[None]],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        on_blocked: Callable[[str | None], None],
        first_retry: float = FIRST_RETRY_SECONDS,
        longest_retry: float = LONGEST_RETRY_SECONDS,
        channels: ChannelFactory = DataChannel,
    ) -> None:
        self._channels = channels
        self._hosts = hosts
        self._tried = hosts.current
        self.name: str = name
        self._setup = setup
        self._on_up = on_up
        self._on_down = on_down
        self._on_blocked = on_blocked
        self.wait: wait_random_exponential = wait_random_exponential(
            multiplier=first_retry, max=longest_retry
        )
        self._task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._closed = False
        self.session: Session | None = None
        self.control: ControlChannel | None = None
        self.connects: int = 0
        self.error: WarrenError | None = None
        """Why the last attempt failed."""

    async def start(self, timeout: float) -> None:
        """Connect and stay connected from here on.

        :param timeout: seconds for the first connection.
        :raises WarrenError: why there is none; at once where trying again cannot help.
        """
        self._task = asyncio.create_task(self._supervise(), name=f"{self.name} connection")
        up = asyncio.create_task(self._up.wait())
        try:
            await asyncio.wait((up, self._task), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
        if self._task.done():
            await self._task
        if not self._up.is_set():
            raise self.error or TransportUnavailable(f"cannot connect: no answer within {timeout:g} s")

    async def wait_up(self) -> Session:
        """The session, as soon as there is one.

        :raises TransportUnavailable: if the link is closed, so that there will be none.
        """
        while self.session is None:
            if self._closed:
                raise TransportUnavailable("the App stopped")
            await self._up.wait()
        return self.session

    async def use(self, work: Callable[[Session], Awaitable[Result]]) -> Result:
        """Do something on the connection; waits for one, and does it again on the next one if that is lost meanwhile.

        :raises TransportUnavailable: if the link is closed; if the work raises it though the connection lives; if the broker
            ends connections over something that they do, which may be this work: at once where that is not allowed, else the
            third time.
        """
        refusals = 0
        while True:
            session = await self.wait_up()
            try:
                return await work(session)
            except TransportUnavailable as error:
                if not session.ended:
                    raise
                refusal = session.refusal
                if refusal is not None:
                    refusals += 1
                    said = to_sdk_error("the broker closed the connection", refusal)
                    if not said.retryable or refusals == MOST_REFUSALS:
                        raise said from error
            # Who supervises the connection may hear of its end later than who used it.
            while self.session is session:
                await self._down.wait()

    async def run(self, methods: Callable[[ControlChannel], Awaitable[Result]]) -> Result:
        """Run synchronous methods, all of them on one connection, as `use` does."""

        def on_this_one(_: Session) -> Awaitable[Result]:
            assert self.control is not None
            return methods(self.control)

        return await self.use(on_this_one)

    def abort(self) -> None:
        """Cut the connection; for who closes the link and cannot wait."""
        if self.session is not None:
            self.session.abort()

    async def close(self) -> None:
        """End the connection, and the waiting of those who still hope for one."""
        self._closed = True
        if self._task is not None:
            await cancel(self._task)
            self._task = None
        self._up.set()

    async def _supervise(self) -> None:
        try:
            while True:
                async for attempt in AsyncRetrying(
                    wait=self.wait,
                    retry=retry_if_exception(self._worth_retrying),
                    before_sleep=self._report,
                    reraise=True,
                ):
                    with attempt:
                        session = await self._establish()
                        if await _ends_within(session, STABLE_SECONDS):
                            await self._drop()
                            raise TransportUnavailable("the connection was lost soon after it was made")
                await _ends_within(session, None)
                log.warning("event=connection.lost name=%s", self.name)
                self.error = TransportUnavailable("the connection was lost")
                await self._drop()
        except Exception as error:
            # Only before the first connection is this an answer to the user; afterwards nobody awaits the task.
            if self.connects > 0:
                log.critical("event=connection.abandoned name=%s", self.name, exc_info=error)
            raise
        finally:
            await self._drop()

    async def _establish(self) -> Session:
        self._tried = self._hosts.current
        session = await Session.open(self._tried, self.name, self._on_blocked, self._channels)
        try:
            control = ControlChannel(session)
            with translate_errors("cannot set up the connection"):
                async with asyncio.timeout(SETUP_SECONDS):
                    await self._setup(session, control)
            if session.lost.done():
                raise TransportUnavailable("the connection was lost while it was set up")
        except BaseException:
            await session.close()
            raise
        self.session, self.control, self.error = session, control, None
        self.connects += 1
        self._on_up()
        self._down.clear()
        self._up.set()
        return session

    async def _drop(self) -> None:
        session, self.session, self.control = self.session, None, None
        if session is None:
            return
        self._up.clear()
        self._down.set()
        self._on_down()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETUP_SECONDS):
                await session.close()

    def _worth_retrying(self, error: BaseException) -> bool:
        """Once it has worked, whatever is wrong may pass; before that, wrong use must be said at once."""
        if self.connects > 0:
            return isinstance(error, Exception)
        return isinstance(error, WarrenError) and error.retryable and not isinstance(error, ConfigError)

    def _report(self, state: RetryCallState) -> None:
        self._hosts.failed(self._tried)
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, WarrenError):
            if str(error) != str(self.error):
                log.warning("event=connection.attempt_failed name=%s error=%s", self.name, error)
            self.error = error
        elif error is not None:
            log.error("event=connection.attempt_crashed name=%s", self.name, exc_info=error)


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended, whatever in it takes a cancellation for something else."""
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=1.0)
    if not task.cancelled():
        task.exception()


async def _ends_within(session: Session, seconds: float | None) -> bool:
    done, _ = await asyncio.wait((session.lost,), timeout=seconds)
    return bool(done)
