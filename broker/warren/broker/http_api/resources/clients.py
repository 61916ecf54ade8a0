"""Connections, channels and consumers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from warren.broker.channel.channel import Channel
from warren.broker.channel.subscription import Subscription
from warren.broker.connection.client_session import ClientSession
from warren.broker.connection.in_process import InProcessTransport
from warren.broker.http_api.api_error import object_not_found
from warren.broker.http_api.call import NO_CONTENT, Call, Response
from warren.broker.http_api.caller import ADMINISTRATOR, MONITORING
from warren.broker.http_api.listing_response import list_objects
from warren.broker.http_api.message_stats import channel_statistics
from warren.broker.http_api.statistics_json import SampleRange
from warren.broker.http_api.table_json import table_json
from warren.broker.management.items.connection_items import CHANNEL_ITEMS, CONNECTION_ITEMS
from warren.broker.management.items.queue_items import NODE
from warren.broker.management.items.topology_items import CONSUMER_ITEMS
from warren.broker.management.items.topology_items import consumers as consumers_of
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json
from warren.broker.management.statistics.collector import TRAFFIC
from warren.broker.model.queue.queue import Queue
from warren.wire.reply_codes import AmqpError, Reply

CONNECTION_LISTED: Final = (
    "auth_mechanism",
    "channel_max",
    "channels",
    "connected_at",
    "frame_max",
    "host",
    "name",
    "peer_host",
    "peer_port",
    "port",
    "recv_cnt",
    "send_cnt",
    "send_pend",
    "ssl",
    "state",
    "timeout",
    "user",
    "vhost",
)
CONNECTION_OR_NULL: Final = (
    "peer_cert_issuer",
    "peer_cert_subject",
    "peer_cert_validity",
    "ssl_cipher",
    "ssl_hash",
    "ssl_key_exchange",
    "ssl_protocol",
)
CHANNEL_LISTED: Final = (
    "acks_uncommitted",
    "confirm",
    "consumer_count",
    "global_prefetch_count",
    "messages_unacknowledged",
    "messages_uncommitted",
    "messages_unconfirmed",
    "name",
    "number",
    "prefetch_count",
    "transactional",
    "user",
    "vhost",
)
CONSUMER_LISTED: Final = ("ack_required", "active", "activity_status", "consumer_tag", "prefetch_count")
DEFAULT_REASON: Final = "Closed via management plugin"


def connection_json(call: Call, connection: ClientSession) -> dict[str, Json]:
    """Return a connection as lists show it."""
    found: dict[str, Json] = {name: CONNECTION_ITEMS[name](connection) for name in CONNECTION_LISTED}
    found |= {name: CONNECTION_ITEMS[name](connection) or None for name in CONNECTION_OR_NULL}
    found["peer_cert_serial_number"] = None
    description = connection.describe()
    client_properties = table_json(description.client_properties)
    found["client_properties"] = client_properties
    if "connection_name" in client_properties:
        found["user_provided_name"] = client_properties["connection_name"]
    found["node"] = NODE
    is_direct = isinstance(connection.transport, InProcessTransport)
    found["protocol"] = description.protocol.replace("AMQP", "Direct") if is_direct else description.protocol
    found["type"] = "direct" if is_direct else "network"
    found["user_who_performed_action"] = found["user"]
    series = call.statistics.collector.connections.get(connection)
    present = [CONNECTION_ITEMS[name](connection) or 0 for name in TRAFFIC]
    chosen = SampleRange.parse(call.query, "data_rates")
    return found | call.statistics.values(series, TRAFFIC, present, 0, chosen)


def connection_details(connection: ClientSession) -> dict[str, Json]:
    """Return the facts that say which connection it is."""
    return {
        "name": connection.shown_name(),
        "peer_host": CONNECTION_ITEMS["peer_host"](connection),
        "peer_port": CONNECTION_ITEMS["peer_port"](connection),
    }


def channel_json(call: Call, channel: Channel) -> dict[str, Json]:
    """Return a channel as lists show it."""
    found: dict[str, Json] = {name: CHANNEL_ITEMS[name](channel) for name in CHANNEL_LISTED}
    found["connection_details"] = connection_details(channel.connection)
    found["node"] = NODE
    found["state"] = "running"
    found["user_who_performed_action"] = found["user"]
    return found | channel_statistics(call, channel)


def consumer_json(consumer: Subscription) -> dict[str, Json]:
    """Return a consumer as lists show it."""
    channel = consumer.channel
    connection = channel.connection
    return {
        **{name: CONSUMER_ITEMS[name](consumer) for name in CONSUMER_LISTED},
        "arguments": table_json(consumer.raw_arguments),
        "channel_details": {
            "connection_name": connection.shown_name(),
            "name": CHANNEL_ITEMS["name"](channel),
            "node": NODE,
            "number": CHANNEL_ITEMS["number"](channel),
            "peer_host": CONNECTION_ITEMS["peer_host"](connection),
            "peer_port": CONNECTION_ITEMS["peer_port"](connection),
            "user": CHANNEL_ITEMS["user"](channel),
        },
        "consumer_timeout": int(consumer.timeout),
        "exclusive": consumer.exclusive,
        "queue": {
            "name": CONSUMER_ITEMS["queue_name"](consumer),
            "vhost": name_text(consumer.queue.vhost.name),
        },
    }


def subscriptions(queue: Queue) -> list[Subscription]:
    """Return the consumers of a queue."""
    return [consumer for consumer in queue.consumers if isinstance(consumer, Subscription)]


# -- connections


def _visible(call: Call, connection: ClientSession) -> bool:
    """Return whether the caller may see a connection: monitoring users see all, others their own."""
    if not connection.vhost:
        return False
    return call.caller.has_role(MONITORING) or name_text(connection.user) == call.caller.user.name


def _connections(call: Call) -> list[ClientSession]:
    return [connection for connection in call.node.connections if _visible(call, connection)]


async def _list(call: Call, found: Iterable[ClientSession]) -> Response:
    return await list_objects(
        call,
        list(found),
        lambda connection: connection.shown_name(),
        lambda connection: connection_json(call, connection),
    )


async def connections(call: Call) -> Response:
    return await _list(call, _connections(call))


async def connections_of_vhost(call: Call) -> Response:
    vhost = call.visible().vhost.name
    return await _list(call, [each for each in _connections(call) if each.vhost == vhost])


async def connections_of_user(call: Call) -> Response:
    call.caller.require_self_or(MONITORING, call.name("user"))
    return await _list(call, _connections_of_user(call))


def _connections_of_user(call: Call) -> list[ClientSession]:
    return [each for each in _connections(call) if each.user == call.data("user")]


def _find(call: Call, role: str = MONITORING) -> ClientSession:
    """Return the connection that the path names.

    :param role: role that the caller needs unless it is the caller's own connection.
    :raises ApiError: 404 if there is none of that name, 401 if the caller has no right to it.
    """
    name = call.name("name")
    for connection in call.node.connections:
        if connection.vhost and connection.shown_name() == name:
            call.caller.require_self_or(role, name_text(connection.user))
            return connection
    raise object_not_found()


async def connection(call: Call) -> Response:
    return Response(body=call.select(connection_json(call, _find(call))))


def _close(call: Call, found: Iterable[ClientSession]) -> Response:
    reason = call.headers.get("X-Reason", DEFAULT_REASON)
    for each in list(found):
        each.shut_down(AmqpError(Reply.CONNECTION_FORCED, reason))
    return Response(NO_CONTENT)


async def close_connection(call: Call) -> Response:
    """Close one connection with 320 CONNECTION_FORCED, and the reason in the header `X-Reason`."""
    return _close(call, [_find(call, ADMINISTRATOR)])


async def close_connections_of_user(call: Call) -> Response:
    call.caller.require_self_or(ADMINISTRATOR, call.name("user"))
    return _close(call, _connections_of_user(call))


# -- channels


def _channels(found: Iterable[ClientSession]) -> list[Channel]:
    return [
        channel for connection in found for channel in connection.channels.values() if not channel.closing
    ]


async def _list_channels(call: Call, found: list[Channel]) -> Response:
    return await list_objects(
        call,
        found,
        lambda channel: str(CHANNEL_ITEMS["name"](channel)),
        lambda channel: channel_json(call, channel),
    )


async def channels(call: Call) -> Response:
    return await _list_channels(call, _channels(_connections(call)))


async def channels_of_vhost(call: Call) -> Response:
    vhost = call.visible().vhost.name
    return await _list_channels(call, _channels(each for each in _connections(call) if each.vhost == vhost))


async def channels_of_connection(call: Call) -> Response:
    return await _list_channels(call, _channels([_find(call)]))


async def channel(call: Call) -> Response:
    """Return one channel, with its consumers."""
    for found in _channels(call.node.connections):
        if CHANNEL_ITEMS["name"](found) == call.name("name"):
            call.caller.require_self_or(MONITORING, name_text(found.connection.user))
            shown = channel_json(call, found)
            shown["consumer_details"] = [consumer_json(each) for each in found.subscriptions.values()]
            shown["publishes"], shown["deliveries"] = [], []
            return Response(body=call.select(shown))
    raise object_not_found()


# -- consumers


async def consumers(call: Call) -> Response:
    return await _list_consumers(
        call, [each for topology in call.all_monitored() for each in consumers_of(topology.vhost)]
    )


async def consumers_of_vhost(call: Call) -> Response:
    return await _list_consumers(call, list(consumers_of(call.monitored().vhost)))


async def _list_consumers(call: Call, found: list[Subscription]) -> Response:
    """Return consumers: monitoring users see all, others those of their own connections."""
    if not call.caller.has_role(MONITORING):
        found = [each for each in found if name_text(each.channel.connection.user) == call.caller.user.name]
    return await list_objects(
        call, found, lambda each: name_text(each.queue.name), consumer_json, paged=False
    )
