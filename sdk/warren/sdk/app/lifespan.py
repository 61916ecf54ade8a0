"""User code around the run of an App: the lifespan, and the functions of `app.on_start` and `app.on_stop`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_origin

from warren.core.signatures import signature_of
from warren.sdk.consume.dependencies import RunValue
from warren.sdk.consume.handlers.signature import caller_names, type_hints
from warren.sdk.errors import ConfigError
from warren.sdk.logger import log

if TYPE_CHECKING:
    from warren.sdk.app.app import App

Lifespan: TypeAlias = "Callable[[App], AbstractAsyncContextManager[object]]"
"""Function that takes the App and returns an async context manager, which is open while the App runs."""
Hook: TypeAlias = Callable[[], object]
"""Plain or async function without parameters."""


class Hooks:
    """The lifespan, `on_start` and `on_stop` functions of an App, and the lifespan that is open in the current run.

    :ivar value: what the lifespan yields, for parameters of handlers with its type.
    :raises ConfigError: if the lifespan is an async generator function that lacks `@asynccontextmanager`.
    """

    def __init__(self, app: App, lifespan: Lifespan | None) -> None:
        if inspect.isasyncgenfunction(lifespan):
            name = getattr(lifespan, "__qualname__", repr(lifespan))
            raise ConfigError(
                f"lifespan= takes an async context manager: write @asynccontextmanager above {name}"
            )
        if lifespan is not None and not callable(lifespan):
            raise ConfigError(f"lifespan= takes a function of the App, not {lifespan!r}")
        self._app = app
        self._lifespan = lifespan
        self.value: RunValue = RunValue(None if lifespan is None else _yielded_type(lifespan))
        self._on_start: list[Hook] = []
        self._on_stop: list[Hook] = []
        self._open: OpenLifespan | None = None

    def add_start(self, hook: Hook) -> None:
        """Add a function of `app.on_start`."""
        _check_hook("app.on_start", hook)
        self._on_start.append(hook)

    def add_stop(self, hook: Hook) -> None:
        """Add a function of `app.on_stop`."""
        _check_hook("app.on_stop", hook)
        self._on_stop.append(hook)

    async def enter(self) -> None:
        """Enter the lifespan.

        :raises Exception: that of the lifespan; then it counts as not entered.
        """
        self._open = OpenLifespan(self._lifespan, self._app)
        self.value.value = await self._open.enter()

    async def started(self) -> None:
        """Call the `on_start` functions, in the order in which they were added.

        :raises Exception: the first one; the functions after it are not called.
        """
        for hook in self._on_start:
            await _call(hook)

    async def stopping(self) -> None:
        """Call the `on_stop` functions, the last added first, if the lifespan was entered; log their exceptions."""
        if self._open is None or not self._open.entered:
            return
        for hook in reversed(self._on_stop):
            try:
                await _call(hook)
            except Exception:
                log.exception("event=on_stop.failed function=%s", _name(hook))

    async def exit(self) -> None:
        """Exit the lifespan, if it was begun; log its exception."""
        opened, self._open = self._open, None
        if opened is not None:
            await opened.exit()
        self.value.value = None


class OpenLifespan:
    """One lifespan from its entry to its exit, both in one task of its own: task groups and cancel scopes may be entered
    and left in the same task only.
    """

    def __init__(self, function: Lifespan | None, app: App) -> None:
        self._function = function
        self._app = app
        self._entered = asyncio.Event()
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._value: object = None

    @property
    def entered(self) -> bool:
        """True after the lifespan yielded."""
        return self._entered.is_set()

    async def enter(self) -> object:
        """Enter the context manager, and return what it yields."""
        if self._function is None:
            self._entered.set()
            return None
        self._task = asyncio.create_task(self._live(self._function), name="lifespan")
        entered = asyncio.ensure_future(self._entered.wait())
        try:
            await asyncio.wait((self._task, entered), return_when=asyncio.FIRST_COMPLETED)
        finally:
            entered.cancel()
        if not self.entered:
            task, self._task = self._task, None
            await task
        return self._value

    async def exit(self) -> None:
        """Leave the context manager; cancel it if it is still being entered. Log its exception."""
        task = self._task
        if task is None:
            return
        if self.entered:
            self._leave.set()
        else:
            task.cancel()
        await asyncio.wait((task,))
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("event=lifespan.failed", exc_info=error)

    async def _live(self, function: Lifespan) -> None:
        async with function(self._app) as self._value:
            self._entered.set()
            await self._leave.wait()


async def _call(hook: Hook) -> None:
    result = hook()
    if inspect.isawaitable(result):
        await result


def _check_hook(decorator: str, hook: Hook) -> None:
    """Check that a function can be called without arguments.

    :raises ConfigError: if it has a parameter without a default.
    """
    if not callable(hook):
        raise ConfigError(f"{decorator} takes a function, not {hook!r}")
    parameters: Iterable[inspect.Parameter] = signature_of(hook).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(one.default is one.empty and one.kind not in variadic for one in parameters):
        raise ConfigError(f"{decorator} takes a function without parameters, not {_name(hook)}")


def _name(hook: Hook) -> str:
    return getattr(hook, "__qualname__", repr(hook))


def _yielded_type(lifespan: Lifespan) -> Any:
    """Return the type that the annotation of the lifespan's result names, None if there is none."""
    hint = type_hints(lifespan, caller_names()).get("return")
    if get_origin(hint) in (AsyncIterator, AsyncGenerator, AbstractAsyncContextManager):
        kind = get_args(hint)[0]
        return None if kind is type(None) else kind
    return None
