"""The broker as a whole: overview, its node, features, and the caller's own facts."""

from __future__ import annotations

import base64
import os
import ssl
import sys
import time
from collections.abc import Generator
from typing import Final
from urllib.parse import parse_qsl

from warren.broker.access import passwords
from warren.broker.http_api.api_error import bad_request, object_not_found
from warren.broker.http_api.call import NO_CONTENT, Call, Response
from warren.broker.http_api.caller import MANAGEMENT, MONITORING
from warren.broker.http_api.message_stats import churn, node_usage, totals
from warren.broker.management import rabbitmq_features
from warren.broker.management.items.queue_items import NODE
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_in_slices
from warren.broker.management.verbs import health as health_verbs
from warren.broker.management.verbs import runtime_parameters as parameter_verbs
from warren.broker.management.verbs.health import own_version
from warren.broker.model.queue.queue import Queue
from warren.broker.model.rabbitmq_versions import BEHAVIOUR_BY_VERSION
from warren.broker.model.vhost.vhost import VirtualHost

EXCHANGE_TYPES: Final = {
    "direct": "AMQP direct exchange, as per the AMQP specification",
    "fanout": "AMQP fanout exchange, as per the AMQP specification",
    "headers": "AMQP headers exchange, as per the AMQP specification",
    "topic": "AMQP topic exchange, as per the AMQP specification",
    "x-consistent-hash": "Consistent Hashing Exchange",
    "x-delayed-message": "Delayed Message Exchange.",
    "x-local-random": "Picks one random local binding (queue) to route via (to).",
    "x-message-deduplication": "Message Deduplication Exchange.",
    "x-modulus-hash": "Modulus Hashing Exchange",
    "x-random": "Randomly picks a binding (queue) to route via (to).",
    "x-recent-history": "Recent History Exchange.",
}
"""Description of each exchange type, by its name."""
RETENTION: Final = {
    "global": [600, 3600, 28800, 86400],
    "basic": [600, 3600, 28800, 86400],
    "detailed": [600],
}
"""Seconds that samples cover: of the node and virtual hosts, of queues, and of connections, channels and exchanges."""
UNCOUNTED_MEMORY: Final = (
    "connection_readers",
    "connection_writers",
    "connection_channels",
    "connection_other",
    "stream_queue_procs",
    "stream_queue_replica_reader_procs",
    "stream_queue_coordinator_procs",
    "quorum_queue_procs",
    "quorum_queue_dlx_procs",
    "plugins",
    "metadata_store",
    "other_proc",
    "metrics",
    "mgmt_db",
    "quorum_ets",
    "mnesia",
    "metadata_store_ets",
    "other_ets",
    "binary",
    "msg_index",
    "code",
    "atom",
    "allocated_unused",
    "reserved_unallocated",
)
"""Uses of memory that RabbitMQ counts and this broker does not. Clients such as `rabbitmqadmin` need each of them."""


def rabbitmq_version(call: Call) -> str:
    """Return the version of RabbitMQ whose behaviour the broker has, which clients look at."""
    return BEHAVIOUR_BY_VERSION[call.management.config.compat].version


def _exchange_types() -> list[Json]:
    return [
        {"name": name, "description": description, "enabled": True}
        for name, description in EXCHANGE_TYPES.items()
    ]


def listeners(call: Call) -> list[Json]:
    """Return the addresses at which connections are accepted."""
    found = []
    for where in call.management.listeners():
        scheme, _, address = where.partition(" at ")
        host, _, port = address.rpartition(":")
        found.append(
            {
                "node": NODE,
                "protocol": {"amqps": "amqp/ssl", "https": "https"}.get(scheme, scheme),
                "ip_address": host.strip("[]"),
                "port": int(port),
                "socket_opts": [],
                "tls": scheme in ("amqps", "https", "https/prometheus"),
            }
        )
    return found


def _contexts(call: Call) -> list[dict[str, Json]]:
    """Return where HTTP requests are accepted, without the node's name."""
    return [
        {
            "ssl_opts": [],
            "description": "Prometheus" if "prometheus" in each["protocol"] else "Management",
            "path": "/",
            "protocol": each["protocol"],
            "ip": each["ip_address"],
            "port": str(each["port"]),
        }
        for each in listeners(call)
        if each["protocol"].startswith("http")
    ]


