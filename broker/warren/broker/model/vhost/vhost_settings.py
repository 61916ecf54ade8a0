"""What is said of a virtual host, and how much it may hold (https://www.rabbitmq.com/docs/vhosts)."""

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
    """What is said of a virtual host, and how much it may hold.

    :param default_queue_type: the `x-queue-type` of queues that are declared without one; empty for the broker's own.
    :param protected: it cannot be deleted until this is taken back.
    :param max_connections: how many connections may be open to it; None is no limit, 0 none at all.
    :param max_queues: how many queues it may hold; the same.
    """

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = ""
    protected: bool = False
    max_connections: int | None = None
    max_queues: int | None = None

    def to_row(self) -> VirtualHostRow:
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
        """A new queue's arguments, with the default type among them where they name none and the queue can be of it.

        Source: https://www.rabbitmq.com/docs/vhosts#default-queue-type.
        """
        kind = self.default_queue_type
        fits = kind == "classic" or (durable and not exclusive and not auto_delete)
        if not kind or not fits or "x-queue-type" in argument_fields(raw):
            return raw
        return raw + field_tables.encode({"x-queue-type": kind})

    def check(self) -> None:
        """
        :raises OperationRefused: for a queue type or a tag that is none.
        """
        if self.default_queue_type not in ("", *QUEUE_TYPES):
            raise OperationRefused(
                f"no queue type '{self.default_queue_type}'; there are: {', '.join(QUEUE_TYPES)}"
            )
        for tag in self.tags:
            if not tag or "," in tag:
                raise OperationRefused(f"'{tag}' is no tag: a tag is not empty and has no comma")


def normalize_limit(value: int | None) -> int | None:
    """A limit as it is kept: RabbitMQ takes a negative one for none."""
    return None if value is None or value < 0 else value
