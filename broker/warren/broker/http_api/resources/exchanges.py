"""Exchanges: lists, declaration, deletion, publishing."""

from __future__ import annotations

from warren.broker.http_api.api_error import (
    bad_request,
    not_found,
    object_not_found,
)
from warren.broker.http_api.call import CREATED, NO_CONTENT, Call, Response
from warren.broker.http_api.listing_response import list_objects
from warren.broker.http_api.message_json import content_in_steps, payload_in_steps
from warren.broker.http_api.message_stats import exchange_statistics
from warren.broker.http_api.table_json import encode_arguments, table_json
from warren.broker.management.items.topology_items import EXCHANGE_ITEMS
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_in_slices
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.server_names import LONGEST_NAME
from warren.broker.model.vhost.declarations import Declarations
from warren.broker.operations import exchanges as exchange_operations
from warren.broker.operations import publishing

LISTED = ("auto_delete", "durable", "internal", "name", "type")
"""Items of `warren ctl list_exchanges` that the API shows under the same names."""
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
    vhost = topology.vhost
    found: dict[str, Json] = {name: EXCHANGE_ITEMS[name](exchange, vhost) for name in LISTED}
    found |= {"arguments": table_json(exchange.arguments), "vhost": name_text(vhost.name)}
    if policy := EXCHANGE_ITEMS["policy"](exchange, vhost):
        found["policy"] = policy
    return found | exchange_statistics(call, exchange)


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
    principal, name, body = call.principal(), exchange_name(call), call.body()
    if len(name) > LONGEST_NAME:
        raise bad_request(f"exchange should be less than {LONGEST_NAME} bytes, actually was {len(name)}\n")
    kind = body.get("type", "direct")
    if not isinstance(kind, str):
        raise bad_request("type must be a text")
    durable, auto_delete = call.boolean(body, "durable"), call.boolean(body, "auto_delete")
    internal = call.boolean(body, "internal")
    raw = encode_arguments(body.get("arguments", {}))
    is_new = await call.change(
        lambda: exchange_operations.declare_exchange(
            principal,
            name,
            kind.encode(),
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=raw,
        )
    )
    return Response(CREATED if is_new else NO_CONTENT)


async def delete(call: Call) -> Response:
    """Delete an exchange; with `if-unused` in the query, only one to which nothing is bound."""
    principal = call.principal()
    name = find(call, principal.declarations).name
    await call.change(
        lambda: exchange_operations.delete_exchange(principal, name, if_unused=call.flag("if-unused"))
    )
    return Response(NO_CONTENT)


def _exchange_to_publish_to(call: Call) -> bytes:
    """Return the name of the exchange that the path names.

    :raises ApiError: 404 if there is none of that name, 400 during a resource alarm.
    """
    name = exchange_name(call)
    if name not in call.declarations().vhost.exchanges:
        raise not_found("exchange_not_found")
    if len(name) > LONGEST_NAME:
        # An earlier version has declared it. AMQP cannot deliver a message that was published to it.
        raise bad_request(f"exchange should be less than {LONGEST_NAME} bytes, actually was {len(name)}\n")
    call.refuse_alarm()
    return name


async def publish(call: Call) -> Response:
    """Publish a message; answer whether it was routed to a queue, when it is on disk if it is persistent.

    :raises ApiError: 400 if a queue refused it, because it is full, or during a resource alarm.
    """
    _exchange_to_publish_to(call)
    body = call.body("routing_key", "properties", "payload", "payload_encoding")
    if not isinstance(body["routing_key"], str):
        raise bad_request("routing_key must be a text")
    key = body["routing_key"].encode("utf-8", "surrogateescape")
    if len(key) > LONGEST_NAME:
        raise bad_request("routing_key is longer than 255 bytes")
    payload = await run_in_slices(payload_in_steps(body["payload"], body["payload_encoding"]))
    if len(payload) > call.node.settings.max_message_size:
        raise bad_request(f"the payload is larger than {call.node.settings.max_message_size} bytes")
    content = await run_in_slices(content_in_steps(body["properties"], payload))
    # Again: it may have been deleted meanwhile.
    name = _exchange_to_publish_to(call)
    published = await call.run(
        publishing.publish(call.principal(), call.node, name, key, content, len(payload))
    )
    call.node.message_sizes.add(len(payload), 1)
    if published.is_refused:
        raise bad_request("a queue refused the message, because it is full")
    return Response(body={"routed": published.is_routed})
