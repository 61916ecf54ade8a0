"""Bridge to Celery: an App sends tasks to Celery workers, and runs tasks that Celery clients send.

Guarantees: a task that a Celery client sends is acknowledged after its function has returned, the tasks that follow it
have been confirmed, and its result has been confirmed; so it runs at least once. A task with an `eta`, and one that is
retried, waits on the broker, acknowledged. A task that failed for good is dead-lettered with the reason, and its caller
gets the failure.

Costs: two messages for each task with a result, as in Celery. One result queue for each process that sends tasks.
"""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, ParamSpec, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from pydantic import TypeAdapter

from warren.patterns.celery import canvas
from warren.patterns.celery.remote_task import CeleryOptions, CeleryTask
from warren.patterns.celery.results import (
    CeleryResult,
    CeleryState,
    described_error,
    read_state,
    result_body,
    traceback_text,
)
from warren.patterns.celery.task_function import TaskFunction
from warren.patterns.celery.task_message import (
    JSON,
    CeleryRequest,
    RefusedTask,
    TaskToSend,
    as_current_request,
    current_request,
    read_request,
    unread_request,
)
from warren.patterns.celery.topology import celery_queue, result_queue, with_exchange
from warren.patterns.delay import Delay
from warren.patterns.wildcards import matches
from warren.sdk import (
    Ack,
    App,
    ConfigError,
    DeadLetter,
    Delivery,
    Idempotency,
    Queue,
    Requeue,
    Retry,
    RetryLater,
    RetryPolicy,
    Unroutable,
    WarrenError,
)
from warren.sdk.extend import (
    ATTEMPT,
    PUBLISH_SECONDS,
    HandlerOutcome,
    IncludedComponent,
    check_idempotency,
    check_number,
    check_retry_policy,
    check_whole_number,
    duration,
    encode,
    ends_task,
)

log: logging.Logger = logging.getLogger("warren.patterns")

REPEAT_AFTER: Final = timedelta(seconds=5)
"""Delay of a task that ran, but whose result or following tasks the broker did not confirm."""
TRANSIENT: Final = 1

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(slots=True)
class CeleryBridgeStatistics:
    """Counters of one `CeleryBridge` in this process."""

    sent: int = 0
    """Tasks that this process sent to workers."""
    results: int = 0
    """Final results that arrived for them."""
    succeeded: int = 0
    """Tasks of clients that returned."""
    failed: int = 0
    """Tasks of clients that failed for good; they were dead-lettered."""
    retried: int = 0
    """Tasks of clients that were delayed for a retry."""
    refused: int = 0
    """Messages that could not be run: unknown task, wrong arguments, not JSON, part of a chord; they were dead-lettered."""
    expired: int = 0
    """Tasks of clients that were not run because they had expired."""
    postponed: int = 0
    """Tasks of clients that were delayed until their `eta`."""
    followed: int = 0
    """Tasks that were sent because another one ended: of a chain, `link` and `link_error`."""
    unclaimed: int = 0
    """Results whose queue was gone."""


@dataclass(frozen=True, slots=True)
class _Task:
    """A task that this process runs."""

    function: TaskFunction
    retry: RetryPolicy
    once: Idempotency | None
    track_started: bool
    ignore_result: bool


