"""Exchanges: lists, declaration, deletion, publishing."""

from __future__ import annotations

from warren.broker.access.authorization import CONFIGURE, WRITE
from warren.broker.channel.publish_slow_path import expiration_ms
from warren.broker.http_api.api_error import (
    bad_request,
    from_amqp,
    not_authorised,
    not_found,
    object_not_found,
)
from warren.broker.http_api.call import CREATED, NO_CONTENT, Call, Response
from warren.broker.http_api.listing_response import list_objects
from warren.broker.http_api.message_json import content_in_steps, payload_in_steps
from warren.broker.http_api.message_stats import exchange_statistics
from warren.broker.http_api.table_json import encode_arguments, table_json
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_in_slices
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.exchange.exchange_types import check_type
from warren.broker.model.exchange.headers import cc_and_bcc_keys
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import REJECTED, STORED, Queue
from warren.broker.model.server_names import LONGEST_NAME
from warren.broker.model.vhost.bulk_publish import BULK_COPIES, BulkFanOut
from warren.broker.model.vhost.declarations import Declarations
from warren.broker.model.vhost.vhost import VirtualHost
from warren.wire.reply_codes import AmqpError

DEFAULT = "amq.default"
"""Name of the default exchange in paths; an empty one is understood, too."""


def exchange_name(call: Call) -> bytes:
    """Return the name of the exchange that the path names."""
    return b"" if call.name("exchange") == DEFAULT else call.data("exchange")


def find(call: Call, topology: Declarations) -> Exchange:
    """Return the exchange that the path names.

    :raises ApiError: 404 if there is none of that name.
    """
    exchange = topology.vhost.exchanges.get(exchange_name(call))
    if exchange is None:
        raise object_not_found()
    return exchange


def row(call: Call, topology: Declarations, exchange: Exchange) -> dict[str, Json]:
    """Return an exchange as lists show it."""
    policy, _ = topology.vhost.policies.exchange_policies(exchange)
    found: dict[str, Json] = {
        "arguments": table_json(exchange.arguments),
        "auto_delete": exchange.auto_delete,
        "durable": exchange.durable,
        "internal": exchange.internal,
        "name": name_text(exchange.name),
        "type": name_text(exchange.kind),
        "vhost": name_text(topology.vhost.name),
    }
    if policy is not None:
        found["policy"] = policy.name
    return found | exchange_statistics(call, exchange)


def _is_predeclared(exchange: Exchange) -> bool:
    return not exchange.name or exchange.name.startswith(b"amq.")


async def _list(call: Call, hosts: list[Declarations]) -> Response:
    found = [
        (topology, exchange)
        for topology in hosts
        for _, exchange in sorted(topology.vhost.exchanges.items(), key=lambda each: each[0])
    ]
    return await list_objects(
        call, found, lambda each: name_text(each[1].name), lambda each: row(call, *each)
    )


async def list_all(call: Call) -> Response:
    return await _list(call, call.all_visible())


async def list_in_vhost(call: Call) -> Response:
    return await _list(call, [call.visible()])


async def show(call: Call) -> Response:
    topology = call.visible()
    found = row(call, topology, find(call, topology))
    found["incoming"], found["outgoing"] = [], []
    return Response(body=call.select(found))


async def declare(call: Call) -> Response:
    """Declare an exchange; 204 if it exists with the same properties."""
    topology, name, body = call.declarations(), exchange_name(call), call.body()
    if len(name) > LONGEST_NAME:
        raise bad_request(f"exchange should be less than {LONGEST_NAME} bytes, actually was {len(name)}\n")
    kind = body.get("type", "direct")
    if not isinstance(kind, str):
        raise bad_request("type must be a text")
    durable, auto_delete = call.boolean(body, "durable"), call.boolean(body, "auto_delete")
    internal = call.boolean(body, "internal")
    raw = encode_arguments(body.get("arguments", {}))
    existing = name in topology.vhost.exchanges

    def operation() -> None:
        authorization = call.caller.authorization(call.name("vhost"))
        check_type(kind.encode(), raw, topology.vhost.compat)
        authorization.check(CONFIGURE, "exchange", name)
        if not existing:
            authorization.check_forwarding("exchange", name, raw, "alternate-exchange")
        topology.declare_exchange(name, kind.encode(), durable, auto_delete, internal, raw)

    await call.change(operation)
    return Response(NO_CONTENT if existing else CREATED)


