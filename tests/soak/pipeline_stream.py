"""A streaming job from a stream to Parquet: 500,000 messages arrive while its driver and its executors are killed 20 times
each; the output holds each message once, in order."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.soak.spark.arrivals import Arrivals, declare
from tests.soak.spark.committed import once_in_order, rows
from tests.soak.spark.kills import PATIENCE, Query, survive
from tests.support.broker import BrokerProcess
from tests.support.processes import wait_until
from tests.support.spark_cluster import SparkCluster

MESSAGES = 500_000
KILLS = 20
STREAMS = 2


def soak(share: float, random: Random, folder: Path) -> list[str]:
    count, kills = round(MESSAGES * share), max(3, round(KILLS * share))
    with BrokerProcess(folder / "broker") as broker, SparkCluster(folder / "cluster") as cluster:
        streams = declare(broker.url, "stream", STREAMS)
        arrivals = Arrivals(broker.url, streams, count, 2 * kills)
        source = {
            "url": broker.url,
            "stream": ",".join(streams),
            # Several tasks a batch, and batches that last a while.
            "maxMessagesPerTrigger": "20000",
            "messagesPerTask": "5000",
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
    once_in_order(output, arrivals)
    return [
        f"{arrivals.count:,} messages of {len(streams)} streams, {kills} kills of the driver and {kills} of executors: "
        f"each once, in order; {batches} batches, {elapsed:.0f} s, at most {longest:.0f} s from a kill to the next batch"
    ]