async def overview(call: Call) -> Response:
    node = call.node
    hosts = [topology.vhost for topology in call.all_monitored()]
    connections = [each for each in node.connections if each.vhost]
    if not call.caller.has_role(MONITORING):
        connections = [each for each in connections if each.user == call.caller.user.name.encode()]
    numbers = totals(call)
    stats = numbers.pop("message_stats")
    found: dict[str, Json] = {
        "management_version": rabbitmq_version(call),
        "rates_mode": "basic",
        "sample_retention_policies": RETENTION,
        "exchange_types": _exchange_types(),
        "product_version": own_version(),
        "product_name": "Warren",
        "rabbitmq_version": rabbitmq_version(call),
        "cluster_name": cluster_name_of(call),
        "cluster_tags": _cluster_tags(call),
        "node_tags": {},
        "erlang_version": "",
        "erlang_full_version": f"Python {sys.version.split()[0]}",
        "crypto_lib_version": ssl.OPENSSL_VERSION,
        "disable_stats": False,
        "default_queue_type": "classic",
        "is_op_policy_updating_enabled": True,
        "enable_queue_totals": False,
        "require_definition_json_extension": False,
        "message_stats": stats,
        "churn_rates": churn(call, "msg_rates"),
        "queue_totals": numbers,
        "object_totals": {
            "channels": sum(len(each.channels) for each in connections),
            "exchanges": sum(len(vhost.exchanges) for vhost in hosts),
            "queues": sum(len(vhost.queues) for vhost in hosts),
            "connections": len(connections),
        },
        "statistics_db_event_queue": 0,
    }
    if call.caller.has_role(MONITORING):
        found["node"] = NODE
        found["object_totals"]["consumers"] = await run_in_slices(_count_consumers(hosts))
        found["listeners"] = listeners(call)
        found["contexts"] = [{**each, "node": NODE} for each in _contexts(call)]
    return Response(body=call.select(found))


def _count_consumers(hosts: list[VirtualHost]) -> Generator[None, None, int]:
    count = 0
    for vhost in hosts:
        for queue in list(vhost.queues.values()):
            count += len(queue.consumers)
            yield
    return count


async def whoami(call: Call) -> Response:
    user = call.caller.user
    found: Json = {"name": user.name, "tags": list(user.tags), "is_internal_user": True}
    return Response(body=call.select(found))


async def log_in(call: Call) -> Response:
    """Verify the name and the password of a form; return the user, and the value for the header `Authorization`.

    :raises ApiError: 401 if they are wrong, or the user has no role.
    """
    form = dict(parse_qsl(call.raw_body.decode(errors="replace"), keep_blank_values=True))
    name, password = form.get("username", ""), form.get("password", "").encode()
    caller = await call.authenticator.login(call.address, name, password)
    caller.require(MANAGEMENT)
    token = base64.b64encode(name.encode() + b":" + password).decode()
    return Response(
        body={
            "user": {"name": caller.user.name, "tags": list(caller.user.tags), "is_internal_user": True},
            "token": {"type": "basic", "value": token},
        }
    )


async def log_out(_: Call) -> Response:
    """Answer that the login is over: the broker keeps none."""
    return Response(NO_CONTENT)


async def version(call: Call) -> Response:
    return Response(body=rabbitmq_version(call))


async def extensions(_: Call) -> Response:
    return Response(body=[{"javascript": "dispatcher.js"}])


def cluster_name_of(call: Call) -> str:
    """Return the name of the cluster: the global parameter of that name, or the node's name."""
    return str(call.management.parameters.globals.get("cluster_name", NODE))


def _cluster_tags(call: Call) -> Json:
    """Return the global parameter `cluster_tags`; an empty list of tags is shown as an object without any."""
    return call.management.parameters.globals.get("cluster_tags") or {}


async def cluster_name(call: Call) -> Response:
    return Response(body={"name": cluster_name_of(call)})


async def set_cluster_name(call: Call) -> Response:
    name = call.body("name")["name"]
    if not isinstance(name, str) or not name:
        raise bad_request("name must be a text")
    await call.perform(parameter_verbs.set_cluster_name, name=name)
    return Response(NO_CONTENT)


def _node(call: Call) -> dict[str, Json]:
    management = call.management
    resources, admission, flow = management.resources, management.admission, call.node.flow
    alarms = set(flow.alarms.values())
    config = management.config
    return {
        "name": NODE,
        "type": "disc",
        "running": True,
        "being_drained": False,
        "partitions": [],
        "os_pid": str(os.getpid()),
        "fd_total": management.descriptors.limit,
        "sockets_total": admission.most_sockets,
        "mem_limit": resources.memory_limit or 0,
        "mem_alarm": "memory" in alarms,
        "mem_calculation_strategy": "rss",
        "disk_free_limit": resources.disk_free_limit,
        "disk_free_alarm": "disk" in alarms,
        "proc_total": 0,
        "rates_mode": "basic",
        "uptime": round((time.monotonic() - management.started) * 1000),
        "run_queue": 0,
        "processors": os.cpu_count() or 1,
        "exchange_types": _exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": f"SASL {name} authentication mechanism", "enabled": True}
            for name in config.mechanisms
        ],
        "applications": [{"name": "warren", "description": "Warren", "version": own_version()}],
        "contexts": [dict(each) for each in _contexts(call)],
        "log_files": ["<stderr>"],
        "db_dir": str(config.data_dir) if config.data_dir is not None else "",
        "config_files": [],
        "net_ticktime": 60,
        "enabled_plugins": [],
        "rabbitmq_version": rabbitmq_version(call),
        "erlang_version": "",
        "erlang_full_version": f"Python {sys.version.split()[0]}",
        "cluster_links": [],
        "metrics_gc_queue_length": {},
        "crypto_lib_version": ssl.OPENSSL_VERSION,
        **churn(call, "node_stats"),
        **node_usage(call),
    }