class CeleryBridge(IncludedComponent):
    """Bridge between an App and Celery 5.3 or later on the same broker, in message protocol 2 and JSON.

    `@bridge.task("shop.charge")` runs tasks that Celery clients send; `@bridge.remote("shop.mail")` describes tasks that
    Celery workers run, and sends them. `app.include(bridge)` before or after that.

    Not supported: chords, `revoke` and other remote control, task events, time limits, serializers other than JSON, result
    backends other than `rpc://`.

    :param queue: default queue: a name, for a classic queue as Celery declares it, or `celery_queue(...)`.
    :param routes: queues of tasks that follow other tasks, by name or pattern (`{"shop.mail": "mail", "report.*":
        "reports"}`, where `*` stands for any text), like Celery's `task_routes`. Tasks of this bridge need none. Others
        go to the default queue.
    :param concurrency: tasks that run at the same time for each queue. Default 10.
    :param prefetch: tasks that the broker sends ahead; by default twice the concurrency.
    :param delay: makes tasks wait that have an `eta` or are retried, with a resolution of 1 s; by default one of the
        bridge's own. Include one that you pass yourself.
    """

    requires_durable_broker: ClassVar[bool] = True

    def __init__(
        self,
        *,
        queue: str | Queue = "celery",
        routes: Mapping[str, str] | None = None,
        concurrency: int = 10,
        prefetch: int | None = None,
        delay: Delay | None = None,
    ) -> None:
        self.statistics: CeleryBridgeStatistics = CeleryBridgeStatistics()
        """Counters of what this object has done in this process."""
        if delay is not None and not isinstance(delay, Delay):
            raise ConfigError(f"CeleryBridge: delay={delay!r} is no Delay: write delay=Delay()")
        check_whole_number("CeleryBridge: concurrency", concurrency)
        if prefetch is not None:
            check_whole_number("CeleryBridge: prefetch", prefetch)
        self._queue = _as_queue(queue)
        self._routes: Mapping[str, str] = dict(routes or {})
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._includes_delay = delay is None
        self._delay = delay or Delay()
        self._queues: dict[str, Queue] = {}
        self._tasks: dict[str, dict[str, _Task]] = {}
        self._task_queues: dict[str, str] = {}
        self._reads_results = False
        self._results = f"warren.celery.results.{uuid4().hex}"
        self._expected: WeakValueDictionary[str, CeleryResult[Any]] = WeakValueDictionary()
        self._origin = f"{os.getpid()}@{platform.node()}"
        super().__init__()

    # Tasks for Celery workers

    def remote(
        self, name: str, *, queue: str | Queue | None = None, ignore_result: bool = False
    ) -> Callable[[Callable[Parameters, Result]], CeleryTask[Parameters, Result]]:
        """Decorate a function that describes a task of Celery workers: its parameters and the type of its result.

        The function is never called: its body is `...`. `await charge.delay("42", 990)` sends the task.

        :param name: name of the task in Celery.
        :param queue: queue of the workers; by default that of the bridge.
        :param ignore_result: no result is sent. Without tasks that have one, this process has no result queue.
        :raises ConfigError: it is an async function; or the App is running, and the task is the first one with a result.
        """
        target = self._queue if queue is None else _as_queue(queue)

        def decorate(function: Callable[Parameters, Result]) -> CeleryTask[Parameters, Result]:
            options: CeleryOptions = {"ignore_result": True} if ignore_result else {}
            task = CeleryTask(name, target.name, function, self._send, options)
            self._add_queue(target)
            self._task_queues.setdefault(name, target.name)
            if not ignore_result and not self._reads_results:
                if self._app is not None:
                    self._read_results(self._app)
                self._reads_results = True
            return task

        return decorate

    # Tasks of Celery clients

    def task(
        self,
        name: str,
        *,
        queue: str | Queue | None = None,
        retry: RetryPolicy | None = None,
        once: Idempotency | None = None,
        track_started: bool = False,
        ignore_result: bool = False,
    ) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
        """Decorate the function, async or plain, that runs a task of Celery clients.

        Its parameters are the task's arguments, validated by their annotations. A parameter of the type `CeleryRequest`
        gets the request. A function that returns or raises an outcome chooses it: `RetryLater("5s")`, `DeadLetter("...")`,
        `Requeue()`, or `Ack()` for an end without a result.

        :param name: name of the task in Celery.
        :param queue: queue from which it is consumed; by default that of the bridge.
        :param retry: retry policy; by default `Retry(1)`: a task fails at its first error, as in Celery. Its delays are
            rounded up to the resolution of `delay`.
        :param once: idempotency by the id of the task (`Once(store)`): a duplicate gets the stored result.
        :param track_started: send the state `STARTED` when the function is called.
        :param ignore_result: send no results.
        :raises ConfigError: the queue has a task of that name already, the App is running, or a parameter cannot be an
            argument of a task.
        """
        check_retry_policy(retry)
        check_idempotency(once)
        source = self._queue if queue is None else _as_queue(queue)

        def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
            task = _Task(TaskFunction(function), retry or Retry(1), once, track_started, ignore_result)
            tasks = self._tasks.get(source.name)
            if tasks is not None and name in tasks:
                raise ConfigError(f"the queue {source.name!r} has a task {name!r} already")
            self._add_queue(source)
            if self._app is not None:
                if once is not None:
                    once.register(self._app)
                if tasks is None:
                    self._consume(self._app, source)
            self._tasks.setdefault(source.name, {})[name] = task
            self._task_queues[name] = source.name
            return function

        return decorate

    # Component of the App

    @property
    def lost_without_app(self) -> str:
        return "its tasks are not run" if self._tasks else ""

    def register(self, app: App) -> None:
        super().register(app)
        for queue in self._queues.values():
            app.declare(*with_exchange(queue))
        for name, tasks in self._tasks.items():
            self._consume(app, self._queues[name])
            for task in tasks.values():
                if task.once is not None:
                    task.once.register(app)
        if self._reads_results:
            self._read_results(app)

    async def on_start(self) -> None:
        """Do nothing when the App starts: the App's own consumers read the queues."""

    async def on_stop(self) -> None:
        """Close the stores of `once=`. The queue for results expires by itself."""
        onces = {id(task.once): task.once for tasks in self._tasks.values() for task in tasks.values()}
        for once in onces.values():
            if once is not None:
                await once.on_stop()

    def _add_queue(self, queue: Queue) -> None:
        known = self._queues.setdefault(queue.name, queue)
        if known != queue:
            raise ConfigError(
                f"the queue {queue.name!r} of the bridge is described twice: {known} and {queue}"
            )
        if self._app is not None:
            self._app.declare(*with_exchange(queue))

    def _consume(self, app: App, queue: Queue) -> None:
        app.handle(
            bytes, queue=queue, concurrency=self._concurrency, prefetch=self._prefetch, retry=Retry(1)
        )(self._handle_task)
        if self._includes_delay:
            self._includes_delay = False
            app.include(self._delay)

    def _read_results(self, app: App) -> None:
        app.handle(bytes, queue=result_queue(self._results), retry=Retry(1))(self._handle_result)

    # Sending

    async def _send(
        self,
        name: str,
        queue: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        adapter: TypeAdapter[Result],
        options: CeleryOptions,
    ) -> CeleryResult[Result]:
        parent = current_request()
        now = self._now()
        task_id = options.get("task_id") or str(uuid4())
        is_expected = not options.get("ignore_result", False)
        _check_numbers(options)
        expires, countdown = options.get("expires"), options.get("countdown")
        task = TaskToSend(
            id=task_id,
            task=name,
            args=args,
            kwargs=kwargs,
            exchange="",
            key=queue,
            eta=_with_zone("eta", options["eta"]) if "eta" in options else _after(now, countdown),
            expires=_with_zone("expires", expires) if isinstance(expires, datetime) else _after(now, expires),
            retries=options.get("retries", 0),
            root_id=options.get("root_id") or (parent.root_id if parent else None),
            parent_id=options.get("parent_id") or (parent.id if parent else None),
            group_id=options.get("group_id"),
            reply_to=self._results if is_expected else None,
            priority=options.get("priority"),
            time_limit=options.get("time_limit"),
            soft_time_limit=options.get("soft_time_limit"),
            shadow=options.get("shadow"),
            ignore_result=not is_expected,
            args_repr=options.get("argsrepr"),
            kwargs_repr=options.get("kwargsrepr"),
            headers=options.get("headers") or {},
        )
        result = CeleryResult(task_id, adapter, is_expected=is_expected)
        if is_expected:
            # Before the publish: the result may arrive before the confirm.
            self._expected[task_id] = result
        await self._publish_task(task, options.get("timeout", PUBLISH_SECONDS))
        self.statistics.sent += 1
        return result

    async def _publish_task(self, task: TaskToSend, seconds: float = PUBLISH_SECONDS) -> None:
        properties = {"correlation_id": task.id, "reply_to": task.reply_to, "priority": task.priority}
        await self._publish(
            task.body(),
            exchange=task.exchange,
            key=task.key,
            message_id=task.id,
            headers=task.header_table(self._origin),
            properties=properties,
            seconds=seconds,
        )

    async def _publish(
        self,
        body: bytes,
        *,
        key: str,
        properties: Mapping[str, str | int | None],
        exchange: str = "",
        message_id: str | None = None,
        headers: Mapping[str, object] | None = None,
        seconds: float = PUBLISH_SECONDS,
    ) -> None:
        app = self.included_in()
        outgoing = encode(
            body, now=app.clock.now(), exchange=exchange, key=key, message_id=message_id, headers=headers
        )
        for name, value in {"content_type": JSON, "content_encoding": "utf-8", **properties}.items():
            outgoing.set(name, value)
        confirmed = await app.submit_encoded(outgoing, seconds)
        await confirmed

    async def _handle_result(self, body: bytes, delivery: Delivery) -> None:
        try:
            state = read_state(body)
        except ValueError as error:
            log.warning("event=celery.result_ignored queue=%s error=%s", delivery.queue, error)
            return
        result = self._expected.get(state.task_id)
        if result is not None:
            result.receive(state)
            if state.state.is_final:
                self.statistics.results += 1
                self._expected.pop(state.task_id, None)

    # Running

    async def _handle_task(self, body: bytes, delivery: Delivery) -> None:
        """Handle a task message of any queue: run it, postpone it, or refuse it."""
        try:
            request = read_request(body, delivery)
        except RefusedTask as refusal:
            self.statistics.refused += 1
            unread = unread_request(delivery)
            if unread is not None:
                await self._confirmed(unread, self._send_failure(unread, refusal, ignores=False))
            raise DeadLetter(str(refusal)) from None
        if request.has_expired(self.included_in().clock.now()):
            await self._expire(request)
            return
        if request.eta is not None and request.eta > self._now():
            # The copy is not another attempt, so it keeps the number.
            attempt = {ATTEMPT: delivery.headers.get(ATTEMPT)}
            await self._redeliver(delivery, request.eta - self._now(), attempt)
            self.statistics.postponed += 1
            return
        await self._run(request)

    async def _run(self, request: CeleryRequest) -> None:
        """Run the task, then send the tasks that follow it and its result.

        :raises HandlerOutcome: the outcome that the task chose.
        :raises Exception: the error of the last attempt, for the dead letter.
        """
        task = self._tasks[request.delivery.queue].get(request.task)
        ignores = task is not None and task.ignore_result
        try:
            if task is None:
                raise RefusedTask(
                    f"the queue {request.delivery.queue!r} has no task {request.task!r}",
                    exc_type="NotRegistered",
                )
            canvas.check_canvas(request)
            if task.track_started:
                pid = {"pid": os.getpid(), "hostname": self._origin}
                await self._confirmed(
                    request, self._send_state(request, CeleryState.STARTED, pid, ignores=ignores)
                )
            with as_current_request(request):
                result = await self._attempts(task, request)
        except (Ack, Requeue):
            raise
        except RefusedTask as refusal:
            self.statistics.refused += 1
            await self._confirmed(request, self._send_failure(request, refusal, ignores=ignores))
            raise DeadLetter(str(refusal)) from None
        except Exception as error:
            assert task is not None
            after = _retry_after(task.retry, error, request.delivery)
            if after is not None:
                headers = {"retries": request.retries + 1}
                await self._redeliver(request.delivery, after, headers)
                self.statistics.retried += 1
                log.info("event=celery.task_retried task=%s id=%s after=%s", request.task, request.id, after)
                await self._announce(self._send_state(request, CeleryState.RETRY, error, ignores=ignores))
                return
            self.statistics.failed += 1
            await self._confirmed(request, self._send_failure(request, error, ignores=ignores))
            if isinstance(error, RetryLater):
                raise DeadLetter(
                    "the task asked for a retry, and its retry policy has no delay left"
                ) from None
            raise
        except BaseException as error:
            if ends_task(error):
                raise
            self.statistics.failed += 1
            await self._confirmed(request, self._send_failure(request, error, ignores=ignores))
            raise
        self.statistics.succeeded += 1
        await self._confirmed(request, self._send_success(request, json.loads(result), ignores=ignores))

    async def _attempts(self, task: _Task, request: CeleryRequest) -> bytes:
        """Call the function as often as its retry policy allows in this process; return its result as JSON."""
        app = self.included_in()

        async def call() -> bytes:
            return await task.function.call(app, request)

        async def attempt() -> bytes:
            if task.once is None:
                return await call()
            delivery = request.delivery
            # Celery sets no message id; the id of the task is what retries and duplicates share.
            identified = delivery.replace(properties={**delivery.properties, "message_id": request.id})
            return await task.once.run(request, identified, call)

        result: bytes = await task.retry.attempts(app.clock)(attempt)
        return result

    async def _expire(self, request: CeleryRequest) -> None:
        self.statistics.expired += 1
        log.info("event=celery.task_expired task=%s id=%s", request.task, request.id)
        task = self._tasks[request.delivery.queue].get(request.task)
        revoked = RefusedTask("expired", exc_type="TaskRevokedError")
        ignores = task is not None and task.ignore_result
        await self._confirmed(
            request, self._send_state(request, CeleryState.REVOKED, revoked, ignores=ignores)
        )

    async def _send_success(self, request: CeleryRequest, result: object, *, ignores: bool) -> None:
        signatures: list[tuple[canvas.Signature, tuple[canvas.Signature, ...]]]
        signatures = [(each, ()) for each in request.callbacks]
        if request.chain:
            *others, following = request.chain
            signatures.append((following, tuple(others)))
        children: list[str] = []
        for signature, chain in signatures:
            children += await self._send_following(request, signature, result, chain)
        await self._send_state(request, CeleryState.SUCCESS, result, ignores=ignores, children=children)

    async def _send_failure(self, request: CeleryRequest, error: BaseException, *, ignores: bool) -> None:
        """Send the failure of a task, also as the result of the tasks of a chain that will not run."""
        await self._send_state(request, CeleryState.FAILURE, error, ignores=ignores)
        for task_id, reply_to in canvas.ids_of(request.chain):
            await self._send_state(
                request, CeleryState.FAILURE, error, ignores=ignores, task_id=task_id, reply_to=reply_to
            )
        for signature in request.errbacks:
            await self._send_following(request, signature, request.id, ())

    async def _send_following(
        self,
        request: CeleryRequest,
        signature: canvas.Signature,
        argument: object,
        chain: tuple[canvas.Signature, ...],
    ) -> list[str]:
        """Send the task of a signature, or those of a group; return their ids."""
        sent = []
        for task in canvas.following(
            signature, [argument], request=request, queue_of=self._queue_of, now=self._now(), chain=chain
        ):
            await self._publish_task(task)
            self.statistics.followed += 1
            sent.append(task.id)
        return sent

    async def _send_state(
        self,
        request: CeleryRequest,
        state: CeleryState,
        result: object,
        *,
        ignores: bool,
        task_id: str | None = None,
        reply_to: str | None = None,
        children: list[str] | None = None,
    ) -> None:
        """Publish a state to the queue for results, if the caller reads it."""
        target = reply_to or request.reply_to
        if target is None or ignores or request.ignore_result:
            return
        trace = None
        if isinstance(result, BaseException):
            trace = None if isinstance(result, RefusedTask) else traceback_text(result)
            result = described_error(result)
        body = result_body(
            request, state, result, now=self._now(), task_id=task_id, traceback=trace, children=children or ()
        )
        correlation_id = task_id or request.correlation_id
        try:
            await self._publish(
                body, key=target, properties={"correlation_id": correlation_id, "delivery_mode": TRANSIENT}
            )
        except Unroutable:
            self.statistics.unclaimed += 1

    async def _announce(self, sending: Awaitable[None]) -> None:
        """Publish a state that is not final; losing it harms nobody."""
        try:
            await sending
        except WarrenError as error:
            log.warning("event=celery.result_unconfirmed error=%s", error)

    async def _confirmed(self, request: CeleryRequest, sending: Awaitable[None]) -> None:
        """Publish results and following tasks. If the broker does not confirm them for a reason that may pass, the task
        is delivered again later, so that its caller does not wait for ever.

        :raises Ack: a copy of the task waits.
        :raises WarrenError: it can never be published.
        """
        try:
            await sending
        except WarrenError as error:
            if not error.retryable and error.outcome != "unknown":
                raise
            log.warning("event=celery.task_repeated task=%s id=%s error=%s", request.task, request.id, error)
            attempt = {ATTEMPT: request.delivery.headers.get(ATTEMPT)}
            await self._redeliver(request.delivery, REPEAT_AFTER, attempt)
            raise Ack from error

    async def _redeliver(self, delivery: Delivery, after: timedelta, headers: Mapping[str, object]) -> None:
        """Publish a copy of the task that arrives after the delay.

        :raises Requeue: the broker did not confirm it for a reason that may pass.
        """
        try:
            await self._delay.redeliver(delivery, delivery.queue, after, headers=headers)
        except WarrenError as error:
            if not error.retryable and error.outcome != "unknown":
                raise
            log.warning("event=celery.task_requeued queue=%s error=%s", delivery.queue, error)
            raise Requeue from error

    def _queue_of(self, task: str) -> str:
        for pattern, queue in self._routes.items():
            if matches(task, pattern):
                return queue
        return self._task_queues.get(task, self._queue.name)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.included_in().clock.now(), UTC)


