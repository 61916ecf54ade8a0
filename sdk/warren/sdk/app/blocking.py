"""Blocking facade: `app.sync` for threads that cannot await (scripts, web workers, Spark's foreachBatch)."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from warren.sdk.app.lifecycle import Lifecycle
from warren.sdk.consume.get import FetchedMessage
from warren.sdk.durations import Duration
from warren.sdk.errors import ConfigError
from warren.sdk.messages.codec import MessageOptions
from warren.sdk.messages.types import Request
from warren.sdk.publish.bulk_publish import PUBLISH_SECONDS, BatchOptions, OnError
from warren.sdk.publish.operations import CALL_SECONDS, Reliability
from warren.sdk.publish.report import PublishReport

if TYPE_CHECKING:
    from warren.sdk.app.app import App

UNDO_SECONDS = 10.0

Answer = TypeVar("Answer")
Content = TypeVar("Content")


class SyncFetchedMessage:
    """A message that `app.sync.get` returned, with the methods of `FetchedMessage` as blocking calls; a `with` block
    acknowledges it at its end, and requeues it if the block raises."""

    def __init__(self, sync: Sync, delivery: FetchedMessage) -> None:
        self._sync = sync
        self.delivery: FetchedMessage = delivery

    def read(self, kind: type[Content]) -> Content:
        """Decode the body as `kind`, as a handler would get it, and return the content.

        :raises Undecodable: if the content is of another type.
        """
        return self.delivery.read(kind)

    def ack(self) -> None:
        """Acknowledge the message."""
        self._sync._run(self.delivery.ack())

    def requeue(self) -> None:
        """Return the message to its queue."""
        self._sync._run(self.delivery.requeue())

    def dead_letter(self, reason: str) -> None:
        """Publish a dead letter copy with the reason, block until it is confirmed, and acknowledge the message."""
        self._sync._run(self.delivery.dead_letter(reason))

    def __enter__(self) -> SyncFetchedMessage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sync._run(self.delivery.__aexit__(kind, error, trace))


class Sync:
    """Blocking `publish`, `publish_many`, `call` and `get`, for any number of threads at once.

    If the App runs on an event loop already, the work is done there. Otherwise the first use starts the App, with its
    consumers, on an event loop in a thread of its own; `close` or the end of the process stops it. `with app.sync as sync:`
    starts and stops it. Parameters and errors are those of the App's methods.

    A process that was forked while the App ran cannot use that run: call `close` there first, and the next use starts the
    App anew.

    :raises ConfigError: on the App's own event loop, where blocking would never end; and in a process that was forked
        after the start.
    """

    def __init__(self, app: App, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._lock = threading.Lock()
        self._process = os.getpid()
        """The process that the lock and the thread belong to."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def publish(
        self,
        message: object,
        *,
        timeout: Duration = PUBLISH_SECONDS,
        reliability: Reliability = "at_least_once",
        **options: Unpack[MessageOptions],
    ) -> None:
        """Publish a message, and block until the broker has confirmed it;
        parameters and errors are those of `App.publish`.
        """
        self._run(self._app.publish(message, timeout=timeout, reliability=reliability, **options))

    def publish_many(
        self,
        messages: Iterable[object],
        *,
        ordered: bool = False,
        on_error: OnError = "raise",
        **options: Unpack[BatchOptions],
    ) -> PublishReport:
        """Publish many messages, and block until all have their outcome;
        parameters and errors are those of `App.publish_many`.

        The iterable is read on the event loop of the App.
        """
        return self._run(self._app.publish_many(messages, ordered=ordered, on_error=on_error, **options))

    def call(
        self, request: Request[Answer], *, timeout: Duration = CALL_SECONDS, message_id: str | None = None
    ) -> Answer:
        """Send a request, and block until its reply arrives; parameters and errors are those of `App.call`."""
        return self._run(self._app.call(request, timeout=timeout, message_id=message_id))

    def get(self, queue: str, *, timeout: Duration = 0.0) -> SyncFetchedMessage | None:
        """Return one message of a queue, or None if none arrives within `timeout` seconds; parameters and errors are
        those of `App.get`.
        """
        message = self._run(self._app.get(queue, timeout=timeout))
        return None if message is None else SyncFetchedMessage(self, message)

    def close(self) -> None:
        """Stop the App if this facade started it. It can be started again."""
        self._leave_parent()
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            atexit.unregister(self.close)
            if loop is None or thread is None:
                return
            try:
                asyncio.run_coroutine_threadsafe(self._app.stop(), loop).result()
            finally:
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
                loop.close()

    def __enter__(self) -> Sync:
        self._ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, Content]) -> Content:
        """Run a coroutine on the App's loop, wait for its end, and return its result or raise its error."""
        try:
            loop = self._ready()
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            # This thread was interrupted. Cancelling a future that is done has no effect.
            future.cancel()
            raise

    def _ready(self) -> asyncio.AbstractEventLoop:
        """Return the event loop that the App runs on; start the App first if it does not run."""
        loop = self._lifecycle.loop
        if loop is None:
            self._leave_parent()
            with self._lock:
                loop = self._lifecycle.loop or self._start()
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is loop:
                raise ConfigError("app.sync would wait for its own event loop: await the App's methods here")
        return loop

    def _start(self) -> asyncio.AbstractEventLoop:
        """Start the App on a new event loop in a thread."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="warren app.sync", daemon=True)
        thread.start()
        start_tasks: list[asyncio.Task[None] | None] = []

        async def begin() -> None:
            start_tasks.append(asyncio.current_task())
            await self._app.start()

        async def undo() -> None:
            tasks = [task for task in start_tasks if task is not None]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

        try:
            asyncio.run_coroutine_threadsafe(begin(), loop).result()
        except BaseException:
            # This thread may be interrupted at any point: undo the start while its loop still runs.
            with contextlib.suppress(BaseException):
                asyncio.run_coroutine_threadsafe(undo(), loop).result(UNDO_SECONDS)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            raise
        self._loop, self._thread = loop, thread
        atexit.register(self.close)
        return loop

    def _leave_parent(self) -> None:
        """In a process that was forked, forget the thread of the parent, and its lock, which it may have held."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._lock = threading.Lock()
            self._loop = self._thread = None
            self._lifecycle.leave_parent()
