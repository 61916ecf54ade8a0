"""Implementation of the `warren ctl` commands that list queues, exchanges, bindings, consumers, connections, channels.

A long listing lets the event loop run from time to time; objects that are deleted meanwhile are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from warren.broker.management.items.connection_items import CHANNEL_ITEMS, CONNECTION_ITEMS
from warren.broker.management.items.queue_items import ITEM_ALIASES, QUEUE_ITEMS, UNACKED_ITEMS, QueueListing
from warren.broker.management.items.topology_items import (
    BINDING_ITEMS,
    CONSUMER_ITEMS,
    EXCHANGE_ITEMS,
    bindings,
    consumers,
)
from warren.broker.management.queue_counts import UnackedCounts, count_unacked_in_steps
from warren.broker.management.request import Json, Request, RequestRefused
from warren.broker.management.time_slices import run_in_slices

if TYPE_CHECKING:
    from warren.broker.management.management import Management
    from warren.broker.model.queue.queue import Queue
    from warren.broker.model.vhost.vhost import VirtualHost

Object = TypeVar("Object")


def select_columns(
    request: Request, known: Iterable[str], default: Iterable[str], spellings: Mapping[str, str] | None = None
) -> tuple[list[str], list[str]]:
    """Return the requested columns of a listing: their headings as the request spells them, and their items' names.

    An item is a property of the listed objects, such as `messages` of queues; its values fill a column.

    :param known: names of all items
    :param default: items to return if the request names none
    :param spellings: names of items by the alternative name that a request may use
    :raises RequestRefused: for an unknown item
    """
    columns = request.texts("items") or list(default)
    names = [(spellings or {}).get(column, column) for column in columns]
    known = list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise RequestRefused(f"there is no item {', '.join(unknown)}; the items are: {' '.join(known)}")
    return columns, names


def table(columns: list[str], rows: list[list[Json]]) -> Json:
    """Return the reply of a list verb: a JSON object with the headings as `columns`, and the values as `rows`."""
    return {"columns": columns, "rows": rows}


def select_from_table(request: Request, columns: list[str], rows: list[list[Json]]) -> Json:
    """Return a listing with only those columns that the request selects; all columns if it selects none.

    :param columns: headings of all columns
    :param rows: values of all columns for each object
    """
    asked, _ = select_columns(request, columns, columns)
    at = [columns.index(column) for column in asked]
    return table(asked, [[row[index] for index in at] for row in rows])


async def build_rows(
    objects: Iterable[Object], row: Callable[[Object], list[Json] | None]
) -> list[list[Json]]:
    """Build one row of a listing for each object; the event loop runs from time to time meanwhile.

    :param row: returns the row of an object; None leaves the object out, for example because it was deleted meanwhile
    """

    def steps() -> Generator[None, None, list[list[Json]]]:
        found: list[list[Json]] = []
        for each in objects:
            made = row(each)
            if made is not None:
                found.append(made)
            yield
        return found

    return await run_in_slices(steps())


def _vhost(management: Management, request: Request) -> VirtualHost | None:
    """Return the virtual host that the request names; None if unknown: the verb then lists nothing, as in RabbitMQ."""
    topology = management.node.vhosts.get(request.vhost_name())
    return topology.vhost if topology is not None else None


async def list_queues(management: Management, request: Request) -> Json:
    columns, names = select_columns(request, QUEUE_ITEMS, ("name", "messages"), ITEM_ALIASES)
    items = [QUEUE_ITEMS[name] for name in names]
    vhost = _vhost(management, request)
    if vhost is None or request.flag("offline"):
        return table(columns, [])
    unacked: dict[Queue, UnackedCounts] = {}
    if not UNACKED_ITEMS.isdisjoint(names):
        unacked = await run_in_slices(count_unacked_in_steps(list(management.node.connections)))
    listing = QueueListing(unacked, management.utilisation)
    return table(
        columns,
        await build_rows(
            vhost.all_queues(),
            lambda queue: None if queue.deleted else [item(queue, listing) for item in items],
        ),
    )


async def list_exchanges(management: Management, request: Request) -> Json:
    columns, names = select_columns(request, EXCHANGE_ITEMS, ("name", "type"))
    items = [EXCHANGE_ITEMS[name] for name in names]
    vhost = _vhost(management, request)
    if vhost is None:
        return table(columns, [])
    return table(
        columns,
        await build_rows(
            list(vhost.exchanges.values()), lambda exchange: [item(exchange, vhost) for item in items]
        ),
    )


async def list_bindings(management: Management, request: Request) -> Json:
    columns, names = select_columns(request, BINDING_ITEMS, BINDING_ITEMS)
    items = [BINDING_ITEMS[name] for name in names]
    vhost = _vhost(management, request)
    if vhost is None:
        return table(columns, [])
    return table(columns, await build_rows(bindings(vhost), lambda bound: [item(bound) for item in items]))


async def list_consumers(management: Management, request: Request) -> Json:
    default = [name for name in CONSUMER_ITEMS if name != "activity_status"]
    columns, names = select_columns(request, CONSUMER_ITEMS, default)
    items = [CONSUMER_ITEMS[name] for name in names]
    vhost = _vhost(management, request)
    if vhost is None:
        return table(columns, [])
    return table(
        columns, await build_rows(list(consumers(vhost)), lambda consumer: [item(consumer) for item in items])
    )


async def list_connections(management: Management, request: Request) -> Json:
    columns, names = select_columns(request, CONNECTION_ITEMS, ("user", "peer_host", "peer_port", "state"))
    items = [CONNECTION_ITEMS[name] for name in names]
    return table(
        columns,
        await build_rows(
            list(management.node.connections), lambda connection: [item(connection) for item in items]
        ),
    )


async def list_channels(management: Management, request: Request) -> Json:
    columns, names = select_columns(
        request, CHANNEL_ITEMS, ("pid", "user", "consumer_count", "messages_unacknowledged")
    )
    items = [CHANNEL_ITEMS[name] for name in names]
    channels = [
        channel
        for connection in list(management.node.connections)
        for channel in list(connection.channels.values())
        if not channel.closing
    ]
    return table(columns, await build_rows(channels, lambda channel: [item(channel) for item in items]))
