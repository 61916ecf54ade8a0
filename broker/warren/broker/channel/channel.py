"""One channel: publishes and their confirms, deliveries and their acknowledgements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from mypy_extensions import i64

from warren.broker.channel.ack_timeouts import AckDeadlines
from warren.broker.channel.authorization import WRITE
from warren.broker.channel.confirms import Confirms
from warren.broker.channel.content_assembler import ContentAssembler
from warren.broker.channel.direct_reply_to import addressed
from warren.broker.channel.methods.stream_methods import refuse_return
from warren.broker.channel.publish_slow_path import (
    expiration_ms,
    of_another_user,
    published,
    route_by_message,
    unroutable,
    untaken,
)
from warren.broker.channel.subscription import Subscription
from warren.broker.channel.transaction import ACKED, REJECTED, REQUEUED, Transaction
from warren.broker.model.deduplication import DUPLICATE
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.exchange.headers import may_have_cc
from warren.broker.model.message import Message
from warren.broker.model.queue.consumer import Consumer
from warren.broker.model.queue.queue import ACCEPTED, Queue
from warren.broker.model.vhost.vhost import VirtualHost
from warren.wire.amqp_url import connection_name
from warren.wire.content import RoutingProperties
from warren.wire.methods import ACK, BASIC, PUBLISH
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection


class Target:
    """What a basic.publish method frame asked for, kept as long as the same frame comes again."""

    def __init__(
        self, channel: Channel, raw: bytes, exchange: bytes, routing_key: bytes, mandatory: bool
    ) -> None:
        self.channel = channel
        self.raw = raw
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.immediate: bool = False
        """It goes to queues with consumers only, and comes back if there are none."""
        self.epoch: i64 = -1
        self.found: Optional[Exchange] = None  # noqa: UP045
        self.by_message: bool = False
        """More than its key decides where a message goes."""
        self.queues: list[Queue] = []


class Channel:
    """The state of one channel, and its hot methods. The others stand in `commands`."""

    prefetch: i64 = 0
    """The limit for the whole channel (basic.qos with global=true); 0 is none."""
    next_prefetch: i64 = 0
    """The limit of consumers that are yet to come."""
    outstanding: i64 = 0
    """What its consumers have unacknowledged; basic.get does not count."""
    last_tag: i64 = 0
    lowest_tag: i64 = 1
    """No lower tag is unacknowledged."""
    writable_epoch: i64 = -1
    by_topic: bool = False
    """On some topic exchange the user's permissions depend on the routing key."""
    confirming: bool = False
    closing: bool = False
    """A close has been sent; all but its answer is discarded."""

    def __init__(self, connection: Connection, number: i64, vhost: VirtualHost) -> None:
        self.connection = connection
        self.number = number
        self.vhost = vhost
        self.unacked: dict[int, Message] = {}
        self.subscriptions: dict[bytes, Subscription] = {}
        self.left: list[Queue] = []
        """The queues that its consumers have left at its end."""
        self.confirms = Confirms(self)
        self.assembler = ContentAssembler(self)
        self.tx: Optional[Transaction] = None  # noqa: UP045
        self.deadlines: dict[int, AckDeadlines] = {}
        """By when what was delivered has to be acknowledged, by the timeout."""
        self.replies: Optional[Queue] = None  # noqa: UP045
        """Through which answers come to its consumer of direct replies."""
        self.writable: dict[bytes, bool] = {}
        """The exchanges that the user may publish to, as decided since the virtual host's epoch began."""
        self.capture = vhost.capture
        self.origin = ""
        """Its connection by name, where events are captured."""
        if vhost.capture is not None:
            end = connection.transport.get_extra_info
            self.origin = connection_name(end("peername"), end("sockname"))
        self.identities: dict[int, str] = {}
        """The ids of what is unacknowledged, by tags, where events are captured."""
        self.last_queue = b""
        """The queue that an empty name stands for."""

    # -- publishing

    def resolve(self, target: Target) -> None:
        """Find out where the target's messages go, as things stand now.

        :raises AmqpError: 404 without the exchange, 403 if it is internal or the user may not publish to it.
        """
        if self.writable_epoch != self.vhost.routing_epoch:
            self.writable.clear()
            self.writable_epoch = self.vhost.routing_epoch
        if target.exchange not in self.writable:
            authorization = self.connection.authorization
            assert authorization is not None
            authorization.check(WRITE, "exchange", target.exchange, BASIC, PUBLISH)
            self.by_topic = authorization.by_topic
        exchange = self.vhost.exchanges.get(target.exchange)
        if exchange is None or exchange.internal:
            raise self.cannot_publish(target.exchange, exchange is None)
        self.writable[target.exchange] = True
        if self.by_topic:
            self.check_topics(exchange, [target.routing_key])
        target.found = exchange
        vhost = self.vhost
        target.queues = vhost.route(exchange, target.routing_key)
        target.by_message = (
            vhost.routes_by_message(exchange)
            or vhost.is_reply_key(target.routing_key)
            or vhost.deduplicates(target.queues)
            or target.immediate
            or self.connection.node.limits.timestamps != ""
        )
        target.epoch = vhost.routing_epoch

    def check_topics(self, exchange: Exchange, routing_keys: list[bytes]) -> None:
        """
        :raises AmqpError: 403 if one of the keys may not be published with to this exchange.
        """
        authorization = self.connection.authorization
        assert authorization is not None
        for key in routing_keys:
            authorization.check_topic(WRITE, exchange, key, BASIC, PUBLISH)

    def cannot_publish(self, name: bytes, missing: bool) -> AmqpError:
        shown = name.decode(errors="replace")
        vhost = self.vhost.name.decode(errors="replace")
        if missing:
            return AmqpError(Reply.NOT_FOUND, f"no exchange '{shown}' in vhost '{vhost}'", BASIC, 40)
        return AmqpError(
            Reply.ACCESS_REFUSED,
            f"cannot publish to internal exchange '{shown}' in vhost '{vhost}'",
            BASIC,
            40,
        )

    def publish(self, target: Target, content: bytes, body_size: i64, properties: RoutingProperties) -> None:
        """A message is complete: route it, and remember what its confirm waits for."""
        if target.epoch != self.vhost.routing_epoch:
            self.resolve(target)
        message = Message(target.exchange, target.routing_key, content, body_size, self.number)
        if properties.delivery_mode == 2:
            message.persistent = True
        if properties.priority:
            message.priority = properties.priority
        if properties.has_expiration:
            message.ttl = expiration_ms(properties.expiration)
        if properties.reply_to:
            message.content = addressed(self, content, properties)
        if properties.has_user_id and properties.user_id != self.connection.user and not self.impersonates():
            raise of_another_user(self, properties.user_id)
        queues = target.queues
        capture = self.capture
        if target.by_message or (properties.headers and may_have_cc(properties.headers)):
            queues = route_by_message(self, target, message, properties)
        if self.tx is not None:
            self.tx.publish(target, queues, message)
            return
        if capture is not None:
            capture.publish_started(self.origin, message, untaken(queues))
        if not queues:
            if queues is not DUPLICATE:
                unroutable(self, target, queues, message)
            outcome: i64 = ACCEPTED
        elif len(queues) == 1:
            outcome = queues[0].publish(message)
        else:
            outcome = self.vhost.deliver(queues, message)
        if self.confirming:
            self.confirms.add(outcome)
        if capture is not None:
            published(self, capture, message, outcome)

    def impersonates(self) -> bool:
        """The user may publish as any other (https://www.rabbitmq.com/docs/validated-user-id)."""
        authorization = self.connection.authorization
        return authorization is not None and authorization.user.impersonator

    # -- acknowledging

    def acknowledge(self, tag: i64, multiple: bool) -> None:
        """basic.ack.

        :raises AmqpError: 406 for a tag that is not outstanding.
        """
        if self.tx is not None:
            self.tx.settle(self.outstanding_up_to(tag, multiple, ACK), ACKED)
        elif multiple:
            self.settle(self.take(tag, ACK))
        else:
            message = self.unacked.pop(int(tag), None)
            if message is None:
                raise unknown_tag(tag, ACK)
            consumer = message.consumer
            assert consumer is not None
            message.consumer = None
            if consumer.queue.capture is not None:
                consumer.queue.capture.acknowledged(consumer, self.identities.pop(int(tag), ""), self.origin)
            consumer.queue.acknowledge(message)
            self.release(consumer)
            if consumer.stalled:
                self.wake(consumer)
            elif self.prefetch:
                # A cancelled consumer had it: others of the channel may have waited for this.
                self.wake_all()

    def settle(self, messages: list[Message]) -> None:
        """These messages are over. Their consumers get the next ones when all of them are."""
        woken: list[Consumer] = []
        for message in messages:
            consumer = message.consumer
            assert consumer is not None
            message.consumer = None
            if consumer.queue.capture is not None:
                identity = self.identities.pop(int(message.tag), "")
                consumer.queue.capture.acknowledged(consumer, identity, self.origin)
            consumer.queue.acknowledge(message)
            self.release(consumer)
            if consumer.stalled and not consumer.wake_pending:
                consumer.wake_pending = True
                woken.append(consumer)
        for consumer in woken:
            consumer.wake_pending = False
            if consumer.stalled:
                self.wake(consumer)
        if self.prefetch:
            self.wake_all()

    def reject(self, tag: i64, multiple: bool, requeue: bool, method: i64) -> None:
        """basic.reject and basic.nack.

        :raises AmqpError: 406 for a tag that is not outstanding.
        """
        messages = self.outstanding_up_to(tag, multiple, method)
        if self.tx is not None:
            self.tx.settle(messages, REQUEUED if requeue else REJECTED)
        else:
            refuse_return(self, messages)
            self.give_back(messages, requeue)

    def outstanding_up_to(self, tag: i64, multiple: bool, method: i64) -> list[Message]:
        """The message of a tag, or all up to it; outstanding no longer."""
        if multiple:
            return self.take(tag, method)
        message = self.unacked.pop(int(tag), None)
        if message is None:
            raise unknown_tag(tag, method)
        return [message]

    def give_back(self, messages: list[Message], requeue: bool) -> None:
        """Return unacknowledged messages to their queues, or have them dead-lettered; then see who has room.

        As in RabbitMQ, each consumer's for themselves, in the order of their tags.
        """
        consumers: dict[Consumer, list[Message]] = {}
        for message in messages:
            consumer = message.consumer
            assert consumer is not None
            message.consumer = None
            if consumer.queue.capture is not None:
                identity = self.identities.pop(int(message.tag), "")
                if requeue:
                    consumer.queue.capture.requeued(consumer, identity, self.origin)
                else:
                    consumer.queue.capture.rejected(consumer, identity, self.origin)
            self.release(consumer)
            consumers.setdefault(consumer, []).append(message)
        order = list(consumers) if len(consumers) == 1 else sorted(consumers, key=tag_of)
        for consumer in order:
            if requeue:
                consumer.queue.requeue(consumers[consumer], False)
            else:
                consumer.queue.reject(consumers[consumer])
        for consumer in order:
            if consumer.stalled:
                self.wake(consumer)
        if self.prefetch:
            self.wake_all()

    def take(self, tag: i64, method: i64) -> list[Message]:
        """What is outstanding up to a tag, in order, and no longer outstanding; tag 0 stands for all."""
        unacked = self.unacked
        if tag and int(tag) not in unacked:
            raise unknown_tag(tag, method)
        last = tag if tag else self.last_tag
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

    def release(self, consumer: Consumer) -> None:
        if isinstance(consumer, Subscription):
            consumer.unacked -= 1
            self.outstanding -= 1

    def wake(self, consumer: Consumer) -> None:
        """A consumer that stood still may have room; with a limit for the channel, so may its others."""
        if self.prefetch:
            self.wake_all()
        elif consumer.has_room():
            consumer.queue.resume_consumer(consumer)

    def wake_all(self) -> None:
        """Let all that have room into their queues' rounds before the first of them is served: they share the room."""
        woken: list[Subscription] = []
        for subscription in self.subscriptions.values():
            if subscription.stalled and subscription.has_room():
                subscription.queue.scheduler.insert(subscription)
                woken.append(subscription)
        for subscription in woken:
            subscription.queue.drain()

    def limit(self, count: i64) -> None:
        """Set the limit for the whole channel; 0 is none."""
        self.prefetch = count
        if count and self.outstanding >= count:
            self.limit_reached(None)
        else:
            self.wake_all()

    def limit_reached(self, last: Optional[Subscription]) -> None:  # noqa: UP045
        """The channel has as much unacknowledged as it may: no consumer of it has room until an acknowledgement.

        :param last: who was given the last message; the others come before it when there is room again. Its queue takes it
            out of the round.
        """
        if last is not None:
            del self.subscriptions[last.tag]
            self.subscriptions[last.tag] = last
        for subscription in self.subscriptions.values():
            if subscription is not last and not subscription.no_ack:
                subscription.queue.scheduler.suspend(subscription)

    # -- the end

    def cancel_all(self) -> None:
        """The channel's consumers end; what they have unacknowledged stays."""
        for subscription in list(self.subscriptions.values()):
            subscription.queue.unsubscribe(subscription)
            self.left.append(subscription.queue)
        self.subscriptions.clear()
        self.end_replies()

    def deadlines_for(self, timeout: int) -> AckDeadlines:
        """
        :param timeout: milliseconds, more than 0.
        """
        found = self.deadlines.get(timeout)
        if found is None:
            found = self.deadlines[timeout] = AckDeadlines(self, timeout)
        return found

    def end_replies(self) -> None:
        """No answer reaches it any more."""
        if self.replies is not None:
            self.vhost.reply_queues.pop(self.replies.name, None)
            self.replies.mark_deleted()
            self.replies = None

    def close(self) -> None:
        """Consumers end, what they had unacknowledged returns to its places."""
        self.cancel_all()
        for deadlines in self.deadlines.values():
            deadlines.stop()
        self.assembler.clear()
        if self.tx is not None:
            self.tx.rollback()
        if self.unacked:
            by_queue: dict[Queue, list[Message]] = {}
            for message in self.unacked.values():
                consumer = message.consumer
                assert consumer is not None
                message.consumer = None
                if consumer.queue.capture is not None:
                    identity = self.identities.pop(int(message.tag), "")
                    consumer.queue.capture.requeued_by_close(consumer, identity, self.origin)
                by_queue.setdefault(consumer.queue, []).append(message)
            self.unacked.clear()
            for queue, messages in by_queue.items():
                queue.requeue(messages, True)
        for queue in self.left:
            # With a single active consumer, another one may have taken over.
            queue.drain()
        self.left.clear()
        self.confirms.runs.clear()


def tag_of(consumer: Consumer) -> bytes:
    return consumer.tag


def unknown_tag(tag: i64, method: i64) -> AmqpError:
    return AmqpError(
        Reply.PRECONDITION_FAILED, f"unknown delivery tag {int(tag) % 2**64}", BASIC, int(method)
    )
