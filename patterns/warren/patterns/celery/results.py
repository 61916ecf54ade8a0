"""Results of Celery tasks over AMQP (`rpc://`): one JSON message for each state of a task."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from warren.patterns.celery import kombu_json
from warren.patterns.celery.task_message import CeleryRequest, RefusedTask
from warren.sdk import CallError, CallTimeout
from warren.sdk.extend import CALL_SECONDS, Duration, MessageOutcome, duration, format_validation_error

Result = TypeVar("Result")


class CeleryState(StrEnum):
    """State of a task, with Celery's names."""

    PENDING = "PENDING"
    """No result has arrived."""
    STARTED = "STARTED"
    """A worker with `track_started` runs the task."""
    RETRY = "RETRY"
    """The task failed and will be retried."""
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    REVOKED = "REVOKED"
    """The task was not run: it was revoked, or has expired."""

    @property
    def is_final(self) -> bool:
        return self in (CeleryState.SUCCESS, CeleryState.FAILURE, CeleryState.REVOKED)


class CeleryTaskError(CallError):
    """A task that failed or was revoked.

    :ivar task_id: id of the task.
    :ivar state: `FAILURE` or `REVOKED`.
    :ivar exc_type: name of the exception's class.
    :ivar exc_module: module of that class.
    :ivar exc_message: arguments of the exception; those that JSON cannot represent as their `repr`.
    :ivar traceback: text of the traceback; None if there is none.
    """

    outcome: MessageOutcome = "refused"

    def __init__(
        self,
        task_id: str,
        state: CeleryState,
        *,
        exc_type: str,
        exc_module: str = "",
        exc_message: Sequence[object] = (),
        traceback: str | None = None,
    ) -> None:
        arguments = ", ".join(str(each) for each in exc_message)
        what = "failed" if state is CeleryState.FAILURE else "was revoked"
        super().__init__(f"task {task_id} {what}: {exc_type}: {arguments}")
        self.task_id: str = task_id
        self.state: CeleryState = state
        self.exc_type: str = exc_type
        self.exc_module: str = exc_module
        self.exc_message: tuple[object, ...] = tuple(exc_message)
        self.traceback: str | None = traceback


@dataclass(frozen=True, slots=True)
class TaskState:
    """One result message: a state of a task."""

    task_id: str
    state: CeleryState
    result: Any = None
    """The value of `SUCCESS`; the exception of `RETRY`, `FAILURE` and `REVOKED`."""
    traceback: str | None = None

    def error(self) -> CeleryTaskError:
        """Return the error for a task that failed or was revoked."""
        found = self.result if isinstance(self.result, dict) else {}
        message = found.get("exc_message", self.result)
        return CeleryTaskError(
            self.task_id,
            self.state,
            exc_type=str(found.get("exc_type", "Exception")),
            exc_module=str(found.get("exc_module") or ""),
            exc_message=message if isinstance(message, list) else [message],
            traceback=self.traceback,
        )


class CeleryResult(Generic[Result]):
    """Result of a task that was sent: `await result.get(timeout="10s")`.

    A result that arrives when this object is no longer referenced is discarded.

    :ivar task_id: id of the task.
    """

    def __init__(self, task_id: str, adapter: TypeAdapter[Result], *, is_expected: bool = True) -> None:
        self.task_id: str = task_id
        self._adapter = adapter
        self._is_expected = is_expected
        self._latest = TaskState(task_id, CeleryState.PENDING)
        self._final: asyncio.Future[TaskState] = asyncio.get_running_loop().create_future()

    @property
    def state(self) -> CeleryState:
        """The latest state that arrived."""
        return self._latest.state

    async def get(self, timeout: Duration = CALL_SECONDS) -> Result:  # noqa: ASYNC109 - its error is CallTimeout
        """Wait for the result and return it; may be called repeatedly.

        :param timeout: longest wait; by default 30 s.
        :raises CeleryTaskError: the task failed, was revoked, or has expired.
        :raises CallTimeout: no result within `timeout`; the task may still run.
        :raises CallError: the result is not of the task's result type, or the task was sent with `ignore_result`.
        """
        if not self._is_expected:
            raise CallError(f"task {self.task_id} was sent with ignore_result: it has no result")
        seconds = duration(timeout).total_seconds()
        try:
            async with asyncio.timeout(seconds):
                final = await asyncio.shield(self._final)
        except TimeoutError:
            raise CallTimeout(f"no result of task {self.task_id} within {seconds:g} s") from None
        if final.state is not CeleryState.SUCCESS:
            raise final.error()
        try:
            return self._adapter.validate_python(final.result)
        except ValidationError as error:
            raise CallError(
                f"the result of task {self.task_id} is not of its type: {format_validation_error(error)}"
            ) from None

    def receive(self, state: TaskState) -> None:
        """Record a state that arrived."""
        self._latest = state
        if state.state.is_final and not self._final.done():
            self._final.set_result(state)


def read_state(body: bytes) -> TaskState:
    """Decode a result message.

    :raises ValueError: it is none.
    """
    content = kombu_json.loads(body)
    if not isinstance(content, dict) or not isinstance(content.get("task_id"), str):
        raise ValueError("the message is no result of a Celery task")
    trace = content.get("traceback")
    return TaskState(
        content["task_id"],
        CeleryState(str(content.get("status"))),
        content.get("result"),
        trace if isinstance(trace, str) else None,
    )


def result_body(
    request: CeleryRequest,
    state: CeleryState,
    result: object,
    *,
    now: datetime,
    task_id: str | None = None,
    traceback: str | None = None,
    children: Sequence[str] = (),
) -> bytes:
    """Return the body of a result message.

    :param task_id: id of the task; by default that of the request.
    :param children: ids of the tasks that this one sent.
    """
    content: dict[str, object] = {
        "status": state,
        "result": result,
        "traceback": traceback,
        # Celery's form of results without parents and members.
        "children": [[[child, None], None] for child in children],
        "date_done": now.isoformat() if state.is_final else None,
        "task_id": task_id or request.id,
    }
    if request.group_id is not None:
        content["group_id"] = request.group_id
    if request.parent_id is not None:
        content["parent_id"] = request.parent_id
    return kombu_json.dumps(content)


def described_error(error: BaseException) -> dict[str, object]:
    """Return an exception as Celery sends it in JSON; a Celery client raises the class again if it has its module, and
    otherwise one of the same name."""
    if isinstance(error, RefusedTask):
        return {"exc_type": error.exc_type, "exc_message": [str(error)], "exc_module": error.exc_module}
    kind = type(error)
    arguments = [each if kombu_json.is_encodable(each) else _shown(each) for each in error.args]
    return {"exc_type": kind.__qualname__, "exc_message": arguments, "exc_module": kind.__module__}


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        # `repr` of the application's object.
        return f"<{type(value).__qualname__}>"


def traceback_text(error: BaseException) -> str:
    """Return the traceback as Python prints it."""
    return "".join(traceback.format_exception(error))


__all__ = [
    "CeleryResult",
    "CeleryState",
    "CeleryTaskError",
    "TaskState",
    "described_error",
    "read_state",
    "result_body",
    "traceback_text",
]
