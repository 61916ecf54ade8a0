"""Connection of a command's App to the broker, with a line for the user if it takes long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from warren.core.command_output import write_error
from warren.wire.amqp_url import parse_url

if TYPE_CHECKING:
    from warren.sdk import App

SILENT_SECONDS: Final = 1.0
"""Seconds after which the user is told what the command waits for."""


@contextlib.asynccontextmanager
async def connected(app: App, url: str, patience: float) -> AsyncIterator[None]:
    """Start the App for the block, and stop it afterwards. While it is not connected, say so on standard error.

    :param url: URL of the broker; its user and password are not shown.
    :param patience: seconds after which the App gives up.
    """
    address = parse_url(url)

    def tell() -> None:
        write_error(
            f"waiting for a broker at {address.host}:{address.port}, for up to {patience:g} s; --timeout changes that,"
            " Ctrl+C ends it"
        )

    timer = asyncio.get_running_loop().call_later(SILENT_SECONDS, tell)
    try:
        async with app:
            timer.cancel()
            yield
    finally:
        timer.cancel()


__all__ = ["connected"]
