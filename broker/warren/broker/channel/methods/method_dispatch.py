"""Dispatch of channel methods that are not on the hot path, by their names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from warren.broker.access.audit_log import AMQP, DONE, FAILED, REFUSED, AuditLog, Change
from warren.broker.access.pending_decisions import DecisionPending
from warren.broker.channel.channel import Channel
from warren.broker.channel.methods import channel_mode_methods, consumer_methods, topology_methods
from warren.broker.channel.methods.method_context import MethodContext
from warren.wire.methods import Arguments
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection

Handler: TypeAlias = Callable[[MethodContext], None]

HANDLERS: Final[dict[str, Handler]] = {
    "access.request": channel_mode_methods.access_request,
    "exchange.declare": topology_methods.exchange_declare,
    "exchange.delete": topology_methods.exchange_delete,
    "exchange.bind": topology_methods.exchange_bind,
    "exchange.unbind": topology_methods.exchange_unbind,
    "queue.declare": topology_methods.queue_declare,
    "queue.bind": topology_methods.queue_bind,
    "queue.unbind": topology_methods.queue_unbind,
    "queue.purge": topology_methods.queue_purge,
    "queue.delete": topology_methods.queue_delete,
    "basic.qos": consumer_methods.basic_qos,
    "basic.consume": consumer_methods.basic_consume,
    "basic.cancel": consumer_methods.basic_cancel,
    "basic.cancel-ok": consumer_methods.basic_cancel_ok,
    "basic.get": consumer_methods.basic_get,
    "basic.reject": consumer_methods.basic_reject,
    "basic.nack": consumer_methods.basic_nack,
    "basic.recover": consumer_methods.basic_recover,
    "basic.recover-async": consumer_methods.recover,
    "confirm.select": channel_mode_methods.confirm_select,
    "channel.flow": channel_mode_methods.channel_flow,
    "tx.select": channel_mode_methods.tx_select,
    "tx.commit": channel_mode_methods.tx_commit,
    "tx.rollback": channel_mode_methods.tx_rollback,
}

CHANGES: Final = frozenset(
    {
        *("exchange.declare", "exchange.delete", "exchange.bind", "exchange.unbind"),
        *("queue.declare", "queue.delete", "queue.bind", "queue.unbind", "queue.purge"),
    }
)
"""Methods that the audit log records if it records those of AMQP clients."""


def run_method(connection: Connection, channel: Channel, name: str, arguments: Arguments) -> None:
    """Run one method of an open channel.

    :param name: name of the method, such as `queue.declare`.
    :raises AmqpError: 503 for an unknown method; otherwise the error of the method itself.
    """
    handler = HANDLERS.get(name)
    if handler is None:
        raise AmqpError(Reply.COMMAND_INVALID, "unimplemented method")
    context = MethodContext(connection, channel, arguments)
    audit = connection.node.audit
    if audit is None or not audit.records_amqp or name not in CHANGES or arguments.get("passive") is True:
        handler(context)
        return
    context.recorder = partial(_record, audit, context, name)
    context.recorder(partial(handler, context))


def _record(audit: AuditLog, context: MethodContext, name: str, action: Callable[[], None]) -> None:
    """Call `action`, which performs a method; record the outcome in the audit log unless the method has to wait."""
    outcome = FAILED
    try:
        action()
        outcome = "" if context.is_waiting else DONE
    except DecisionPending:
        outcome = ""
        raise
    except AmqpError:
        outcome = REFUSED
        raise
    finally:
        if outcome:
            audit.add(_change(context.connection, name, context.arguments, outcome))


def _change(connection: Connection, name: str, arguments: Arguments, outcome: str) -> Change:
    """Return the entry of a method for the audit log."""
    names = {"vhost": connection.vhost.decode(errors="replace")}
    for field in ("queue", "exchange", "source", "destination"):
        value = arguments.get(field)
        if isinstance(value, bytes):
            names[field] = value.decode(errors="replace")
    user = connection.user.decode(errors="replace")
    return Change(user, connection.identity.address, AMQP, name, names, outcome)
