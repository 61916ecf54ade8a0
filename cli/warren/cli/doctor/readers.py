"""Readers of a broker's state: the management HTTP API, Warren's control socket, or AMQP alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from warren.cli.doctor.finding import Source
from warren.cli.doctor.snapshot import (
    BindingState,
    ChannelState,
    ConnectionState,
    ConsumerState,
    ExchangeState,
    PolicyState,
    QueueState,
    Snapshot,
)
from warren.core.control_client import ControlError, send_request
from warren.patterns.dead_letters.parking_lot import count_queues
from warren.sdk import Queue
from warren.sdk.planning import ListingError, ManagementApi

SECONDS = 30.0
EVERYTHING = frozenset(Source) - {Source.GROWTH}


class Reader(Protocol):
    """Reader of the state of one virtual host."""

    async def read(self) -> Snapshot: ...


class ManagementReader:
    """Reader of RabbitMQ's management API.

    :param api: the API; its user needs the tag `monitoring` to see connections and nodes.
    """

    def __init__(self, api: ManagementApi, virtual_host: str, broker: str) -> None:
        self._api = api
        self._virtual_host = virtual_host
        self._broker = broker

    async def read(self) -> Snapshot:
        """Return the state now. Blocks while the API answers.

        :raises ListingError: if the API does not answer, or refuses the user.
        """
        api, where = self._api, quote(self._virtual_host, safe="")
        nodes = api.get_list("nodes")
        connections = [
            each for each in api.get_list("connections") if each.get("vhost") == self._virtual_host
        ]
        channels = [each for each in api.get_list("channels") if each.get("vhost") == self._virtual_host]
        return Snapshot(
            self._broker,
            time.monotonic(),
            EVERYTHING,
            queues=[
                QueueState(
                    each["name"],
                    ready=each.get("messages_ready", 0),
                    consumers=each.get("consumers", 0),
                    unacked=each.get("messages_unacknowledged", 0),
                    held=each.get("messages_dlx", 0),
                    type=each.get("type", "classic"),
                    durable=each["durable"],
                    exclusive=each.get("exclusive", False),
                    auto_delete=each["auto_delete"],
                    arguments=each.get("arguments") or {},
                    definition=each.get("effective_policy_definition") or {},
                    policy=each.get("policy") or "",
                    oldest=_instant(each.get("head_message_timestamp")),
                )
                for each in api.get_list(f"queues/{where}")
            ],
            exchanges=[
                ExchangeState(
                    each["name"],
                    each["type"],
                    each["durable"],
                    each["internal"],
                    each["arguments"].get("alternate-exchange"),
                    each.get("policy") or "",
                    each.get("message_stats", {}).get("publish_in", 0),
                )
                for each in api.get_list(f"exchanges/{where}")
            ],
            bindings=[
                BindingState(
                    each["source"],
                    each["destination"],
                    each["routing_key"],
                    each["destination_type"] == "exchange",
                )
                for each in api.get_list(f"bindings/{where}")
                if each["source"]
            ],
            policies=[
                PolicyState(each["name"], each["pattern"], each["apply-to"], each["definition"])
                for each in api.get_list(f"policies/{where}")
            ],
            connections=[
                ConnectionState(
                    each["name"],
                    each["name"],
                    _client(each.get("client_properties") or {}),
                    each.get("user", ""),
                    each.get("timeout") or 0,
                    each.get("recv_oct", 0),
                    _instant(each.get("connected_at", 0) / 1000),
                    f"{each.get('peer_host')}:{each.get('peer_port')}",
                )
                # A connection that is just opened or closed has no protocol yet.
                for each in connections
                if str(each.get("protocol", "")).startswith("AMQP 0-9")
            ],
            channels=[
                ChannelState(
                    each["name"],
                    each["connection_details"]["name"],
                    each.get("confirm", False),
                    each.get("transactional", False),
                    each.get("consumer_count", 0),
                    each.get("messages_unacknowledged", 0),
                    each.get("global_prefetch_count", 0),
                    each.get("message_stats", {}).get("publish", 0),
                )
                for each in channels
                if each.get("connection_details", {}).get("name")
            ],
            consumers=[
                ConsumerState(
                    each["queue"]["name"],
                    (each.get("channel_details") or {}).get("name", ""),
                    each["consumer_tag"],
                    each["ack_required"],
                    each.get("prefetch_count", 0),
                )
                for each in api.get_list(f"consumers/{where}")
            ],
            nodes={each["name"]: bool(each.get("running")) for each in nodes},
            alarms=[
                f"{node['name']}: {text}"
                for node in nodes
                for key, text in (("mem_alarm", "memory alarm"), ("disk_free_alarm", "disk alarm"))
                if node.get(key)
            ],
            deprecated={
                str(each["name"]): str(each.get("desc") or each.get("deprecation_phase") or "")
                for each in api.get("deprecated-features/used") or []  # Since RabbitMQ 3.13.
            },
        )


class ControlReader:
    """Reader of the control socket of a Warren broker on this machine.

    :param path: path of the socket.
    """

    def __init__(self, path: Path, virtual_host: str, broker: str) -> None:
        self._path = path
        self._virtual_host = virtual_host
        self._broker = broker

    async def read(self) -> Snapshot:
        """Return the state now. Blocks while the broker answers.

        :raises ListingError: if the broker does not answer.
        """
        vhost = self._virtual_host
        connections = [
            each for each in self._rows("list_connections", CONNECTION_ITEMS) if each["vhost"] == vhost
        ]
        known = {each["pid"] for each in connections}
        return Snapshot(
            self._broker,
            time.monotonic(),
            EVERYTHING,
            queues=[
                QueueState(
                    each["name"],
                    ready=each["messages_ready"],
                    consumers=each["consumers"],
                    unacked=each["messages_unacknowledged"],
                    held=each["messages_dlx"],
                    type=each["type"],
                    durable=each["durable"],
                    exclusive=each["exclusive"],
                    auto_delete=each["auto_delete"],
                    arguments=_table(each["arguments"]),
                    definition=_definition(each["effective_policy_definition"]),
                    policy=each["policy"],
                    oldest=_instant(each["head_message_timestamp"]),
                )
                for each in self._rows("list_queues", QUEUE_ITEMS)
            ],
            exchanges=[
                ExchangeState(
                    each["name"],
                    each["type"],
                    each["durable"],
                    each["internal"],
                    _table(each["arguments"]).get("alternate-exchange"),
                    each["policy"],
                )
                for each in self._rows("list_exchanges", EXCHANGE_ITEMS)
            ],
            bindings=[
                BindingState(
                    each["source_name"],
                    each["destination_name"],
                    each["routing_key"],
                    each["destination_kind"] == "exchange",
                )
                for each in self._rows("list_bindings", BINDING_ITEMS)
                if each["source_name"]
            ],
            policies=[
                PolicyState(each["name"], each["pattern"], each["apply-to"], json.loads(each["definition"]))
                for each in self._rows("list_policies", ())
            ],
            connections=[
                ConnectionState(
                    each["pid"],
                    each["name"],
                    _client(_table(each["client_properties"])),
                    each["user"],
                    each["timeout"],
                    each["recv_oct"],
                    _instant(each["connected_at"] / 1000),
                    f"{each['peer_host']}:{each['peer_port']}",
                )
                for each in connections
            ],
            channels=[
                ChannelState(
                    each["pid"],
                    each["connection"],
                    each["confirm"],
                    each["transactional"],
                    each["consumer_count"],
                    each["messages_unacknowledged"],
                    each["global_prefetch_count"],
                )
                for each in self._rows("list_channels", CHANNEL_ITEMS)
                if each["connection"] in known
            ],
            consumers=[
                ConsumerState(
                    each["queue_name"],
                    each["channel_pid"],
                    each["consumer_tag"],
                    each["ack_required"],
                    each["prefetch_count"],
                )
                for each in self._rows("list_consumers", CONSUMER_ITEMS)
            ],
            nodes={"": True},
            alarms=[f"{each['resource']} ({each['source']})" for each in self._rows("alarms", ())],
        )

    def _rows(self, verb: str, items: Sequence[str]) -> list[dict[str, Any]]:
        arguments = {"vhost": self._virtual_host, "items": list(items)} if verb != "alarms" else {}
        try:
            found = send_request(self._path, verb, arguments, SECONDS)
        except ControlError as error:
            raise ListingError(str(error)) from None
        return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]


class AmqpReader:
    """Reader of numbers of messages and consumers by AMQP alone, which can only ask for queues by name.

    :param queues: the queues, as they are declared; those that do not exist are left out.
    """

    def __init__(self, url: str, queues: Iterable[Queue], broker: str) -> None:
        self._url = url
        self._queues = {queue.name: queue.wire_arguments() for queue in queues}
        self._broker = broker

    async def read(self) -> Snapshot:
        """Return the numbers now.

        :raises TransportUnavailable: there is no connection, or it was lost.
        """
        found = await count_queues(self._url, sorted(self._queues))
        return Snapshot(
            self._broker,
            time.monotonic(),
            frozenset({Source.COUNTS}),
            queues=[
                QueueState(name, *counts, arguments=self._queues[name]) for name, counts in found.items()
            ],
        )


QUEUE_ITEMS = (
    "name", "durable", "auto_delete", "arguments", "policy", "effective_policy_definition", "exclusive", "type",
    "messages_ready", "messages_unacknowledged", "messages_dlx", "consumers",
    "head_message_timestamp",
)  # fmt: skip
EXCHANGE_ITEMS = ("name", "type", "durable", "internal", "arguments", "policy")
BINDING_ITEMS = ("source_name", "destination_name", "destination_kind", "routing_key")
CONNECTION_ITEMS = (
    "pid", "name", "vhost", "user", "timeout", "client_properties", "recv_oct", "connected_at", "peer_host", "peer_port",
)  # fmt: skip
CHANNEL_ITEMS = (
    "pid", "connection", "confirm", "transactional", "consumer_count", "messages_unacknowledged", "global_prefetch_count",
)  # fmt: skip
CONSUMER_ITEMS = ("queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count")


def _client(properties: Mapping[str, Any]) -> str:
    return str(properties.get("connection_name") or properties.get("product") or "")


def _table(triples: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return a table that the control socket lists as [name, type, value] triples; inner tables stay as listed."""
    return {name: value for name, _, value in triples}


def _definition(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        value = json.loads(value) if value else {}
    return dict(value) if isinstance(value, Mapping) else {}


def _instant(seconds: object) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, int | float) and seconds else None
    except (ValueError, OverflowError, OSError):  # A publisher may write any number into a timestamp.
        return None
