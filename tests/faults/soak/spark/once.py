"""Soak test from a broker into Parquet with kills, for streams and queues: each message once and in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.faults.soak.spark.arrivals import Arrivals, declare, held
from tests.faults.soak.spark.committed import count, once_in_order
from tests.faults.soak.spark.kills import PATIENCE, Query, amounts, survive
from tests.support.broker_process import BrokerProcess
from tests.support.polling import wait_until
from tests.support.spark_cluster import SparkCluster


def once(
    share: float,
    random: Random,
    folder: Path,
    kind: str,
    number: int,
    options: Callable[[list[str]], dict[str, str]],
) -> list[str]:
    """Publish that share of the messages to `number` new queues of a kind, with that share of the kills.

    :param options: returns the source's options for these queues
    :raises AssertionError: if a message is lost, duplicated or out of order, or remains in a classic queue
    """
    messages, kills = amounts(share)
    with (
        BrokerProcess(folder / "broker") as broker,
        SparkCluster(folder / "cluster", patience=PATIENCE) as cluster,
    ):
        queues = declare(broker.url, kind, number)
        arrivals = Arrivals(broker.url, queues, messages, 2 * kills)
        output = folder / "messages"
        source = {"url": broker.url, "maxMessagesPerTrigger": "20000", **options(queues)}
        query = Query(cluster, folder / "query", source, {"path": str(output)})
        try:
            elapsed, longest = survive(query, cluster, arrivals, kills, random)

            def all_there() -> bool:
                query.check()
                return count(output) >= arrivals.count

            wait_until(all_there, "all are committed", PATIENCE)
        finally:
            query.stop()
            arrivals.end()
        batches = query.committed() + 1
        left = sum(held(broker.url, queue) for queue in queues) if kind == "classic" else 0
    once_in_order(output, arrivals)
    assert left == 0, f"{left} messages are still in the queue"
    return [
        f"{arrivals.count:,} messages, {kills} kills of the driver and {kills} of executors: each once, in order; "
        f"{batches} batches, {elapsed:.0f} s, at most {longest:.0f} s from a kill to the next batch"
    ]
