"""A streaming job from a classic queue, through a spool, to Parquet: 500,000 messages with ids arrive while its driver and its
executors are killed 20 times each; the output holds each message once, in order, and the queue is empty."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.soak.spark.arrivals import Arrivals, declare, held
from tests.soak.spark.committed import once_in_order, rows
from tests.soak.spark.kills import PATIENCE, Query, survive
from tests.support.broker import BrokerProcess
from tests.support.processes import wait_until
from tests.support.spark_cluster import SparkCluster

MESSAGES = 500_000
KILLS = 20


def soak(share: float, random: Random, folder: Path) -> list[str]:
    count, kills = round(MESSAGES * share), max(3, round(KILLS * share))
    with BrokerProcess(folder / "broker") as broker, SparkCluster(folder / "cluster") as cluster:
        queues = declare(broker.url, "classic", 1)
        arrivals = Arrivals(broker.url, queues, count, 2 * kills)
        source = {
            "url": broker.url,
            "queue": queues[0],
            "spoolDir": str(folder / "spool"),
            "maxMessagesPerTrigger": "20000",
        }
        output = folder / "messages"
        query = Query(cluster, folder / "query", source, {"path": str(output)})
        try:
            elapsed, longest = survive(query, cluster, arrivals, kills, random)

            def all_there() -> bool:
                query.check()
                return len(rows(output, "offset")) >= arrivals.count

            wait_until(all_there, "all are committed", PATIENCE)
        finally:
            query.stop()
            arrivals.end()
        batches = query.committed() + 1
        left = held(broker.url, queues[0])
    once_in_order(output, arrivals)
    assert left == 0, f"{left} messages are still in the queue"
    return [
        f"{arrivals.count:,} messages of a classic queue, {kills} kills of the driver and {kills} of executors: each once, in "
        f"order; {batches} batches, {elapsed:.0f} s, at most {longest:.0f} s from a kill to the next batch"
    ]
