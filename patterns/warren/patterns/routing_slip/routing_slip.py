"""Routing slip: a message carries its itinerary from step to step; when a step fails, it goes back and undoes those before.

Guarantees: each step runs at least once, after the one before it; the next one is published, with a message id of its own
that stays the same, before the message of this one is acknowledged. When a step fails for good, or raises `AbortRoutingSlip` or
`DeadLetter`, the steps that were done are undone, the last one first; the end is told either way. Nobody keeps anything in
between: the slip is all.

Costs: one message a step, which carries all of the itinerary; at most 64 KiB of it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, TypeVar, get_type_hints
from uuid import uuid4

from pydantic import TypeAdapter

from warren.patterns.routing_slip.rules import HEADER, PlannedStep, RoutingSlip, RoutingSlipEnded, read
from warren.sdk import (
    App,
    Clock,
    Command,
    ConfigError,
    DeadLetter,
    Delivery,
    Message,
    Once,
    Queue,
    Retry,
    RetryPolicy,
    SystemClock,
)
from warren.sdk.extend import HandlerOutcome

REASON: Final = 1000
"""Characters of a reason that travel: it shares the slip's room with what has to be undone."""

log: logging.Logger = logging.getLogger("warren.patterns")

StepCommand = TypeVar("StepCommand", bound=Command)
Result = TypeVar("Result")


class AbortRoutingSlip(Exception):
    """What a step raises that cannot be done: it is not tried again, and what was done is undone.

    :param reason: for who hears of the end.
    """


@dataclass(slots=True)
class RoutingSlipStatistics:
    """What this process has done."""

    taken: int = 0
    undone: int = 0
    failed: int = 0
    """Steps that failed for good."""
    ended: int = 0


class RoutingSlipStep(Generic[StepCommand, Result]):
    """A decorated step; it stays callable, and `@its_name.undo` decorates what undoes it."""

    def __init__(self, kind: type[StepCommand], function: Callable[[StepCommand], Awaitable[Result]]) -> None:
        self._function = function
        self._kind = kind
        self._undo: Callable[[StepCommand, Result], Awaitable[None]] | None = None
        self._adapter: TypeAdapter[Any] = TypeAdapter(_returned(function))

    async def __call__(self, step: StepCommand) -> Result:
        return await self._function(step)

    def undo(
        self, function: Callable[[StepCommand, Result], Awaitable[None]]
    ) -> Callable[[StepCommand, Result], Awaitable[None]]:
        """Decorate what undoes the step; it gets the step and what the step returned. It must be idempotent, and must not
        fail for good: its message would be dead-lettered, and what was done before remains done until it is replayed."""
        self._undo = function
        return function

    def written(self, result: Result) -> str:
        return self._adapter.dump_json(self._adapter.validate_python(result)).decode()

    async def take_back(self, body: str, result: str) -> None:
        if self._undo is not None:
            await self._undo(self._kind.model_validate_json(body), self._adapter.validate_json(result))


