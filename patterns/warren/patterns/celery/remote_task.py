"""Tasks that Celery workers run: typed functions that send them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack

from pydantic import TypeAdapter

from warren.patterns.celery.results import CeleryResult
from warren.patterns.celery.task_function import evaluated_hints
from warren.sdk import ConfigError
from warren.sdk.extend import Duration

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Sent = TypeVar("Sent")


class CeleryOptions(TypedDict, total=False):
    """Options of a task that is sent, with Celery's names.

    `countdown` or `eta`: do not run before; a Celery worker receives the task at once and holds it for so long. `expires`:
    a time, or a duration, after which it does not run. `task_id`: by default a new UUID. `root_id` and `parent_id`: by
    default those of the Celery task that is handled now. `ignore_result`: no result is sent. `priority`: 0 to 255.
    `time_limit` and `soft_time_limit`: seconds. `argsrepr`, `kwargsrepr`: texts for Celery's logs in place of the
    arguments. `headers`: added to the header table. `timeout`: seconds until the confirm must have arrived.
    """

    countdown: Duration
    eta: datetime
    expires: Duration | datetime
    task_id: str
    root_id: str
    parent_id: str
    group_id: str
    retries: int
    ignore_result: bool
    priority: int
    time_limit: float
    soft_time_limit: float
    shadow: str
    argsrepr: str
    kwargsrepr: str
    headers: Mapping[str, object]
    timeout: float


class SendTask(Protocol):
    """Sends a task and returns its result object."""

    def __call__(
        self,
        name: str,
        queue: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        adapter: TypeAdapter[Sent],
        options: CeleryOptions,
        /,
    ) -> Awaitable[CeleryResult[Sent]]: ...


class CeleryTask(Generic[Parameters, Result]):
    """A task of Celery workers, with the parameters and the result type of the function that `bridge.remote` decorated.

    :ivar name: name of the task.
    :ivar queue: queue of its workers.
    """

    def __init__(
        self,
        name: str,
        queue: str,
        function: Callable[Parameters, Result],
        send: SendTask,
        options: CeleryOptions,
    ) -> None:
        if inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"the function that describes the task {name} is never called: write def, not async def"
            )
        self.name: str = name
        self.queue: str = queue
        self._function = function
        # First the hints: their error names the function and the unknown name.
        self._adapter: TypeAdapter[Result] = TypeAdapter(evaluated_hints(function).get("return", Any))
        self._signature = inspect.signature(function)
        self._send = send
        self._options = options

    async def delay(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> CeleryResult[Result]:
        """Send the task with these arguments; return when the broker has confirmed it.

        :return: the result object, to `await result.get()`.
        :raises TypeError: the arguments do not fit the signature, or cannot be written as JSON.
        :raises PublishError: the broker did not confirm the task.
        """
        self._signature.bind(*args, **kwargs)
        return await self._send(self.name, self.queue, args, kwargs, self._adapter, self._options)

    def with_options(self, **options: Unpack[CeleryOptions]) -> CeleryTask[Parameters, Result]:
        """Return the task with other options: `await charge.with_options(countdown="5m").delay("42", 990)`."""
        unknown = options.keys() - CeleryOptions.__annotations__.keys()
        if unknown:
            raise ConfigError(
                f"a Celery task has no option {min(unknown)!r}: there are {', '.join(CeleryOptions.__annotations__)}"
            )
        merged: CeleryOptions = {**self._options, **options}
        return CeleryTask(self.name, self.queue, self._function, self._send, merged)


__all__ = ["CeleryOptions", "CeleryTask"]
