"""Waiting for a condition inside a running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """:raises AssertionError: naming `what`, if it is still not true after `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"after {seconds} s still not: {what}"
        await asyncio.sleep(0.005)
