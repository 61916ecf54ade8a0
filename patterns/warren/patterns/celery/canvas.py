"""Canvas: the tasks that follow a task (chain, `link`, `link_error`), from their signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import uuid4

from warren.patterns.celery.task_message import CeleryRequest, RefusedTask, TaskToSend, instant

Signature = Mapping[str, Any]
"""Signature of a task as Celery writes it: `task`, `args`, `kwargs`, `options`, `subtask_type`, `immutable`."""


class FindQueue(Protocol):
    """Returns the queue to which a task goes whose signature names none."""

    def __call__(self, task: str, /) -> str: ...


def check_canvas(request: CeleryRequest) -> None:
    """Check that all tasks that follow can be sent.

    :raises RefusedTask: a chord is among them, or the task is part of one.
    """
    if request.chord is not None:
        raise RefusedTask("the task is part of a chord: only Celery workers count the tasks of a chord")
    for signature in (*request.callbacks, *request.errbacks, *request.chain):
        _check(signature)


def following(
    signature: Signature,
    arguments: Sequence[object],
    *,
    request: CeleryRequest,
    queue_of: FindQueue,
    now: datetime,
    chain: Sequence[Signature] = (),
) -> Iterator[TaskToSend]:
    """Return the messages for a signature: one, or those of a group.

    :param arguments: put before the signature's own arguments, unless it is immutable: the result of the task before it.
    :param request: the task before it.
    :param chain: further tasks of the chain; the last one is next.
    """
    options = signature.get("options") or {}
    kwargs = signature.get("kwargs") or {}
    if signature.get("subtask_type") == "group":
        for index, member in enumerate(_tasks(signature)):
            yield from following(
                _with_options(member, group_id=options.get("task_id"), group_index=index),
                arguments,
                request=request,
                queue_of=queue_of,
                now=now,
            )
        return
    if signature.get("subtask_type") == "chain":
        first, *others = _tasks(signature)
        yield from following(
            first,
            arguments,
            request=request,
            queue_of=queue_of,
            now=now,
            chain=[*chain, *reversed(others)],
        )
        return
    args = list(signature.get("args") or ())
    task = str(signature["task"])
    exchange, key = _address(task, options, queue_of)
    yield TaskToSend(
        id=str(options.get("task_id") or uuid4()),
        task=task,
        args=args if signature.get("immutable") else [*arguments, *args],
        kwargs=kwargs,
        exchange=exchange,
        key=key,
        eta=instant(options.get("eta")) or _later(now, options.get("countdown")),
        expires=_expires(now, options.get("expires")),
        root_id=request.root_id,
        parent_id=request.id,
        group_id=options.get("group_id"),
        group_index=options.get("group_index"),
        reply_to=options.get("reply_to") or request.reply_to,
        priority=options.get("priority", request.priority),
        time_limit=options.get("time_limit"),
        soft_time_limit=options.get("soft_time_limit"),
        shadow=options.get("shadow"),
        ignore_result=bool(options.get("ignore_result")),
        headers=options.get("headers") or {},
        callbacks=_listed(options.get("link")),
        errbacks=_listed(options.get("link_error")),
        chain=[*chain, *(options.get("chain") or ())],
    )


def ids_of(signatures: Sequence[Signature]) -> Iterator[tuple[str, str | None]]:
    """Return the id of each task of a chain that has one, with the queue for its result."""
    for signature in signatures:
        options = signature.get("options") or {}
        if options.get("task_id"):
            yield str(options["task_id"]), options.get("reply_to")


def _check(signature: Signature) -> None:
    options = signature.get("options") or {}
    if signature.get("subtask_type") == "chord" or options.get("chord"):
        raise RefusedTask("a chord follows the task: only Celery workers count the tasks of a chord")
    try:
        instant(options.get("eta"))
        expires = options.get("expires")
        if not isinstance(expires, int | float):
            instant(expires)
    except ValueError:
        raise RefusedTask(
            f"the signature of {signature['task']} has an eta or expires that is no time"
        ) from None
    if signature.get("subtask_type") in ("group", "chain"):
        members = _tasks(signature)
        if not members or not all(isinstance(each, dict) and "task" in each for each in members):
            raise RefusedTask(f"the signature of {signature['task']} has no tasks")
        for member in members:
            _check(member)
    for name in ("link", "link_error", "chain"):
        for each in _listed(options.get(name)):
            _check(each)


def _tasks(signature: Signature) -> list[Signature]:
    return list((signature.get("kwargs") or {}).get("tasks") or ())


def _listed(value: Any) -> list[Signature]:
    return [value] if isinstance(value, Mapping) else list(value or ())


def _with_options(signature: Signature, **options: object) -> Signature:
    return {**signature, "options": {**(signature.get("options") or {}), **options}}


def _address(task: str, options: Mapping[str, Any], queue_of: FindQueue) -> tuple[str, str]:
    queue, exchange, key = options.get("queue"), options.get("exchange"), options.get("routing_key")
    if isinstance(queue, str) and queue:
        return "", queue
    if isinstance(exchange, str) and exchange and isinstance(key, str):
        return exchange, key
    return "", queue_of(task)


def _expires(now: datetime, value: object) -> datetime | None:
    return _later(now, value) if isinstance(value, int | float) else instant(value)


def _later(now: datetime, seconds: object) -> datetime | None:
    return now + timedelta(seconds=seconds) if isinstance(seconds, int | float) and seconds else None


__all__ = ["FindQueue", "Signature", "check_canvas", "following", "ids_of"]
