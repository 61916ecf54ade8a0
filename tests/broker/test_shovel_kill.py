"""Shovels between broker processes that are killed, and over connections that are cut: no confirmed message is lost.

On-confirm is at-least-once: each loss of a connection may repeat what was on its way, as many messages as the prefetch at
most. A source that is killed may also forget acknowledgements that it has not written yet: nothing confirms them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.polling import wait_until
from tests.support.proxy import Proxy

pytestmark = pytest.mark.slow

MESSAGES = 6_000
PREFETCH = 200
KILLS = 4


def publish_all(url: str) -> None:
    """Publish all messages to the queue `a`, and wait for their confirms."""
    with Connection(url) as connection:
        channel = connection.channel()
        channel.declare("a", durable=True)
        channel.confirm()
        for number in range(MESSAGES):
            channel.publish("a", str(number), delivery_mode=2)
        channel.settled(MESSAGES)


def ready(url: str, queue: str) -> int:
    """Return how many messages are ready; -1 while the broker cannot say, because it is down or starts."""
    try:
        with Connection(url) as connection:
            return connection.channel().ready(queue)
    except (Closed, OSError):
        return -1


def has_ready(url: str, queue: str, count: int) -> bool:
    """Return whether a queue has at least so many messages that are ready."""
    return ready(url, queue) >= count


def drained(url: str, queue: str) -> Counter[int]:
    with Connection(url) as connection:
        channel: Channel = connection.channel()
        return Counter(int(body) for body in channel.drain(queue))


def define(broker: BrokerProcess, source: str, destination: str) -> Operator:
    """Define a shovel on a broker; return its operator."""
    operator = Operator(warren_ctl(broker.data_dir), broker.url, is_warren=True)
    definition = {
        "src-uri": source,
        "dest-uri": destination,
        "src-queue": "a",
        "dest-queue": "b",
        "src-prefetch-count": PREFETCH,
        "reconnect-delay": 1,
    }
    operator("set_parameter", "shovel", "s", json.dumps(definition))
    return operator


@pytest.mark.parametrize("victim", ["source", "destination"])
def test_no_message_is_lost_when_one_end_is_killed(
    starts_processes: None, tmp_path: Path, victim: str
) -> None:
    """Run the shovel in the broker that is not killed. If that is the destination, the last kill hits it, too."""
    with (
        BrokerProcess(tmp_path / "source", *PATIENT) as source,
        BrokerProcess(tmp_path / "destination", *PATIENT) as destination,
    ):
        killed, host = (source, destination) if victim == "source" else (destination, source)
        publish_all(source.url)
        ends = {killed: killed.url, host: "amqp://"}
        define(host, ends[source], ends[destination])
        for number in range(KILLS):
            share = (number + 1) * MESSAGES // (KILLS + 1)
            wait_until(
                partial(has_ready, destination.url, "b", share),
                f"{share} messages have arrived",
                120,
            )
            one = host if number == KILLS - 1 and victim == "source" else killed
            one.kill()
            one.start()

        wait_until(lambda: ready(source.url, "a") == 0, "the source is empty", 240)
        # What is unacknowledged is not ready: the end of the shovel gives it back, if there is any.
        operator = Operator(warren_ctl(host.data_dir), host.url, is_warren=True)
        operator("delete_shovel", "s")
        wait_until(lambda: not operator.table("list_connections", "name"), "the shovel has ended", 120)
        left, found = drained(source.url, "a"), drained(destination.url, "b")

        assert set(left) | set(found) == set(range(MESSAGES))
        if victim == "destination":
            assert sum(found.values()) + sum(left.values()) <= MESSAGES + KILLS * PREFETCH


@pytest.fixture
async def cut_path(
    starts_processes: None, tmp_path: Path
) -> AsyncIterator[tuple[BrokerProcess, BrokerProcess, Proxy]]:
    """Run two brokers, and a proxy between them."""

    def start(name: str) -> BrokerProcess:
        broker = BrokerProcess(tmp_path / name, *PATIENT)
        broker.start()
        return broker

    one = await asyncio.to_thread(start, "one")
    other = await asyncio.to_thread(start, "other")
    async with Proxy(other.url) as proxy:
        yield one, other, proxy
    await asyncio.to_thread(one.stop)
    await asyncio.to_thread(other.stop)


@pytest.mark.parametrize("far_end", ["source", "destination"])
async def test_no_message_is_lost_when_the_connection_is_cut(
    cut_path: tuple[BrokerProcess, BrokerProcess, Proxy], far_end: str
) -> None:
    one, other, proxy = cut_path
    source, destination = (other, one) if far_end == "source" else (one, other)
    await asyncio.to_thread(publish_all, source.url)
    uris = {one: "amqp://", other: proxy.url}
    operator = await asyncio.to_thread(define, one, uris[source], uris[destination])

    def connected_or_empty(accepted: int) -> bool:
        return proxy.accepted > accepted or ready(source.url, "a") == 0

    cuts = 0
    # In the middle of frames, in both directions.
    for lane, count in (
        (proxy.to_client, 5_003),
        (proxy.to_server, 20_011),
        (proxy.to_client, 401),
        (proxy.to_server, 77),
    ):
        accepted = proxy.accepted
        lane.cut_after(count)
        await asyncio.to_thread(
            wait_until,
            partial(connected_or_empty, accepted),
            "the shovel has connected again",
            120,
        )
        cuts += 1

    await asyncio.to_thread(wait_until, lambda: ready(source.url, "a") == 0, "the source is empty", 240)
    await asyncio.to_thread(operator, "delete_shovel", "s")
    await asyncio.to_thread(wait_until, lambda: proxy.connections == 0, "the shovel has ended", 120)
    left = await asyncio.to_thread(drained, source.url, "a")
    found = await asyncio.to_thread(drained, destination.url, "b")
    assert set(left) | set(found) == set(range(MESSAGES))
    assert sum(found.values()) + sum(left.values()) <= MESSAGES + cuts * PREFETCH