class RoutingSlips:
    """`@slips.step(BookFlight)`, `app.include(slips)`, `await slips.start([BookFlight(...), BookHotel(...)], end=...)`.

    Every process names all steps and ends that its slips may have, and decorates those that it takes itself.

    :param steps: the Commands of all steps; the queue of each is where it is taken, `<queue>.undo` where it is undone.
    :param ends: the classes that tell the end.
    :param retry: how a step is tried again before it has failed for good, in the process; delays do not count. By default
        three attempts.
    :param once: keeps a step from running twice for one message (`Once(store)`).
    :param concurrency: steps at a time, of each kind. Default 10.
    :raises ConfigError: a step has no queue, or two have one type.
    """

    def __init__(
        self,
        *,
        steps: Sequence[type[Command]],
        ends: Sequence[type[RoutingSlipEnded]],
        retry: RetryPolicy | None = None,
        once: Once | None = None,
        concurrency: int = 10,
    ) -> None:
        self.statistics: RoutingSlipStatistics = RoutingSlipStatistics()
        self._steps = {kind.wire_type: kind for kind in steps}
        self._ends = {kind.wire_type: kind for kind in ends}
        if len(self._steps) < len(steps) or len(self._ends) < len(ends):
            raise ConfigError("RoutingSlips: two of its steps or ends have the same type on the wire")
        for kind in (*steps, *ends):
            kind.required_topology()
        self._undoing = {kind.wire_type: _undo_message(kind) for kind in steps}
        self._retry: RetryPolicy = retry or Retry(3)
        self._once = once
        self._concurrency = concurrency
        self._handlers: dict[str, RoutingSlipStep[Any, Any]] = {}
        self._app: App | None = None
        self._clock: Clock = SystemClock()

    def step(
        self, kind: type[StepCommand]
    ) -> Callable[[Callable[[StepCommand], Awaitable[Result]]], RoutingSlipStep[StepCommand, Result]]:
        """Decorate the function that takes a step; what it returns (JSON has to carry it) is kept for its undoing.

        :raises ConfigError: the step is not named in `steps`, or has a function already.
        """
        if self._steps.get(kind.wire_type) is not kind or kind.wire_type in self._handlers:
            raise ConfigError(
                f"RoutingSlips: {kind.__name__} is not named in steps=[...], or has a function already"
            )

        def register(
            function: Callable[[StepCommand], Awaitable[Result]],
        ) -> RoutingSlipStep[StepCommand, Result]:
            handler = RoutingSlipStep(kind, function)
            self._handlers[kind.wire_type] = handler
            return handler

        return register

    async def start(
        self, steps: Sequence[Command], *, end: type[RoutingSlipEnded], slip_id: str | None = None
    ) -> str:
        """Publish the first step; returns the slip's id when the broker has it.

        :param slip_id: started twice with the same one, its messages have the same ids, by which `Once` knows them.
        :raises ConfigError: there is no step, one is not named in `steps`, or the slip is too large.
        :raises PublishError: start it again with the same id.
        """
        if not steps or self._ends.get(end.wire_type) is not end:
            raise ConfigError(f"a routing slip needs a step, and its end {end.__name__} named in ends=[...]")
        for step in steps:
            if self._steps.get(type(step).wire_type) is not type(step):
                raise ConfigError(f"RoutingSlips: {type(step).__name__} is not named in steps=[...]")
        planned = tuple(
            PlannedStep(type(step).wire_type, step.model_dump_json(by_alias=True)) for step in steps
        )
        slip = RoutingSlip(slip_id or uuid4().hex, end.wire_type, planned)
        await self._go_on(slip)
        return slip.id

    def register(self, app: App) -> None:
        self._app = app
        self._clock = app.clock
        app.publishes(*self._steps.values(), *self._ends.values(), *self._undoing.values())
        for kind, handler in self._handlers.items():
            take, undo = partial(self._take, handler), partial(self._undo, handler)
            app.handle(self._steps[kind], concurrency=self._concurrency, once=self._once)(_handling(take))
            app.handle(self._undoing[kind], concurrency=self._concurrency, once=self._once)(_handling(undo))

    async def on_start(self) -> None:
        """Nothing to begin: slips come as messages."""

    async def on_stop(self) -> None:
        """Nothing to end."""

    async def _take(self, handler: RoutingSlipStep[Any, Any], step: Message, delivery: Delivery) -> None:
        slip = read(delivery.headers.get(HEADER))
        here = PlannedStep(step.wire_type, step.model_dump_json(by_alias=True))

        async def attempt() -> Any:
            try:
                return await handler(step)
            except AbortRoutingSlip as abort:
                return abort  # Chosen, and not tried again.

        try:
            result: Any = await self._retry.attempts(self._clock)(attempt)
        except DeadLetter as dead:
            result = AbortRoutingSlip(dead.reason)
        except HandlerOutcome:
            raise
        except Exception as error:
            result = AbortRoutingSlip(f"{type(error).__name__}: {error}")
        if isinstance(result, AbortRoutingSlip):
            await self._fail(slip, step, str(result))
            return
        try:
            taken = slip.took(here, handler.written(result))
        except ValueError as error:
            # Without what it returned this step itself cannot be undone; those before it can.
            await self._fail(slip, step, f"what it returned is not what it says that it returns: {error}")
            return
        try:
            replace(taken, todo=taken.todo[1:]).header()
        except ConfigError as error:
            await self._fail(taken, step, str(error))
            return
        self.statistics.taken += 1
        await self._go_on(taken)

    async def _fail(self, slip: RoutingSlip, step: Message, reason: str) -> None:
        """Undo what the slip has done."""
        log.warning("routing_slip.failed slip=%s step=%s reason=%s", slip.id, step.wire_type, reason)
        self.statistics.failed += 1
        await self._go_back(replace(slip, todo=(), failed=step.wire_type, reason=reason[:REASON]))

    async def _undo(self, handler: RoutingSlipStep[Any, Any], undo: _Undo, delivery: Delivery) -> None:
        slip = read(delivery.headers.get(HEADER))
        await handler.take_back(undo.body, undo.result)
        self.statistics.undone += 1
        await self._go_back(slip)

    async def _go_on(self, slip: RoutingSlip) -> None:
        """To the next step, or to the end."""
        if not slip.todo:
            results = {step.type: _json(step.result) for step in slip.done}
            await self._end(slip, completed=True, results=results)
            return
        following, *rest = slip.todo
        kind = self._known(self._steps, following.type)
        await self._publish(replace(slip, todo=tuple(rest)), kind.model_validate_json(following.body), "do")

    async def _go_back(self, slip: RoutingSlip) -> None:
        """To what was done last, to undo it; when nothing is left, to the end."""
        if not slip.done:
            await self._end(slip, completed=False)
            return
        last = slip.done[-1]
        kind = self._known(self._undoing, last.type)
        message = kind(body=last.body, result=last.result)
        await self._publish(replace(slip, done=slip.done[:-1]), message, "undo")

    async def _end(self, slip: RoutingSlip, **how: Any) -> None:
        kind = self._known(self._ends, slip.end)
        self.statistics.ended += 1
        await self._publish(slip, kind(slip=slip.id, failed=slip.failed, reason=slip.reason, **how), "end")

    async def _publish(self, slip: RoutingSlip, message: Message, what: str) -> None:
        if self._app is None:
            raise ConfigError("these RoutingSlips belong to no App: app.include(slips)")
        await self._app.publish(message, message_id=slip.message_id(what), headers={HEADER: slip.header()})

    def _known(self, classes: dict[str, type[Any]], kind: str) -> type[Any]:
        if kind not in classes:
            raise ConfigError(
                f"RoutingSlips: a slip names {kind!r}, which is not among the steps and ends here"
            )
        return classes[kind]


class _Undo(Command):
    body: str
    result: str


def _returned(function: Callable[..., Any]) -> Any:
    """What the function says that it returns; of its other names, which may be local, nothing is needed."""
    holder = type("Returned", (), {"__annotations__": {"value": function.__annotations__.get("return", Any)}})
    try:
        return get_type_hints(holder, globalns=function.__globals__)["value"]
    except NameError as error:
        raise ConfigError(
            f"what {function.__qualname__} returns is not known in its module ({error}): its class stands at the top level"
        ) from None


def _undo_message(kind: type[Command]) -> type[_Undo]:
    class Undo(_Undo, queue=Queue(f"{kind.wire_key}.undo"), type=f"{kind.wire_type}.undo"):
        """That a step is to be undone."""

    return Undo


def _handling(handle: Callable[[Any, Delivery], Awaitable[None]]) -> Callable[..., Any]:
    async def run(message: Message, delivery: Delivery) -> None:
        await handle(message, delivery)

    return run


def _json(text: str) -> Any:
    return TypeAdapter(Any).validate_json(text)


__all__ = ["AbortRoutingSlip", "RoutingSlipStatistics", "RoutingSlipStep", "RoutingSlips"]
