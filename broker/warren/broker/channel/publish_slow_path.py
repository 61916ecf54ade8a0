"""What one publish in many needs: where it goes if its key alone does not say, how it comes back, its expiration."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.broker.channel.delivery_headers import as_returned
from warren.broker.channel.interceptors import stamped
from warren.broker.model.argument_checks import MAX_EXPIRY_MS, argument_fields
from warren.broker.model.deduplication import DUPLICATE
from warren.broker.model.exchange.headers import cc_and_bcc_keys
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import REJECTED, Queue
from warren.wire.content import RoutingProperties, content_frames
from warren.wire.methods import BASIC, PUBLISH, frame
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel, Target
    from warren.broker.model.capture.life_cycle_hook import LifeCycleHook

NOBODY: Final[list[Queue]] = []
"""Where an immediate message goes if no queue that it matches has a consumer. Not to be changed."""


def route_by_message(
    channel: Channel, target: Target, message: Message, properties: RoutingProperties
) -> list[Queue]:
    """Where one message goes that its key alone does not decide.

    :raises AmqpError: 406 if CC or BCC are no lists, 502 if the headers are no table.
    """
    exchange = target.found
    assert exchange is not None
    vhost = channel.vhost
    headers = argument_fields(properties.headers)
    message.has_bcc = "BCC" in headers
    further = cc_and_bcc_keys(headers)
    if further and channel.by_topic:
        channel.check_topics(exchange, further)
    timestamps = channel.connection.node.limits.timestamps
    if timestamps:
        message.content = stamped(message, vhost.clock.now(), timestamps)
    keys = [target.routing_key, *further]
    queues = vhost.find_queues(exchange, keys, headers, message)
    if target.mandatory and exchange.delay_queue in queues and not vhost.would_route(exchange, keys, headers):
        # Whether it can be routed when it is due nobody knows; that it cannot be now, its publisher is told.
        return []
    if target.immediate and queues:
        return [queue for queue in queues if queue.consumers] or NOBODY
    return queues


def unroutable(channel: Channel, target: Target, queues: list[Queue], message: Message) -> None:
    """Returned if mandatory, or if it had to be taken at once, before its confirm; else dropped, and counted."""
    exchange = target.found
    assert exchange is not None
    if queues is NOBODY:
        code, text = 313, b"NO_CONSUMERS"
    elif target.mandatory:
        code, text = 312, b"NO_ROUTE"
    else:
        exchange.unroutable_dropped += 1
        return
    exchange.unroutable_returned += 1
    if channel.capture is not None:
        channel.capture.returned(message, channel.origin, text)
    connection = channel.connection
    number = channel.number
    returned = frame(int(number), "basic.return", code, text, target.exchange, target.routing_key)
    content = as_returned(message)
    if len(content) > connection.frame_max:
        content = content_frames(content, number, connection.frame_max)
    connection.out.append(returned)
    connection.out.append(content)
    connection.wrote(len(returned) + len(content))


def untaken(queues: list[Queue]) -> str:
    """Why a message gets into no queue, as events say it; empty if it may get into some."""
    if queues:
        return ""
    return "duplicate" if queues is DUPLICATE else "no consumers" if queues is NOBODY else "unroutable"


def published(channel: Channel, capture: LifeCycleHook, message: Message, outcome: i64) -> None:
    """A publish is told; have its confirm told when it comes."""
    identity = capture.publish_finished(message, outcome == REJECTED)
    if channel.confirming:
        confirms = channel.confirms
        if confirms.captured is None:
            confirms.captured = deque()
        confirms.captured.append((message.exchange, identity))


def of_another_user(channel: Channel, user: bytes) -> AmqpError:
    return AmqpError(
        Reply.PRECONDITION_FAILED,
        f"user_id property set to '{user.decode(errors='replace')}' but authenticated user was "
        f"'{channel.connection.user.decode(errors='replace')}'",
        BASIC,
        PUBLISH,
    )


def expiration_ms(value: bytes) -> i64:
    """The `expiration` property in milliseconds.

    :raises AmqpError: 406 with RabbitMQ's text if it is no number, has something after it, is negative or beyond ten years.
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
