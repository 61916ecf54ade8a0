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
from warren.broker.channel.methods.method_context import LINE_ENDS, Call
from warren.broker.channel.methods.stream_methods import refuse_stream
from warren.broker.channel.transaction import Transaction
from warren.broker.connection.admission_limits import admit_queue
from warren.broker.model.exchange.exchange_types import assert_type
from warren.broker.model.names import name_prefix, refuse_default, server_name
from warren.broker.model.queue.queue import REFUSED, STORED
from warren.broker.model.stream.stream import Stream
from warren.wire.methods import Arguments, frame
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection

Handler: TypeAlias = Callable[[Call], None]


def run(connection: Connection, channel: Channel, name: str, arguments: Arguments) -> None:
    """Carry out one method.

    :raises AmqpError: whatever is wrong with it.
    """
    handler = HANDLERS.get(name)
    if handler is None:
        raise AmqpError(Reply.COMMAND_INVALID, "unimplemented method")
    handler(Call(connection, channel, arguments))


# -- exchanges


def exchange_declare(call: Call) -> None:
    arguments = call.arguments
    name = call.exchange_name()
    if arguments.flag("passive"):
        refuse_default(name)
        call.topology.exchange(name)
    else:
        if name and call.rights.limited:
            raw = arguments.data("arguments")
            assert_type(arguments.data("type"), raw, call.topology.vhost.compat)
            call.rights.check(CONFIGURE, "exchange", name)
            if name not in call.topology.vhost.exchanges and not name.startswith(b"amq."):
                call.rights.check_successor("exchange", name, raw, "alternate-exchange")
        call.topology.declare_exchange(
            name,
            arguments.data("type"),
            arguments.flag("durable"),
            arguments.flag("auto_delete"),
            arguments.flag("internal"),
            arguments.data("arguments"),
        )
    call.reply("exchange.declare-ok")


def exchange_delete(call: Call) -> None:
    name = call.exchange_name()
    if name and not name.startswith(b"amq."):
        call.rights.check(CONFIGURE, "exchange", name)
    call.topology.delete_exchange(name, call.arguments.flag("if_unused"))
    call.reply("exchange.delete-ok")


def exchange_bind(call: Call) -> None:
    source, destination = call.exchange_name("source"), call.exchange_name("destination")
    call.check_binding("exchange", destination, source, call.arguments.data("routing_key"))
    call.topology.bind(
        call.topology.exchange(source),
        call.topology.exchange(destination),
        call.arguments.data("routing_key"),
        call.arguments.data("arguments"),
    )
    call.reply("exchange.bind-ok")


def exchange_unbind(call: Call) -> None:
    source, destination = call.exchange_name("source"), call.exchange_name("destination")
    call.check_binding("exchange", destination, source, call.arguments.data("routing_key"))
    call.topology.unbind(
        source,
        call.topology.vhost.exchanges.get(destination),
        call.arguments.data("routing_key"),
        call.arguments.data("arguments"),
    )
    call.reply("exchange.unbind-ok")


# -- queues


def queue_declare(call: Call) -> None:
    arguments, connection = call.arguments, call.connection
    name = arguments.data("queue").translate(None, LINE_ENDS)
    if name.startswith(direct_reply_to.NAME):
        direct_reply_to.declare(call, name)
        return
    if arguments.flag("passive"):
        queue = call.topology.queue(name, connection)
        queue.expiry.touch()
    else:
        durable, exclusive = arguments.flag("durable"), arguments.flag("exclusive")
        auto_delete, raw = arguments.flag("auto_delete"), arguments.data("arguments")
        raw = call.topology.settings.queue_arguments(raw, durable, exclusive, auto_delete)
        generated = b"" if name else server_name(name_prefix(raw))
        call.topology.refuse_reserved(name)
        call.rights.check(CONFIGURE, "queue", name or generated)
        if name not in call.topology.vhost.queues:
            admit_queue(call.topology, name or generated)
            call.rights.check_successor("queue", name or generated, raw, "x-dead-letter-exchange")
        queue = call.topology.declare_queue(
            name, durable, exclusive, auto_delete, raw, connection, generated=generated
        )
    call.channel.last_queue = queue.name
    if isinstance(queue, Stream):
        # RabbitMQ counts no consumers of a stream.
        call.reply("queue.declare-ok", queue.name, int(queue.held()), 0)
    else:
        call.reply("queue.declare-ok", queue.name, int(queue.waiting.count), len(queue.consumers))


