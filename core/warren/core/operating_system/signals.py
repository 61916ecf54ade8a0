"""Signals that end a process, handled on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Final

from warren.core.operating_system.portable_switch import PORTABLE, offered

END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
"""Signals that end a process gracefully: from a supervisor, and Ctrl-C."""
RELOAD_SIGNAL: Final[signal.Signals | None] = offered("signal", "SIGHUP")
"""Signal that restarts workers; None on systems without it (Windows)."""

_set_mask: Final[Any] = offered("signal", "pthread_sigmask")
_BLOCK: Final[Any] = offered("signal", "SIG_BLOCK")
_SETMASK: Final[Any] = offered("signal", "SIG_SETMASK")


def on_signal(loop: asyncio.AbstractEventLoop, number: signal.Signals, call: Callable[[], object]) -> None:
    """Call a function on an event loop, which this thread runs, each time that the process gets a signal.

    When the loop is closed, the signal has its default effect again.

    :raises ValueError: if this is not the main thread.
    """
    if not PORTABLE:
        try:
            loop.add_signal_handler(number, call)
        except NotImplementedError:
            pass  # The event loops of Windows.
        else:
            return

    def handle(received: int, _: FrameType | None) -> None:
        if loop.is_closed():
            signal.signal(
                received, signal.default_int_handler if received == signal.SIGINT else signal.SIG_DFL
            )
            signal.raise_signal(received)
        else:
            loop.call_soon_threadsafe(call)

    signal.signal(number, handle)


def ignore_signals(loop: asyncio.AbstractEventLoop, numbers: Iterable[signal.Signals]) -> None:
    """Ignore signals that `on_signal` handled, without a moment in which one has its default effect."""
    before = None if _set_mask is None else _set_mask(_BLOCK, numbers)
    for number in numbers:
        if not PORTABLE:
            # The event loops of Windows have no handlers of signals.
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    if before is not None:
        _set_mask(_SETMASK, before)


__all__ = ["END_SIGNALS", "RELOAD_SIGNAL", "ignore_signals", "on_signal"]
