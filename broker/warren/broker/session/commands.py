"""The methods of an open channel that are not about single messages: declare, bind, consume, get, qos and their like.

Each one's meaning: https://www.rabbitmq.com/amqp-0-9-1-reference.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from warren.broker.model.arguments import consumer_priority
from warren.broker.model.queue import REFUSED, STORED, Queue
from warren.broker.model.topology import refuse_default, server_name
from warren.broker.session.admission import admit_queue
from warren.broker.session.channel import Channel
from warren.broker.session.redelivery import as_received
from warren.broker.session.rights import CONFIGURE, READ, WRITE, Rights
from warren.broker.session.subscription import Subscription
from warren.broker.session.transaction import Transaction
from warren.wire.content import content_frames
from warren.wire.methods import NACK, RECOVER, REJECT, Argument, Arguments, frame
from warren.wire.replies import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.model.topology import Topology
    from warren.broker.session.connection import Connection


class Call:
    """One method in the middle of being answered."""

    def __init__(self, connection: Connection, channel: Channel, arguments: Arguments) -> None:
        self.connection = connection
        self.channel = channel
        self.arguments = arguments
        self.topology: Topology = connection.node.vhosts[connection.vhost]
        assert connection.rights is not None
        self.rights: Rights = connection.rights
        definitions = connection.node.definitions
        self._before = definitions.submitted if definitions is not None else 0

    def reply(self, name: str, *values: Argument) -> None:
        """Answer now, or when the definitions that this method changed are on disk; not at all if nowait."""
        if self.arguments.get("nowait") is True:
            return
        encoded = frame(int(self.channel.number), name, *values)
        definitions = self.connection.node.definitions
        if definitions is not None and definitions.submitted != self._before:
            self.connection.reply_when_committed(encoded, definitions.submitted)
        else:
            self.connection.send(encoded)

    def queue_name(self) -> bytes:
        """The name given, or that of the channel's last declared queue if it is empty."""
        name = self.arguments.data("queue").translate(None, b"\r\n")
        if name:
            return name
        if not self.channel.last_queue:
            raise AmqpError(Reply.NOT_FOUND, "no previously declared queue")
        return self.channel.last_queue

    def queue(self, what: str = "") -> Queue:
        """The queue that is named; with `what`, only if the user may do that with it."""
        name = self.queue_name()
        if what:
            self.rights.check(what, "queue", name)
        return self.topology.queue(name, self.connection)

    def check_binding(self, kind: str, destination: bytes, source: bytes, routing_key: bytes) -> None:
        """Whether the user may write to the destination and read from the source, neither of them the default exchange.

        :raises AmqpError: 403 if not.
        """
        self.rights.check(WRITE, kind, destination)
        refuse_default(*((source, destination) if kind == "exchange" else (source,)))
        self.rights.check(READ, "exchange", source)
        exchange = self.topology.vhost.exchanges.get(source)
        if exchange is not None:
            self.rights.check_topic(READ, exchange, routing_key)

    def routing_key(self, queue: bytes) -> bytes:
        """The routing key given, or the queue's name if neither a queue nor a key is named."""
        key = self.arguments.data("routing_key")
        return key if key or self.arguments.data("queue") else queue

    def exchange_name(self, field: str = "exchange") -> bytes:
        return self.arguments.data(field).translate(None, b"\r\n")


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
        if name:
            call.rights.check(CONFIGURE, "exchange", name)
        if name not in call.topology.vhost.exchanges:
            call.rights.check_successor("exchange", name, arguments.data("arguments"), "alternate-exchange")
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
    name = arguments.data("queue").translate(None, b"\r\n")
    if arguments.flag("passive"):
        queue = call.topology.queue(name, connection)
        queue.expiry.touch()
    else:
        durable, exclusive = arguments.flag("durable"), arguments.flag("exclusive")
        auto_delete, raw = arguments.flag("auto_delete"), arguments.data("arguments")
        raw = call.topology.settings.queue_arguments(raw, durable, exclusive, auto_delete)
        generated = b"" if name else server_name()
        call.rights.check(CONFIGURE, "queue", name or generated)
        if name not in call.topology.vhost.queues:
            admit_queue(call.topology, name or generated)
            call.rights.check_successor("queue", name or generated, raw, "x-dead-letter-exchange")
        queue = call.topology.declare_queue(
            name, durable, exclusive, auto_delete, raw, connection, generated=generated
        )
    call.channel.last_queue = queue.name
    call.reply("queue.declare-ok", queue.name, int(queue.waiting.count), len(queue.consumers))


def queue_bind(call: Call) -> None:
    arguments = call.arguments
    name, source = call.queue_name(), call.exchange_name()
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
    name, source = call.queue_name(), call.exchange_name()
    key, raw = call.routing_key(name), arguments.data("arguments")
    call.check_binding("queue", name, source, key)
    queue = call.topology.vhost.queues.get(name)
    if queue is not None and (source, key, raw) in queue.incoming:
        # Whose queue it is matters only if there is something to take away.
        queue = call.queue()
    call.topology.unbind(source, queue, key, raw)
    call.reply("queue.unbind-ok")


def queue_purge(call: Call) -> None:
    call.reply("queue.purge-ok", int(call.queue(READ).purge()))


