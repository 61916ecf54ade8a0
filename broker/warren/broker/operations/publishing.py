"""Publishing of a message: permissions, properties, routing, and what is recorded of it.

`publish` is the whole operation, for surfaces that publish one message at a time. A channel of AMQP takes the same steps; it
keeps the exchange and the routes of repeated publishes, so that most messages need few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mypy_extensions import i64

from warren.broker.access.permissions import WRITE
from warren.broker.model.argument_checks import MAX_EXPIRY_MS
from warren.broker.model.deduplication import DUPLICATE
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.exchange.headers import cc_and_bcc_keys, routing_headers
from warren.broker.model.message import Message
from warren.broker.model.message_interceptors import add_timestamp
from warren.broker.model.queue.queue import ACCEPTED, REJECTED, STORED, Queue
from warren.broker.model.stream.publishing_ids import PREFIX as PUBLISHING_ID_PREFIX
from warren.broker.model.stream.publishing_ids import find_publishing_id
from warren.broker.model.vhost.bulk_publish import BULK_COPIES, BulkFanOut
from warren.broker.model.vhost.vhost import PSEUDO_QUEUE, VirtualHost
from warren.broker.operations.firehose_traces import trace_publish
from warren.broker.operations.waiting import Disk, Operation, UntilWorkDone, until_synced
from warren.wire.content import HEADER_FIXED, MalformedProperties, RoutingProperties, header_payload
from warren.wire.methods import BASIC, PUBLISH
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.access.authorization import Authorization
    from warren.broker.operations.principal import Principal

NO_CONSUMERS: Final[list[Queue]] = []
"""Routing result of an immediate message whose queues all have no consumers.

