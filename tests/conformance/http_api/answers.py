"""Answers to the compared requests, in a form without what differs from run to run, and their reference.

Run `python -m tests.conformance.http_api.answers URL` against the management port of a new RabbitMQ to write the
reference again, and `... answers URL shovels` for the one of shovels, with the plugin rabbitmq_shovel_management.
"""

from __future__ import annotations

import base64
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.conformance.http_api.requests import ASKS, SETTLED, Ask
from tests.conformance.http_api.shovel_requests import SHOVEL_ASKS, VALIDATED

REFERENCE: Final = Path(__file__).with_name("rabbitmq-4.3.6.json")
SHOVEL_REFERENCE: Final = Path(__file__).with_name("rabbitmq-4.3.6-shovels.json")

ERLANG: Final = {
    "applications",
    "cached_segments",
    "cluster_links",
    "context_switches",
    "contexts",
    "enabled_plugins",
    "gc_bytes_reclaimed",
    "gc_num",
    "garbage_collection",
    "metrics_gc_queue_length",
    "open_files",
    "pending_raft_commands",
    "ra_open_file_metrics",
    "reductions",
    "socket_opts",
    "storage_version",
    "user_who_performed_action",
}
"""Fields about Erlang's processes and RabbitMQ's own files, which are not compared; their `_details` neither.

`user_who_performed_action` is not compared either: Warren does not record who has declared an object.
"""
ERLANG_PREFIXES: Final = ("io_", "mnesia_", "msg_store_", "queue_index_")
MASKED: Final = {
    "cluster_name",
    "cluster_state",
    "config_files",
    "connected_at",
    "consumer_utilisation",
    "consumer_capacity",
    "crypto_lib_version",
    "db_dir",
    "disk_free",
    "disk_free_limit",
    "disk_reads",
    "disk_writes",
    "erlang_full_version",
    "erlang_version",
    "exchange_types",
    "auth_mechanisms",
    "explanation",
    "fd_total",
    "fd_used",
    "idle_since",
    "leader",
    "listeners",
    "log_files",
    "management_version",
    "mem_limit",
    "mem_used",
    "members",
    "memory",
    "message_bytes_ram",
    "messages_ram",
    "messages_ready_ram",
    "name_of_node",
    "node",
    "ok",
    "online",
    "original_cluster_name",
    "os_pid",
    "password_hash",
    "proc_total",
    "proc_used",
    "processors",
    "product_name",
    "product_version",
    "properties_key",
    "protocols",
    "ports",
    "missing",
    "rabbit_version",
    "rabbitmq_definition_format",
    "rabbitmq_version",
    "readers",
    "run_queue",
    "sample_retention_policies",
    "sockets_total",
    "sockets_used",
    "statistics_db_event_queue",
    "timestamp",
    "uptime",
    "avg",
    "avg_rate",
    "rate",
    "sample",
}
"""Fields whose values depend on the machine, the product or the time: only the types of their values are compared."""
STATISTICS: Final = (
    "message_stats",
    "churn_rates",
    "queue_totals",
    "messages",
    "channel_",
    "connection_",
    "queue_d",
    "queue_c",
)
"""Beginnings of the names of statistics: RabbitMQ shows them some seconds later, so that only their types are compared."""


def ask(base: str, request: Ask) -> tuple[int, Any]:
    """Send a request, and return the status and the normalized body of the answer.

    :param base: URL of the management port.
    """
    data = request.body if isinstance(request.body, bytes) else None
    if data is None and request.body is not None:
        data = json.dumps(request.body).encode()
    made = urllib.request.Request(f"{base}/api/{request.path}", data=data, method=request.method)
    if request.credentials is not None:
        made.add_header(
            "Authorization", "Basic " + base64.b64encode(":".join(request.credentials).encode()).decode()
        )
    if data is not None:
        kind = "application/x-www-form-urlencoded" if request.path == "login" else "application/json"
        made.add_header("Content-Type", kind)
    try:
        with urllib.request.urlopen(made, timeout=60) as answer:
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, body = error.code, error.read()
    if not body:
        return status, None
    try:
        return status, normalize(json.loads(body))
    except ValueError:
        return status, body.decode(errors="replace")


def normalize(value: Any, name: str = "") -> Any:
    """Return a value without what is not compared; a masked value becomes the name of its type, and lists are sorted."""
    if name in MASKED or name.startswith(STATISTICS):
        return _kind(value)
    if isinstance(value, dict):
        return {key: normalize(each, key) for key, each in sorted(value.items()) if not _is_erlang(key)}
    if isinstance(value, list):
        return sorted((normalize(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True))
    return value


def _is_erlang(name: str) -> bool:
    name = name.removesuffix("_details")
    return name in ERLANG or name.startswith(ERLANG_PREFIXES)


def _kind(value: Any) -> Any:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "number"
    return type(value).__name__


def ask_all(
    base: str, asks: Sequence[Ask] = ASKS, settle: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Ask all requests in order, and return their answers.

    :param settle: waits until what the requests before have made can be shown.
    """
    found = []
    for number, request in enumerate(asks):
        if request.path == SETTLED:
            settle()
            continue
        status, body = ask(base, request)
        found.append({"request": describe(number, request), "status": status, "body": body})
    return found


def describe(number: int, request: Ask) -> str:
    """Return a text that names a request."""
    body = request.body.decode() if isinstance(request.body, bytes) else json.dumps(request.body)
    user = "" if request.user == "guest" and not request.password else f" as {request.user or 'nobody'}"
    return f"{number}: {request.method} {request.path}{'' if request.body is None else ' ' + body}{user}"


if __name__ == "__main__":
    chosen: tuple[Ask, ...] = ASKS
    path = REFERENCE
    if sys.argv[2:] == ["shovels"]:
        chosen, path = (*VALIDATED, *SHOVEL_ASKS), SHOVEL_REFERENCE
    answers = ask_all(sys.argv[1].rstrip("/"), chosen, lambda: time.sleep(11.0))
    path.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")
