"""Methods of the classes exchange and queue: declare, bind, unbind, purge, delete.

Reference: https://www.rabbitmq.com/amqp-0-9-1-reference.
"""

from __future__ import annotations

from warren.broker.access.authorization import CONFIGURE, READ
from warren.broker.channel import direct_reply_to
from warren.broker.channel.methods.method_context import LINE_ENDS, MethodContext
from warren.broker.channel.methods.stream_methods import refuse_stream
from warren.broker.model.exchange.exchange_types import check_type
from warren.broker.model.queue.queue import Queue
from warren.broker.model.server_names import generate_name, generated_name_prefix, refuse_default_exchange
from warren.broker.model.stream.stream import Stream
from warren.broker.model.vhost.declarations import Declarations
from warren.wire.methods import frame
from warren.wire.reply_codes import AmqpError, Reply

# -- exchanges


def exchange_declare(context: MethodContext) -> None:
    """Declare an exchange; with `passive`, check that it exists.

    :raises AmqpError: 404 if a passively declared exchange does not exist, 403 without the permission or for a reserved
        name, 406 for an unknown type, invalid arguments, or an existing exchange with other properties.
    """
    arguments = context.arguments
    name = context.exchange_name()
    if arguments.flag("passive"):
        refuse_default_exchange(name)
        check_passive_declare(context, "exchange", name)
        context.declarations.exchange(name)
    else:
        if name and context.authorization.is_restricted:
            raw = arguments.data("arguments")
            check_type(arguments.data("type"), raw, context.declarations.vhost.compat)
            context.authorization.check(CONFIGURE, "exchange", name)
            if name not in context.declarations.vhost.exchanges and not name.startswith(b"amq."):
                context.authorization.check_forwarding("exchange", name, raw, "alternate-exchange")
        context.declarations.declare_exchange(
            name,
            arguments.data("type"),
            arguments.flag("durable"),
            arguments.flag("auto_delete"),
            arguments.flag("internal"),
            arguments.data("arguments"),
        )
    context.reply("exchange.declare-ok")


def check_passive_declare(context: MethodContext, kind: str, name: bytes) -> None:
    """Check that the user has one permission on a queue or exchange: else its counts, and whether it exists, are hidden.

    :param kind: `queue` or `exchange`.
    :raises AmqpError: 403 if the user has none.
    """
    if context.declarations.vhost.compat.checks_passive_declares:
        context.authorization.check_any(kind, name)


def exchange_delete(context: MethodContext) -> None:
    """Delete an exchange; a missing one is no error.

    :raises AmqpError: 406 if `if_unused` is set and something is bound to the exchange, 403 for a predeclared exchange
        or without the permission.
    """
    name = context.exchange_name()
    if name and not name.startswith(b"amq."):
        context.authorization.check(CONFIGURE, "exchange", name)
    context.declarations.delete_exchange(name, context.arguments.flag("if_unused"))
    context.reply("exchange.delete-ok")


def exchange_bind(context: MethodContext) -> None:
    """Bind an exchange (destination) to another (source).

    :raises AmqpError: 404 if one of them does not exist, 403 without the permissions, 502 or 406 for wrong arguments.
    """
    source, destination = context.exchange_name("source"), context.exchange_name("destination")
    context.check_binding("exchange", destination, source, context.arguments.data("routing_key"))
    context.declarations.bind(
        context.declarations.exchange(source),
        context.declarations.exchange(destination),
        context.arguments.data("routing_key"),
        context.arguments.data("arguments"),
    )
    context.reply("exchange.bind-ok")


def exchange_unbind(context: MethodContext) -> None:
    """Remove a binding between two exchanges; a missing binding is no error."""
    source, destination = context.exchange_name("source"), context.exchange_name("destination")
    context.check_binding("exchange", destination, source, context.arguments.data("routing_key"))
    context.declarations.unbind(
        source,
        context.declarations.vhost.exchanges.get(destination),
        context.arguments.data("routing_key"),
        context.arguments.data("arguments"),
    )
    context.reply("exchange.unbind-ok")


# -- queues


def queue_declare(context: MethodContext) -> None:
    """Declare a queue, and reply with its counts of ready messages and consumers.

    With `passive`, declare none, but reply with the counts of the existing queue.
    """
    arguments, connection = context.arguments, context.connection
    name = arguments.data("queue").translate(None, LINE_ENDS)
    if name.startswith(direct_reply_to.PSEUDO_QUEUE):
        direct_reply_to.declare(context, name)
        return
    if arguments.flag("passive"):
        check_passive_declare(context, "queue", name)
        queue = context.declarations.queue(name, connection)
        queue.expiry.touch()
    else:
        durable, exclusive = arguments.flag("durable"), arguments.flag("exclusive")
        auto_delete, raw = arguments.flag("auto_delete"), arguments.data("arguments")
        raw = context.declarations.settings.with_default_queue_type(raw, durable, exclusive, auto_delete)
        generated = (
            b"" if name else context.channel.generated_name or generate_name(generated_name_prefix(raw))
        )
        context.declarations.refuse_reserved(name)
        # Kept while a decision on it is pending: then the method is processed again.
        context.channel.generated_name = generated
        context.authorization.check(CONFIGURE, "queue", name or generated)
        if name not in context.declarations.vhost.queues:
            check_queue_limit(context.declarations, name or generated)
            context.authorization.check_forwarding("queue", name or generated, raw, "x-dead-letter-exchange")
        context.channel.generated_name = b""
        queue = context.declarations.declare_queue(
            name, durable, exclusive, auto_delete, raw, connection, generated=generated
        )
    context.channel.last_queue = queue.name
    if isinstance(queue, Stream):
        # RabbitMQ counts no consumers of a stream.
        context.reply("queue.declare-ok", queue.name, int(queue.message_count()), 0)
    else:
        # Messages that are expired, or over a limit, are not counted.
        context.when_not_held(queue, lambda: report_declared(context, queue))


