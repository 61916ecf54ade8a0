"""Wait for a condition: in a blocking test, or inside a running event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

PATIENCE: Final = 120.0
"""Seconds. Only a test that has failed waits for so long; a busy machine may stand still for a minute."""


def wait_until(condition: Callable[[], bool], description: str, timeout: float = PATIENCE) -> None:
    """Evaluate `condition` every 10 ms until it is true; block meanwhile.

    :param description: of the condition, for the error
    :param timeout: seconds
    :raises AssertionError: it is still false after `timeout`
    """
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout} s still not: {description}"
        time.sleep(0.01)


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], description: str, seconds: float = PATIENCE
) -> None:
    """Evaluate `condition` every 5 ms until it is true.

    :param description: of the condition, for the error
    :raises AssertionError: it is still false after `seconds`
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        result = condition()
        if result if isinstance(result, bool) else await result:
            return
        assert loop.time() < deadline, f"after {seconds} s still not: {description}"
        await asyncio.sleep(0.005)
