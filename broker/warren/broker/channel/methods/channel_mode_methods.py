"""Methods that set or use a channel's mode: class tx, confirm.select, channel.flow, access.request.

Reference: https://www.rabbitmq.com/amqp-0-9-1-reference.
"""

from __future__ import annotations

from warren.broker.channel.bulk_commit import BulkCommit
from warren.broker.channel.methods.method_context import MethodContext
from warren.broker.channel.transaction import Transaction
from warren.broker.model.queue.queue import REJECTED, STORED
from warren.wire.methods import frame
from warren.wire.reply_codes import AmqpError, Reply


def confirm_select(context: MethodContext) -> None:
    """Put the channel into confirm mode.

    :raises AmqpError: 406 if it is in transaction mode.
    """
    if context.channel.tx is not None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    context.channel.confirming = True
    context.reply("confirm.select-ok")


def tx_select(context: MethodContext) -> None:
    """Put the channel into transaction mode.

    :raises AmqpError: 406 if it is in confirm mode.
    """
    channel = context.channel
    if channel.confirming:
        raise AmqpError(Reply.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.tx is None:
        channel.tx = Transaction(channel)
    context.reply("tx.select-ok")


def transaction_of(context: MethodContext) -> Transaction:
    """Return the transaction of the channel.

    :raises AmqpError: 406 if the channel is not in transaction mode.
    """
    if context.channel.tx is None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "channel is not transactional")
    return context.channel.tx


def tx_commit(context: MethodContext) -> None:
    """Commit the transaction, and reply when its publishes and acknowledgements are on disk.

    :raises AmqpError: 406 if the channel is not in transaction mode, or if a queue refused one of the publishes; the
        rest of the transaction has taken effect even so.
    """
    transaction = transaction_of(context)
    if transaction.is_large:
        job = BulkCommit(context.channel, *transaction.take())
        context.channel.run_bulk_publish(
            job, job.step, job.end, lambda: context.attempt(lambda: reply_to_commit(context, job.outcome))
        )
    else:
        reply_to_commit(context, transaction.commit())


def reply_to_commit(context: MethodContext, outcome: int) -> None:
    """Reply to tx.commit: at once, or when the log is on disk, or by an error, as the outcome requires.

    :param outcome: common outcome of the publishes and acknowledgements: ACCEPTED, STORED or REJECTED.
    :raises AmqpError: 406 if a queue refused one of the publishes.
    """
    if outcome == REJECTED:
        raise AmqpError(Reply.PRECONDITION_FAILED, "partial tx completion")
    reply = frame(int(context.channel.number), "tx.commit-ok")
    if outcome == STORED:
        context.connection.reply_when_synced(reply)
    else:
        context.connection.send(reply)


def tx_rollback(context: MethodContext) -> None:
    """Discard the publishes and acknowledgements since the last commit."""
    transaction_of(context).rollback()
    context.reply("tx.rollback-ok")


def access_request(context: MethodContext) -> None:
    """Process access.request: reply with the ticket that AMQP 0-8 clients expect; later methods ignore it."""
    context.reply("access.request-ok", 1)


def channel_flow(context: MethodContext) -> None:
    """Process channel.flow: accept `active=true`, which changes nothing.

    :raises AmqpError: 540 for `active=false`, which RabbitMQ does not implement either.
    """
    if not context.arguments.flag("active"):
        raise AmqpError(Reply.NOT_IMPLEMENTED, "active=false")
    context.reply("channel.flow-ok", True)
