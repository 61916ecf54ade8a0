"""Metadata and limits of a virtual host (https://www.rabbitmq.com/docs/vhosts)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warren.broker.model.argument_checks import argument_fields
from warren.broker.model.operator_errors import OperationRefused
from warren.broker.store.definitions.definition_rows import VirtualHostRow
from warren.wire import field_tables

QUEUE_TYPES: Final = ("classic", "quorum", "stream")


@dataclass(frozen=True, slots=True)
class VirtualHostSettings:
    """Metadata and limits of a virtual host.

    :param default_queue_type: the type of queues that are declared without `x-queue-type`; empty for `classic`.
    :param protected: True if the virtual host must not be deleted.
    :param max_connections: limit of open connections; None is no limit, 0 allows none.
    :param max_queues: limit of queues; None is no limit, 0 allows none.
    """

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = ""
    protected: bool = False
    max_connections: int | None = None
    max_queues: int | None = None

    def to_row(self) -> VirtualHostRow:
        """Return the settings as a row for the definitions database."""
        return VirtualHostRow(
            self.name,
            self.description,
            ",".join(self.tags),
            self.default_queue_type,
            self.protected,
            self.max_connections,
            self.max_queues,
        )

    def with_default_queue_type(self, raw: bytes, durable: bool, exclusive: bool, auto_delete: bool) -> bytes:
        """Return the encoded arguments of a new queue, with the virtual host's default queue type if they name no type.

        Nothing is added if the default type is not `classic` and the queue is not durable, or is exclusive or
        auto-delete. Source: https://www.rabbitmq.com/docs/vhosts#default-queue-type.

        :param raw: the encoded arguments of the queue.declare.
        :raises AmqpError: 502 for malformed arguments.
        """
        kind = self.default_queue_type
        fits = kind == "classic" or (durable and not exclusive and not auto_delete)
        if not kind or not fits or "x-queue-type" in argument_fields(raw):
            return raw
        return raw + field_tables.encode({"x-queue-type": kind})

    def check(self) -> None:
        """Check the default queue type and the tags.

        :raises OperationRefused: for an unknown queue type, and for a tag that is empty or has a comma.
        """
        if self.default_queue_type not in ("", *QUEUE_TYPES):
            raise OperationRefused(
                f"'{self.default_queue_type}' is no queue type; use one of {', '.join(QUEUE_TYPES)}"
            )
        for tag in self.tags:
            if not tag or "," in tag:
                raise OperationRefused(f"'{tag}' is no tag: a tag is not empty and has no comma")


def normalize_limit(value: int | None) -> int | None:
    """Return a limit in the form in which it is stored: None for a negative number, which is no limit in RabbitMQ."""
    return None if value is None or value < 0 else value
