"""Bindings."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Generator
from urllib.parse import quote

from warren.broker.http_api.api_error import bad_request, object_not_found
from warren.broker.http_api.call import CREATED, NO_CONTENT, Call, Response
from warren.broker.http_api.listing_query import ListingQuery
from warren.broker.http_api.listing_response import list_objects
from warren.broker.http_api.resources.exchanges import DEFAULT, exchange_name
from warren.broker.http_api.table_json import encode_arguments, table_json
from warren.broker.management.items.topology_items import BINDING_ITEMS, ListedBinding, bindings
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_in_slices, sort_in_steps
from warren.broker.model.queue.queue import Queue
from warren.broker.model.server_names import LONGEST_NAME
from warren.broker.model.vhost.declarations import Declarations
from warren.broker.operations import bindings as binding_operations
from warren.wire.field_tables import sort_fields


def properties_key(routing_key: bytes, arguments: bytes) -> str:
    """Return the part of a binding's path that tells it from other bindings of the same objects.

    It is the routing key, quoted, and a hash of the arguments if there are any. RabbitMQ's hash is another one, of
    Erlang's; each broker finds the bindings by the keys that it has listed itself.
    """
    if not arguments:
        return _quoted(routing_key) or "~"
    digest = hashlib.blake2b(arguments, digest_size=4).digest()
    return f"{_quoted(routing_key)}~{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def _quoted(key: bytes) -> str:
    return quote(key, safe="").replace("%20", "+").replace("~", "%7E")


def _row(vhost: str, bound: ListedBinding) -> Json:
    return {
        "source": BINDING_ITEMS["source_name"](bound),
        "vhost": vhost,
        "destination": BINDING_ITEMS["destination_name"](bound),
        "destination_type": BINDING_ITEMS["destination_kind"](bound),
        "routing_key": BINDING_ITEMS["routing_key"](bound),
        "arguments": table_json(bound.arguments),
        "properties_key": properties_key(bound.routing_key, bound.arguments),
    }


async def _list(call: Call, found: list[tuple[str, ListedBinding]]) -> Response:
    return await list_objects(call, found, None, lambda each: _row(*each), paged=False)


async def _in(topology: Declarations) -> list[tuple[str, ListedBinding]]:
    """Return all bindings of a virtual host in the order in which RabbitMQ lists them; collect and sort in slices."""
    name = name_text(topology.vhost.name)

    def collect() -> Generator[None, None, list[ListedBinding]]:
        found = []
        for each in bindings(topology.vhost):
            found.append(each)
            yield
        return (yield from sort_in_steps(found, _order))

    return [(name, each) for each in await run_in_slices(collect())]


def _order(bound: ListedBinding) -> tuple[bytes, bytes, bytes]:
    return bound.source, bound.destination.name, bound.routing_key


async def list_all(call: Call) -> Response:
    return await _list(call, [each for topology in call.all_visible() for each in await _in(topology)])


async def list_in_vhost(call: Call) -> Response:
    return await _list(call, await _in(call.visible()))


async def from_exchange(call: Call) -> Response:
    topology, name = call.visible(), exchange_name(call)
    if name not in topology.vhost.exchanges:
        raise object_not_found()
    return await _list(call, [each for each in await _in(topology) if each[1].source == name])


async def to_exchange(call: Call) -> Response:
    topology, name = call.visible(), exchange_name(call)
    if name not in topology.vhost.exchanges:
        raise object_not_found()
    return await _list(
        call,
        [
            each
            for each in await _in(topology)
            if not isinstance(each[1].destination, Queue) and each[1].destination.name == name
        ],
    )


async def to_queue(call: Call) -> Response:
    topology = call.visible()
    queue = topology.vhost.queues.get(call.data("queue"))
    if queue is None:
        raise object_not_found()
    return await _list(call, [each for each in await _in(topology) if each[1].destination is queue])


def _source(call: Call) -> bytes:
    return b"" if call.name("source") == DEFAULT else call.data("source")


def _destination(call: Call) -> bytes:
    is_default = call.name("kind") == "e" and call.name("destination") == DEFAULT
    return b"" if is_default else call.data("destination")


async def _between(call: Call, topology: Declarations) -> list[tuple[str, ListedBinding]]:
    vhost, source = topology.vhost, _source(call)
    ends = vhost.queues if call.name("kind") == "q" else vhost.exchanges
    destination = ends.get(_destination(call))
    if source not in vhost.exchanges or destination is None:
        return []
    return [
        each
        for each in await _in(topology)
        if each[1].source == source and each[1].destination is destination
    ]


async def between(call: Call) -> Response:
    return await _list(call, await _between(call, call.visible()))


async def _find(call: Call, topology: Declarations) -> tuple[str, ListedBinding]:
    """Return the binding that the path names; its key may be quoted once or twice, as clients do."""
    wanted = call.name("key")
    for found in await _between(call, topology):
        key = properties_key(found[1].routing_key, found[1].arguments)
        plain = name_text(found[1].routing_key) or "~"
        if wanted == key or (not found[1].arguments and wanted == plain):
            return found
    raise object_not_found()


async def show(call: Call) -> Response:
    query = ListingQuery.parse(call.query)
    return Response(body=query.select(_row(*await _find(call, call.visible()))))


async def bind(call: Call) -> Response:
    """Bind a queue or an exchange to an exchange; the header `Location` names the binding."""
    principal, source, destination = call.principal(), _source(call), _destination(call)
    body = call.body()
    key = body.get("routing_key", "")
    if not isinstance(key, str):
        raise bad_request("routing_key must be a text")
    routing_key, raw = key.encode("utf-8", "surrogateescape"), encode_arguments(body.get("arguments", {}))
    if len(routing_key) > LONGEST_NAME:
        raise bad_request("routing_key is longer than 255 bytes")
    kind = "queue" if call.name("kind") == "q" else "exchange"
    await call.change(lambda: binding_operations.bind(principal, source, kind, destination, routing_key, raw))
    key = properties_key(routing_key, sort_fields(raw))
    location = f"{quote(destination, safe='')}/{quote(key, safe='~')}"
    return Response(CREATED, headers={"Location": location})


async def unbind(call: Call) -> Response:
    principal = call.principal()
    _, found = await _find(call, principal.declarations)
    kind = "queue" if isinstance(found.destination, Queue) else "exchange"
    await call.change(
        lambda: binding_operations.unbind(
            principal, found.source, kind, found.destination.name, found.routing_key, found.arguments
        )
    )
    return Response(NO_CONTENT)
