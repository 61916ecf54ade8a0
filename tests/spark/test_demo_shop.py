"""The demo shop publishes its order messages to a stream of any broker, where the job reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import channel
from tests.spark.job_runs import run_job
from warren.demo.shop import AUDIT, PayOrder, PlaceOrder, Shop
from warren.patterns import SqliteStore

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
TIME_TO_PAY = timedelta(seconds=1)


@pytest.fixture
def url(amqp_url: str) -> Iterator[str]:
    """Return the tested broker's URL, with the messages of earlier shops removed."""
    delete(amqp_url)
    yield amqp_url
    delete(amqp_url)


def delete(url: str) -> None:
    with channel(url) as deleting:
        deleting.queue_delete(AUDIT.name)


def test_the_job_reads_the_order_events_of_the_demo_shop(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    async def run_shop() -> None:
        async with SqliteStore(tmp_path / "store.sqlite") as store:
            shop = Shop(url, TIME_TO_PAY, store)
            async with shop.app, asyncio.timeout(200):
                # Deadlines are paused, so that one order is paid in time however slow the machine is.
                due = shop.app.subscriptions["order-unpaid.due"]
                await due.pause()
                now = datetime.now(UTC)
                for order_id in ("paid", "late", "never"):
                    await shop.app.publish(PlaceOrder(order_id=order_id, placed_at=NOON, sent_at=now))
                await shop.app.publish(PayOrder(order_id="paid", paid_at=NOON, sent_at=now))
                while not shop.processed.paid_in_time:
                    shop.changed.clear()
                    await shop.changed.wait()
                await due.resume()
                while len(shop.processed.cancelled) < 2:
                    shop.changed.clear()
                    await shop.changed.wait()
                late = NOON + timedelta(hours=1)
                await shop.app.publish(PayOrder(order_id="late", paid_at=late, sent_at=now + TIME_TO_PAY * 2))
                while not shop.processed.paid_late:
                    shop.changed.clear()
                    await shop.changed.wait()

    asyncio.run(run_shop())
    summary = run_job("order-timeouts", url, tmp_path / "out", "--stream", AUDIT.name)
    assert (summary.orders, summary.paid_in_time, summary.paid_late, summary.cancelled) == (3, 1, 1, 1)
    assert set(summary.contradictions.values()) == {0}
