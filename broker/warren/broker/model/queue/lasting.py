"""What quorum queues and streams cannot be: they outlive their users (https://www.rabbitmq.com/docs/quorum-queues#feature-matrix)."""

from __future__ import annotations

from warren.broker.model.queue.queue_arguments import QueueArguments
from warren.broker.model.stream.stream_arguments import refuse_large_segments
from warren.wire.reply_codes import AmqpError, Reply


def assert_lasting(
    arguments: QueueArguments, name: bytes, described: str, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """:raises AmqpError: 406 for a queue without a name, or of a kind that goes by itself."""
    if not name:
        kind = "quorum" if arguments.quorum else "stream"
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"Cannot declare a server-named queue for type rabbit_{kind}_queue"
        )
    for wrong, what in (
        (auto_delete, "auto-delete"),
        (exclusive, "exclusive-owner"),
        (not durable, "non-durable"),
    ):
        if wrong:
            raise AmqpError(Reply.PRECONDITION_FAILED, f"invalid property '{what}' for {described}")
    refuse_large_segments(arguments)


__all__ = ["assert_lasting"]
