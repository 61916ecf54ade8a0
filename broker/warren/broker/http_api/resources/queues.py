"""Queues and streams: lists, declaration, deletion, and their messages."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Final

from warren.broker.http_api.api_error import bad_request, not_found, object_not_found
from warren.broker.http_api.call import CREATED, NO_CONTENT, Call, Response
from warren.broker.http_api.listing_response import list_objects
from warren.broker.http_api.message_json import message_json
from warren.broker.http_api.message_stats import idle_since, queue_rate, queue_statistics
from warren.broker.http_api.resources import clients
from warren.broker.http_api.table_json import encode_arguments, table_json
from warren.broker.management.items.queue_items import NODE, QUEUE_ITEMS, QueueListing, owner_of
from warren.broker.management.json_encoding import ListText
from warren.broker.management.json_values import name_text
from warren.broker.management.queue_counts import UnackedCounts, count_lengths, count_unacked_in_steps
from warren.broker.management.request import Json
from warren.broker.management.statistics.collector import LENGTHS, QUEUE_COUNTERS
from warren.broker.management.time_slices import run_in_slices, sort_in_steps
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue
from warren.broker.model.server_names import LONGEST_NAME
from warren.broker.model.stream.stream import Stream
from warren.broker.model.vhost.declarations import Declarations
from warren.broker.operations import queues as queue_operations
from warren.broker.operations.messages import get_message, queue_to_get_from
from warren.broker.operations.settlement import ACK_MODES, Settlement, settle

LISTED: Final = (
    "consumer_capacity",
    "consumer_utilisation",
    "consumers",
    "memory",
    "message_bytes",
    "message_bytes_persistent",
    "message_bytes_ram",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
    "messages_persistent",
    "messages_ram",
    "messages_ready_ram",
    "messages_unacknowledged_ram",
)
"""Items of `warren ctl list_queues` that the API shows, too, under the same names."""
BASIC: Final = ("auto_delete", "durable", "effective_policy_definition", "exclusive", "name", "state", "type")
POLICIES: Final = ("operator_policy", "policy")
REPLICAS: Final = ("leader", "members", "online")
STREAM_LISTED: Final = ("consumers", "memory", "segments")
QUORUM_LISTED: Final = ("messages_dlx", "message_bytes_dlx", "messages_delayed")
MOST_MESSAGES: Final = 50_000
"""Most messages that one request gets."""


def basic_json(queue: Queue, listing: QueueListing) -> dict[str, Json]:
    """Return what the declaration and the policies say about a queue."""
    found: dict[str, Json] = {name: QUEUE_ITEMS[name](queue, listing) for name in BASIC}
    found |= {name: QUEUE_ITEMS[name](queue, listing) or None for name in POLICIES}
    found |= {
        "arguments": {"x-queue-type": found["type"], **table_json(queue.raw_arguments)},
        "internal": False,
        "internal_owner": False,
        "node": NODE,
        "vhost": name_text(queue.vhost.name),
    }
    if queue.delivery_limit >= 0:
        found["delivery_limit"] = int(queue.delivery_limit)
    if found["type"] != "classic":
        found |= {name: QUEUE_ITEMS[name](queue, listing) for name in REPLICAS}
    return found


def row(call: Call, queue: Queue, listing: QueueListing) -> dict[str, Json]:
    """Return a queue as lists show it."""
    found = basic_json(queue, listing)
    if (owner := owner_of(queue)) is not None:
        found["owner_pid_details"] = clients.connection_details(owner)
    if isinstance(queue, Stream):
        found["readers"] = {NODE: len(queue.readers)}
    elif queue.declared_arguments.quorum:
        for name in QUORUM_LISTED:
            found[name] = QUEUE_ITEMS[name](queue, listing)
    for name in STREAM_LISTED if queue.is_stream else LISTED:
        found[name] = QUEUE_ITEMS[name](queue, listing)
    if not queue.is_stream:
        for name in ("exclusive_consumer_tag", "single_active_consumer_tag", "head_message_timestamp"):
            found[name] = QUEUE_ITEMS[name](queue, listing) or None
    return found | queue_statistics(call, queue)


async def _listing(call: Call) -> QueueListing:
    unacked: dict[Queue, UnackedCounts] = await run_in_slices(
        count_unacked_in_steps(list(call.node.connections))
    )
    return QueueListing(unacked, call.management.utilisation)


def _by_name(hosts: list[Declarations]) -> Generator[None, None, list[Queue]]:
    found: list[Queue] = []
    for topology in hosts:
        found += yield from sort_in_steps(topology.vhost.queues.values(), lambda queue: queue.name)
    return found


async def _list(call: Call, hosts: list[Declarations]) -> Response:
    queues = await run_in_slices(_by_name(hosts))
    if call.flag("disable_stats"):
        with_totals = call.flag("enable_queue_totals")
        listing = QueueListing({}, call.management.utilisation)

        def brief(queue: Queue) -> Json | None:
            if queue.deleted:
                return None
            found = basic_json(queue, listing)
            if with_totals:
                found |= {name: QUEUE_ITEMS[name](queue, listing) for name in LENGTHS}
            return found

        return await list_objects(call, queues, queue_name, brief)
    listing = await _listing(call)
    return await list_objects(
        call,
        queues,
        queue_name,
        lambda queue: None if queue.deleted else _without_nulls(row(call, queue, listing)),
        values=_ordering_values(call),
    )


def _ordering_values(call: Call) -> dict[str, Callable[[Queue], Json]]:
    """Return functions for the values by which people order queues: a whole row costs far more."""
    found: dict[str, Callable[[Queue], Json]] = {"type": lambda queue: queue.declared_arguments.type_name}
    for index, name in enumerate(LENGTHS):
        found[name] = partial(_length, index)
    for name in QUEUE_COUNTERS:
        found[f"message_stats.{name}_details.rate"] = partial(queue_rate, call, name)
    return found


def _length(index: int, queue: Queue) -> int:
    return count_lengths(queue)[index]


def _without_nulls(found: dict[str, Json]) -> dict[str, Json]:
    """Leave out what has no value, as RabbitMQ's lists do."""
    return {name: value for name, value in found.items() if value is not None}