def report_declared(context: MethodContext, queue: Queue) -> None:
    """Reply to queue.declare with the numbers of ready messages and of consumers."""
    context.reply("queue.declare-ok", queue.name, int(queue.ready.count), len(queue.consumers))


def queue_bind(context: MethodContext) -> None:
    """Bind a queue to an exchange.

    :raises AmqpError: 404 if one of them does not exist, 403 without the permissions, 405 if the queue is exclusive to
        another connection, 502 or 406 for wrong arguments.
    """
    arguments = context.arguments
    name, source = context.stripped_queue_name(), context.exchange_name()
    direct_reply_to.refuse_binding(context, name)
    key = context.routing_key(name)
    context.check_binding("queue", name, source, key)
    context.declarations.bind(
        context.declarations.exchange(source),
        context.declarations.queue(name, context.connection),
        key,
        arguments.data("arguments"),
    )
    context.reply("queue.bind-ok")


def queue_unbind(context: MethodContext) -> None:
    """Remove a binding of a queue to an exchange; a missing binding is no error."""
    arguments = context.arguments
    name, source = context.stripped_queue_name(), context.exchange_name()
    direct_reply_to.refuse_binding(context, name)
    key, raw = context.routing_key(name), arguments.data("arguments")
    context.check_binding("queue", name, source, key)
    queue = context.declarations.vhost.queues.get(name)
    exchange = context.declarations.vhost.exchanges.get(source)
    if queue is not None and exchange is not None and (key, raw) in queue.incoming_bindings.get(exchange, ()):
        # Exclusive access matters only if there is a binding to remove.
        queue = context.declarations.queue(name, context.connection)
    context.declarations.unbind(source, queue, key, raw)
    context.reply("queue.unbind-ok")


def queue_purge(context: MethodContext) -> None:
    """Delete the messages of a queue, and reply with their number; unacknowledged messages stay.

    Messages that are expired, or over a length limit, are not counted: they are dead-lettered first.
    """
    if direct_reply_to.is_reply_queue(context, context.queue_name()):
        context.reply("queue.purge-ok", 0)
        return
    queue = context.queue(READ)
    refuse_stream(context, queue, "queue.purge")
    context.when_not_held(queue, lambda: purge(context, queue))


def purge(context: MethodContext, queue: Queue) -> None:
    """Delete the ready messages of a queue at whose head nothing is left to do, and reply with their number."""
    count = 0 if queue.deleted else int(queue.purge(context.connection))
    context.connection.after_bulk_work(lambda: context.reply("queue.purge-ok", count))


def queue_delete(context: MethodContext) -> None:
    """Delete a queue, and reply with the number of its ready messages; a missing queue is no error.

    :raises AmqpError: 406 if `if_unused` is set and the queue has consumers and is no stream, or if `if_empty` is set
        and it has messages that are ready, or wait for a retry or to be dead-lettered; 403 without the permission; 405 if
        the queue is exclusive to another connection.
    """
    name = context.stripped_queue_name()
    context.authorization.check(CONFIGURE, "queue", name)
    if name in context.declarations.vhost.queues:
        # What clients have settled before, and what is expired or over a limit, is dead-lettered first.
        context.when_settled(
            context.declarations.queue(name, context.connection), lambda: delete(context, name)
        )
    else:
        delete(context, name)


def delete(context: MethodContext, name: bytes) -> None:
    """Delete a queue on which no bulk work is left to do, and reply with the number of its ready messages.

    :raises AmqpError: as `queue_delete`.
    """
    count, cancelled = 0, list[bytes]()
    if name in context.declarations.vhost.queues:
        queue = context.declarations.queue(name, context.connection)
        described = context.declarations.describe("queue", name)
        if queue.arguments.quorum:
            for flag in ("if_unused", "if_empty"):
                if context.arguments.flag(flag):
                    context.declarations.vhost.portability.check(
                        "conditional_delete", described, flag.replace("_", "-")
                    )
        # RabbitMQ deletes a stream even if it is in use or not empty, and counts no messages.
        if context.arguments.flag("if_unused") and queue.consumers and not queue.is_stream:
            raise AmqpError(Reply.PRECONDITION_FAILED, f"{described} in use")
        if context.arguments.flag("if_empty") and not queue.is_empty:
            raise AmqpError(Reply.PRECONDITION_FAILED, f"{described} not empty")
        # As in RabbitMQ, the client's own consumers are cancelled after the reply.
        connection = context.connection
        subscriptions = [
            one for channel in connection.channels.values() for one in channel.subscriptions.values()
        ]
        own = [one for one in subscriptions if one.queue is queue]
        notifies, connection.supports_cancel = connection.supports_cancel, False
        count = context.declarations.delete_queue(queue)
        connection.supports_cancel = notifies
        if notifies:
            cancelled = [frame(int(one.channel.number), "basic.cancel", one.tag, True) for one in own]
    context.reply("queue.delete-ok", count, after=b"".join(cancelled))


def check_queue_limit(declarations: Declarations, name: bytes) -> None:
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
