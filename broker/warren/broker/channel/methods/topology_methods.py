"""Methods of the classes exchange and queue: declare, bind, unbind, purge, delete.

Reference: https://www.rabbitmq.com/amqp-0-9-1-reference. Permissions, checks and errors are those of the operations.
"""

from __future__ import annotations

from warren.broker.channel import direct_reply_to
from warren.broker.channel.methods.method_context import LINE_ENDS, MethodContext
from warren.broker.model.server_names import generate_name, generated_name_prefix
from warren.broker.model.vhost.vhost import PSEUDO_QUEUE
from warren.broker.operations.bindings import bind, unbind
from warren.broker.operations.exchanges import check_exchange, declare_exchange, delete_exchange
from warren.broker.operations.queues import (
    check_queue,
    count_messages,
    declare_queue,
    delete_queue,
    purge_queue,
)

# -- exchanges


def exchange_declare(context: MethodContext) -> None:
    """Declare an exchange; with `passive`, check that it exists."""
    arguments, name = context.arguments, context.exchange_name()
    if arguments.flag("passive"):
        check_exchange(context.principal, name)
    else:
        declare_exchange(
            context.principal,
            name,
            arguments.data("type"),
            durable=arguments.flag("durable"),
            auto_delete=arguments.flag("auto_delete"),
            internal=arguments.flag("internal"),
            arguments=arguments.data("arguments"),
        )
    context.reply("exchange.declare-ok")


def exchange_delete(context: MethodContext) -> None:
    """Delete an exchange; a missing one is no error."""
    delete_exchange(context.principal, context.exchange_name(), if_unused=context.arguments.flag("if_unused"))
    context.reply("exchange.delete-ok")


def exchange_bind(context: MethodContext) -> None:
    """Bind an exchange (destination) to another (source)."""
    bind(
        context.principal,
        context.exchange_name("source"),
        "exchange",
        context.exchange_name("destination"),
        context.arguments.data("routing_key"),
        context.arguments.data("arguments"),
    )
    context.reply("exchange.bind-ok")


def exchange_unbind(context: MethodContext) -> None:
    """Remove a binding between two exchanges; a missing binding is no error."""
    unbind(
        context.principal,
        context.exchange_name("source"),
        "exchange",
        context.exchange_name("destination"),
        context.arguments.data("routing_key"),
        context.arguments.data("arguments"),
    )
    context.reply("exchange.unbind-ok")


# -- queues


def queue_declare(context: MethodContext) -> None:
    """Declare a queue, and reply with its counts of ready messages and consumers.

    With `passive`, declare none, but reply with the counts of the existing queue.
    """
    arguments, channel = context.arguments, context.channel
    name = arguments.data("queue").translate(None, LINE_ENDS)
    if name.startswith(PSEUDO_QUEUE):
        direct_reply_to.declare(context, name)
        return
    if arguments.flag("passive"):
        queue = check_queue(context.principal, name)
    else:
        if not name and not channel.generated_name:
            # Kept while a decision on it is pending: then the method is processed again.
            channel.generated_name = generate_name(generated_name_prefix(arguments.data("arguments")))
        queue, _ = declare_queue(
            context.principal,
            name,
            durable=arguments.flag("durable"),
            exclusive=arguments.flag("exclusive"),
            auto_delete=arguments.flag("auto_delete"),
            arguments=arguments.data("arguments"),
            generated=channel.generated_name,
        )
        channel.generated_name = b""
    channel.last_queue = queue.name
    context.run(count_messages(queue), lambda counts: context.reply("queue.declare-ok", queue.name, *counts))


def queue_bind(context: MethodContext) -> None:
    """Bind a queue to an exchange."""
    name, source = context.stripped_queue_name(), context.exchange_name()
    direct_reply_to.refuse_binding(context, name)
    key = context.routing_key(name)
    bind(context.principal, source, "queue", name, key, context.arguments.data("arguments"))
    context.reply("queue.bind-ok")


def queue_unbind(context: MethodContext) -> None:
    """Remove a binding of a queue to an exchange; a missing binding is no error."""
    name, source = context.stripped_queue_name(), context.exchange_name()
    direct_reply_to.refuse_binding(context, name)
    key = context.routing_key(name)
    unbind(context.principal, source, "queue", name, key, context.arguments.data("arguments"))
    context.reply("queue.unbind-ok")


def queue_purge(context: MethodContext) -> None:
    """Delete the messages of a queue, and reply with their number; unacknowledged messages stay."""
    name = context.queue_name()
    if direct_reply_to.is_reply_queue(context, name):
        context.reply("queue.purge-ok", 0)
        return
    context.run(purge_queue(context.principal, name), lambda count: context.reply("queue.purge-ok", count))


def queue_delete(context: MethodContext) -> None:
    """Delete a queue, and reply with the number of its ready messages; a missing queue is no error."""
    flag = context.arguments.flag
    context.run(
        delete_queue(
            context.principal,
            context.stripped_queue_name(),
            if_unused=flag("if_unused"),
            if_empty=flag("if_empty"),
        ),
        lambda count: context.reply("queue.delete-ok", count or 0),
    )
