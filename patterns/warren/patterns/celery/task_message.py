"""Task messages of Celery's protocol 2: a JSON body of arguments, keyword arguments and callbacks; name, id and times in
headers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from warren.patterns.celery import kombu_json
from warren.sdk import Delivery
from warren.sdk.extend import count_in

JSON: Final = "application/json"
REPR_CHARACTERS: Final = 1024
"""Longest text of `argsrepr` and `kwargsrepr`, as in Celery."""


class RefusedTask(Exception):
    """A task message that cannot be run. Its caller gets a failure with `exc_type` and `exc_module`, and the message is
    dead-lettered with the text as the reason.

    :param exc_type: name of the exception that a Celery client raises.
    :param exc_module: module of that exception.
    """

    def __init__(
        self, text: str, *, exc_type: str = "InvalidTaskError", exc_module: str = "celery.exceptions"
    ) -> None:
        super().__init__(text)
        self.exc_type: str = exc_type
        self.exc_module: str = exc_module


@dataclass(frozen=True, slots=True)
class CeleryRequest:
    """A task that a Celery client sent. A handler gets it through a parameter with this annotation, like `self.request`
    of a bound Celery task."""

    id: str
    """Id of the task; retries keep it."""
    task: str
    """Name of the task."""
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    retries: int
    """Number of retries before this delivery, by Celery workers or by Warren."""
    eta: datetime | None
    """Time before which the task must not run."""
    expires: datetime | None
    """Time after which the task must not run."""
    root_id: str
    """Id of the first task of the workflow."""
    parent_id: str | None
    """Id of the task that sent this one."""
    group_id: str | None
    reply_to: str | None
    """Queue for results; None if there is none."""
    correlation_id: str
    """Correlation id of results."""
    ignore_result: bool
    """The caller does not read the result, and none is sent."""
    priority: int | None
    callbacks: Sequence[Mapping[str, Any]]
    """Signatures of the tasks that are sent with the result (`link`)."""
    errbacks: Sequence[Mapping[str, Any]]
    """Signatures of the tasks that are sent if this one fails (`link_error`)."""
    chain: Sequence[Mapping[str, Any]]
    """Signatures of the following tasks of a chain; the last one is next."""
    chord: Mapping[str, Any] | None
    delivery: Delivery = field(repr=False)
    """The message, with further headers (`timelimit`, `origin`, stamps)."""

    def has_expired(self, now: float) -> bool:
        """Return whether the task must not run any more.

        :param now: Unix time in seconds.
        """
        return self.expires is not None and self.expires.timestamp() <= now


_current: ContextVar[CeleryRequest | None] = ContextVar("warren_celery_request", default=None)


def current_request() -> CeleryRequest | None:
    """Return the Celery task that the running handler handles; None outside of one."""
    return _current.get()


@contextmanager
def as_current_request(request: CeleryRequest) -> Iterator[None]:
    """Make this the task that `current_request` returns within the block."""
    token = _current.set(request)
    try:
        yield
    finally:
        _current.reset(token)


def read_request(body: bytes, delivery: Delivery) -> CeleryRequest:
    """Decode a task message.

    :raises RefusedTask: it is no task of protocol 2 in JSON.
    """
    headers = delivery.headers
    content_type = delivery.properties.get("content_type")
    if content_type != JSON:
        raise RefusedTask(
            f"the task is written as {content_type}: only JSON is read, set task_serializer = 'json' in Celery",
            exc_type="ContentDisallowed",
            exc_module="kombu.exceptions",
        )
    if headers.get("compression"):
        raise RefusedTask("the task is compressed: unset task_compression in Celery")
    try:
        content = kombu_json.loads(body)
    except ValueError as error:
        raise RefusedTask(
            f"the body of the task cannot be read: {error}",
            exc_type="DecodeError",
            exc_module="kombu.exceptions",
        ) from None
    request = unread_request(delivery)
    if request is None:
        if isinstance(content, dict) and "task" in content:
            raise RefusedTask(
                "the task has Celery's message protocol 1: set task_protocol = 2, the default since Celery 4"
            )
        raise RefusedTask("the message is no Celery task: it has no headers `task` and `id`")
    if not isinstance(content, list) or len(content) != 3:
        raise RefusedTask("the body of the task is not [args, kwargs, embed]")
    args, kwargs, embed = content
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not isinstance(embed, dict | None):
        raise RefusedTask("the body of the task is not [args, kwargs, embed]")
    embed = embed or {}
    return replace(
        request,
        args=args,
        kwargs=kwargs,
        eta=_time(headers, "eta"),
        expires=_time(headers, "expires"),
        callbacks=_signatures(embed, "callbacks"),
        errbacks=_signatures(embed, "errbacks"),
        chain=_signatures(embed, "chain"),
        chord=embed.get("chord"),
    )


def unread_request(delivery: Delivery) -> CeleryRequest | None:
    """Return what the headers and properties of a task message contain, without the body and the times; None if they are
    not those of a task."""
    headers = delivery.headers
    name, identity = headers.get("task"), headers.get("id")
    if not isinstance(name, str) or not isinstance(identity, str):
        return None
    retries = headers.get("retries")
    priority = delivery.properties.get("priority")
    return CeleryRequest(
        id=identity,
        task=name,
        args=(),
        kwargs={},
        retries=count_in(retries, 0),
        eta=None,
        expires=None,
        root_id=_text(headers, "root_id") or identity,
        parent_id=_text(headers, "parent_id"),
        group_id=_text(headers, "group"),
        reply_to=_text(delivery.properties, "reply_to"),
        correlation_id=_text(delivery.properties, "correlation_id") or identity,
        ignore_result=headers.get("ignore_result") is True,
        priority=priority if isinstance(priority, int) else None,
        callbacks=(),
        errbacks=(),
        chain=(),
        chord=None,
        delivery=delivery,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskToSend:
    """A task message before it is published."""

    id: str
    task: str
    args: Sequence[object]
    kwargs: Mapping[str, object]
    exchange: str
    key: str
    eta: datetime | None = None
    expires: datetime | None = None
    retries: int = 0
    root_id: str | None = None
    parent_id: str | None = None
    group_id: str | None = None
    group_index: int | None = None
    reply_to: str | None = None
    priority: int | None = None
    time_limit: float | None = None
    soft_time_limit: float | None = None
    shadow: str | None = None
    ignore_result: bool = False
    args_repr: str | None = None
    kwargs_repr: str | None = None
    headers: Mapping[str, object] = field(default_factory=dict)
    callbacks: Sequence[Mapping[str, Any]] = ()
    errbacks: Sequence[Mapping[str, Any]] = ()
    chain: Sequence[Mapping[str, Any]] = ()

    def body(self) -> bytes:
        """Return the encoded body.

        :raises TypeError: an argument cannot be written as JSON.
        """
        embed = {
            "callbacks": list(self.callbacks) or None,
            "errbacks": list(self.errbacks) or None,
            "chain": list(self.chain) or None,
            "chord": None,
        }
        return kombu_json.dumps([list(self.args), dict(self.kwargs), embed])

    def header_table(self, origin: str) -> dict[str, object]:
        """Return the headers; those whose value is None are AMQP's void, as Celery sends them.

        :param origin: name of the sender.
        """
        return {
            **self.headers,
            "lang": "py",
            "task": self.task,
            "id": self.id,
            "shadow": self.shadow,
            "eta": None if self.eta is None else self.eta.isoformat(),
            "expires": None if self.expires is None else self.expires.isoformat(),
            "group": self.group_id,
            "group_index": self.group_index,
            "retries": self.retries,
            "timelimit": [self.time_limit, self.soft_time_limit],
            "root_id": self.root_id or self.id,
            "parent_id": self.parent_id,
            "argsrepr": _shortened(repr(tuple(self.args)) if self.args_repr is None else self.args_repr),
            "kwargsrepr": _shortened(
                repr(dict(self.kwargs)) if self.kwargs_repr is None else self.kwargs_repr
            ),
            "origin": origin,
            "ignore_result": self.ignore_result,
            "replaced_task_nesting": 0,
            "stamped_headers": None,
            "stamps": {},
        }


def instant(value: object) -> datetime | None:
    """Return a time of a header or signature; one without a zone is in UTC.

    :raises ValueError: the value is no time.
    """
    if value is None or value == "":
        return None
    time = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _time(headers: Mapping[str, Any], name: str) -> datetime | None:
    try:
        return instant(headers.get(name))
    except ValueError:
        raise RefusedTask(f"the header `{name}` of the task is no time: {headers[name]!r}") from None


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) and value else None


def _signatures(embed: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = embed.get(name) or []
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(each, dict) and "task" in each for each in value):
        raise RefusedTask(f"the task has `{name}` that are no signatures")
    return value


def _shortened(text: str) -> str:
    return text if len(text) <= REPR_CHARACTERS else f"{text[: REPR_CHARACTERS - 3]}..."


__all__ = [
    "JSON",
    "CeleryRequest",
    "RefusedTask",
    "TaskToSend",
    "as_current_request",
    "current_request",
    "instant",
    "read_request",
    "unread_request",
]
