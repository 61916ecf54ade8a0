"""The methods of an open channel that are not about messages: declare, bind, delete, and the modes of a channel.

Each one's meaning: https://www.rabbitmq.com/amqp-0-9-1-reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from warren.broker.channel import direct_reply_to
from warren.broker.channel.authorization import CONFIGURE, READ
from warren.broker.channel.channel import Channel
from warren.broker.channel.methods import consumer_methods
from warren.broker.channel.methods.method_context import LINE_ENDS, MethodContext
from warren.broker.channel.methods.stream_methods import refuse_stream
from warren.broker.channel.transaction import Transaction
from warren.broker.connection.admission_limits import admit_queue
from warren.broker.model.exchange.exchange_types import check_type
from warren.broker.model.queue.queue import REJECTED, STORED
from warren.broker.model.server_names import generate_name, generated_name_prefix, refuse_default_exchange
from warren.broker.model.stream.stream import Stream
from warren.wire.methods import Arguments, frame
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection

Handler: TypeAlias = Callable[[MethodContext], None]


def run(connection: Connection, channel: Channel, name: str, arguments: Arguments) -> None:
    """Carry out one method.

    :raises AmqpError: whatever is wrong with it.
    """
    handler = HANDLERS.get(name)
    if handler is None:
        raise AmqpError(Reply.COMMAND_INVALID, "unimplemented method")
    handler(MethodContext(connection, channel, arguments))


# -- exchanges


def exchange_declare(context: MethodContext) -> None:
    arguments = context.arguments
    name = context.exchange_name()
    if arguments.flag("passive"):
        refuse_default_exchange(name)
        context.topology.exchange(name)
    else:
        if name and context.authorization.limited:
            raw = arguments.data("arguments")
            check_type(arguments.data("type"), raw, context.topology.vhost.compat)
            context.authorization.check(CONFIGURE, "exchange", name)
            if name not in context.topology.vhost.exchanges and not name.startswith(b"amq."):
                context.authorization.check_successor("exchange", name, raw, "alternate-exchange")
        context.topology.declare_exchange(
            name,
            arguments.data("type"),
            arguments.flag("durable"),
            arguments.flag("auto_delete"),
            arguments.flag("internal"),
            arguments.data("arguments"),
        )
    context.reply("exchange.declare-ok")


def exchange_delete(context: MethodContext) -> None:
    name = context.exchange_name()
    if name and not name.startswith(b"amq."):
        context.authorization.check(CONFIGURE, "exchange", name)
    context.topology.delete_exchange(name, context.arguments.flag("if_unused"))
    context.reply("exchange.delete-ok")


def exchange_bind(context: MethodContext) -> None:
    source, destination = context.exchange_name("source"), context.exchange_name("destination")
    context.check_binding("exchange", destination, source, context.arguments.data("routing_key"))
    context.topology.bind(
        context.topology.exchange(source),
        context.topology.exchange(destination),
        context.arguments.data("routing_key"),
        context.arguments.data("arguments"),
    )
    context.reply("exchange.bind-ok")


def exchange_unbind(context: MethodContext) -> None:
    source, destination = context.exchange_name("source"), context.exchange_name("destination")
    context.check_binding("exchange", destination, source, context.arguments.data("routing_key"))
    context.topology.unbind(
        source,
        context.topology.vhost.exchanges.get(destination),
        context.arguments.data("routing_key"),
        context.arguments.data("arguments"),
    )
    context.reply("exchange.unbind-ok")


# -- queues


def queue_declare(context: MethodContext) -> None:
    arguments, connection = context.arguments, context.connection
    name = arguments.data("queue").translate(None, LINE_ENDS)
    if name.startswith(direct_reply_to.NAME):
        direct_reply_to.declare(context, name)
        return
    if arguments.flag("passive"):
        queue = context.topology.queue(name, connection)
        queue.expiry.touch()
    else:
        durable, exclusive = arguments.flag("durable"), arguments.flag("exclusive")
        auto_delete, raw = arguments.flag("auto_delete"), arguments.data("arguments")
        raw = context.topology.settings.with_default_queue_type(raw, durable, exclusive, auto_delete)
        generated = b"" if name else generate_name(generated_name_prefix(raw))
        context.topology.refuse_reserved(name)
        context.authorization.check(CONFIGURE, "queue", name or generated)
        if name not in context.topology.vhost.queues:
            admit_queue(context.topology, name or generated)
            context.authorization.check_successor("queue", name or generated, raw, "x-dead-letter-exchange")
        queue = context.topology.declare_queue(
            name, durable, exclusive, auto_delete, raw, connection, generated=generated
        )
    context.channel.last_queue = queue.name
    if isinstance(queue, Stream):
        # RabbitMQ counts no consumers of a stream.
        context.reply("queue.declare-ok", queue.name, int(queue.message_count()), 0)
    else:
        context.reply("queue.declare-ok", queue.name, int(queue.ready.count), len(queue.consumers))


def queue_bind(context: MethodContext) -> None:
    arguments = context.arguments
    name, source = context.plain_queue_name(), context.exchange_name()
    direct_reply_to.refuse_binding(context, name)
    key = context.routing_key(name)
    context.check_binding("queue", name, source, key)
    context.topology.bind(
        context.topology.exchange(source),
        context.topology.queue(name, context.connection),
        key,
        arguments.data("arguments"),
    )
    context.reply("queue.bind-ok")


def queue_unbind(context: MethodContext) -> None:
    arguments = context.arguments
    name, source = context.plain_queue_name(), context.exchange_name()
    direct_reply_to.refuse_binding(context, name)
    key, raw = context.routing_key(name), arguments.data("arguments")
    context.check_binding("queue", name, source, key)
    queue = context.topology.vhost.queues.get(name)
    if queue is not None and (source, key, raw) in queue.incoming_bindings:
        # Whose queue it is matters only if there is something to take away.
        queue = context.topology.queue(name, context.connection)
    context.topology.unbind(source, queue, key, raw)
    context.reply("queue.unbind-ok")


def queue_purge(context: MethodContext) -> None:
    queue = context.queue(READ)
    refuse_stream(context, queue, "queue.purge")
    context.reply("queue.purge-ok", int(queue.purge()))


def queue_delete(context: MethodContext) -> None:
    name = context.plain_queue_name()
    context.authorization.check(CONFIGURE, "queue", name)
    count, cancelled = 0, list[bytes]()
    if name in context.topology.vhost.queues:
        queue = context.topology.queue(name, context.connection)
        described = context.topology.describe("queue", name)
        # RabbitMQ deletes a stream, used and full as it may be, and counts nothing.
        if context.arguments.flag("if_unused") and queue.consumers and not queue.is_stream:
            raise AmqpError(Reply.PRECONDITION_FAILED, f"{described} in use")
        if context.arguments.flag("if_empty") and queue.ready.count:
            raise AmqpError(Reply.PRECONDITION_FAILED, f"{described} not empty")
        # The client hears of its own consumers' end after the answer, as in RabbitMQ.
        connection = context.connection
        subscriptions = [
            one for channel in connection.channels.values() for one in channel.subscriptions.values()
        ]
        own = [one for one in subscriptions if one.queue is queue]
        tells, connection.can_cancel = connection.can_cancel, False
        count = context.topology.delete_queue(queue)
        connection.can_cancel = tells
        if tells:
            cancelled = [frame(int(one.channel.number), "basic.cancel", one.tag, True) for one in own]
    context.reply("queue.delete-ok", count, after=b"".join(cancelled))


# -- confirms and flow


def confirm_select(context: MethodContext) -> None:
    if context.channel.tx is not None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    context.channel.confirming = True
    context.reply("confirm.select-ok")


def tx_select(context: MethodContext) -> None:
    channel = context.channel
    if channel.confirming:
        raise AmqpError(Reply.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.tx is None:
        channel.tx = Transaction(channel)
    context.reply("tx.select-ok")


def transaction(context: MethodContext) -> Transaction:
    if context.channel.tx is None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "channel is not transactional")
    return context.channel.tx


def tx_commit(context: MethodContext) -> None:
    """commit-ok leaves when what the transaction stored, and what it acknowledged, is on the disk."""
    outcome = transaction(context).commit()
    if outcome == REJECTED:
        raise AmqpError(Reply.PRECONDITION_FAILED, "partial tx completion")
    reply = frame(int(context.channel.number), "tx.commit-ok")
    if outcome == STORED:
        context.connection.reply_when_synced(reply)
    else:
        context.connection.send(reply)


def tx_rollback(context: MethodContext) -> None:
    transaction(context).rollback()
    context.reply("tx.rollback-ok")


def access_request(context: MethodContext) -> None:
    """Of AMQP 0-8: clients of that time ask for a ticket, which means nothing any more."""
    context.reply("access.request-ok", 1)


def channel_flow(context: MethodContext) -> None:
    if not context.arguments.flag("active"):
        raise AmqpError(Reply.NOT_IMPLEMENTED, "active=false")
    context.reply("channel.flow-ok", True)


HANDLERS: dict[str, Handler] = {
    "access.request": access_request,
    "exchange.declare": exchange_declare,
    "exchange.delete": exchange_delete,
    "exchange.bind": exchange_bind,
    "exchange.unbind": exchange_unbind,
    "queue.declare": queue_declare,
    "queue.bind": queue_bind,
    "queue.unbind": queue_unbind,
    "queue.purge": queue_purge,
    "queue.delete": queue_delete,
    "basic.qos": consumer_methods.basic_qos,
    "basic.consume": consumer_methods.basic_consume,
    "basic.cancel": consumer_methods.basic_cancel,
    "basic.cancel-ok": consumer_methods.cancel_answered,
    "basic.get": consumer_methods.basic_get,
    "basic.reject": consumer_methods.basic_reject,
    "basic.nack": consumer_methods.basic_nack,
    "basic.recover": consumer_methods.basic_recover,
    "basic.recover-async": consumer_methods.recover,
    "confirm.select": confirm_select,
    "channel.flow": channel_flow,
    "tx.select": tx_select,
    "tx.commit": tx_commit,
    "tx.rollback": tx_rollback,
}
