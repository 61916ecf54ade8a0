"""Routing slip: a message carries the list of its steps from one to the next; when a step fails, the executed ones are
compensated in reverse order.

Guarantees: each step runs at least once, after the one before it. The next step's message is published before the
present one is acknowledged, and always with the same message id, so that `Once` recognises duplicates. When a step
fails for good, or raises `AbortRoutingSlip` or `DeadLetter`, the executed steps are compensated, the last one first. In
both cases a message reports the end. No store is needed, because the slip contains everything.

Costs: one message per step, which carries the whole slip in a header; a slip may have at most 64 KiB.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar, get_type_hints
from uuid import uuid4

from warren.core.signatures import annotations_of
from warren.patterns.routing_slip.rules import HEADER, PlannedStep, RoutingSlip, RoutingSlipEnded, read
from warren.sdk import (
    App,
    Clock,
    Command,
    ConfigError,
    DeadLetter,
    Delivery,
    Idempotency,
    Message,
    Queue,
    Retry,
    RetryPolicy,
    SystemClock,
)
from warren.sdk.extend import (
    HandlerOutcome,
    IncludedComponent,
    as_json_text,
    by_wire_name,
    check_async,
    check_decorated,
    check_idempotency,
    check_retry_policy,
    check_whole_number,
    describe_exception,
    ends_task,
    from_json_text,
    type_codec,
)

MAX_REASON: Final = 1000
"""Largest length of a failure's reason in the slip, in characters, so that room is left for the results that the
compensations need."""

log: logging.Logger = logging.getLogger("warren.patterns")

StepCommand = TypeVar("StepCommand", bound=Command)
Result = TypeVar("Result")


class AbortRoutingSlip(Exception):
    """Exception for a step to raise if it cannot be executed: the step is not retried, and the executed steps are
    compensated.

    :param reason: text for the message that reports the end of the slip.
    """


@dataclass(slots=True)
class RoutingSlipStatistics:
    """Counters of one `RoutingSlips` in this process."""

    executed: int = 0
    """Steps of routing slips that this process executed."""
    compensated: int = 0
    """Steps of routing slips that this process compensated."""
    failed: int = 0
    """Steps that failed after all retries, so that the compensation of the executed steps began."""
    ended: int = 0
    """Routing slips whose final message (completed or failed) this process published."""


class RoutingSlipStep(Generic[StepCommand, Result]):
    """Function that was decorated as a step. It stays callable, and its method `compensate` decorates the function that
    compensates it."""

    def __init__(self, kind: type[StepCommand], function: Callable[[StepCommand], Awaitable[Result]]) -> None:
        self._function = function
        self._kind = kind
        self._compensate: Callable[[StepCommand, Result], Awaitable[None]] | None = None
        self._codec = type_codec(_return_type(function))

    async def __call__(self, step: StepCommand) -> Result:
        return await self._function(step)

    def compensate(
        self, function: Callable[[StepCommand, Result], Awaitable[None]]
    ) -> Callable[[StepCommand, Result], Awaitable[None]]:
        """Decorate the function that compensates the step; it is called with the step's Command and the step's result.

        The function must be idempotent and must not fail for good: its message would be dead-lettered, and the steps
        before it would not be compensated until that message is replayed.
        """
        check_async(function)
        self._compensate = function
        return function

    def serialize_result(self, result: Result) -> str:
        return self._codec.write_json(self._codec.read_object(result)).decode()

    async def run_compensation(self, body: str, result: str) -> None:
        if self._compensate is not None:
            command = from_json_text(self._kind, body)
            await self._compensate(command, self._codec.read_json(result.encode()))


class RoutingSlips(IncludedComponent):
    """Routing slips of an App: `@slips.step(BookFlight)`, then `await slips.start([BookFlight(...), BookHotel(...)],
    end=...)`.

    Every process passes all `steps` and `ends` that its slips may have, decorates the steps that it executes itself,
    and calls `app.include(slips)`.

    :param steps: Commands of all steps; a step is executed from its Command's queue and compensated from
        `<queue>.undo`.
    :param ends: message classes that report the end.
    :param retry: retry policy of a step; after its last attempt the executed steps are compensated. Retries happen in
        the process at once; the policy's delays are ignored. Default three attempts.
    :param once: keeps a step from running twice for one message (`Once(store)`).
    :param concurrency: concurrent steps of each kind. Default 10.
    :raises ConfigError: a step has no queue, or two have the same type.
    """

    requires_durable_broker: ClassVar[bool] = True

    def __init__(
        self,
        *,
        steps: Sequence[type[Command]],
        ends: Sequence[type[RoutingSlipEnded]],
        retry: RetryPolicy | None = None,
        once: Idempotency | None = None,
        concurrency: int = 10,
    ) -> None:
        self.statistics: RoutingSlipStatistics = RoutingSlipStatistics()
        """Counters of what this object has done in this process."""
        if len({*steps}) < len(steps) or len({*ends}) < len(ends):
            raise ConfigError("RoutingSlips: two steps or ends have the same type on the wire")
        self._steps = by_wire_name("RoutingSlips", steps)
        self._ends = by_wire_name("RoutingSlips", ends)
        for kind in (*steps, *ends):
            kind.required_topology()
        compensations = {kind: _compensation_message(kind) for kind in steps}
        self._compensations = {name: compensations[kind] for name, kind in self._steps.items()}
        check_retry_policy(retry)
        check_idempotency(once)
        check_whole_number("RoutingSlips: concurrency", concurrency)
        self._retry: RetryPolicy = retry or Retry(3)
        self._once = once
        self._concurrency = concurrency
        self._handlers: dict[str, RoutingSlipStep[Any, Any]] = {}
        super().__init__()
        self._clock: Clock = SystemClock()

    def step(
        self, kind: type[StepCommand]
    ) -> Callable[[Callable[[StepCommand], Awaitable[Result]]], RoutingSlipStep[StepCommand, Result]]:
        """Decorate the function that executes a step. Its result is stored in the slip, for the function that
        compensates the step and for the message that reports the end; it must be JSON-compatible.

        :param kind: the step's Command class.
        :raises ConfigError: the step is not named in `steps`, or has a function already, or the App is running.
        """
        check_decorated("RoutingSlips.step", kind, what="the step's Command", example="slips.step")
        if self._steps.get(kind.wire_type) is not kind or kind.wire_type in self._handlers:
            raise ConfigError(
                f"RoutingSlips: {kind.__name__} is not named in steps=[...], or has a function already"
            )

        def register(
            function: Callable[[StepCommand], Awaitable[Result]],
        ) -> RoutingSlipStep[StepCommand, Result]:
            check_async(function)
            handler = RoutingSlipStep(kind, function)
            if self._app is not None:
                self._register_step(self._app, kind, handler)
            self._handlers[kind.wire_type] = handler
            return handler

        return register

    async def start(
        self, steps: Sequence[Command], *, end: type[RoutingSlipEnded], slip_id: str | None = None
    ) -> str:
        """Publish the first step of a new slip, and return the slip's id when the broker has confirmed the message.

        :param steps: Commands of the steps, in the order in which they are executed.
        :param end: class of the message that reports the end.
        :param slip_id: id of the slip, by default a new one. Slips with the same id have the same message ids, by which
            `Once` recognises duplicates.
        :raises ConfigError: there is no step, one is not named in `steps`, or the slip is too large.
        :raises PublishError: the first step may not have been published; start the slip again with the same id.
        """
        if not steps or self._ends.get(end.wire_type) is not end:
            raise ConfigError(f"a routing slip needs a step, and its end {end.__name__} named in ends=[...]")
        for step in steps:
            if self._steps.get(type(step).wire_type) is not type(step):
                raise ConfigError(f"RoutingSlips: {type(step).__name__} is not named in steps=[...]")
        planned = tuple(PlannedStep(type(step).wire_type, as_json_text(step)) for step in steps)
        slip = RoutingSlip(slip_id or uuid4().hex, end.wire_type, planned)
        await self._go_forward(slip)
        return slip.id

    @property
    def lost_without_app(self) -> str:
        return "its steps are not executed" if self._handlers else ""

    def register(self, app: App) -> None:
        super().register(app)
        self._clock = app.clock
        app.publishes(*self._steps.values(), *self._ends.values(), *self._compensations.values())
        for kind, handler in self._handlers.items():
            self._register_step(app, self._steps[kind], handler)

    def _register_step(self, app: App, kind: type[Command], handler: RoutingSlipStep[Any, Any]) -> None:
        """Register the handlers that execute and compensate a step.

        :raises ConfigError: the App is running.
        """
        take, compensate = partial(self._execute, handler), partial(self._compensate, handler)
        app.handle(kind, concurrency=self._concurrency, once=self._once)(_as_handler(take))
        app.handle(self._compensations[kind.wire_type], concurrency=self._concurrency, once=self._once)(
            _as_handler(compensate)
        )

    async def on_start(self) -> None:
        """Do nothing when the App starts: the App's own consumers read the steps and compensations."""

    async def on_stop(self) -> None:
        """Do nothing when the App stops: there is no connection, file or task to close."""

    async def _execute(self, handler: RoutingSlipStep[Any, Any], step: Message, delivery: Delivery) -> None:
        slip = read(delivery.headers.get(HEADER))
        here = PlannedStep(step.wire_type, as_json_text(step))

        async def attempt() -> Any:
            try:
                return await handler(step)
            except AbortRoutingSlip as abort:
                return abort  # A deliberate failure is not retried.

        try:
            result: Any = await self._retry.attempts(self._clock)(attempt)
        except DeadLetter as dead:
            result = AbortRoutingSlip(dead.reason)
        except HandlerOutcome:
            raise
        except BaseException as error:
            if ends_task(error):
                raise
            result = AbortRoutingSlip(describe_exception(error))
        if isinstance(result, AbortRoutingSlip):
            await self._fail(slip, step, str(result))
            return
        try:
            executed = slip.with_completed(here, handler.serialize_result(result))
        except (ValueError, ConfigError) as error:
            # Without its result this step cannot be compensated; those before it can.
            await self._fail(slip, step, f"the result of the step does not fit its annotated type: {error}")
            return
        try:
            replace(executed, todo=executed.todo[1:]).header()
        except ConfigError as error:
            await self._fail(executed, step, str(error))
            return
        self.statistics.executed += 1
        await self._go_forward(executed)

    async def _fail(self, slip: RoutingSlip, step: Message, reason: str) -> None:
        """Record in the slip that the step failed, and begin to compensate the executed steps.

        :param reason: text of the failure, for people; cut to `MAX_REASON` characters.
        """
        log.warning(
            "event=routing_slip.step_failed slip=%s step=%s reason=%s", slip.id, step.wire_type, reason
        )
        self.statistics.failed += 1
        await self._go_back(replace(slip, todo=(), failed=step.wire_type, reason=reason[:MAX_REASON]))

    async def _compensate(
        self, handler: RoutingSlipStep[Any, Any], compensate: _CompensateStep, delivery: Delivery
    ) -> None:
        slip = read(delivery.headers.get(HEADER))
        await handler.run_compensation(compensate.body, compensate.result)
        self.statistics.compensated += 1
        await self._go_back(slip)

    async def _go_forward(self, slip: RoutingSlip) -> None:
        """Publish the message of the next planned step. If none is left, publish the message that reports the end of
        the slip."""
        if not slip.todo:
            # A step that was executed before its class was renamed is reported by its present name.
            results = {
                self._class_of(self._steps, step.type).wire_type: json.loads(step.result)
                for step in slip.done
            }
            await self._end(slip, completed=True, results=results)
            return
        next_step, *rest = slip.todo
        kind = self._class_of(self._steps, next_step.type)
        await self._publish(replace(slip, todo=tuple(rest)), from_json_text(kind, next_step.body), "do")

    async def _go_back(self, slip: RoutingSlip) -> None:
        """Publish the message that compensates the last executed step. If none is left, publish the message that
        reports the end of the slip."""
        if not slip.done:
            await self._end(slip, completed=False)
            return
        last = slip.done[-1]
        kind = self._class_of(self._compensations, last.type)
        message = kind(body=last.body, result=last.result)
        await self._publish(replace(slip, done=slip.done[:-1]), message, "undo")

    async def _end(self, slip: RoutingSlip, **how: Any) -> None:
        kind = self._class_of(self._ends, slip.end)
        self.statistics.ended += 1
        await self._publish(slip, kind(slip=slip.id, failed=slip.failed, reason=slip.reason, **how), "end")

    async def _publish(self, slip: RoutingSlip, message: Message, what: str) -> None:
        await self.included_in().publish(
            message, message_id=slip.message_id(what), headers={HEADER: slip.header()}
        )

    def _class_of(self, classes: dict[str, type[Any]], kind: str) -> type[Any]:
        if kind not in classes:
            raise ConfigError(
                f"RoutingSlips: a slip names {kind!r}, which is neither in steps=[...] nor in ends=[...] of this process"
            )
        return classes[kind]