def queue_bind(call: Call) -> None:
    arguments = call.arguments
    name, source = call.plain_queue_name(), call.exchange_name()
    direct_reply_to.refuse_binding(call, name)
    key = call.routing_key(name)
    call.check_binding("queue", name, source, key)
    call.topology.bind(
        call.topology.exchange(source),
        call.topology.queue(name, call.connection),
        key,
        arguments.data("arguments"),
    )
    call.reply("queue.bind-ok")


def queue_unbind(call: Call) -> None:
    arguments = call.arguments
    name, source = call.plain_queue_name(), call.exchange_name()
    direct_reply_to.refuse_binding(call, name)
    key, raw = call.routing_key(name), arguments.data("arguments")
    call.check_binding("queue", name, source, key)
    queue = call.topology.vhost.queues.get(name)
    if queue is not None and (source, key, raw) in queue.incoming:
        # Whose queue it is matters only if there is something to take away.
        queue = call.topology.queue(name, call.connection)
    call.topology.unbind(source, queue, key, raw)
    call.reply("queue.unbind-ok")


def queue_purge(call: Call) -> None:
    queue = call.queue(READ)
    refuse_stream(call, queue, "queue.purge")
    call.reply("queue.purge-ok", int(queue.purge()))


def queue_delete(call: Call) -> None:
    name = call.plain_queue_name()
    call.rights.check(CONFIGURE, "queue", name)
    count, cancelled = 0, list[bytes]()
    if name in call.topology.vhost.queues:
        queue = call.topology.queue(name, call.connection)
        described = call.topology.described("queue", name)
        # RabbitMQ deletes a stream, used and full as it may be, and counts nothing.
        if call.arguments.flag("if_unused") and queue.consumers and not queue.streamed:
            raise AmqpError(Reply.PRECONDITION_FAILED, f"{described} in use")
        if call.arguments.flag("if_empty") and queue.waiting.count:
            raise AmqpError(Reply.PRECONDITION_FAILED, f"{described} not empty")
        # The client hears of its own consumers' end after the answer, as in RabbitMQ.
        connection = call.connection
        subscriptions = [
            one for channel in connection.channels.values() for one in channel.subscriptions.values()
        ]
        own = [one for one in subscriptions if one.queue is queue]
        tells, connection.can_cancel = connection.can_cancel, False
        count = call.topology.delete_queue(queue)
        connection.can_cancel = tells
        if tells:
            cancelled = [frame(int(one.channel.number), "basic.cancel", one.tag, True) for one in own]
    call.reply("queue.delete-ok", count, after=b"".join(cancelled))


# -- confirms and flow


def confirm_select(call: Call) -> None:
    if call.channel.tx is not None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    call.channel.confirming = True
    call.reply("confirm.select-ok")


def tx_select(call: Call) -> None:
    channel = call.channel
    if channel.confirming:
        raise AmqpError(Reply.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.tx is None:
        channel.tx = Transaction(channel)
    call.reply("tx.select-ok")


def transaction(call: Call) -> Transaction:
    if call.channel.tx is None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "channel is not transactional")
    return call.channel.tx


def tx_commit(call: Call) -> None:
    """commit-ok leaves when what the transaction stored, and what it acknowledged, is on the disk."""
    outcome = transaction(call).commit()
    if outcome == REFUSED:
        raise AmqpError(Reply.PRECONDITION_FAILED, "partial tx completion")
    reply = frame(int(call.channel.number), "tx.commit-ok")
    if outcome == STORED:
        call.connection.reply_when_synced(reply)
    else:
        call.connection.send(reply)


def tx_rollback(call: Call) -> None:
    transaction(call).rollback()
    call.reply("tx.rollback-ok")


def access_request(call: Call) -> None:
    """Of AMQP 0-8: clients of that time ask for a ticket, which means nothing any more."""
    call.reply("access.request-ok", 1)


def channel_flow(call: Call) -> None:
    if not call.arguments.flag("active"):
        raise AmqpError(Reply.NOT_IMPLEMENTED, "active=false")
    call.reply("channel.flow-ok", True)


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
