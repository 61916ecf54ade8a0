"""Supervised connections: connect, set up, watch, and after a loss do all of it again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiormq.abc import AbstractChannel
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from warren.sdk.errors import ConfigError, TransportUnavailable, WarrenError
from warren.sdk.logger import log
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.hosts import Hosts
from warren.sdk.transport.session import Channels, Session, translate, translate_errors

FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 3.0
STABLE_SECONDS = 1.0
"""A connection that lives shorter counts as a failed attempt, so that one that always drops is not tried in a loop."""
MOST_REFUSALS = 3
"""So often the broker may end the connection during one piece of work until that is taken for the reason."""
SETUP_SECONDS = 30.0

Result = TypeVar("Result")


class Control:
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


class Link:
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
        setup: Callable[[Session, Control], Awaitable[None]],
        went_up: Callable[[], None],
        went_down: Callable[[], None],
        on_blocked: Callable[[str | None], None],
        first_retry: float = FIRST_RETRY_SECONDS,
        longest_retry: float = LONGEST_RETRY_SECONDS,
        channels: Channels = DataChannel,
    ) -> None:
        self._channels = channels
        self._hosts = hosts
        self._tried = hosts.current
        self.name: str = name
        self._setup = setup
        self._went_up = went_up
        self._went_down = went_down
        self._on_blocked = on_blocked
        self.wait: wait_random_exponential = wait_random_exponential(
            multiplier=first_retry, max=longest_retry
        )
        self._task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._closed = False
        self.session: Session | None = None
        self.control: Control | None = None
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
                    said = translate("the broker closed the connection", refusal)
                    if not said.retryable or refusals == MOST_REFUSALS:
                        raise said from error
            # Who supervises the connection may hear of its end later than who used it.
            while self.session is session:
                await self._down.wait()

    async def run(self, methods: Callable[[Control], Awaitable[Result]]) -> Result:
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
                log.warning("connection lost: name=%s", self.name)
                self.error = TransportUnavailable("the connection was lost")
                await self._drop()
        except Exception as error:
            # Only before the first connection is this an answer to the user; afterwards nobody awaits the task.
            if self.connects > 0:
                log.critical("connection given up: name=%s", self.name, exc_info=error)
            raise
        finally:
            await self._drop()

    async def _establish(self) -> Session:
        self._tried = self._hosts.current
        session = await Session.open(self._tried, self.name, self._on_blocked, self._channels)
        try:
            control = Control(session)
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
        self._went_up()
        self._down.clear()
        self._up.set()
        return session

    async def _drop(self) -> None:
        session, self.session, self.control = self.session, None, None
        if session is None:
            return
        self._up.clear()
        self._down.set()
        self._went_down()
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
                log.warning("connection attempt failed: name=%s error=%s", self.name, error)
            self.error = error
        elif error is not None:
            log.error("connection attempt failed: name=%s", self.name, exc_info=error)


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
