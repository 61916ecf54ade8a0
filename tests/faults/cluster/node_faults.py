"""Faults of the nodes of a cluster: each strikes one node, lasts for a while, and is healed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from random import Random

from tests.support.rabbitmq_cluster import ClusterNode, RabbitMQCluster

UPGRADE = "/usr/lib/rabbitmq/bin/rabbitmq-upgrade"
PAUSE_SECONDS = 20.0
KILLED_SECONDS = (1.0, 10.0)
"""Least and greatest time until a killed node is started again."""
PARTITION_SECONDS = (15.0, 75.0)
"""Least and greatest duration of a partition: on both sides of the time in which Erlang notices it, 45-75 s."""


class NodeFault(StrEnum):
    """Kinds of faults."""

    KILL = "kill"
    """SIGKILL; the node is started again after some seconds."""
    PAUSE = "pause"
    """SIGSTOP for 20 s: the node's connections stay open and are silent."""
    PARTITION = "partition"
    """Traffic between the node and the two others is dropped; clients reach all three."""
    RESTART = "restart"
    """Orderly restart as in a rolling upgrade: the node's leaders move away, it stops, and it starts again."""


def schedule(random: Random, count: int, kinds: Sequence[NodeFault] = tuple(NodeFault)) -> list[NodeFault]:
    """Return `count` faults in random order, of each kind as many as of the others, give or take one."""
    faults = [kinds[number % len(kinds)] for number in range(count)]
    random.shuffle(faults)
    return faults


async def strike(cluster: RabbitMQCluster, fault: NodeFault, node: ClusterNode, random: Random) -> None:
    """Inject a fault, heal it, and return when the cluster is whole again."""
    match fault:
        case NodeFault.KILL:
            await asyncio.to_thread(node.kill)
            await asyncio.sleep(random.uniform(*KILLED_SECONDS))
            node.start()
        case NodeFault.PAUSE:
            node.pause()
            try:
                await asyncio.sleep(PAUSE_SECONDS)
            finally:
                node.resume()
        case NodeFault.PARTITION:
            cluster.partition(node)
            try:
                await asyncio.sleep(random.uniform(*PARTITION_SECONDS))
            finally:
                cluster.heal()
        case NodeFault.RESTART:
            await asyncio.to_thread(node.ctl, "drain", program=UPGRADE)
            await asyncio.to_thread(node.stop)
            node.start()
    await asyncio.to_thread(cluster.wait_ready)
