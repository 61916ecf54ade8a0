"""Watchdog of the event loop: logs which handler blocks it, with the stack."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, Final

from warren.sdk.logger import log

STALL_SECONDS: Final = 1.0
"""Default time for which a handler may block the event loop before that is logged."""
CHECKS: Final = 4
"""Checks within that time. The reported time may be too low by the time of one check."""
INNERMOST: Final = 5
"""Frames of the stack that are logged if no handler is in it."""


class LoopWatchdog:
    """Daemon thread that looks whether the event loop answers while handlers run.

    A loop that does not answer sends no heartbeats, and the broker closes its connections. The watchdog logs
    `handler.blocked_loop` with the stack when that takes longer than `threshold`, again each time the time has doubled,
    and `handler.released_loop` at the end. While no handler runs, the loop is not woken.

    :param handlers: returns the functions of the App's handlers, by which a stack is attributed.
    :param is_busy: returns True while a handler runs; called in the thread.
    :param threshold: seconds.
    """

    def __init__(
        self,
        handlers: Callable[[], Iterable[Callable[..., Any]]],
        is_busy: Callable[[], bool],
        threshold: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._handlers = handlers
        self._is_busy = is_busy
        self._threshold = threshold
        self._answered = threading.Event()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._watch, name="warren watchdog", daemon=True).start()

    def stop(self) -> None:
        """End the thread, without waiting for it."""
        self._stopped.set()

    def _watch(self) -> None:
        period = self._threshold / CHECKS
        # A program may end its loop without stopping the App.
        while not self._stopped.wait(period) and not self._loop.is_closed():
            if self._is_busy():
                with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
                    self._await_answer(period)

    def _await_answer(self, period: float) -> None:
        """Ask the loop for an answer, and log while it gives none."""
        self._answered.clear()
        self._loop.call_soon_threadsafe(self._answered.set)
        blocked, report_at, handler = 0.0, self._threshold, ""
        before = time.monotonic()
        while not (self._answered.wait(period) or self._stopped.is_set() or self._loop.is_closed()):
            now = time.monotonic()
            # If this thread stood still too, as in a suspended process, it is not the loop that is to blame.
            blocked += min(now - before, 2 * period)
            before = now
            if blocked >= report_at:
                report_at = 2 * blocked
                handler = self._report(blocked)
        if handler:
            blocked += min(time.monotonic() - before, 2 * period)
            log.warning("event=handler.released_loop handler=%s seconds=%.1f", handler, blocked)

    def _report(self, seconds: float) -> str:
        """Log the stack of the loop's thread; return the name of the handler in it, or `-` if there is none."""
        frame = sys._current_frames().get(self._loop_thread)
        names = {code: name for code, name in map(_code_of, self._handlers()) if code is not None}
        handler, depth = _handler_in(frame, names)
        frames = traceback.format_stack(frame)
        stack = "".join(frames[-(depth or INNERMOST) :]).rstrip()
        log.error("event=handler.blocked_loop handler=%s seconds=%.1f stack=%s", handler, seconds, stack)
        return handler


def _code_of(function: Callable[..., Any]) -> tuple[CodeType | None, str]:
    original = inspect.unwrap(function)
    code = getattr(original, "__code__", None)
    return code, getattr(original, "__qualname__", repr(original))


def _handler_in(frame: FrameType | None, names: dict[CodeType, str]) -> tuple[str, int]:
    """Return the name of the handler that a stack contains, and the number of frames from its own to the innermost one;
    `-` and 0 without a handler.
    """
    depth = 0
    while frame is not None:
        depth += 1
        name = names.get(frame.f_code)
        if name is not None:
            return name, depth
        frame = frame.f_back
    return "-", 0
