"""The job delivery-audit on real orders handled by captured applications, compared with pandas."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from tests.spark.captured_events import Source, batches, published
from tests.spark.conftest import channel
from tests.spark.delivery_simulation import SECOND, quantile
from tests.spark.job_runs import run_job
from tests.support.capture_reader import CaptureReader
from tests.support.polling import eventually
from warren.sdk import App, Capture, Command, DeadLetter, Queue

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.environ.get("ORDERS"), reason="ORDERS names no file of orders"),
]

PART = 1000
"""Number of orders read from the file."""
REFUSED = ("canceled", "unavailable")


@pytest.fixture
def name(amqp_url: str) -> Iterator[str]:
    name = f"orders.{uuid.uuid4().hex[:8]}"
    yield name
    with channel(amqp_url) as deleting:
        for word in ("placed", "paid", "placed.dead", "paid.dead", "events"):
            deleting.queue_delete(f"{name}.{word}")


def test_the_numbers_of_the_file(spark: SparkSession, amqp_url: str, name: str, tmp_path: Path) -> None:
    """Every order is placed, most are paid; those refused in the file become dead letters."""
    orders = pd.read_csv(os.environ["ORDERS"], nrows=PART, dtype=str)
    refused = orders["status"].isin(REFUSED)
    of_queue = {
        f"{name}.placed": orders["order_id"],
        f"{name}.paid": orders[orders["paid_at"].notna()]["order_id"],
    }
    asyncio.run(run_applications(amqp_url, name, orders))
    events = pd.DataFrame(read_events(amqp_url, f"{name}.events"))

    summary = run_job("delivery-audit", amqp_url, tmp_path, "--stream", f"{name}.events", "--settle", "1s")

    messages = sum(map(len, of_queue.values()))
    assert len(orders) == PART
    assert 0 < refused.sum() < PART
    assert (summary.messages.published, summary.messages.confirmed, summary.messages.delivered) == (
        messages,
        messages,
        messages,
    )
    assert summary.messages.dead_lettered == refused.sum()
    assert summary.messages.acknowledged == messages - refused.sum()
    # One more event: that of the source that only advances the captured time.
    assert (summary.capture.events, summary.capture.missing) == (len(events) + 1, 0)
    assert set(summary.findings.values()) == {0}
    assert fates(spark, tmp_path) == {
        (f"{queue}/{order_id}", queue): (
            "dead_lettered"
            if queue == f"{name}.placed" and order_id in set(orders[refused]["order_id"])
            else "acknowledged"
        )
        for queue, ids in of_queue.items()
        for order_id in ids
    }
    assert {queue.queue: queue.messages for queue in summary.queues} == {
        queue: len(ids) for queue, ids in of_queue.items()
    }
    for queue in summary.queues:
        for found, seconds in zip(
            (queue.to_delivery, queue.to_acknowledgement), latencies(events, queue.queue), strict=True
        ):
            assert (found.count, found.maximum) == (len(seconds), pytest.approx(seconds[-1]))
            for level, value in found.quantiles.items():
                assert value == pytest.approx(quantile(seconds, float(level)))


async def run_applications(url: str, name: str, orders: pd.DataFrame) -> None:
    """Run one application that publishes and one that handles, both with capture."""

    class Placed(Command, queue=Queue(f"{name}.placed", type="classic")):
        order_id: str
        status: str

    class Paid(Command, queue=Queue(f"{name}.paid", type="classic")):
        order_id: str

    capture = Capture(stream=f"{name}.events")
    publisher, consumer = App(url, name="shop", capture=capture), App(url, name="office", capture=capture)
    done: list[str] = []

    @consumer.handle(Placed, concurrency=8)
    async def placed(order: Placed) -> None:
        done.append(order.order_id)
        if order.status in REFUSED:
            raise DeadLetter(order.status)

    @consumer.handle(Paid, concurrency=8)
    async def paid(order: Paid) -> None:
        done.append(order.order_id)

    async with consumer, publisher:

        async def publish(message: Command, queue: str, order_id: str) -> None:
            await publisher.publish(message, message_id=f"{name}.{queue}/{order_id}")

        sending = []
        for order in orders.itertuples():
            known: dict[str, Any] = {"order_id": order.order_id}
            sending.append(publish(Placed(**known, status=str(order.status)), "placed", known["order_id"]))
            if isinstance(order.paid_at, str):
                sending.append(publish(Paid(**known), "paid", known["order_id"]))
        await asyncio.gather(*sending)
        await eventually(lambda: len(done) == len(sending), "all are handled", 120)


def read_events(url: str, stream: str) -> list[dict[str, Any]]:
    """Read the events of both applications without the pipeline, then add an event that advances the captured time."""
    reading = CaptureReader(url, stream)
    try:
        found = reading.stopped(2).events
    finally:
        reading.close()
    later = Source(app="later")
    later.record("started", time.time_ns() // 1000 + 5 * SECOND)
    with channel(url) as publishing:
        publishing.confirm_delivery()
        for batch in batches([later]):
            publishing.basic_publish("", stream, *published(batch))
    return found


def fates(spark: SparkSession, folder: Path) -> dict[tuple[str, str], str]:
    rows = spark.read.parquet(str(folder / "messages")).select("message_id", "queue", "fate").collect()
    return {(row["message_id"], row["queue"]): row["fate"] for row in rows}


def latencies(events: pd.DataFrame, queue: str) -> tuple[list[float], list[float]]:
    """Return the sorted seconds to the delivery, and from there to the acknowledgement."""

    def first(event: str, there: pd.Series) -> pd.Series:
        return events[(events["event"] == event) & there].groupby("message_id")["at"].min()

    there = events["queue"] == queue
    begun = first("published", events["message_id"].notna())
    given, ended = first("delivered", there), first("acked", there)
    to_delivery = ((given - begun.reindex(given.index)) / SECOND).sort_values()
    return list(to_delivery), list(((ended - given) / SECOND).sort_values())