async def delete(call: Call) -> Response:
    topology = call.declarations()
    exchange = find(call, topology)

    def operation() -> None:
        if _is_predeclared(exchange):
            raise not_authorised("Access refused.")
        call.caller.authorization(call.name("vhost")).check(CONFIGURE, "exchange", exchange.name)
        topology.delete_exchange(exchange.name, call.flag("if-unused"))

    await call.change(operation)
    return Response(NO_CONTENT)


def _find_for_publish(call: Call) -> tuple[Declarations, Exchange]:
    """Return the virtual host and the exchange that the path names.

    :raises ApiError: 404 if there is none of that name, 400 during a resource alarm.
    """
    topology = call.declarations()
    exchange = topology.vhost.exchanges.get(exchange_name(call))
    if exchange is None:
        raise not_found("exchange_not_found")
    if len(exchange.name) > LONGEST_NAME:
        # An earlier version has declared it. AMQP cannot deliver a message that was published to it.
        raise bad_request(
            f"exchange should be less than {LONGEST_NAME} bytes, actually was {len(exchange.name)}\n"
        )
    call.refuse_alarm()
    return topology, exchange


async def _deliver(vhost: VirtualHost, queues: list[Queue], message: Message) -> int:
    """Put a message into queues, into very many as bulk work; return ACCEPTED, STORED or REJECTED."""
    if len(queues) <= BULK_COPIES or vhost.capture is not None:
        return vhost.deliver(queues, message)
    job = BulkFanOut(vhost, queues, message)
    vhost.bulk_work.run(vhost.publish_lane, job.step, job.end)
    await vhost.bulk_work.finished(vhost.publish_lane)
    return job.outcome


async def publish(call: Call) -> Response:
    """Publish a message; answer whether it was routed to a queue, when it is on disk if it is persistent.

    :raises ApiError: 400 if a queue refused it, because it is full, or during a resource alarm.
    """
    _find_for_publish(call)
    body = call.body("routing_key", "properties", "payload", "payload_encoding")
    if not isinstance(body["routing_key"], str):
        raise bad_request("routing_key must be a text")
    key = body["routing_key"].encode("utf-8", "surrogateescape")
    if len(key) > LONGEST_NAME:
        raise bad_request("routing_key is longer than 255 bytes")
    payload = await run_in_slices(payload_in_steps(body["payload"], body["payload_encoding"]))
    if len(payload) > call.node.settings.max_message_size:
        raise bad_request(f"the payload is larger than {call.node.settings.max_message_size} bytes")
    encoded, properties = await run_in_slices(content_in_steps(body["properties"], payload))
    # Again: it may have been deleted meanwhile.
    topology, exchange = _find_for_publish(call)
    message = Message(exchange.name, key, encoded, len(payload), 1)
    message.persistent = properties.get("delivery_mode") == 2
    priority = properties.get("priority", 0)
    assert isinstance(priority, int)
    message.priority = priority
    authorization = call.caller.authorization(call.name("vhost"))
    try:
        authorization.check(WRITE, "exchange", exchange.name)
        headers = properties.headers
        keys = [key, *cc_and_bcc_keys(headers)]
        for each in keys:
            authorization.check_topic(WRITE, exchange, each)
        expiration = properties.data("expiration")
        if expiration is not None:
            message.ttl = expiration_ms(expiration)
    except AmqpError as error:
        raise from_amqp(error) from None
    user = properties.data("user_id")
    if user is not None and user != call.caller.user.name.encode() and not call.caller.user.may_impersonate:
        raise bad_request(
            f"user_id property set to '{name_text(user)}' but authenticated user was '{call.caller.user.name}'"
        )
    if exchange.internal:
        raise not_authorised("Access refused.")
    message.has_bcc = "BCC" in headers
    queues = topology.vhost.find_queues(exchange, keys, headers, message)
    exchange.published_in += 1
    exchange.published_out += len(queues)
    counts = topology.vhost.totals.ended_channels
    counts.published += 1
    counts.routed += len(queues)
    if not queues:
        exchange.unroutable_dropped += 1
        counts.dropped_unroutable += 1
        return Response(body={"routed": False})
    outcome = await _deliver(topology.vhost, queues, message)
    if outcome == STORED:
        await call.synced()
    if outcome == REJECTED:
        raise bad_request("a queue refused the message, because it is full")
    return Response(body={"routed": True})
