"""Queues as Celery declares them, so that Celery and Warren can consume from the same ones."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, Literal

from warren.sdk import Binding, Declarable, Exchange, Queue

RESULT_QUEUE_EXPIRES: Final = timedelta(hours=1)
"""Time without consumers after which the broker deletes a queue for results."""


class CeleryQueue(Queue):
    """A queue that is declared on the broker with Celery's arguments only.

    Celery has no dead letter exchanges, and a second declaration with other arguments is an error (406
    PRECONDITION_FAILED). The SDK still dead-letters tasks of this queue to `<name>.dead`: it publishes the copies itself.
    """

    __slots__ = ()

    def wire_arguments(self) -> dict[str, Any]:
        """Return the arguments with which Celery declares the queue, by their AMQP names."""
        arguments: dict[str, Any] = {}
        if self.type != "classic":
            arguments["x-queue-type"] = self.type
        if self.max_priority is not None:
            arguments["x-max-priority"] = self.max_priority
        return {**arguments, **self.arguments}


def celery_queue(
    name: str, *, type: Literal["classic", "quorum"] = "classic", max_priority: int | None = None
) -> Queue:
    """Return a queue as Celery declares it.

    :param type: `quorum` for Celery's setting `task_default_queue_type = "quorum"`, or a `kombu.Queue` with
        `x-queue-type`; by default `classic`, as in Celery.
    :param max_priority: value of Celery's setting `task_queue_max_priority`; None if it is not set.
    """
    if type == "quorum":
        return CeleryQueue(name, type="quorum", delivery_limit=None)
    return CeleryQueue(name, type="classic", max_priority=max_priority)


def with_exchange(queue: Queue) -> list[Declarable]:
    """Return the queue with the direct exchange of the same name and the binding that Celery declares with it."""
    exchange = Exchange(queue.name, type="direct")
    return [exchange, queue, Binding(exchange.name, queue.name, queue.name)]


def result_queue(name: str) -> Queue:
    """Return the queue for the results of one process. It survives a lost connection, so that no result is lost by it,
    and expires after the end of the process."""
    return Queue(name, type="classic", dead_letter_exchange=None, expires=RESULT_QUEUE_EXPIRES)


__all__ = ["CeleryQueue", "celery_queue", "result_queue", "with_exchange"]
