"""Slow path of basic.publish: code that only some messages need.

CC, BCC, headers routing, `immediate`, basic.return, user-id, expiration, and recording of life-cycle events.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.broker.channel.delivery_headers import returned_content, trace_publish
from warren.broker.channel.message_interceptors import add_timestamp
from warren.broker.model.argument_checks import MAX_EXPIRY_MS
from warren.broker.model.deduplication import DUPLICATE
from warren.broker.model.exchange.headers import cc_and_bcc_keys, routing_headers
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import REJECTED, Queue
from warren.broker.model.stream.publishing_ids import find_publishing_id
from warren.wire.content import RoutingProperties, content_frames
from warren.wire.methods import BASIC, PUBLISH, frame
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel, PublishTarget
    from warren.broker.model.capture.life_cycle_hook import LifeCycleHook

NO_CONSUMERS: Final[list[Queue]] = []
"""Routing result of an immediate message whose queues all have no consumers.

The list is compared by identity (`is`), to tell it from the empty list of an unroutable message. It stays empty.
"""


def route_by_message(
    channel: Channel, target: PublishTarget, message: Message, properties: RoutingProperties
) -> list[Queue]:
    """Return the queues of a message whose routing depends on more than its routing key, such as CC or `immediate`.

    Add a timestamp to the message, too, if the broker is configured to.

    :return: queues to enqueue the message in; `NO_CONSUMERS` if it is immediate and none of its queues has a consumer.
    :raises AmqpError: 406 if CC or BCC are no lists, 502 if the headers are no table, 403 if the user lacks the topic
        permission for a key in them.
    """
    exchange = target.resolved_exchange
    assert exchange is not None
    vhost = channel.vhost
    headers = routing_headers(properties.headers)
    message.has_bcc = "BCC" in headers
    further = cc_and_bcc_keys(headers)
    if further and channel.has_topic_permissions:
        channel.check_topics(exchange, further)
    timestamps = channel.connection.node.settings.timestamps
    if timestamps:
        message.content = add_timestamp(message, vhost.clock.wall(), timestamps)
    keys = [target.routing_key, *further]
    queues = vhost.find_queues(exchange, keys, headers, message)
    if vhost.firehose is not None:
        trace_publish(vhost.firehose, channel, queues, message)
    if target.mandatory and exchange.delay_queue in queues and not vhost.would_route(exchange, keys, headers):
        # Whether a delayed message can be routed when it is due is unknown; the publisher learns that it cannot be now.
        return []
    if target.immediate and queues:
        return [queue for queue in queues if queue.consumers] or NO_CONSUMERS
    return queues


def check_publishing_id(channel: Channel, message: Message, headers: bytes) -> None:
    """Check the publishing id of a message, by which streams recognise duplicates.

    :param headers: the encoded headers, without their length.
    :raises AmqpError: 406 if it is malformed, or if the broker is strict.
    """
    if find_publishing_id(headers) is not None:
        channel.vhost.portability.check("publishing_id")
        message.has_publishing_id = True


def handle_unroutable(channel: Channel, target: PublishTarget, queues: list[Queue], message: Message) -> None:
    """Handle a message that is enqueued nowhere: send basic.return, or drop it.

    It is returned if it is mandatory, or if it is immediate and its queues have no consumers. Either way, a counter of
    its exchange is increased. The confirm comes later, because basic.return must precede basic.ack.

    :param queues: the list `NO_CONSUMERS` itself if the queues have no consumers; any other list means unroutable.
    """
    exchange = target.resolved_exchange
    assert exchange is not None
    if queues is NO_CONSUMERS:
        code, text = 313, b"NO_CONSUMERS"
    elif target.mandatory:
        code, text = 312, b"NO_ROUTE"
    else:
        exchange.unroutable_dropped += 1
        channel.counts.dropped_unroutable += 1
        return
    exchange.unroutable_returned += 1
    channel.counts.returned_unroutable += 1
    if channel.capture is not None:
        channel.capture.returned(message, channel.origin, text)
    connection = channel.connection
    number = channel.number
    returned = frame(int(number), "basic.return", code, text, target.exchange, target.routing_key)
    content = returned_content(message)
    if len(content) > connection.frame_max:
        content = content_frames(content, number, connection.frame_max)
    # In one piece: a flush in between would put confirms between a method and its content.
    connection.send(returned + content)


def drop_reason(queues: list[Queue]) -> str:
    """Return the reason why a message is not enqueued, for its life-cycle event; empty if it is enqueued.

    :param queues: queues to enqueue the message in. `DUPLICATE` and `NO_CONSUMERS` are empty lists that stand for these
        reasons, and are compared by identity; any other empty list means unroutable.
    """
    if queues:
        return ""
    return "duplicate" if queues is DUPLICATE else "no consumers" if queues is NO_CONSUMERS else "unroutable"


def capture_published(channel: Channel, capture: LifeCycleHook, message: Message, outcome: i64) -> None:
    """Record the life-cycle event that a message was published.

    In confirm mode, keep the message's id until the confirm, which is recorded as an event of the same message.

    :param outcome: ACCEPTED or STORED if the queues took the message, REJECTED if one refused it.
    """
    identity = capture.publish_finished(message, outcome == REJECTED)
    if channel.confirming:
        confirms = channel.confirms
        if confirms.captured is None:
            confirms.captured = deque()
        confirms.captured.append((message.exchange, identity))


def user_id_mismatch(channel: Channel, user: bytes) -> AmqpError:
    """Return the error of a publish whose property user-id is not the name of the connection's user."""
    return AmqpError(
        Reply.PRECONDITION_FAILED,
        f"user_id property set to '{user.decode(errors='replace')}' but authenticated user was "
        f"'{channel.connection.user.decode(errors='replace')}'",
        BASIC,
        PUBLISH,
    )


def expiration_ms(value: bytes) -> i64:
    """Parse the property `expiration`, decimal digits, and return the time to live in milliseconds.

    :raises AmqpError: 406, with RabbitMQ's text, if it is no number, is followed by other text, is negative, or
        exceeds ten years.
    """
    shown = value.decode(errors="replace")
    digits = shown[1:] if shown[:1] in ("-", "+") else shown
    leading = len(digits) - len(digits.lstrip("0123456789"))
    if leading == 0:
        reason = "no_integer"
    elif leading < len(digits):
        reason = f'{{leftover_string,"{digits[leading:]}"}}'
    elif shown[0] == "-" and int(digits):
        reason = f"{{value_negative,{int(shown)}}}"
    elif int(digits) > MAX_EXPIRY_MS:
        reason = f"{{value_too_large,{int(digits)}}}"
    else:
        return i64(int(digits))
    raise AmqpError(Reply.PRECONDITION_FAILED, f"invalid expiration '{shown}': {reason}", BASIC, 40)
