"""Tracebacks for logs that begin in the user's code, without the frames of Warren and asyncio above the handler."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

MACHINERY: Final = (
    "warren",
    "asyncio",
    "concurrent",
    "threading",
    "contextvars",
    "contextlib",
    "tenacity",
    "functools",
)
"""Top-level modules whose frames are left out above the user's code."""

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]
"""Exception for the parameter `exc_info` of a log call."""


def user_exc_info(error: BaseException, function: Callable[..., Any] | None) -> ExcInfo:
    """Return the exception with a traceback that begins at the handler; chained exceptions keep theirs.

    If the handler is not in the traceback, because a middleware or a dependency raised, it begins at the first frame of
    the user. Without any such frame the traceback is complete. The exception itself is not changed.

    :param function: the handler, or None if it is not known.
    """
    begin = None
    if function is not None:
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        begin = _first(error.__traceback__, lambda trace: trace.tb_frame.f_code is code)
    if begin is None:
        begin = _first(error.__traceback__, _is_user_frame)
    return type(error), error, begin or error.__traceback__


def _first(trace: TracebackType | None, matches: Callable[[TracebackType], bool]) -> TracebackType | None:
    while trace is not None and not matches(trace):
        trace = trace.tb_next
    return trace


def _is_user_frame(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] not in MACHINERY
