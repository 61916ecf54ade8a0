"""Exceptions that end the task in which a message is handled, and those that are only a failure of the handler."""

from __future__ import annotations

import asyncio


def ends_task(error: BaseException) -> bool:
    """Return whether an exception ends the task that handles a message, so that nothing can be awaited in it any more.

    False for a CancelledError of another task that a handler awaited. True for every GeneratorExit: a coroutine into which
    one is thrown cannot await anything.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit | KeyboardInterrupt | SystemExit)
