"""The verbs that list queues, exchanges, bindings, consumers, connections and channels.

A listing of many objects gives the loop its turn in between; what is deleted meanwhile is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from warren.broker.management.items.connection_items import CHANNEL_ITEMS, CONNECTION_ITEMS
from warren.broker.management.items.queue_items import QUEUE_ITEMS, SPELLINGS, Listing
from warren.broker.management.items.topology_items import (
    BINDING_ITEMS,
    CONSUMER_ITEMS,
    EXCHANGE_ITEMS,
    bindings,
    consumers,
)
from warren.broker.management.request import Json, Refused, Request

if TYPE_CHECKING:
    from warren.broker.management.management import Management
    from warren.broker.model.vhost.vhost import VirtualHost

Object = TypeVar("Object")

SLICE: Final = 200
"""How many objects are listed before the loop gets its turn: a few milliseconds."""


def chosen(
    request: Request, known: Iterable[str], default: Iterable[str], spellings: Mapping[str, str] | None = None
) -> tuple[list[str], list[str]]:
    """The columns asked for, as they were spelled, and the items that they stand for.

    :raises Refused: for an item that there is not.
    """
    columns = request.texts("items") or list(default)
    names = [(spellings or {}).get(column, column) for column in columns]
    known = list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Refused(f"there is no item {', '.join(unknown)}; the items are: {' '.join(known)}")
    return columns, names


def table(columns: list[str], rows: list[list[Json]]) -> Json:
    return {"columns": columns, "rows": rows}


def picked(request: Request, columns: list[str], rows: list[list[Json]]) -> Json:
    """A table, or those of its columns that were asked for."""
    asked, _ = chosen(request, columns, columns)
    at = [columns.index(column) for column in asked]
    return table(asked, [[row[index] for index in at] for row in rows])


async def rows(objects: Iterable[Object], row: Callable[[Object], list[Json] | None]) -> list[list[Json]]:
    """A row an object, unless `row` has none for it."""
    found: list[list[Json]] = []
    for index, each in enumerate(objects):
        made = row(each)
        if made is not None:
            found.append(made)
        if index % SLICE == SLICE - 1:
            await asyncio.sleep(0)
    return found


def _vhost(management: Management, request: Request) -> VirtualHost | None:
    """RabbitMQ lists nothing for a virtual host that is not there."""
    topology = management.node.vhosts.get(request.vhost())
    return topology.vhost if topology is not None else None


async def list_queues(management: Management, request: Request) -> Json:
    columns, names = chosen(request, QUEUE_ITEMS, ("name", "messages"), SPELLINGS)
    items = [QUEUE_ITEMS[name] for name in names]
    vhost = _vhost(management, request)
    if vhost is None or request.flag("offline"):
        return table(columns, [])
    listing = Listing(list(management.node.connections), management.utilisation)
    return table(
        columns,
        await rows(
            vhost.all_queues(),
            lambda queue: None if queue.deleted else [item(queue, listing) for item in items],
        ),
    )


async def list_exchanges(management: Management, request: Request) -> Json:
    columns, names = chosen(request, EXCHANGE_ITEMS, ("name", "type"))
    items = [EXCHANGE_ITEMS[name] for name in names]
    vhost = _vhost(management, request)
    if vhost is None:
        return table(columns, [])
    return table(
        columns,
        await rows(
            list(vhost.exchanges.values()), lambda exchange: [item(exchange, vhost) for item in items]
        ),
    )


async def list_bindings(management: Management, request: Request) -> Json:
    columns, names = chosen(request, BINDING_ITEMS, BINDING_ITEMS)
    items = [BINDING_ITEMS[name] for name in names]
    vhost = _vhost(management, request)
    if vhost is None:
        return table(columns, [])
    return table(columns, await rows(list(bindings(vhost)), lambda bound: [item(bound) for item in items]))


async def list_consumers(management: Management, request: Request) -> Json:
    default = [name for name in CONSUMER_ITEMS if name != "activity_status"]
    columns, names = chosen(request, CONSUMER_ITEMS, default)
    items = [CONSUMER_ITEMS[name] for name in names]
    vhost = _vhost(management, request)
    if vhost is None:
        return table(columns, [])
    return table(
        columns, await rows(list(consumers(vhost)), lambda consumer: [item(consumer) for item in items])
    )


async def list_connections(management: Management, request: Request) -> Json:
    columns, names = chosen(request, CONNECTION_ITEMS, ("user", "peer_host", "peer_port", "state"))
    items = [CONNECTION_ITEMS[name] for name in names]
    return table(
        columns,
        await rows(
            list(management.node.connections), lambda connection: [item(connection) for item in items]
        ),
    )


async def list_channels(management: Management, request: Request) -> Json:
    columns, names = chosen(
        request, CHANNEL_ITEMS, ("pid", "user", "consumer_count", "messages_unacknowledged")
    )
    items = [CHANNEL_ITEMS[name] for name in names]
    channels = [
        channel
        for connection in list(management.node.connections)
        for channel in list(connection.channels.values())
        if not channel.closing
    ]
    return table(columns, await rows(channels, lambda channel: [item(channel) for item in items]))