def queue_name(queue: Queue) -> str:
    return name_text(queue.name)


async def list_all(call: Call) -> Response:
    return await _list(call, call.all_visible())


async def list_detailed(call: Call) -> Response:
    return await _list(call, call.all_visible())


async def list_in_vhost(call: Call) -> Response:
    return await _list(call, [call.visible()])


def find(call: Call, topology: Declarations) -> Queue:
    """Return the queue that the path names.

    :raises ApiError: 404 if there is none of that name.
    """
    queue = topology.vhost.queues.get(call.data("queue"))
    if queue is None:
        raise object_not_found()
    return queue


async def show(call: Call) -> Response:
    """Return one queue, with its consumers."""
    queue = find(call, call.visible())
    if call.flag("disable_stats"):
        return Response(body=call.select(basic_json(queue, QueueListing({}, call.management.utilisation))))
    found = row(call, queue, await _listing(call))
    found["consumer_details"] = [clients.consumer_json(consumer) for consumer in clients.subscriptions(queue)]
    found["incoming"], found["deliveries"] = [], []
    if queue.declared_arguments.type_name == "classic":
        found |= idle_since(call, call.statistics.collector.queues.get(queue))
    return Response(body=call.select(found))


async def declare(call: Call) -> Response:
    """Declare a queue; 204 if it exists with the same properties."""
    principal, name = call.principal(), call.data("queue")
    body = call.body()
    if len(name) > LONGEST_NAME:
        raise bad_request(f"queue should be less than {LONGEST_NAME} bytes, actually was {len(name)}\n")
    node = body.get("node")
    if isinstance(node, str) and node not in ("", NODE):
        raise bad_request(f"Node {node} is not a cluster member")
    durable, auto_delete = call.boolean(body, "durable"), call.boolean(body, "auto_delete")
    raw = encode_arguments(body.get("arguments", {}))
    _, is_new = await call.change(
        lambda: queue_operations.declare_queue(
            principal, name, durable=durable, exclusive=False, auto_delete=auto_delete, arguments=raw
        )
    )
    return Response(CREATED if is_new else NO_CONTENT)


async def delete(call: Call) -> Response:
    """Delete a queue; with `if-empty` or `if-unused` in the query, only one without messages or consumers."""
    principal = call.principal()
    name = find(call, principal.declarations).name
    deletion = queue_operations.delete_queue(
        principal, name, if_unused=call.flag("if-unused"), if_empty=call.flag("if-empty")
    )
    if await call.run(deletion) is None:
        raise object_not_found()
    return Response(NO_CONTENT)


async def purge(call: Call) -> Response:
    """Remove all ready messages."""
    principal = call.principal()
    name = find(call, principal.declarations).name
    await call.run(queue_operations.purge_queue(principal, name))
    return Response(NO_CONTENT)


async def act(call: Call) -> Response:
    """Refuse each action: there are none for queues of one node."""
    find(call, call.visible())
    raise bad_request(["unknown", call.body("action")["action"]])


# -- messages


async def get_messages(call: Call) -> Response:
    """Get messages from the head of a queue; they are put back, acknowledged or rejected, as the request says."""
    principal, name = call.principal(), call.data("queue")
    if name not in principal.vhost.queues:
        raise not_found("queue_not_found")
    body = call.body("ackmode", "count", "encoding")
    mode, encoding = body["ackmode"], body["encoding"]
    if mode not in ACK_MODES:
        raise bad_request(f"Invalid ackmode value: {mode}. Valid values are: {', '.join(ACK_MODES)}")
    if encoding not in ("auto", "base64"):
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    count, truncate = _count(body["count"], "count"), None
    if "truncate" in body:
        truncate = _count(body["truncate"], "truncate")
    queue = await call.run(queue_to_get_from(principal, name))
    if queue.deleted:
        raise object_not_found()
    taken: list[tuple[Message, str]] = []
    shown = ListText()

    def encode(message: Message) -> Json:
        return message_json(queue, message, encoding == "base64", truncate)

    def take() -> Generator[None, None, None]:
        counts = principal.vhost.totals.ended_channels
        while len(taken) < min(count, MOST_MESSAGES):
            if queue.deleted or queue.is_held():
                return
            got = get_message(principal, queue, encode, counts, no_ack=False)
            if got is None:
                return
            taken.append((got.message, got.identity))
            # Encoded one by one: tens of thousands of objects would keep the garbage collector busy.
            shown.add(got.encoded)
            yield

    try:
        await run_in_slices(take())
    except BaseException:
        # Nobody will see them, for example because the client is gone.
        Settlement(principal, queue, taken, "ack_requeue_true").start()
        raise
    await call.run(settle(principal, call.node, queue, taken, mode))
    return Response(encoded=shown.parts())


def _count(value: Json, name: str) -> int:
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        raise bad_request(["not_int", name]) from None
    if found < 0:
        raise bad_request(f"{name} must not be negative")
    return found
