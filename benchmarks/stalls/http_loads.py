"""Loads by the HTTP API and the Prometheus endpoint: pages that poll, and scrapes; generators as in `message_loads`."""

from __future__ import annotations

import base64
import http.client
import time
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.stalls.connection_loads import shake_hands
from benchmarks.stalls.load_client import Control, LoadClient
from tests.support.frames import publish_frames
from tests.support.raw_client import RawClient

CONNECTIONS: Final = 1_000
ROUNDS: Final = 5
"""Times that everything is asked for. A pause follows each, so that samples are taken meanwhile."""
PAUSE_SECONDS: Final = 5.0
"""A page's usual time between two polls, and the time between two samples of the statistics."""
SAMPLES: Final = (
    "lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5&data_rates_age=60&data_rates_incr=5"
)
"""Parameters with which RabbitMQ's page asks for the samples of its charts."""
PAGE: Final = "page=1&page_size=100&name=&use_regex=false&pagination=true"
"""Parameters with which RabbitMQ's page asks for a page of a list."""
POLLS: Final = (
    f"/api/overview?{SAMPLES}",
    "/api/vhosts",
    "/api/nodes",
    "/api/feature-flags",
    "/api/whoami",
    *(f"/api/{kind}?{PAGE}" for kind in ("queues", "connections", "channels", "exchanges")),
    f"/api/queues?{PAGE.replace('name=&use_regex=false', 'name=9.*9&use_regex=true')}",
    f"/api/queues?{PAGE}&sort=messages&sort_reverse=true",
    f"/api/queues/%2F/queue-0?{SAMPLES}",
    f"/api/vhosts/%2F?{SAMPLES}",
    "/api/nodes/warren@localhost?node_stats_age=60&node_stats_incr=5",
)
"""Requests of a page that an operator looks at, one tab after the other."""
LISTS: Final = (
    "/api/queues",
    "/api/queues?disable_stats=true&enable_queue_totals=true",
    "/api/connections",
    "/api/channels",
    "/api/bindings",
    "/api/definitions",
)
"""Requests of monitoring agents that ask for whole lists."""
SCRAPES: Final = (
    "/metrics",
    "/metrics/per-object",
    "/metrics/detailed?family=queue_coarse_metrics&family=channel_metrics&family=connection_metrics",
)

_open: Final[list[RawClient]] = []
"""Connections that stay open until the process ends: the load `connections` measures the end of so many at once."""


def poll(client: LoadClient, control: Control, count: int) -> Iterator[None]:
    """Poll as RabbitMQ's page does, with this many queues and 1,000 connections."""
    return _ask_again(client, control, count, "http", POLLS)


def list_all(client: LoadClient, control: Control, count: int) -> Iterator[None]:
    """Ask for whole lists, with this many queues and 1,000 connections."""
    return _ask_again(client, control, count, "http", LISTS)


def scrape(client: LoadClient, control: Control, count: int) -> Iterator[None]:
    """Scrape the Prometheus endpoint, with this many queues and 1,000 connections."""
    return _ask_again(client, control, count, "http/prometheus", SCRAPES)


def _ask_again(
    client: LoadClient, control: Control, count: int, protocol: str, paths: Sequence[str]
) -> Iterator[None]:
    control.make_queues(count, source="amq.fanout")
    _open.extend(shake_hands(client.url, min(CONNECTIONS, count)))
    client.send_bytes(publish_frames(1, "amq.fanout", "", b"x" * 16))
    client.wait_ready(f"queue-{count - 1}", 1)
    (address,) = [where for kind, where in control("listeners")["rows"] if kind == protocol]
    # The library is imported for the first request.
    _ask(address, paths[:1])
    yield
    for _ in range(ROUNDS):
        _ask(address, paths)
        time.sleep(PAUSE_SECONDS)


def _ask(address: str, paths: Sequence[str]) -> None:
    """Send requests one after the other, as the user guest.

    :raises RuntimeError: if one is not answered with 200
    """
    login = "Basic " + base64.b64encode(b"guest:guest").decode()
    connection = http.client.HTTPConnection(address, timeout=600.0)
    for path in paths:
        connection.request("GET", path, headers={"Authorization": login})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"GET {path} was answered with {answer.status}")
    connection.close()
