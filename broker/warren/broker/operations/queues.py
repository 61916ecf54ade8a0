"""Operations on queues and streams: check, declare, purge, delete.

Rules and texts are RabbitMQ's (https://www.rabbitmq.com/amqp-0-9-1-reference#class.queue, https://www.rabbitmq.com/docs/queues).
"""

from __future__ import annotations

from typing import NamedTuple

from warren.broker.access.permissions import CONFIGURE, READ
from warren.broker.model.queue.queue import Queue
from warren.broker.model.server_names import generate_name, generated_name_prefix
from warren.broker.model.stream.stream import Stream
from warren.broker.model.vhost.declarations import Declarations
from warren.broker.operations.principal import Principal
from warren.broker.operations.waiting import Operation, UntilNotHeld, UntilSettled, UntilWorkDone
from warren.wire.reply_codes import AmqpError, Reply


class DeclaredQueue(NamedTuple):
    """Outcome of a declaration: the queue, and whether it did not exist before."""

    queue: Queue
    is_new: bool


class QueueCounts(NamedTuple):
    """Numbers of ready messages and of consumers of a queue."""

    ready: int
    consumers: int


def check_queue(principal: Principal, name: bytes) -> Queue:
    """Return a queue, as a passive declaration does; it counts as use of the queue.

    :raises AmqpError: 404 if it does not exist, 403 for a user who has no permission on it, 405 if it is exclusive to
        another connection.
    """
    if principal.vhost.compat.checks_passive_declares:
        # Else its counts, and whether it exists, are hidden.
        principal.check_any("queue", name)
    queue = principal.queue(name)
    queue.expiry.touch()
    return queue


def declare_queue(
    principal: Principal,
    name: bytes,
    *,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    arguments: bytes,
    generated: bytes = b"",
) -> DeclaredQueue:
    """Declare a queue.

    :param name: its name; empty for a generated one.
    :param exclusive: True if only the client's connection may use it, and it is deleted with that.
    :param arguments: encoded field table.
    :param generated: the generated name; empty to generate one now.
    :raises AmqpError: 403 without the permission or for a reserved name; 405 if it is exclusive to another connection; 406
        for an invalid argument, an existing queue with other properties, or one more than the virtual host may have; 502
        for malformed arguments.
    """
    declarations = principal.declarations
    arguments = declarations.settings.with_default_queue_type(arguments, durable, exclusive, auto_delete)
    declarations.refuse_reserved(name)
    chosen = name or generated or generate_name(generated_name_prefix(arguments))
    principal.check(CONFIGURE, "queue", chosen)
    is_new = name not in declarations.vhost.queues
    if is_new:
        _check_limit(declarations, chosen)
        principal.check_forwarding("queue", chosen, arguments, "x-dead-letter-exchange")
    queue = declarations.declare_queue(
        name, durable, exclusive, auto_delete, arguments, principal.connection, generated=chosen
    )
    return DeclaredQueue(queue, is_new)


def count_messages(queue: Queue) -> Operation[QueueCounts]:
    """Count the ready messages and the consumers of a queue. Messages that are expired or over a limit are not counted."""
    if isinstance(queue, Stream):
        # RabbitMQ counts no consumers of a stream.
        return QueueCounts(int(queue.message_count()), 0)
    yield UntilNotHeld(queue)
    return QueueCounts(int(queue.ready.count), len(queue.consumers))


def purge_queue(principal: Principal, name: bytes) -> Operation[int]:
    """Delete the messages of a queue but the unacknowledged ones, and return their number.

    Messages that are expired, or over a length limit, are not counted: they are dead-lettered first.

    :raises AmqpError: 404 if the queue does not exist, 403 without the permission, 405 if it is exclusive to another
        connection, 540 for a stream.
    """
    principal.check(READ, "queue", name)
    queue = principal.queue(name)
    refuse_stream(queue, "queue.purge")
    yield UntilNotHeld(queue)
    if queue.deleted:
        return 0
    lane = principal.lane(queue)
    count = int(queue.purge(lane))
    yield UntilWorkDone(queue.vhost.bulk_work, lane)
    return count


def delete_queue(
    principal: Principal, name: bytes, *, if_unused: bool, if_empty: bool
) -> Operation[int | None]:
    """Delete a queue; return the number of its ready messages, or None if there is no such queue.

    What clients have settled before, and what is expired or over a limit, is dead-lettered first.

    :param if_unused: True to delete it only if it has no consumers.
    :param if_empty: True to delete it only if no message is ready, waits for a retry, or waits to be dead-lettered.
    :raises AmqpError: 406 if one of these conditions does not hold and the queue is no stream; 403 without the permission;
        405 if it is exclusive to another connection.
    """
    principal.check(CONFIGURE, "queue", name)
    declarations, queues = principal.declarations, principal.vhost.queues
    if name not in queues:
        return None
    yield UntilSettled(principal.queue(name))
    if name not in queues:
        return None
    queue = principal.queue(name)
    described = declarations.describe("queue", name)
    if queue.arguments.quorum:
        for condition, is_set in (("if-unused", if_unused), ("if-empty", if_empty)):
            if is_set:
                declarations.vhost.portability.check("conditional_delete", described, condition)
    # RabbitMQ deletes a stream even if it is in use or not empty, and counts no messages.
    if if_unused and queue.consumers and not queue.is_stream:
        raise AmqpError(Reply.PRECONDITION_FAILED, f"{described} in use")
    if if_empty and not queue.is_empty:
        raise AmqpError(Reply.PRECONDITION_FAILED, f"{described} not empty")
    return declarations.delete_queue(queue)


def refuse_stream(queue: Queue, method: str) -> None:
    """Refuse a method that streams do not support.

    :param method: name of the method, for the text.
    :raises AmqpError: 540 if the queue is a stream.
    """
    if queue.is_stream:
        raise not_supported_by_stream(method, queue)


def not_supported_by_stream(feature: str, stream: Queue) -> AmqpError:
    """Return the error of a feature that streams do not support.

    :param feature: method or option, as the error text names it.
    """
    declarations = stream.vhost.declarations
    assert declarations is not None
    described = declarations.describe("queue", stream.name)
    return AmqpError(Reply.NOT_IMPLEMENTED, f"{feature} not supported by stream queues {described}")


def _check_limit(declarations: Declarations, name: bytes) -> None:
    """Check that the virtual host may have another queue.

    :param name: the queue to be declared.
    :raises AmqpError: 406 if the virtual host has as many queues as its limit allows
        (https://www.rabbitmq.com/docs/vhosts#limits).
    """
    settings = declarations.settings
    if settings.max_queues is not None and len(declarations.vhost.queues) >= settings.max_queues:
        raise AmqpError(
            Reply.PRECONDITION_FAILED,
            f"cannot declare queue '{name.decode(errors='replace')}': queue limit in vhost '{settings.name}' "
            f"({settings.max_queues}) is reached",
        )
