"""Checks of clients and nodes: publisher confirms, heartbeats, alarms, stopped nodes and deprecated features."""

from __future__ import annotations

from collections.abc import Iterator

from warren.cli.doctor.finding import Observation, Source, check
from warren.cli.doctor.snapshot import ConnectionState, Samples

IDLE_BYTES = 1000
"""Bytes that a connection may send in the time between the snapshots without publishing: heartbeats, declarations."""


@check(
    "W401",
    "no-confirms",
    Source.CLIENTS,
    advice="turn publisher confirms on (confirm.select) and wait for them: without them a publish that the broker does not"
    " get is lost silently",
)
def no_confirms(samples: Samples) -> Iterator[Observation]:
    """Find channels that publish without confirms and without a transaction.

    A broker that does not count publishes by channel shows it only between two snapshots: the channel consumes nothing, and
    its connection sends more than heartbeats.
    """
    clients = {each.id: each for each in samples.last.connections}
    before = {each.id: each.received for each in samples.first.connections}
    for channel in samples.last.channels:
        client = clients.get(channel.connection)
        if channel.confirms or channel.transactional or client is None:
            continue
        if channel.published:
            yield (
                _subject(client),
                f"published {channel.published} messages without publisher confirms",
                client.since,
            )
        elif channel.published is None and not channel.consumers and client.id in before:
            sent = client.received - before[client.id]
            if sent > IDLE_BYTES:
                yield (
                    _subject(client),
                    f"sent {sent} bytes in {samples.seconds:.1f} s on a channel without confirms and without consumers",
                    client.since,
                )


@check(
    "W402",
    "no-heartbeat",
    Source.CLIENTS,
    advice="set a heartbeat of 5 to 60 s: without one, a lost client keeps its messages and exclusive queues until TCP gives"
    " up, which takes minutes to hours",
)
def no_heartbeat(samples: Samples) -> Iterator[Observation]:
    """Find connections whose client refused heartbeats."""
    for client in samples.last.connections:
        if client.heartbeat == 0:
            yield _subject(client), "has heartbeat 0", client.since


@check(
    "E501",
    "alarm",
    Source.NODES,
    advice="consume or purge messages, free disk space or give the broker more memory: publishers wait until the alarm ends",
)
def alarm(samples: Samples) -> Iterator[Observation]:
    """Find resource alarms, which block publishers."""
    for each in samples.last.alarms:
        yield "the broker", each


@check(
    "E502",
    "node-down",
    Source.NODES,
    advice="start the node, or remove it from the cluster: forget_cluster_node",
)
def node_down(samples: Samples) -> Iterator[Observation]:
    """Find nodes of the cluster that do not run."""
    for name, running in samples.last.nodes.items():
        if not running:
            yield f"node {name}", "does not run"


@check(
    "W503",
    "deprecated-feature",
    Source.QUEUES,
    Source.POLICIES,
    Source.CLIENTS,
    advice="RabbitMQ 4 ignores or refuses it (https://www.rabbitmq.com/release-information/deprecated-features-list):"
    " replace it before an upgrade",
)
def deprecated_feature(samples: Samples) -> Iterator[Observation]:
    """Find what RabbitMQ 4 removed or will remove: mirrored queues, queue modes, transient queues, global prefetch."""
    for name, text in samples.last.deprecated.items():
        yield "the broker", f"reports deprecated feature {name} in use{': ' if text else ''}{text}"
    for policy in samples.last.policies:
        for key in ("ha-mode", "queue-mode"):
            if key in policy.definition:
                yield f"policy {policy.name}", f"sets {key}"
    for queue in samples.last.queues:
        for key in ("x-queue-mode", "x-queue-master-locator", "x-ha-policy"):
            if key in queue.arguments:
                yield f"queue {queue.name}", f"has the argument {key}"
        if queue.type == "classic" and not queue.durable and not queue.exclusive:
            yield f"queue {queue.name}", "is transient and not exclusive"
    clients = {each.id: each for each in samples.last.connections}
    for channel in samples.last.channels:
        client = clients.get(channel.connection)
        if channel.global_prefetch and client is not None:
            yield (
                _subject(client),
                f"uses a prefetch of the whole channel ({channel.global_prefetch}, basic.qos with global)",
                client.since,
            )


def _subject(client: ConnectionState) -> str:
    name = f" {client.client}" if client.client else ""
    return f"client{name} of user {client.user} at {client.address}"
