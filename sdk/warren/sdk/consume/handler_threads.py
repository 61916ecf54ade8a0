"""Threads for handlers that are plain functions (`def`), so that a call that blocks does not stop the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar

from warren.sdk.choices import check_whole_number
from warren.sdk.consume.delivery import Delivery
from warren.sdk.logger import log

THREADS: Final = 40
"""Default size of the pool: that of AnyIO, in which FastAPI and FastStream run plain functions."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


ThreadPoolRun: TypeAlias = "SimpleQueue[HandlerThread | None]"
"""Queue of the messages that wait for a thread; a new one after each `close` of the pool."""


class ThreadWork:
    """A call that a thread makes, and the future that completes on the event loop when the call has ended.

    :ivar is_running: the thread makes the call now.
    :ivar cancelled: nobody waits any more; the thread skips the call if it has not started.
    """

    __slots__ = ("_call", "_future", "_loop", "cancelled", "error", "is_running", "result")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self.is_running: bool = False
        self.cancelled: bool = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Make the call; called in the thread."""
        if self.cancelled:
            return
        self.is_running = True
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error
        self.is_running = False
        with contextlib.suppress(
            RuntimeError
        ):  # The loop is closed: the App stopped while the call was running.
            self._loop.call_soon_threadsafe(self._complete)

    async def wait(self) -> Any:
        """Wait for the end of the call, on the event loop; return its result or raise its error."""
        try:
            await self._future
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.error is not None:
            try:
                raise self.error
            finally:
                # The error's traceback refers to this frame, which would keep the error alive.
                self.error = None
        return self.result

    def _complete(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class HandlerThread:
    """The thread of one message: the handler and its plain dependencies run in it, one after another, in a copy of the
    context (`contextvars`) of the task that handles the message.

    :param name: name of the handler, for logs.
    """

    def __init__(self, threads: HandlerThreads, name: str) -> None:
        self._threads = threads
        self._name = name
        self._context = contextvars.copy_context()
        self._works: SimpleQueue[ThreadWork | None] = SimpleQueue()
        self._run: ThreadPoolRun | None = None
        """Run of the pool in which the message has a thread; None before its first call."""
        self._loop = asyncio.get_running_loop()
        self._is_abandoned = False

    async def run(
        self, function: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        """Call the function in the thread, and return its result.

        If the waiting task is cancelled, a call that has not started is not made. One that runs cannot be interrupted:
        it is abandoned. It runs to its end, and further calls are made after it without being awaited.
        """
        work = ThreadWork(lambda: self._context.run(function, *arguments, **named))
        self._works.put(work)
        if self._run is None:
            self._run = self._threads.start(self)
        if self._is_abandoned:
            # A clean-up: it must not delay the stop of the App by the rest of the handler's time.
            return None  # type: ignore[return-value]
        try:
            result: Result = await work.wait()
        except asyncio.CancelledError:
            if work.cancelled and work.is_running:
                self._is_abandoned = True
                log.warning("event=handler.abandoned handler=%s", self._name)
            raise
        return result

    def release(self) -> None:
        """Return the thread to the pool after the last call. One that still makes an abandoned call returns after it."""
        if self._run is not None:
            self._works.put(None)
            if not self._is_abandoned:
                self._threads.ended(self._run)

    def serve(self) -> None:
        """Make the calls until `release`; called in the thread."""
        while (work := self._works.get()) is not None:
            work.run()
        if self._is_abandoned and self._run is not None:
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._threads.ended, self._run)


class HandlerThreads:
    """Pool of the threads in which the plain functions among the handlers of an App run.

    A thread is started when a message finds none free, and ends when the App stops. Threads are daemons: a process does
    not wait at its end for a handler that outlives the grace period. All methods are called on the event loop.

    :param size: largest number of threads; further messages wait for one.
    :raises ConfigError: if it is less than 1.
    """

    def __init__(self, size: int = THREADS) -> None:
        check_whole_number("threads", size)
        self._size = size
        self._queue: ThreadPoolRun = SimpleQueue()
        self._count = 0
        """Threads that were started and not told to end."""
        self._used = 0
        """Messages that have a thread, or wait for one; those whose calls were abandoned, until their calls end."""

    def start(self, thread: HandlerThread) -> ThreadPoolRun:
        """Let the next free thread serve a message; return the argument of `ended`."""
        self._used += 1
        if self._count < min(self._used, self._size):
            self._count += 1
            name = f"warren handler {self._count}"
            threading.Thread(target=_serve, args=(self._queue,), name=name, daemon=True).start()
        self._queue.put(thread)
        return self._queue

    def ended(self, run: ThreadPoolRun) -> None:
        """Note that the last call for a message has ended.

        :param run: result of `start`; a call that outlives `close` does not count any more.
        """
        if run is self._queue:
            self._used -= 1

    def close(self) -> None:
        """End all threads, those that still make a call after it. A later `start` starts new ones."""
        for _ in range(self._count):
            self._queue.put(None)
        # Threads that are busy keep the old queue.
        self._queue = SimpleQueue()
        self._count = self._used = 0


class Injector(Protocol):
    """Creator of a handler's dependencies, which calls the handler with them."""

    async def call(
        self,
        function: Callable[..., Any],
        message: Any,
        delivery: Any,
        thread: HandlerThread | None = None,
        /,
    ) -> Any: ...


class ThreadInvoker:
    """Invoker of a handler that is a plain function: it calls the function in a thread.

    :param injector: supplies the parameters beside the message, or None if there are none.
    """

    def __init__(self, threads: HandlerThreads, injector: Injector | None) -> None:
        self._threads = threads
        self._injector = injector

    async def call(self, function: Callable[..., Any], message: Any, delivery: Delivery | Any, /) -> Any:
        """Call the function in a thread with the message and its dependencies; return its result.

        A coroutine that the function returns, as wrappers of async functions do, is awaited on the event loop.
        """
        thread = HandlerThread(self._threads, getattr(function, "__qualname__", repr(function)))
        try:
            if self._injector is not None:
                return await self._injector.call(function, message, delivery, thread)
            result = await thread.run(function, message)
            return await result if inspect.iscoroutine(result) else result
        finally:
            thread.release()


def _serve(queue: SimpleQueue[HandlerThread | None]) -> None:
    while (thread := queue.get()) is not None:
        thread.serve()
        del thread