class _CompensateStep(Command):
    body: str
    result: str


def _return_type(function: Callable[..., Any]) -> Any:
    """Return the annotated result type of a function. The annotations of its parameters are not evaluated, because they
    may use names that are not visible in the module."""
    holder = type("Returned", (), {"__annotations__": {"value": annotations_of(function).get("return", Any)}})
    try:
        return get_type_hints(holder, globalns=function.__globals__)["value"]
    except NameError as error:
        raise ConfigError(
            f"the annotated result of {function.__qualname__} is unknown in its module ({error}): define it at the top"
            " level"
        ) from None


def _compensation_message(kind: type[Command]) -> type[_CompensateStep]:
    class CompensateStep(
        _CompensateStep,
        queue=Queue(f"{kind.wire_key}.undo"),
        type=f"{kind.wire_type}.undo",
        aliases=[f"{alias}.undo" for alias in kind.wire_aliases],
    ):
        """Message that requests the compensation of a step."""

    return CompensateStep


def _as_handler(handle: Callable[[Any, Delivery], Awaitable[None]]) -> Callable[..., Any]:
    async def run(message: Message, delivery: Delivery) -> None:
        await handle(message, delivery)

    return run


__all__ = ["AbortRoutingSlip", "RoutingSlipStatistics", "RoutingSlipStep", "RoutingSlips"]
