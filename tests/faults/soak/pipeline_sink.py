"""Soak test of a streaming job that publishes rows.

500,000 rows arrive while its driver and its executors are killed 20 times each; each is published at least once, and
repetitions have the same id.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from random import Random

from tests.faults.soak.spark.arrivals import Arrivals, declare, held
from tests.faults.soak.spark.kills import PATIENCE, Query, amounts, survive
from tests.support.blocking_client import Connection
from tests.support.broker_process import BrokerProcess
from tests.support.polling import wait_until
from tests.support.spark_cluster import SparkCluster
from tests.support.streams import consume

ACKNOWLEDGE = 500


def soak(share: float, random: Random, folder: Path) -> list[str]:
    count, kills = amounts(share)
    with (
        BrokerProcess(folder / "broker") as broker,
        SparkCluster(folder / "cluster", patience=PATIENCE) as cluster,
    ):
        read, written = declare(broker.url, "stream", 2)
        arrivals = Arrivals(broker.url, [read], count, 2 * kills)
        source = {
            "url": broker.url,
            "stream": read,
            "maxMessagesPerTrigger": "20000",
            "messagesPerTask": "5000",
        }
        sink = {"url": broker.url, "exchange": "", "routingKey": written}
        query = Query(cluster, folder / "query", source, sink)
        try:
            elapsed, longest = survive(query, cluster, arrivals, kills, random)

            def all_there() -> bool:
                query.check()
                return (
                    held(broker.url, written) >= count and len(set(published(broker.url, written))) >= count
                )

            wait_until(all_there, "all are published", PATIENCE)
        finally:
            query.stop()
            arrivals.end()
        found = published(broker.url, written)
    again = at_least_once(found, arrivals)
    return [
        f"{arrivals.count:,} rows, {kills} kills of the driver and {kills} of executors: none lost, {again:,} published "
        f"again, with the id that they had; {elapsed:.0f} s, at most {longest:.0f} s from a kill to the next batch"
    ]


def published(url: str, stream: str) -> list[tuple[bytes, str]]:
    """Return body and id of each message in the stream at the time of the call."""
    found: list[tuple[bytes, str]] = []
    count = held(url, stream)
    # Not pika: what was delivered beyond the last one it rejects, which streams refuse.
    with Connection(url, timeout=PATIENCE) as connection:
        channel = connection.channel()
        consume(channel, stream, "first", prefetch=2 * ACKNOWLEDGE)
        while len(found) < count:
            (message,) = channel.deliveries(1)
            found.append((message.body, message.properties.message_id or ""))
            if len(found) % ACKNOWLEDGE == 0:
                channel.ack(message.tag, multiple=True)
    return found


def at_least_once(found: list[tuple[bytes, str]], arrivals: Arrivals) -> int:
    """Return the number of repeated publishes.

    :raises AssertionError: if a row is missing, has two ids, or shares its id with another
    """
    ids: defaultdict[int, set[str]] = defaultdict(set)
    for body, message_id in found:
        ids[int(body)].add(message_id)
    missing = set(range(arrivals.each)) - ids.keys()
    assert not missing, f"{len(missing)} of {arrivals.each} rows are lost, {min(missing)} first"
    assert len(ids) == arrivals.each, "there are messages of no row"
    changed = [number for number, given in ids.items() if len(given) > 1]
    assert not changed, f"{len(changed)} rows came under several ids, {changed[0]} first"
    shared = Counter(message_id for given in ids.values() for message_id in given)
    assert "" not in shared, "rows were published without an id"
    assert max(shared.values()) == 1, "rows share an id"
    return len(found) - arrivals.each
