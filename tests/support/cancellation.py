"""Cancellation of a coroutine at each await, and some event loop iterations later."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any

TURNS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144)
"""Event loop iterations between suspension and cancellation, in which other tasks run."""


async def cancellations(
    operation: Callable[[], Coroutine[Any, Any, object]], turns: tuple[int, ...] = TURNS, most: int = 30
) -> AsyncIterator[tuple[int, int, BaseException | None]]:
    """Run the operation repeatedly and cancel it at its first suspension, its second, and so on.

    Yields where it was cancelled and what came of it (None if it ended well nevertheless).
    """
    for suspension in range(most):
        reached = False
        for later in turns:
            hit, outcome = await cancelled_at(operation(), suspension, later)
            if hit:
                reached = True
                yield suspension, later, outcome
        if not reached:
            return


async def cancelled_at(
    coroutine: Coroutine[Any, Any, object], suspension: int, turns: int
) -> tuple[bool, BaseException | None]:
    """Return whether the coroutine got this far, and its result: `CancelledError`, another error, or None."""
    reached = asyncio.Event()
    task = asyncio.ensure_future(_counted(coroutine, suspension, reached.set))
    waiting = asyncio.ensure_future(reached.wait())
    await asyncio.wait((task, waiting), timeout=30, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    for _ in range(turns):
        if task.done():
            break
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,), timeout=30)
    assert task.done(), f"cancelled at suspension {suspension}, {turns} turns later, it goes on"
    if task.cancelled():
        return True, asyncio.CancelledError()
    return reached.is_set(), task.exception()


@types.coroutine
def _counted(
    coroutine: Coroutine[Any, Any, object], at: int, reached: Callable[[], None]
) -> Generator[Any, Any, object]:
    """Run the coroutine and count its suspensions."""
    count = 0
    error: BaseException | None = None
    value = None
    while True:
        try:
            waited_for = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            return stop.value
        if count == at:
            reached()
        count += 1
        error = value = None
        try:
            value = yield waited_for
        except BaseException as raised:
            error = raised
