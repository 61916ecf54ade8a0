"""Run an App as a process: start, wait for SIGTERM or SIGINT, stop gracefully."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from warren.core.operating_system.signals import END_SIGNALS, on_signal


class Startable(Protocol):
    """Protocol of the methods of `App` that `serve` uses."""

    async def start(self) -> object: ...

    async def stop(self) -> None: ...


class StopRequest:
    """Way to stop an App that `serve` runs: `request` has the effect of a SIGTERM. Create the object in the task that
    calls `serve`.
    """

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._main = asyncio.current_task()

    def request(self) -> None:
        """Stop gracefully; called a second time, cancel the task and with it the graceful stop."""
        if self._requested.is_set() and self._main is not None:
            self._main.cancel()
        self._requested.set()

    async def wait(self) -> None:
        """Return when `request` has been called."""
        await self._requested.wait()


async def serve(
    app: Startable,
    *,
    stop: StopRequest | None = None,
    on_started: Callable[[], object] = lambda: None,
    on_stopping: Callable[[], object] = lambda: None,
) -> None:
    """Start the App, wait for SIGTERM or SIGINT, stop it.

    A signal during the start cancels the start. A second signal cancels the graceful stop.

    :param stop: another way to request the stop; must have been created in this task.
    :param on_started: called when the App is ready.
    :param on_stopping: called before the App stops, also if it never started.
    """
    loop = asyncio.get_running_loop()
    stop = stop or StopRequest()
    for number in END_SIGNALS:
        on_signal(loop, number, stop.request)
    starting = asyncio.ensure_future(app.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            on_started()
            await stopping
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    finally:
        stopping.cancel()
        on_stopping()
        await app.stop()
