"""Running of long management work in slices, between which the event loop serves clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

from warren.broker.model.bulk_work import SLICE_SECONDS

Result = TypeVar("Result")


async def run_in_slices(work: Generator[None, None, Result]) -> Result:
    """Run a generator, which yields after each small step, to its end, and return the value that it returns.

    After 5 ms of steps it lets the event loop run, so that clients are served meanwhile.
    """
    while True:
        end = time.monotonic() + SLICE_SECONDS
        try:
            next(work)
            while time.monotonic() < end:
                next(work)
        except StopIteration as done:
            result: Result = done.value
            return result
        await asyncio.sleep(0)
