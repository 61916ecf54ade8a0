"""A process that is an App: it runs until a signal, and stops cleanly."""

from __future__ import annotations

import asyncio
import signal
from typing import Protocol


class Startable(Protocol):
    """What an `App` is here."""

    async def start(self) -> object: ...

    async def stop(self) -> None: ...


async def serve(app: Startable) -> None:
    """Start, wait for SIGTERM or SIGINT, stop; a signal during the start ends it, a second one aborts the stop."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None
    asked = asyncio.Event()

    def on_signal() -> None:
        if asked.is_set():
            main.cancel()
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    starting = asyncio.ensure_future(app.start())
    stopping = asyncio.ensure_future(asked.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            await stopping
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    finally:
        stopping.cancel()
        await app.stop()
