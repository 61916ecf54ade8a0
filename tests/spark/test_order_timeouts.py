"""The job order-timeouts compared with an independent computation, on generated orders and on the file that ORDERS names."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pika
import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Audit, Message
from tests.spark.job_runs import run_job
from tests.spark.order_data import (
    Order,
    expected,
    from_file,
    generated,
    histogram,
    messages_of_order,
    workflow_message,
)
from warren.core.errors import UsageError
from warren.pipeline.errors import PipelineError
from warren.pipeline.jobs.order_timeouts.summary import Summary

TIMEOUTS = [600, 1200, 1800, 3600, 7200]
NOON = datetime(2024, 5, 1, 12, 0)


def run(source: str, queue: str, out: Path) -> Summary:
    summary = run_job("order-timeouts", source, out, "--queue", queue)
    assert isinstance(summary, Summary)
    return summary


def publish(audit: Audit, bodies: Sequence[tuple[str, bytes]]) -> None:
    """Publish messages with these types and bodies."""
    audit.publish([Message(body, pika.BasicProperties(type=kind, delivery_mode=2)) for kind, body in bodies])


def assert_agrees(summary: Summary, orders: list[Order]) -> None:
    numbers = expected(orders, TIMEOUTS)
    assert summary.orders == len(orders)
    assert summary.paid_in_time == numbers["paid_in_time"]
    assert summary.paid_late == numbers["paid_late"]
    assert summary.cancelled == numbers["cancelled"]
    assert set(summary.contradictions.values()) == {0}
    assert summary.decided_otherwise == 0
    assert [
        (each.timeout_seconds, each.paid_in_time, each.paid_late, each.never_paid) for each in summary.recount
    ] == numbers["recount"]
    delay = summary.delay
    assert (delay.payments, delay.minimum, delay.maximum) == (
        numbers["payments"],
        numbers["minimum"],
        numbers["maximum"],
    )
    assert delay.mean == pytest.approx(numbers["mean"])
    assert delay.quantiles == {
        level: pytest.approx(numbers["quantile"](float(level)))
        for level in ("0.10", "0.25", "0.50", "0.75", "0.90", "0.95", "0.99")
    }
    edges = [bucket.up_to for bucket in delay.histogram if bucket.up_to is not None]
    assert 1800 in edges
    counts = histogram(numbers["delays"], edges)
    assert {bucket.up_to: bucket.count for bucket in delay.histogram} == {
        edge: counts[edge] for edge in (*edges, None)
    }


def test_the_numbers_are_those_of_plain_python(spark: SparkSession, audit: Audit, tmp_path: Path) -> None:
    orders = generated(700, seed=7)
    messages = [message for order in orders for message in messages_of_order(order)]
    draw = random.Random(8)
    # At least once: the same message again, and the same fact under another id; in any order.
    repeated = draw.sample(messages, 60)
    said_again = [messages_of_order(order)[-1] for order in draw.sample(orders, 40)]
    everything = [*messages, *repeated, *said_again]
    draw.shuffle(everything)
    noise = [
        Message(b"{}", pika.BasicProperties(type="something_else", delivery_mode=2)),
        Message(b"not json", pika.BasicProperties(type="order_paid", delivery_mode=2)),
        Message(b"\xff\xfe", pika.BasicProperties(type="order_paid", delivery_mode=2)),
        Message(b"no type at all"),
    ]
    audit.publish([*everything, *noise])

    summary = run(audit.url, audit.name, tmp_path)

    assert_agrees(summary, orders)
    assert summary.messages.read == len(everything) + len(noise) == audit.ready()
    assert summary.messages.duplicates == len(repeated)
    assert summary.messages.unreadable == 2
    assert summary.messages.of_other_types == 2
    assert summary.messages.by_type["order_placed"] >= len(orders)

    written = json.loads((tmp_path / "summary.json").read_text())
    assert json.loads(json.dumps(summary.as_dict())).items() <= written.items()
    assert (written["job"], written["queue"], written["streams"]) == ("order-timeouts", audit.name, [])
    events = spark.read.parquet(str(tmp_path / "events"))
    assert events.count() == summary.messages.read
    by_order = {row["order_id"]: row for row in spark.read.parquet(str(tmp_path / "orders")).collect()}
    assert {
        order.order_id: "cancelled"
        if order.paid_at is None
        else "paid_in_time"
        if order.paid_at - order.placed_at <= timedelta(minutes=30)
        else "paid_late"
        for order in orders
    } == {order_id: row["outcome"] for order_id, row in by_order.items()}


@pytest.mark.skipif(not os.environ.get("ORDERS"), reason="ORDERS names no file of orders")
def test_the_numbers_of_the_file(spark: SparkSession, audit: Audit, tmp_path: Path) -> None:
    orders = from_file(Path(os.environ["ORDERS"]))
    audit.publish([message for order in orders for message in messages_of_order(order)])
    assert_agrees(run(audit.url, audit.name, tmp_path), orders)


@pytest.mark.slow
def test_contradictory_messages_are_counted_by_kind(
    spark: SparkSession, audit: Audit, tmp_path: Path
) -> None:
    late = NOON + timedelta(hours=2)
    audit.publish(
        [
            workflow_message("order_placed", "fine", placed_at=NOON),
            workflow_message("order_paid", "fine", paid_at=NOON + timedelta(minutes=30)),
            workflow_message("order_placed", "open", placed_at=NOON),
            workflow_message("order_placed", "both", placed_at=NOON),
            workflow_message("order_paid", "both", paid_at=NOON),
            workflow_message("cancel_order", "both"),
            workflow_message("order_placed", "kept", placed_at=NOON),
            workflow_message("order_paid", "kept", paid_at=late),
            workflow_message("order_refunded", "kept"),
            workflow_message("order_placed", "gift", placed_at=NOON),
            workflow_message("order_cancelled", "gift"),
            workflow_message("order_refunded", "gift"),
            workflow_message("order_paid", "stray", paid_at=NOON),
            workflow_message("order_placed", "patient", placed_at=NOON),
            workflow_message("order_paid", "patient", paid_at=late),
            workflow_message("order_placed", "early", placed_at=NOON),
            workflow_message("order_paid", "early", paid_at=NOON - timedelta(minutes=1)),
        ]
    )
    summary = run(audit.url, audit.name, tmp_path)
    assert summary.contradictions == {
        "open": 1,
        "paid_and_cancelled": 1,
        "refunded_not_cancelled": 1,
        "refunded_not_paid": 1,
        "not_placed": 1,
    }
    assert summary.examples == {
        "open": ("open",),
        "paid_and_cancelled": ("both",),
        "refunded_not_cancelled": ("kept",),
        "refunded_not_paid": ("gift",),
        "not_placed": ("stray",),
        "decided_otherwise": ("patient",),
    }
    assert summary.decided_otherwise == 1
    assert summary.delay.before_order == 1
    settled = summary.paid_in_time + summary.paid_late + summary.cancelled
    assert settled + sum(summary.contradictions.values()) == summary.orders == 8
    page = (tmp_path / "report.html").read_text()
    assert "1 order paid and cancelled, and not refunded: both" in page


def test_an_empty_queue_gives_an_empty_report(spark: SparkSession, audit: Audit, tmp_path: Path) -> None:
    summary = run(audit.url, audit.name, tmp_path)
    assert (summary.orders, summary.delay.payments, summary.delay.quantiles) == (0, 0, {})
    assert "No order has both" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_times_with_a_utc_offset_are_converted(spark: SparkSession, audit: Audit, tmp_path: Path) -> None:
    bodies = [
        ("order_placed", b'{"order_id": "z", "placed_at": "2024-05-01T12:00:00Z"}'),
        ("order_paid", b'{"order_id": "z", "paid_at": "2024-05-01T14:05:00.500+02:00"}'),
    ]
    publish(audit, bodies)
    assert run(audit.url, audit.name, tmp_path).delay.maximum == 300.5


@pytest.mark.slow
def test_messages_without_a_readable_time_are_counted(
    spark: SparkSession, audit: Audit, tmp_path: Path
) -> None:
    """The summary lists the most frequent message types, of which there may be any number."""
    bodies = [
        ("order_placed", b'{"order_id": "a", "placed_at": "yesterday"}'),
        ("order_paid", b'{"order_id": "a", "paid_at": "2024-05-01T12:00:00"}'),
        ("order_placed", b'{"order_id": "b", "placed_at": "2024-05-01T12:00:00"}'),
        ("order_paid", b'{"order_id": "b"}'),
        ("order_paid", b'{"order_id": "c", "paid_at": "+200000-05-01T12:00:00"}'),
        ("order_placed", b'{"order_id": "d", "placed_at": "2024-05-01T12:00:00"}'),
        ("order_paid", b'{"order_id": "d", "paid_at": "2024-05-01T12:15:00"}'),
        ("order_placed", b'{"order_id": "e", "placed_at": "?"}'),
        ("cancel_order", b'{"order_id": "e"}'),
        *[(f"type {number:03d}", b"{}") for number in range(40)],
        ("", b"{}"),
    ]
    publish(audit, bodies)
    audit.publish([Message(b"{}"), Message(b"{}")])
    summary = run(audit.url, audit.name, tmp_path)
    messages = summary.messages
    assert (messages.read, messages.unreadable, messages.of_other_types, messages.without_type) == (
        52,
        4,
        43,
        2,
    )
    assert messages.by_type["order_paid"] == 4
    assert messages.by_type[""] == 1
    assert (len(messages.by_type), messages.more_types) == (20, 24)
    assert (summary.orders, summary.delay.payments) == (5, 1)
    for each in summary.recount:
        in_time = int(each.timeout_seconds >= 900)
        assert (each.paid_in_time, each.paid_late, each.never_paid, each.without_times) == (
            in_time,
            1 - in_time,
            1,
            3,
        )
    assert sum(vars(summary.recount[0]).values()) - summary.recount[0].timeout_seconds == summary.orders
    page = (tmp_path / "report.html").read_text()
    assert "3 orders without a readable time of placing" in page
    assert "times unknown" in page


@pytest.mark.slow
def test_messages_with_an_empty_order_id_are_of_no_order(
    spark: SparkSession, audit: Audit, tmp_path: Path
) -> None:
    bodies = [
        ("order_placed", b'{"order_id": "", "placed_at": "2024-05-01T12:00:00"}'),
        ("order_paid", b'{"order_id": " ", "paid_at": "2024-05-01T12:00:00"}'),
        ("cancel_order", b'{"order_id": ""}'),
        ("order_placed", b'{"order_id": "a", "placed_at": "2024-05-01T12:00:00"}'),
        ("order_paid", b'{"order_id": "a", "paid_at": "2024-05-01T12:00:01"}'),
    ]
    publish(audit, bodies)
    summary = run(audit.url, audit.name, tmp_path)
    assert (summary.orders, summary.messages.unreadable) == (1, 3)


@pytest.mark.slow
def test_tables_keep_times_that_nanoseconds_cannot_represent(
    spark: SparkSession, audit: Audit, tmp_path: Path
) -> None:
    """64 bits of nanoseconds reach from 1677 to 2262. Other readers than Spark take Spark's former format so."""
    bodies = [
        ("order_placed", b'{"order_id": "old", "placed_at": "1600-01-01T00:00:00.000001"}'),
        ("order_placed", b'{"order_id": "new", "placed_at": "2500-01-01T00:00:00.000001"}'),
    ]
    publish(audit, bodies)
    run(audit.url, audit.name, tmp_path)
    rows = parquet.read_table(tmp_path / "events").to_pylist()
    times = {row["order_id"]: row["placed_at"].replace(tzinfo=None) for row in rows}
    assert times == {"old": datetime(1600, 1, 1, 0, 0, 0, 1), "new": datetime(2500, 1, 1, 0, 0, 0, 1)}


def test_a_missing_queue_raises_a_one_line_error(spark: SparkSession, amqp_url: str, tmp_path: Path) -> None:
    with pytest.raises(
        PipelineError, match=r"^cannot read queue 'pipeline\.nowhere' at [^\n]+ no such queue[^\n]+$"
    ):
        run(amqp_url, "pipeline.nowhere", tmp_path)


def test_a_folder_that_spark_cannot_write_to_is_refused(amqp_url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has a '\*' in it"):
        run(amqp_url, "q", tmp_path / "a*b")
