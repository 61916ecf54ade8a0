"""Brokers with users, virtual hosts and permissions from RabbitMQ definitions, for Warren and RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.in_process_broker import InProcessBroker
from tests.support.rabbitmq import rabbitmq_server
from warren.broker import BrokerConfig

GUEST: dict[str, Any] = {"name": "guest", "password": "guest", "tags": "administrator"}


def definitions(
    *,
    users: list[dict[str, Any]],
    vhosts: list[dict[str, Any]],
    permissions: list[tuple[str, str, str, str, str]],
    topic_permissions: list[tuple[str, str, str, str, str]] = [],  # noqa: B006 - never changed
    vhost_limits: dict[str, dict[str, int]] | None = None,
) -> dict[str, Any]:
    """
    :param permissions: user, virtual host, configure, write, read
    :param topic_permissions: user, virtual host, exchange, write, read
    """
    return {
        "users": [GUEST, *users],
        "vhosts": [{"name": "/"}, *vhosts],
        "permissions": [
            dict(zip(("user", "vhost", "configure", "write", "read"), row, strict=True))
            for row in (("guest", "/", ".*", ".*", ".*"), *permissions)
        ],
        "topic_permissions": [
            dict(zip(("user", "vhost", "exchange", "write", "read"), row, strict=True))
            for row in topic_permissions
        ],
        "parameters": [
            {"vhost": vhost, "component": "vhost-limits", "name": "limits", "value": limits}
            for vhost, limits in (vhost_limits or {}).items()
        ],
    }


@contextmanager
def broker_with_definitions(kind: str, what: dict[str, Any]) -> Iterator[str]:
    """Start a broker with these definitions and yield its URL; `kind` is `rabbitmq`, `warren` or `warren-<version>`."""
    if kind == "rabbitmq":
        with rabbitmq_server(definitions=what) as server:
            yield server.url
        return
    with InProcessBroker(config=BrokerConfig(compat=kind.partition("-")[2] or "4")) as broker:
        broker.call(lambda: load(broker, what))
        yield broker.url


def load(inprocess: InProcessBroker, what: dict[str, Any]) -> None:
    """Create all definitions through the broker's API."""
    broker = inprocess.broker
    assert broker is not None
    users, permissions, vhosts = broker.access.users, broker.access.permissions, broker.virtual_hosts
    for vhost in what["vhosts"]:
        if vhost["name"] not in vhosts:
            vhosts.add(vhost["name"], default_queue_type=vhost.get("default_queue_type", ""))
    for parameter in what["parameters"]:
        value = parameter["value"]
        vhosts.set_limits(
            parameter["vhost"],
            max_connections=value.get("max-connections"),
            max_queues=value.get("max-queues"),
        )
    for user in what["users"]:
        if user["name"] not in users:
            users.add(user["name"], user["password"], tags=[tag for tag in user["tags"].split(",") if tag])
        limits = user.get("limits", {})
        users.set_limits(
            user["name"],
            max_connections=limits.get("max-connections"),
            max_channels=limits.get("max-channels"),
        )
    for row in what["permissions"]:
        permissions.set(row["user"], row["vhost"], row["configure"], row["write"], row["read"])
    for row in what["topic_permissions"]:
        permissions.set_topic(row["user"], row["vhost"], row["exchange"], row["write"], row["read"])