async def nodes(call: Call) -> Response:
    return Response(body=[call.select(_node(call))])


def require_node(call: Call) -> None:
    """Check that the path names this node.

    :raises ApiError: 404 if it names another one.
    """
    if call.name("node") != NODE:
        raise object_not_found()


async def node(call: Call) -> Response:
    require_node(call)
    return Response(body=call.select(_node(call)))


async def login_attempts(call: Call) -> Response:
    """Return how many logins succeeded and were refused, by protocol."""
    require_node(call)
    churn_counters = call.node.churn
    return Response(
        body=[
            {
                "protocol": protocol,
                "auth_attempts": succeeded + churn_counters.logins_refused[protocol],
                "auth_attempts_failed": churn_counters.logins_refused[protocol],
                "auth_attempts_succeeded": succeeded,
            }
            for protocol, succeeded in churn_counters.logins.items()
        ]
    )


async def login_attempts_by_source(call: Call) -> Response:
    """Answer that no source of a login is recorded, as RabbitMQ does unless it is told to record them."""
    require_node(call)
    return Response(body=[])


async def reset_login_attempts(call: Call) -> Response:
    """Count logins anew, from 0."""
    require_node(call)
    call.node.churn.forget_logins()
    return Response(NO_CONTENT)


async def reset_statistics(call: Call) -> Response:
    """Forget all samples of the statistics; counts and lengths stay."""
    call.statistics.collector.forget_samples()
    return Response(NO_CONTENT)


async def reset_statistics_of_node(call: Call) -> Response:
    require_node(call)
    return await reset_statistics(call)


async def _memory_of_queues(call: Call) -> int:
    """Return the bytes of messages that queues hold in memory."""
    queues = [queue for each in call.node.vhosts.values() for queue in each.vhost.queues.values()]
    return await run_in_slices(_sum_memory_in_steps(queues))


def _sum_memory_in_steps(queues: list[Queue]) -> Generator[None, None, int]:
    total = 0
    for queue in queues:
        total += int(queue.ready.memory_bytes())
        yield
    return total


async def relative_memory(call: Call) -> Response:
    """Return the uses of memory in percent of the process's memory."""
    require_node(call)
    # 0 where the system does not tell it, as on Windows
    used = call.management.resources.memory_used
    queues = round(100 * await _memory_of_queues(call) / used) if used else 0
    return Response(
        body={
            "memory": {
                **dict.fromkeys(UNCOUNTED_MEMORY, 0),
                "queue_procs": min(queues, 100),
                "other_system": max(100 - queues, 0),
                "total": 100,
            }
        }
    )


async def memory(call: Call) -> Response:
    """Return how the memory of the process is used, as far as the broker counts it. What it does not count is 0."""
    require_node(call)
    used = call.management.resources.memory_used
    queues = await _memory_of_queues(call)
    return Response(
        body={
            "memory": {
                **dict.fromkeys(UNCOUNTED_MEMORY, 0),
                "queue_procs": queues,
                "other_system": max(used - queues, 0),
                "total": {"erlang": used, "rss": used, "allocated": used},
                "strategy": "rss",
            }
        }
    )


async def feature_flags(_: Call) -> Response:
    return Response(body=rabbitmq_features.feature_flags())


async def enable_feature_flag(call: Call) -> Response:
    """Accept a feature flag that the broker has: it is on.

    :raises ApiError: 400 for any other one.
    """
    if call.name("name") not in rabbitmq_features.FEATURE_FLAGS:
        raise bad_request("unsupported")
    return Response(NO_CONTENT)


async def deprecated_features(call: Call) -> Response:
    return Response(body=rabbitmq_features.deprecated_features(call.node.virtual_hosts.portability))


async def used_deprecated_features(call: Call) -> Response:
    return Response(body=rabbitmq_features.used_deprecated_features(call.node.virtual_hosts.portability))


async def environment(call: Call) -> Response:
    """Return the settings that are in effect."""
    return Response(body=await call.perform(health_verbs.environment))


async def rebalance(_: Call) -> Response:
    """Answer that the queues are balanced: there is one node."""
    return Response(NO_CONTENT)


async def hash_password(call: Call) -> Response:
    """Return a hash of a password, as `password_hash` of a user takes it."""
    password = call.name("password")
    if not password:
        raise bad_request("the password must not be empty")
    return Response(body={"ok": passwords.to_definitions(passwords.hash_password(password))})
