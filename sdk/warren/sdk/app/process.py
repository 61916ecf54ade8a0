"""A process that is an App: it runs until a signal, and stops cleanly."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Protocol


class Startable(Protocol):
    """What an `App` is here."""

    async def start(self) -> object: ...

    async def stop(self) -> None: ...


class Stop:
    """Asks a served App to stop, as a signal does; the second time, to stop at once."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._main = asyncio.current_task()

    def ask(self) -> None:
        if self._asked.is_set() and self._main is not None:
            self._main.cancel()
        self._asked.set()

    async def wait(self) -> None:
        await self._asked.wait()


async def serve(
    app: Startable,
    *,
    stop: Stop | None = None,
    on_started: Callable[[], object] = lambda: None,
    on_stopping: Callable[[], object] = lambda: None,
) -> None:
    """Start, wait for SIGTERM or SIGINT, stop; a signal during the start ends it, a second one aborts the stop.

    :param stop: another way to ask for it, made in the same task.
    """
    loop = asyncio.get_running_loop()
    stop = stop or Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.ask)
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