def _check_numbers(options: CeleryOptions) -> None:
    """Check the options of a task that are numbers.

    :raises ConfigError: one is no number, or out of its range.
    """
    if (priority := options.get("priority")) is not None:
        check_whole_number("priority", priority, 0, 255)
    if (retries := options.get("retries")) is not None:
        check_whole_number("retries", retries, 0)
    for name, limit in (
        ("time_limit", options.get("time_limit")),
        ("soft_time_limit", options.get("soft_time_limit")),
    ):
        if limit is not None:
            check_number(name, limit, above=True)


def _as_queue(queue: str | Queue) -> Queue:
    return celery_queue(queue) if isinstance(queue, str) else queue


def _retry_after(policy: RetryPolicy, error: Exception, delivery: Delivery) -> timedelta | None:
    """Return the delay of the next attempt; None if the task has failed for good."""
    if isinstance(error, RetryLater) and error.after is not None:
        return duration(error.after)
    if isinstance(error, HandlerOutcome) and not isinstance(error, RetryLater):
        return None
    return policy.delay(error, delivery)


def _with_zone(name: str, time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ConfigError(f"{name}={time} has no time zone: use datetime(..., tzinfo=UTC)")
    return time


def _after(now: datetime, length: Any) -> datetime | None:
    return None if length is None else now + duration(length)


__all__ = ["CeleryBridge", "CeleryBridgeStatistics"]
