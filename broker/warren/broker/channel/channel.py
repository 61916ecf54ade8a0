"""Channel of a connection: publishing, deliveries, acknowledgements, prefetch limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.channel.ack_timeouts import AckDeadlines, settle_timed_out, settle_timed_out_up_to
from warren.broker.channel.bulk_settlement import BULK_ACKS, BULK_MESSAGES, CHANNEL_ENDED, BulkSettlement
from warren.broker.channel.client_events import on_channel_closed, on_consumer_ended
from warren.broker.channel.content_assembler import ContentAssembler
from warren.broker.channel.direct_reply_to import replace_reply_to
from warren.broker.channel.methods.stream_methods import refuse_return
from warren.broker.channel.publish_outcome import capture_published, handle_unroutable
from warren.broker.channel.publisher_confirms import PublisherConfirms
from warren.broker.channel.subscription import Subscription
from warren.broker.channel.transaction import ACKED, FAILED, REJECTED, REQUEUED, Transaction
from warren.broker.model.bulk_work import Step
from warren.broker.model.deduplication import DUPLICATE
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.exchange.headers import may_have_cc
from warren.broker.model.message import Message
from warren.broker.model.message_counts import MessageCounts
from warren.broker.model.queue.consumer import Consumer
from warren.broker.model.queue.queue import ACCEPTED, STORED, Queue, count_deliveries
from warren.broker.model.vhost.bulk_publish import BULK_COPIES, BulkFanOut, BulkPublish
from warren.broker.model.vhost.vhost import VirtualHost
from warren.broker.operations.principal import Principal
from warren.broker.operations.publishing import (
    check_topics,
    drop_reason,
    exchange_to_publish_to,
    route_by_message,
    set_rare_properties,
)
from warren.wire.content import RoutingProperties
from warren.wire.methods import ACK, BASIC, REJECT
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection

WIDE_FAN_OUT: Final = 64
"""Number of queues that a publish reaches above which it may take long."""


class PublishTarget:
    """Decoded basic.publish method frame with the queues that it routes to, cached while the same frame is repeated."""

    def __init__(
        self, channel: Channel, frame: bytes, exchange: bytes, routing_key: bytes, mandatory: bool
    ) -> None:
        self.channel = channel
        self.frame = frame
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.immediate: bool = False
        """True if the flag `immediate` is set: messages go to queues with consumers only, or are returned."""
        self.epoch: i64 = -1
        """Value of `VirtualHost.routing_epoch` when exchange and queues were resolved; any other value is outdated."""
        self.resolved_exchange: Optional[Exchange] = None  # noqa: UP045
        self.routes_by_message: bool = False
        """True if routing depends on more than the routing key, such as headers or the flag `immediate`."""
        self.queues: list[Queue] = []
        self.published: i64 = 0
        """Publishes that `count_publishes` has yet to add to the counts of the channel and the exchange."""
        self.routed_by_message: i64 = 0
        """Copies of those, more or less than `queues` for each, where routing depends on the message."""
        self.is_slow: bool = False
        """True if a single publish may take long, because it is routed by its message or reaches many queues."""

    def count_publishes(self) -> None:
        """Add the publishes since the last call to the counts of the channel and the exchange."""
        count = self.published
        exchange = self.resolved_exchange
        if count and exchange is not None:
            self.published = 0
            self.channel.counts.published += count
            routed = count * len(self.queues) + self.routed_by_message
            self.channel.counts.routed += routed
            exchange.published_in += int(count)
            exchange.published_out += int(routed)
            self.routed_by_message = 0


class Channel:
    """Channel of a connection: state, publishes, acknowledgements. Other AMQP methods are in the package `methods`."""

    prefetch: i64 = 0
    """Most deliveries of the whole channel that may be unacknowledged (basic.qos with global=true); 0 is no limit."""
    next_prefetch: i64 = 0
    """Prefetch limit of future consumers (basic.qos with global=false); 0 is no limit."""
    outstanding: i64 = 0
    """Number of deliveries to the channel's consumers that are unacknowledged; basic.get does not count."""
    last_tag: i64 = 0
    """Last delivery tag that was used."""
    lowest_tag: i64 = 1
    """Lower bound of the unacknowledged delivery tags: none below it is unacknowledged."""
    writable_epoch: i64 = -1
    """Value of `VirtualHost.routing_epoch` when the cache `writable` was filled; at any other value it is outdated."""
    has_topic_permissions: bool = False
    """True if topic permissions restrict the user's routing keys on some topic exchange."""
    confirming: bool = False
    """True if the channel is in confirm mode."""
    closing: bool = False
    """True after the broker has sent channel.close: all frames but channel.close-ok are discarded."""
    body_size: i64 = 0
    """Bytes of the body of the last publish."""
    same_sizes: i64 = 0
    """Publishes in a row with this size that `count_sizes` has yet to add to the node's histogram."""

    def __init__(self, connection: Connection, number: i64, vhost: VirtualHost) -> None:
        self.connection = connection
        self.number = number
        self.vhost = vhost
        self.unacked: dict[int, Message] = {}
        """Unacknowledged messages by delivery tag, in ascending order except for those put back by tx.rollback."""
        self.subscriptions: dict[bytes, Subscription] = {}
        """Consumers of the channel, by their consumer tags."""
        self.queues_left: dict[Queue, bool] = {}
        """Queues of cancelled consumers while the channel closes; `close` offers their messages to other consumers."""
        self.counts = MessageCounts()
        """Messages of the channel, without those of its present consumers and of the repeated publish."""
        self.confirms = PublisherConfirms(self)
        self.assembler = ContentAssembler(self)
        self.tx: Optional[Transaction] = None  # noqa: UP045
        """Transaction of the channel; None unless it is in transaction mode."""
        self.deadlines: dict[int, AckDeadlines] = {}
        """Acknowledgement deadlines of deliveries, by their timeout in milliseconds."""
        self.timed_out: dict[int, Subscription] = {}
        """Consumers of deliveries that an acknowledgement timeout has requeued, by the delivery tags to be settled."""
        self.replies: Optional[Queue] = None  # noqa: UP045
        """Queue of the channel's direct reply-to consumer; None without one."""
        self.writable: dict[bytes, Exchange] = {}
        """Cache of checked permissions: exchanges that the user may publish to, by name (see `writable_epoch`)."""
        self.capture = vhost.capture
        self.origin = ""
        """Name of the connection in recorded life-cycle events of messages; empty if the virtual host records none."""
        if vhost.capture is not None:
            self.origin = connection.shown_name()
        assert vhost.declarations is not None
        # A principal without one is an operator, who may do everything.
        assert connection.authorization is not None
        self.principal = Principal(
            vhost.declarations, connection.user, connection.authorization, connection, channel=int(number)
        )
        """Client of the channel, for operations."""
        self.captured_ids: dict[int, str] = {}
        """Ids of unacknowledged messages by delivery tag, for the life-cycle event that records their settlement."""
        self.generated_name = b""
        """Name generated for a queue whose declaration waits for an access decision; else empty."""
        self.last_queue = b""
        """Name of the queue last declared on the channel, used where a method has an empty queue name."""

    # -- publishing

    def resolve(self, target: PublishTarget) -> None:
        """Check the permissions of a publish, and cache its exchange and the queues it routes to in `target`.

        The cache is valid until the virtual host's `routing_epoch` changes, for example because a binding is added.

        :raises AmqpError: 404 if the exchange does not exist, 403 if it is internal or the user may not publish to it.
        """
        target.count_publishes()
        if self.writable_epoch != self.vhost.routing_epoch:
            self.writable.clear()
            self.writable_epoch = self.vhost.routing_epoch
        authorization = self.connection.authorization
        assert authorization is not None
        exchange = self.writable.get(target.exchange)
        if exchange is None:
            exchange = exchange_to_publish_to(authorization, self.vhost, target.exchange)
            self.has_topic_permissions = authorization.has_topic_permissions
            self.writable[target.exchange] = exchange
        if self.has_topic_permissions:
            check_topics(authorization, exchange, [target.routing_key])
        target.resolved_exchange = exchange
        # One object for all targets, so that consumers and queues recognise it by identity.
        target.exchange = exchange.name
        vhost = self.vhost
        target.queues = vhost.route(exchange, target.routing_key)
        target.routes_by_message = (
            vhost.routes_by_message(exchange)
            or vhost.is_reply_key(target.routing_key)
            or vhost.deduplicates(target.queues)
            or target.immediate
            or vhost.timestamps != ""
            or vhost.firehose is not None
        )
        target.is_slow = target.routes_by_message or len(target.queues) > WIDE_FAN_OUT
        target.epoch = vhost.routing_epoch

    def publish(
        self, target: PublishTarget, content: bytes, body_size: i64, properties: RoutingProperties
    ) -> None:
        """Route a complete message to its queues, or add it to the transaction of the channel.

        In confirm mode, schedule its basic.ack or basic.nack.

        :param content: encoded header and body frames.
        :param body_size: bytes of the body.
        :param properties: properties parsed from `content`.
        :raises AmqpError: 403 or 404 if the user may not publish to the exchange or it does not exist; 406 for a
            malformed expiration or publishing id, another user's name in user-id, or a transaction that becomes too large.
        """
        if target.epoch != self.vhost.routing_epoch:
            self.resolve(target)
        message = Message(target.exchange, target.routing_key, content, body_size, self.number)
        if properties.delivery_mode == 2:
            message.persistent = True
        if properties.priority:
            message.priority = properties.priority
        if properties.reply_to:
            message.content = replace_reply_to(self, content, properties)
        if properties.has_expiration or properties.has_user_id or properties.headers:
            set_rare_properties(self.principal, message, properties)
        queues = target.queues
        capture = self.capture
        if target.routes_by_message or (properties.headers and may_have_cc(properties.headers)):
            exchange = target.resolved_exchange
            assert exchange is not None
            queues = route_by_message(
                self.principal, exchange, message, properties, target.mandatory, target.immediate
            )
            target.routed_by_message += len(queues) - len(target.queues)
        target.published += 1
        if body_size != self.body_size:
            self.count_sizes()
            self.body_size = body_size
        self.same_sizes += 1
        if self.tx is not None:
            self.tx.publish(target, queues, message)
            return
        if capture is not None:
            capture.publish_started(self.origin, message, drop_reason(queues))
        if not queues:
            if queues is not DUPLICATE:
                handle_unroutable(self, target, queues, message)
            outcome: i64 = ACCEPTED
        elif len(queues) == 1:
            outcome = queues[0].publish(message)
        elif len(queues) > BULK_COPIES and capture is None:
            self.publish_in_bulk(queues, message)
            return
        else:
            outcome = self.vhost.deliver(queues, message)
        if self.confirming:
            self.confirms.add(outcome)
        if capture is not None:
            capture_published(self, capture, message, outcome)

    def publish_in_bulk(self, queues: list[Queue], message: Message) -> None:
        """Put a message into very many queues as bulk work, and confirm it when it is in all of them.

        The connection's next frames are processed then.
        """
        job = BulkFanOut(self.vhost, queues, message)
        self.run_bulk_publish(job, job.step, job.end, lambda: self.on_published(job))

    def on_published(self, job: BulkFanOut) -> None:
        """Schedule the confirm of a publish that was bulk work, unless the channel was closed meanwhile."""
        if self.confirming and not self.closing:
            outcome = job.outcome
            if outcome == STORED:
                self.confirms.add_logged()
            else:
                self.confirms.add(outcome)

    def run_bulk_publish(
        self, job: BulkPublish, step: Step, ended: Callable[[], None], call: Callable[[], None]
    ) -> None:
        """Run a bulk publish, process no more frames of the connection until it is finished, and call `call` then.

        :param step: method of the job that does a part of it.
        :param ended: method of the job that is called when it has ended in any way.
        :param call: function that is called when it is finished, unless the connection is closing then.
        """
        bulk_work = self.vhost.bulk_work
        bulk_work.run(self.vhost.publish_lane, step, ended)
        if not job.is_done:
            # In the connection's lane, too: its end has to wait for what it has published and settled.
            bulk_work.run(self.connection, lambda _: job.is_done)
        self.connection.after_bulk_work(call)

    # -- acknowledgements

    def acknowledge(self, tag: i64, multiple: bool) -> None:
        """Process basic.ack.

        :param multiple: True to acknowledge all deliveries up to `tag`; tag 0 then means all.
        :raises AmqpError: 406 for a tag that is not unacknowledged.
        """
        if self.tx is not None:
            self.tx.settle(self.take_one_or_up_to(tag, multiple, ACK), ACKED)
        elif multiple:
            last = tag if tag else self.last_tag
            if len(self.unacked) > BULK_ACKS and last - self.lowest_tag >= BULK_ACKS:
                self.settle_in_bulk(tag, ACK, ACKED)
            else:
                self.settle(self.take_up_to(tag, ACK))
        else:
            message = self.unacked.pop(int(tag), None)
            if message is None:
                if settle_timed_out(self, tag):
                    return
                raise unknown_tag(tag, ACK)
            consumer = message.consumer
            assert consumer is not None
            message.consumer = None
            if consumer.queue.capture is not None:
                consumer.queue.capture.acknowledged(
                    consumer, self.captured_ids.pop(int(tag), ""), self.origin
                )
            consumer.queue.acknowledge(message)
            self.release(consumer)
            if consumer.stalled:
                self.wake(consumer)
            elif self.prefetch:
                # Its consumer is cancelled: others of the channel may have waited for room.
                self.wake_all()

    def settle(self, messages: list[Message]) -> None:
        """Acknowledge messages, then resume the consumers that their prefetch limits had suspended.

        As in RabbitMQ, they are resumed in the order of the consumer tags.
        """
        woken: list[Consumer] = []
        for message in messages:
            consumer = message.consumer
            assert consumer is not None
            message.consumer = None
            if consumer.queue.capture is not None:
                identity = self.captured_ids.pop(int(message.tag), "")
                consumer.queue.capture.acknowledged(consumer, identity, self.origin)
            consumer.queue.acknowledge(message)
            self.release(consumer)
            if consumer.stalled and not consumer.wake_pending:
                consumer.wake_pending = True
                woken.append(consumer)
        if len(woken) > 1:
            woken.sort(key=tag_of)
        for consumer in woken:
            consumer.wake_pending = False
            if consumer.stalled:
                self.wake(consumer)
        if self.prefetch:
            self.wake_all()

    def reject(self, tag: i64, multiple: bool, requeue: bool, method: i64) -> None:
        """Process basic.reject or basic.nack.

        :param multiple: True to reject all deliveries up to `tag`; tag 0 then means all.
        :param requeue: True to return the messages to their queues; False to dead-letter or drop them.
        :param method: REJECT or NACK, the method id to report in the error.
        :raises AmqpError: 406 for a tag that is not unacknowledged.
        """
        if multiple and self.tx is None and len(self.unacked) > BULK_MESSAGES:
            self.settle_in_bulk(tag, method, REQUEUED if requeue else REJECTED)
            return
        messages = self.take_one_or_up_to(tag, multiple, method)
        if self.tx is not None:
            requeued = FAILED if method == REJECT else REQUEUED
            self.tx.settle(messages, requeued if requeue else REJECTED)
        else:
            refuse_return(self, messages)
            self.return_to_queues(messages, requeue, method == REJECT)

    def await_dead_letters(self, queue: Queue) -> None:
        """Process no more frames of the client until the messages that have left a queue are dead-lettered.

        Then the log has its rejects before its next publish, whose confirm covers them.
        """
        batch = self.vhost.dead_lettering.last_batch(queue)
        if batch is not None and not batch.is_done:
            self.vhost.bulk_work.run(self.connection, lambda _: batch.is_done)
            self.connection.after_bulk_work(None)

    def settle_in_bulk(self, tag: i64, method: i64, settlement: i64) -> None:
        """Settle all messages up to a delivery tag as bulk work; tag 0 means all.

        The connection's next frames are processed when it is finished.

        :param method: method id of ACK, NACK or RECOVER, to report in the error.
        :param settlement: ACKED, REQUEUED or REJECTED.
        :raises AmqpError: 406 for a tag that is not unacknowledged.
        """
        if tag and int(tag) not in self.unacked and int(tag) not in self.timed_out:
            raise unknown_tag(tag, method)
        connection = self.connection
        job = BulkSettlement(self, tag if tag else self.last_tag, settlement)
        if self.timed_out:
            settle_timed_out_up_to(self, job.last)
        self.vhost.bulk_work.run(connection, job.step, job.end)
        connection.after_bulk_work(None)

    def requeue_timed_out(self, messages: list[Message]) -> None:
        """Requeue messages that an acknowledgement timeout has taken from `unacked`; many of them as bulk work.

        This does not count against a delivery limit.
        """
        if len(messages) <= BULK_MESSAGES:
            self.return_to_queues(messages, True)
            return
        job = BulkSettlement(self, 0, REQUEUED)
        job.given = deque(messages)
        self.vhost.bulk_work.run(self.connection, job.step, job.end)
        self.connection.after_bulk_work(None)

    def take_one_or_up_to(self, tag: i64, multiple: bool, method: i64) -> list[Message]:
        """Remove the message with a delivery tag, or with `multiple` all up to it, from `unacked`, and return them.

        :param method: method id of ACK, NACK or REJECT, to report in the error.
        :raises AmqpError: 406 for a tag that is not unacknowledged.
        """
        if multiple:
            return self.take_up_to(tag, method)
        message = self.unacked.pop(int(tag), None)
        if message is None:
            if settle_timed_out(self, tag):
                return []
            raise unknown_tag(tag, method)
        return [message]

    def return_to_queues(self, messages: list[Message], requeue: bool, failed: bool = False) -> None:
        """Requeue messages, or reject them so that they are dead-lettered; then resume suspended consumers.

        Consumers are suspended while they, or the channel, have as many unacknowledged messages as prefetch permits.
        As in RabbitMQ, messages are returned consumer by consumer, in the order of the consumer tags. A queue delivers
        what one consumer has returned before it gets back the messages of the next one.

        :param failed: True if a requeue counts against a delivery limit.
        """
        consumers: dict[Consumer, list[Message]] = {}
        self.counts.given_back += len(messages)
        for message in messages:
            consumer = message.consumer
            assert consumer is not None
            message.consumer = None
            if consumer.queue.capture is not None:
                identity = self.captured_ids.pop(int(message.tag), "")
                if requeue:
                    consumer.queue.capture.requeued(consumer, identity, self.origin)
                else:
                    consumer.queue.capture.rejected(consumer, identity, self.origin)
            consumers.setdefault(consumer, []).append(message)
        order = list(consumers) if len(consumers) == 1 else sorted(consumers, key=tag_of)
        for consumer in order:
            for _ in consumers[consumer]:
                self.release(consumer)
            if requeue:
                self.readmit(consumer)
                consumer.queue.requeue(consumers[consumer], failed)
            else:
                consumer.queue.reject(consumers[consumer])
                self.await_dead_letters(consumer.queue)
        for consumer in order:
            if consumer.stalled:
                self.wake(consumer)
        if self.prefetch:
            self.wake_all()

    def take_up_to(self, tag: i64, method: i64) -> list[Message]:
        """Remove the messages up to a delivery tag from `unacked`, and return them in order; tag 0 means all.

        :param method: method id of ACK or NACK, to report in the error.
        :raises AmqpError: 406 for a tag that is not unacknowledged.
        """
        unacked = self.unacked
        if tag and int(tag) not in unacked and int(tag) not in self.timed_out:
            raise unknown_tag(tag, method)
        last = tag if tag else self.last_tag
        if self.timed_out:
            settle_timed_out_up_to(self, last)
        messages: list[Message] = []
        low = self.lowest_tag
        if last - low > 2 * len(unacked) + 64:
            # Most tags in between were acknowledged one by one, perhaps millions of them.
            messages.extend([unacked.pop(key) for key in sorted(unacked) if key <= last])
            self.lowest_tag = last + 1
            return messages
        while low <= last:
            message = unacked.pop(int(low), None)
            if message is not None:
                messages.append(message)
            low += 1
        self.lowest_tag = low
        return messages

    def put_back(self, messages: Iterable[Message]) -> None:
        """Make messages unacknowledged again that were taken from the channel for a transaction which takes no effect."""
        for message in messages:
            self.unacked[int(message.tag)] = message
            self.lowest_tag = min(self.lowest_tag, message.tag)

    def release(self, consumer: Consumer) -> None:
        """Subtract an acked or rejected delivery from the unacknowledged counts of its consumer and the channel."""
        if isinstance(consumer, Subscription):
            consumer.unacked -= 1
            self.outstanding -= 1

    def wake(self, consumer: Consumer) -> None:
        """Resume a suspended consumer, if it may get messages again: it is below its prefetch limit.

        If the whole channel has a prefetch limit, its other consumers are resumed, too.
        """
        if self.prefetch:
            self.wake_all()
        elif consumer.has_room():
            consumer.queue.resume_consumer(consumer)
            return
        if consumer.quiesces:
            consumer.queue.scheduler.on_settled(consumer)
            consumer.queue.drain()

    def readmit(self, consumer: Consumer) -> None:
        """Let a suspended consumer get messages again, without delivering any: its own ones are about to be requeued.

        If the whole channel has a prefetch limit, its consumers are resumed after all messages are returned. So is that of a
        stream, to which nothing is returned.
        """
        if consumer.queue.is_stream:
            return
        if not self.prefetch and consumer.stalled and consumer.has_room():
            consumer.queue.scheduler.insert(consumer)

    def wake_all(self) -> None:
        """Resume all suspended consumers of the channel that may get messages again.

        Such a consumer is below its prefetch limits, and its client reads its output. All are put back into the
        schedulers of their queues before any queue delivers: else the first queue could use up the channel's limit.
        """
        served: dict[Queue, bool] = {}
        for subscription in self.subscriptions.values():
            if subscription.stalled and subscription.has_room():
                subscription.queue.scheduler.insert(subscription)
                served[subscription.queue] = True
        for queue in served:
            queue.drain()

    def set_prefetch(self, count: i64) -> None:
        """Set the prefetch limit of the whole channel; 0 is no limit."""
        self.prefetch = count
        if count and self.outstanding >= count:
            self.suspend_consumers(None)
        else:
            self.wake_all()

    def suspend_consumers(self, last: Optional[Subscription]) -> None:  # noqa: UP045
        """Suspend all consumers that the prefetch limit of the channel concerns, because it is reached.

        :param last: the consumer whose delivery reached the limit; None if a lower limit was set. Its queue, which is
            delivering to it, suspends it afterwards. It will be the last one to be resumed.
        """
        if last is not None:
            del self.subscriptions[last.tag]
            self.subscriptions[last.tag] = last
        for subscription in self.subscriptions.values():
            if subscription is not last and (not subscription.no_ack or self.limits_automatic(subscription)):
                subscription.queue.scheduler.suspend(subscription)

    def limits_automatic(self, subscription: Subscription) -> bool:
        """Return whether a consumer with automatic acknowledgement gets nothing while the channel's limit is reached.

        Its own deliveries do not count. The queue of a direct reply-to consumer has no limits.
        """
        return (
            self.prefetch > 0
            and self.vhost.compat.channel_limit_pauses_automatic
            and subscription.queue is not self.replies
        )

    # -- the end

    def cancel_consumers(self) -> None:
        """Cancel the channel's consumers, but keep their unacknowledged messages."""
        for subscription in list(self.subscriptions.values()):
            subscription.queue.unsubscribe(subscription)
            self.queues_left[subscription.queue] = True
            self.count_ended(subscription)
        self.subscriptions.clear()
        self.stop_replies()

    def deadlines_for(self, timeout: int) -> AckDeadlines:
        """Return the tracker of acknowledgement deadlines for one timeout; create it if necessary.

        :param timeout: milliseconds, more than 0.
        """
        found = self.deadlines.get(timeout)
        if found is None:
            found = self.deadlines[timeout] = AckDeadlines(self, timeout)
        return found

    def stop_replies(self) -> None:
        """Cancel the direct reply-to consumer, if there is one; replies that are published later are unroutable."""
        if self.replies is not None:
            self.vhost.reply_queues.pop(self.replies.name, None)
            self.replies.mark_deleted()
            self.replies = None

    def close(self) -> None:
        """Cancel the consumers, roll back the transaction, and requeue unacknowledged messages.

        Requeued messages return to their original positions. Many are requeued as bulk work of the connection, after
        the settlements of the client that are not finished.
        """
        self.cancel_consumers()
        for deadlines in self.deadlines.values():
            deadlines.stop()
        self.assembler.clear()
        if self.tx is not None:
            self.tx.rollback()
        self.confirms.ranges.clear()
        self.timed_out.clear()
        self.vhost.totals.ended_channels.add(self.message_counts())
        self.connection.node.churn.channels_closed += 1
        if self.vhost.events is not None:
            on_channel_closed(self)
        job = BulkSettlement(self, self.last_tag, CHANNEL_ENDED)
        self.vhost.bulk_work.run(self.connection, job.step, job.end)

    # -- counts

    def count_ended(self, subscription: Subscription) -> None:
        """Keep the deliveries to a consumer that ends in the counts of the channel."""
        count_deliveries(self.counts, subscription)
        if self.vhost.events is not None and subscription.queue is not self.replies:
            on_consumer_ended(subscription)

    def count_sizes(self) -> None:
        """Add the sizes of the publishes since the last call to the node's histogram."""
        if self.same_sizes:
            self.connection.node.message_sizes.add(self.body_size, self.same_sizes)
            self.same_sizes = 0

    def held_messages(self) -> list[Message]:
        """Return the messages that are unacknowledged, or settled in a transaction that is not committed yet."""
        held = list(self.unacked.values())
        if self.tx is not None:
            for messages in self.tx.settled:
                held += messages
        return held

    def message_counts(self) -> MessageCounts:
        """Return the numbers of messages that went through the channel."""
        self.count_sizes()
        target = self.connection.last_target
        if target is not None and target.channel is self:
            target.count_publishes()
        found = MessageCounts()
        found.add(self.counts)
        for subscription in self.subscriptions.values():
            count_deliveries(found, subscription)
        found.published_with_confirm = self.confirms.published
        found.confirmed = self.confirms.sent
        held = len(self.unacked) + (self.tx.settled_count() if self.tx is not None else 0)
        found.acknowledged = found.delivered + found.fetched - found.given_back - held
        return found

    def offer_queues_left(self) -> None:
        """Deliver messages of the queues whose consumers the end of the channel has cancelled."""
        for queue in self.queues_left:
            # With a single active consumer, another one may have taken over.
            queue.drain()
        self.queues_left.clear()


def tag_of(consumer: Consumer) -> bytes:
    """Return the consumer tag of a consumer, as the key to sort consumers by."""
    return consumer.tag


def unknown_tag(tag: i64, method: i64) -> AmqpError:
    """Return the error 406 of an acknowledgement or rejection whose delivery tag is not unacknowledged.

    :param method: method id of ACK, NACK or REJECT, to report to the client in the error.
    """
    return AmqpError(
        Reply.PRECONDITION_FAILED, f"unknown delivery tag {int(tag) % 2**64}", BASIC, int(method)
    )