The list is compared by identity (`is`), to tell it from the empty list of an unroutable message. It stays empty.
"""


class Published(NamedTuple):
    """Outcome of a publish.

    :ivar is_routed: True if the message was routed to a queue.
    :ivar is_refused: True if a queue refused it, because it is full.
    """

    is_routed: bool
    is_refused: bool


def publish(
    principal: Principal, disk: Disk, name: bytes, routing_key: bytes, content: bytes, body_size: int
) -> Operation[Published]:
    """Publish a message as mandatory, and return when all queues have it, as a publisher confirm tells it.

    :param disk: disk that a persistent message has to reach.
    :param name: name of the exchange.
    :param content: encoded header and body frames.
    :param body_size: bytes of the body.
    :raises AmqpError: 403 or 404 if the user may not publish to the exchange or it does not exist; 406 for a malformed
        expiration, publishing id, CC or BCC, for another user's name in user-id, or for direct reply-to, which needs a
        channel; 502 for malformed properties; 541 if the disk has failed.
    """
    vhost = principal.vhost
    exchange = exchange_to_publish_to(principal.authorization, vhost, name)
    principal.check_topic(WRITE, exchange, routing_key)
    properties = _parsed(content)
    if properties.reply_to == PSEUDO_QUEUE:
        raise no_reply_consumer()
    message = Message(exchange.name, routing_key, content, body_size, 1)
    if properties.delivery_mode == 2:
        message.persistent = True
    message.priority = properties.priority
    set_rare_properties(principal, message, properties)
    queues = route_by_message(principal, exchange, message, properties, True, False)
    exchange.published_in += 1
    exchange.published_out += len(queues)
    counts = vhost.totals.ended_channels
    counts.published += 1
    counts.routed += len(queues)
    capture = vhost.capture
    if capture is not None:
        capture.publish_started(principal.origin, message, drop_reason(queues))
    outcome: i64 = ACCEPTED
    if not queues:
        if queues is not DUPLICATE:
            exchange.unroutable_returned += 1
            counts.returned_unroutable += 1
            if capture is not None:
                capture.returned(message, principal.origin, b"NO_ROUTE")
    elif len(queues) > BULK_COPIES and capture is None:
        job = BulkFanOut(vhost, queues, message)
        vhost.bulk_work.run(vhost.publish_lane, job.step, job.end)
        yield UntilWorkDone(vhost.bulk_work, vhost.publish_lane)
        outcome = job.outcome
    else:
        outcome = vhost.deliver(queues, message)
    identity = capture.publish_finished(message, outcome == REJECTED) if capture is not None else None
    if outcome == STORED:
        yield from until_synced(disk)
    counts.published_with_confirm += 1
    counts.confirmed += 1
    if capture is not None and identity is not None:
        capture.confirmed(exchange.name, identity, principal.origin, outcome != REJECTED)
    return Published(bool(queues), outcome == REJECTED)


def _parsed(content: bytes) -> RoutingProperties:
    """Return the properties of a message that decide routing and storage.

    :raises AmqpError: 502 if they are malformed.
    """
    header = header_payload(content)
    properties = RoutingProperties()
    try:
        properties.parse(header, HEADER_FIXED, len(header), (i64(header[12]) << 8) | i64(header[13]))
    except MalformedProperties as error:
        raise AmqpError(Reply.SYNTAX_ERROR, str(error), BASIC, PUBLISH) from None
    return properties


# -- permissions


def exchange_to_publish_to(authorization: Authorization | None, vhost: VirtualHost, name: bytes) -> Exchange:
    """Return the exchange of a publish.

    :param authorization: permissions of the publisher; None for all.
    :raises AmqpError: 403 without the permission or if the exchange is internal, 404 if it does not exist.
    """
    if authorization is not None:
        authorization.check(WRITE, "exchange", name, BASIC, PUBLISH)
    exchange = vhost.exchanges.get(name)
    if exchange is not None and not exchange.internal:
        return exchange
    shown, host = name.decode(errors="replace"), vhost.name.decode(errors="replace")
    if exchange is None:
        raise AmqpError(Reply.NOT_FOUND, f"no exchange '{shown}' in vhost '{host}'", BASIC, PUBLISH)
    raise AmqpError(
        Reply.ACCESS_REFUSED,
        f"cannot publish to internal exchange '{shown}' in vhost '{host}'",
        BASIC,
        PUBLISH,
    )


def check_topics(authorization: Authorization | None, exchange: Exchange, routing_keys: list[bytes]) -> None:
    """Check the topic permissions of a publish.

    :raises AmqpError: 403 if the user may not publish to the exchange with one of the routing keys.
    """
    if authorization is not None:
        for key in routing_keys:
            authorization.check_topic(WRITE, exchange, key, BASIC, PUBLISH)


# -- properties


def set_rare_properties(principal: Principal, message: Message, properties: RoutingProperties) -> None:
    """Check the properties that few messages have, and set what follows from them in the message.

    :raises AmqpError: 406 for a malformed expiration or publishing id, or another user's name in user-id.
    """
    if properties.has_expiration:
        message.ttl = expiration_ms(properties.expiration)
    if properties.has_user_id and properties.user_id != principal.user and not principal.may_impersonate:
        raise AmqpError(
            Reply.PRECONDITION_FAILED,
            f"user_id property set to '{properties.user_id.decode(errors='replace')}' but authenticated user was "
            f"'{principal.user.decode(errors='replace')}'",
            BASIC,
            PUBLISH,
        )
    headers = properties.headers
    if headers and PUBLISHING_ID_PREFIX in headers and find_publishing_id(headers) is not None:
        # By the publishing id, streams recognise duplicates.
        principal.vhost.portability.check("publishing_id")
        message.has_publishing_id = True


def no_reply_consumer() -> AmqpError:
    """Return the error of a request whose channel has no consumer of replies (direct reply-to)."""
    return AmqpError(Reply.PRECONDITION_FAILED, "fast reply consumer does not exist", BASIC, PUBLISH)


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
    raise AmqpError(Reply.PRECONDITION_FAILED, f"invalid expiration '{shown}': {reason}", BASIC, PUBLISH)


# -- routing


def route_by_message(
    principal: Principal,
    exchange: Exchange,
    message: Message,
    properties: RoutingProperties,
    mandatory: bool,
    immediate: bool,
) -> list[Queue]:
    """Return the queues of a message whose routing depends on more than its routing key, such as CC or `immediate`.

    Add a timestamp to the message, too, if the broker is configured to, and trace it.

    :return: queues to enqueue the message in; `NO_CONSUMERS` if it is immediate and none of its queues has a consumer.
    :raises AmqpError: 406 if CC or BCC are no lists, 502 if the headers are no table, 403 if the user lacks the topic
        permission for a key in them.
    """
    vhost = principal.vhost
    headers = routing_headers(properties.headers)
    message.has_bcc = "BCC" in headers
    further = cc_and_bcc_keys(headers)
    if further:
        check_topics(principal.authorization, exchange, further)
    if vhost.timestamps:
        message.content = add_timestamp(message, vhost.clock.wall(), vhost.timestamps)
    keys = [message.routing_key, *further]
    queues = vhost.find_queues(exchange, keys, headers, message)
    if vhost.firehose is not None:
        trace_publish(vhost.firehose, principal, queues, message)
    if mandatory and exchange.delay_queue in queues and not vhost.would_route(exchange, keys, headers):
        # Whether a delayed message can be routed when it is due is unknown; the publisher learns that it cannot be now.
        return []
    if immediate and queues:
        return [queue for queue in queues if queue.consumers] or NO_CONSUMERS
    return queues


def drop_reason(queues: list[Queue]) -> str:
    """Return the reason why a message is not enqueued, for its life-cycle event; empty if it is enqueued.

    :param queues: queues to enqueue the message in. `DUPLICATE` and `NO_CONSUMERS` are empty lists that stand for these
        reasons, and are compared by identity; any other empty list means unroutable.
    """
    if queues:
        return ""
    return "duplicate" if queues is DUPLICATE else "no consumers" if queues is NO_CONSUMERS else "unroutable"
