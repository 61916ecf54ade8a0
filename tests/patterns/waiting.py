"""Waiting for a condition inside a running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = 60.0
) -> None:
    """Ask until it is true.

    :raises AssertionError: naming `what`, when the deadline has passed
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        answer = condition()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert loop.time() < deadline, f"after {seconds} s still not: {what}"
        await asyncio.sleep(0.01)
