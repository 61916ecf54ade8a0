"""Supervised connections to a broker: after a loss they reconnect and are set up again."""

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
"""Seconds that a connection has to last; one that is lost earlier counts
as a failed attempt, so the next attempt waits."""
MOST_REFUSALS = 3
"""Number of connections that the broker closes because of a frame, during one `use`, before `use` raises the error."""

Result = TypeVar("Result")


class SupervisedConnection:
    """Keeps a connection to the broker: opens it, and opens it again after each loss.

    :param name: name under which the broker lists the connection; also in logs.
    :param setup: prepares each new session (opens channels, declares topology) before it is used.
    :param on_up: called between `setup` and the first use of the session, without a switch to other tasks.
    :param on_down: called when the session is lost or closed.
    :param on_blocked: called with the reason of `connection.blocked`, and with None at `connection.unblocked`.
    :param first_retry: seconds; upper bound of the random wait before the first new
        attempt. It doubles with each further attempt.
    :param longest_retry: seconds; largest value of that upper bound.
    :param channels: factory of the data channels of its sessions.
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
        self._outlasts_errors = False
        """False until the first connection of one that `start` waits for: errors that are not retryable end it."""
        self.session: Session | None = None
        self.control: ControlChannel | None = None
        self.connects: int = 0
        self.error: WarrenError | None = None
        """The error of the last attempt; None while connected."""

    async def start(self, timeout: float) -> None:
        """Connect; from then on, reconnect after each loss.

        :param timeout: seconds for the first connection.
        :raises WarrenError: the reason for the failure; raised at once if another attempt cannot succeed.
        """
        task = self._task = self._begin()
        up = asyncio.create_task(self._up.wait())
        try:
            await asyncio.wait((up, task), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
        if task.done():
            failure = task.exception()
            if isinstance(failure, TransportUnavailable):
                # The text says what failed; the frames of the attempt and of aiormq would only bury it.
                raise failure.with_traceback(None) from None
            await task
        if not self._up.is_set():
            if self.error is not None:
                raise self.error.with_traceback(None) from None
            raise TransportUnavailable(f"cannot connect: no answer within {timeout:g} s")

    def start_in_background(self) -> None:
        """Begin to connect, and return at once. Whatever fails is tried again, as after a loss."""
        self._outlasts_errors = True
        self._task = self._begin()

    async def wait_up(self) -> Session:
        """Return the open connection (`Session`); while there is none, wait for it.

        :raises TransportUnavailable: if the connection is closed for good.
        """
        while self.session is None:
            if self._closed:
                raise TransportUnavailable("the App stopped")
            await self._up.wait()
        return self.session

    async def use(self, work: Callable[[Session], Awaitable[Result]]) -> Result:
        """Wait for an open connection (a session) and run `work` on it; if it is
        lost meanwhile, run `work` again on the next one.

        :raises TransportUnavailable: if the connection is closed for good, or `work` raises it while the session is
            open. Also if the broker closes the connection because of a frame, which `work` may have sent: at once if
            that error is not retryable, otherwise the third time.
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
                    reported = to_sdk_error("the broker closed the connection", refusal)
                    if not reported.retryable or refusals == MOST_REFUSALS:
                        raise reported from error
            # The supervising task may learn of the loss later than this one.
            while self.session is session:
                await self._down.wait()

    async def run(self, methods: Callable[[ControlChannel], Awaitable[Result]]) -> Result:
        """Call `methods` with the control channel, on which it awaits AMQP methods that
        have a reply (declare, bind), and return its result.

        All of them run on one connection. If it is lost, `methods` is called again from the start on the next one.

        :raises TransportUnavailable: if the connection is closed for good, or `methods` raises it while
            the connection is open. Also if the broker closes the connection because of a frame: at once
            if that error is not retryable, otherwise the third time.
        """

        def on_session(_: Session) -> Awaitable[Result]:
            assert self.control is not None
            return methods(self.control)

        return await self.use(on_session)

    def abort(self) -> None:
        """Close the socket without sending `connection.close`, for a caller that cannot wait for `close`."""
        if self.session is not None:
            self.session.abort()

    async def close(self) -> None:
        """Close the connection for good; those who wait for a session get `TransportUnavailable`."""
        self._closed = True
        if self._task is not None:
            await cancel(self._task)
            self._task = None
        self._up.set()

    def _begin(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._supervise(), name=f"{self.name} connection")

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
                if session.was_silent:
                    log.warning(
                        "event=connection.silent name=%s seconds=%g", self.name, session.silence_limit
                    )
                    # It may still accept connections and answer none of them, as a frozen machine does.
                    self._hosts.failed(self._tried)
                log.warning("event=connection.lost name=%s", self.name)
                self.error = TransportUnavailable("the connection was lost")
                await self._drop()
        except Exception as error:
            # `start` raises this until the first connection; afterwards nobody awaits the task.
            if self._outlasts_errors:
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
        self._outlasts_errors = True
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
        """Return whether another attempt to connect may succeed.

        After the first connection, and in the background, every error may be temporary. Otherwise an
        error that is not retryable ends the attempts, and `start` raises it.
        """
        if self._outlasts_errors:
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
    """Cancel a task, and repeat that until it has ended, because code in it may swallow a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=1.0)
    if not task.cancelled():
        task.exception()


async def _ends_within(session: Session, seconds: float | None) -> bool:
    done, _ = await asyncio.wait((session.lost,), timeout=seconds)
    return bool(done)