def queue_delete(call: Call) -> None:
    name = call.queue_name()
    call.rights.check(CONFIGURE, "queue", name)
    count = 0
    if name in call.topology.vhost.queues:
        queue = call.queue()
        described = call.topology.described("queue", name)
        if call.arguments.flag("if_unused") and queue.consumers:
            raise AmqpError(Reply.PRECONDITION_FAILED, f"{described} in use")
        if call.arguments.flag("if_empty") and queue.waiting.count:
            raise AmqpError(Reply.PRECONDITION_FAILED, f"{described} not empty")
        count = call.topology.delete_queue(queue)
    call.reply("queue.delete-ok", count)


# -- consuming


def basic_qos(call: Call) -> None:
    arguments, channel = call.arguments, call.channel
    size = arguments.number("prefetch_size")
    if size:
        raise AmqpError(Reply.NOT_IMPLEMENTED, f"prefetch_size!=0 ({size})")
    count = arguments.number("prefetch_count")
    if arguments.flag("global"):
        call.reply("basic.qos-ok")
        channel.limit(count)
    else:
        channel.next_prefetch = count
        call.reply("basic.qos-ok")


def basic_consume(call: Call) -> None:
    arguments, channel, connection = call.arguments, call.channel, call.connection
    queue = call.queue(READ)
    tag = arguments.data("consumer_tag") or b"amq.ctag-" + base64.urlsafe_b64encode(os.urandom(16)).rstrip(
        b"="
    )
    if tag in channel.subscriptions:
        raise AmqpError(Reply.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag.decode(errors='replace')}'")
    exclusive = arguments.flag("exclusive")
    # An exclusive one is the only one.
    if queue.consumers and (exclusive or queue.consumers[0].exclusive):
        raise AmqpError(
            Reply.ACCESS_REFUSED, f"{call.topology.described('queue', queue.name)} in exclusive use"
        )
    subscription = Subscription(
        channel, queue, tag, arguments.flag("no_ack"), exclusive, channel.next_prefetch
    )
    subscription.priority = consumer_priority(
        arguments.data("arguments"), call.topology.described("queue", queue.name)
    )
    subscription.raw_arguments = arguments.data("arguments")
    channel.subscriptions[tag] = subscription
    if not arguments.flag("nowait"):
        connection.send(frame(int(channel.number), "basic.consume-ok", tag))
    queue.subscribe(subscription)
    queue.drain()


def basic_cancel(call: Call) -> None:
    tag = call.arguments.data("consumer_tag")
    subscription = call.channel.subscriptions.pop(tag, None)
    call.reply("basic.cancel-ok", tag)
    if subscription is not None:
        subscription.queue.unsubscribe(subscription)
        subscription.queue.drain()


def basic_get(call: Call) -> None:
    channel, connection = call.channel, call.connection
    queue = call.queue(READ)
    if queue.arguments.single_active_consumer and queue.arguments.quorum:
        raise AmqpError(
            Reply.RESOURCE_LOCKED,
            f"cannot obtain access to locked {call.topology.described('queue', queue.name)}. basic.get operations are "
            "not supported by quorum queues with single active consumer",
        )
    message = queue.get()
    if message is None:
        call.reply("basic.get-empty", b"")
        return
    channel.last_tag += 1
    tag = int(channel.last_tag)
    content = as_received(queue, message)
    encoded = frame(
        int(channel.number),
        "basic.get-ok",
        tag,
        bool(message.redelivered),
        message.exchange,
        message.routing_key,
        int(queue.waiting.count),
    ) + content_frames(content, channel.number, connection.frame_max)
    connection.send(encoded)
    if call.arguments.flag("no_ack"):
        queue.acknowledged(message)
        return
    message.tag = tag
    message.consumer = queue.getter
    channel.unacked[tag] = message


def basic_reject(call: Call) -> None:
    arguments = call.arguments
    call.channel.reject(arguments.number("delivery_tag"), False, arguments.flag("requeue"), REJECT)


def basic_nack(call: Call) -> None:
    arguments = call.arguments
    call.channel.reject(
        arguments.number("delivery_tag"), arguments.flag("multiple"), arguments.flag("requeue"), NACK
    )


def basic_recover(call: Call) -> None:
    recover(call)
    call.reply("basic.recover-ok")


def recover(call: Call) -> None:
    """Everything unacknowledged on the channel returns to its queues, in a transaction as well: it is no acknowledgement."""
    if not call.arguments.flag("requeue"):
        raise AmqpError(Reply.NOT_IMPLEMENTED, "requeue=false")
    call.channel.give_back(call.channel.take(0, RECOVER), True)


def cancel_answered(call: Call) -> None:
    """The client has seen that its consumer is gone."""


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
    """Tickets are of AMQP 0-8; old clients still ask for one, and may have any."""
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
    "basic.qos": basic_qos,
    "basic.consume": basic_consume,
    "basic.cancel": basic_cancel,
    "basic.cancel-ok": cancel_answered,
    "basic.get": basic_get,
    "basic.reject": basic_reject,
    "basic.nack": basic_nack,
    "basic.recover": basic_recover,
    "basic.recover-async": recover,
    "confirm.select": confirm_select,
    "channel.flow": channel_flow,
    "tx.select": tx_select,
    "tx.commit": tx_commit,
    "tx.rollback": tx_rollback,
}
