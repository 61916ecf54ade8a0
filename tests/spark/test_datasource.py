"""The data source `amqp` on a queue: typed rows of messages that stay in the queue."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pika
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Audit, Message, audit_queue, channel
from tests.support.broker_process import BrokerProcess
from tests.support.proxy import Proxy
from tests.support.proxy_queue_counts import EmptyCounts, UncountedDeliveries
from warren.pipeline.broker_connection import Address, BrokerConnection
from warren.pipeline.datasource import source_errors
from warren.pipeline.errors import PipelineError
from warren.pipeline.source.blocking_consumer import BATCH_BYTES
from warren.pipeline.source.queue_browser import QueueBrowser
from warren.pipeline.source.row_schema import SCHEMA
from warren.wire.field_tables import decode


def load(spark: SparkSession, audit: Audit, **options: str) -> DataFrame:
    given = {"url": audit.url, "queue": audit.name, **options}
    return spark.read.format("amqp").options(**given).load()


def browse(audit: Audit, timeout: float = 30.0) -> QueueBrowser:
    return QueueBrowser(Address(audit.url, timeout), audit.name)


def bodies(frame: DataFrame) -> list[bytes]:
    return [bytes(row["body"]) for row in frame.orderBy("offset").select("body").collect()]


def test_a_read_returns_the_messages_in_order_and_leaves_them_in_the_queue(
    spark: SparkSession, audit: Audit
) -> None:
    sent = [b"%d" % number for number in range(10_000)]
    audit.publish([Message(body) for body in sent])
    frame = load(spark, audit)
    first = frame.select("offset", "body", "queue", "redelivered").collect()
    assert [bytes(row["body"]) for row in first] == sent
    assert [row["offset"] for row in first] == list(range(10_000))
    assert {row["queue"] for row in first} == {audit.name}
    assert not any(row["redelivered"] for row in first)
    assert audit.ready() == 10_000

    again = frame.select("body", "redelivered").collect()
    assert [bytes(row["body"]) for row in again] == sent
    assert all(row["redelivered"] for row in again), "the first read gave them back"
    with channel(audit.url) as getting:
        method, _, body = getting.basic_get(audit.name)
        assert method is not None
        assert body == sent[0], "the first message is in its place"


def test_an_empty_queue_is_an_empty_frame(spark: SparkSession, audit: Audit) -> None:
    frame = load(spark, audit)
    assert frame.schema == SCHEMA
    assert frame.count() == 0


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(lambda: EmptyCounts(1000), id="no-leader"),
        pytest.param(lambda: UncountedDeliveries((50, 0), 3), id="leader-lost-later"),
    ],
)
async def test_a_queue_whose_messages_are_not_counted_is_not_taken_for_empty(
    audit: Audit, monkeypatch: pytest.MonkeyPatch, plan: Callable[[], EmptyCounts]
) -> None:
    """RabbitMQ reports 0 messages and 0 consumers for a quorum queue that has no leader for a moment."""
    monkeypatch.setattr("warren.pipeline.source.queue_browser.PROBE_INTERVAL", 0.1)
    sent = [b"%d" % number for number in range(50)]
    audit.publish([Message(body) for body in sent])
    async with Proxy(audit.url) as proxy:
        proxy.to_client.rewrite = plan()
        browser = QueueBrowser(Address(proxy.url), audit.name)
        batches = await asyncio.to_thread(lambda: list(browser.batches()))
    assert [body for batch in batches for body in batch.bodies] == sent
    assert audit.ready() == 50


def test_an_empty_queue_that_refuses_basic_get_is_an_error(amqp_url: str) -> None:
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    with (
        audit_queue(amqp_url, arguments) as audit,
        pytest.raises(PipelineError, match="cannot confirm that it is empty, because it has a single active"),
    ):
        list(browse(audit).batches())


def test_every_property_and_header_is_read_with_its_type(spark: SparkSession, audit: Audit) -> None:
    sent_at = datetime(2024, 2, 29, 12, 30, 45, tzinfo=UTC)
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={
            "text": "grüße",
            "count": 42,
            "big": 2**40,
            "yes": True,
            "price": Decimal("9.95"),
            "at": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
            "none": None,
            "raw": b"\xff\x00",
            "list": [1, "a", False],
            "table": {"inner": {"deep": 1}},
        },
        delivery_mode=2,
        priority=200,
        correlation_id="c-1",
        reply_to="answers",
        expiration="3600000",
        message_id="m-1",
        timestamp=int(sent_at.timestamp()),
        type="order_placed",
        user_id="guest",
        app_id="shop",
    )
    audit.publish([Message(b"\x00\xff{}", properties)])
    row = load(spark, audit).first()
    assert row is not None
    columns = row.asDict()
    headers = columns.pop("headers")
    # As it came, with each field's type: a decimal is one still.
    assert decode(bytes(columns.pop("headers_raw")))["price"] == Decimal("9.95")
    # Spark's naive datetimes are in the driver's own zone.
    assert columns.pop("timestamp").astimezone(UTC) == sent_at
    assert columns == {
        "queue": audit.name,
        "offset": 0,
        "exchange": "",
        "routing_key": audit.name,
        "redelivered": False,
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "priority": 200,
        "correlation_id": "c-1",
        "reply_to": "answers",
        "expiration": "3600000",
        "message_id": "m-1",
        "type": "order_placed",
        "user_id": "guest",
        "app_id": "shop",
        "cluster_id": None,
        "body": b"\x00\xff{}",
    }
    assert headers == {
        "text": "grüße",
        "count": "42",
        "big": str(2**40),
        "yes": "true",
        "price": "9.95",
        "at": "2024-01-02T03:04:05+00:00",
        "none": None,
        "raw": "/wA=",
        "list": '[1, "a", false]',
        "table": '{"inner": {"deep": 1}}',
    }


def test_missing_properties_are_null(spark: SparkSession, audit: Audit) -> None:
    audit.publish([Message(b"", pika.BasicProperties())])
    row = load(spark, audit).first()
    assert row is not None
    set_by_the_delivery = {"queue", "offset", "exchange", "routing_key", "redelivered", "body"}
    assert {name for name, value in row.asDict().items() if value is not None} == set_by_the_delivery


def test_two_scans_of_one_query_each_see_the_whole_queue(spark: SparkSession, audit: Audit) -> None:
    audit.publish([Message(b"%d" % number) for number in range(500)])
    frame = load(spark, audit)
    twice = frame.select("offset").unionAll(load(spark, audit).select("offset"))
    assert twice.groupBy("offset").count().where("count = 2").count() == 500


def test_a_batch_is_limited_in_bytes(audit: Audit) -> None:
    audit.publish([Message(bytes(1024 * 1024)) for _ in range(12)])
    sizes = [sum(map(len, batch.bodies)) for batch in browse(audit).batches()]
    assert sum(sizes) == 12 * 1024 * 1024
    assert max(sizes) <= BATCH_BYTES + 1024 * 1024


def test_a_queue_with_a_consumer_is_refused(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for the queue is shortened, not the timeout of the broker's replies."""
    slept = 0.0

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += 100 * seconds

    hurried = SimpleNamespace(monotonic=lambda: time.monotonic() + slept, sleep=sleep)
    audit.publish([Message(b"x")])
    with channel(audit.url) as consuming:
        consuming.basic_consume(audit.name, lambda *_: None)
        monkeypatch.setattr("warren.pipeline.source.queue_browser.time", hurried)
        with pytest.raises(PipelineError, match=r"it has another consumer \(waited 60 s\)"):
            list(browse(audit, timeout=60).batches())
        monkeypatch.undo()
    assert len(next(browse(audit).batches()).bodies) == 1


def test_errors_name_the_cause_and_hide_the_password(
    spark: SparkSession, audit: Audit, capsys: pytest.CaptureFixture[str]
) -> None:
    audit.publish([Message(b"x")])
    missing = load(spark, audit, queue="pipeline.nowhere")
    with pytest.raises(PipelineError, match="there is no such queue; declare it") as failed, source_errors():
        missing.count()
    assert ":guest@" not in str(failed.value)
    assert "\n" not in str(failed.value)

    host = audit.url.rpartition("@")[2].removeprefix("amqp://")
    wrong = load(spark, audit, url=f"amqp://guest:s3cret@{host}")
    with (
        pytest.raises(PipelineError, match="refused the user name or the password") as failed,
        source_errors(),
    ):
        wrong.count()
    assert "s3cret" not in str(failed.value)
    with pytest.raises(Exception, match="refused the user name") as raw:
        wrong.count()
    assert "s3cret" not in str(raw.value)
    wrong.explain(extended=True)
    wrong.explain("formatted")
    assert "s3cret" not in capsys.readouterr().out

    gone = load(spark, audit, url="amqp://127.0.0.1:1", timeout="1")
    with pytest.raises(PipelineError, match="cannot be reached: Connection refused"), source_errors():
        gone.count()
    with pytest.raises(PipelineError, match="the virtual host does not exist"):
        list(QueueBrowser(Address(f"amqp://guest:guest@{host.partition('/')[0]}/nowhere"), "q").batches())


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": "q"}, "needs the option 'url'"),
        ({"url": "amqp://localhost"}, "needs the option 'queue'"),
        ({"url": "http://localhost", "queue": "q"}, r"not an AMQP URL: .*; the form is amqp://"),
        ({"url": "amqp://localhost:no", "queue": "q"}, r"not an AMQP URL: .*; the form is amqp://"),
        ({"url": "amqp://localhost", "queue": "q", "timeout": "soon"}, "it must be a number of seconds"),
        ({"url": "amqp://localhost", "queue": "q", "timeout": "-1"}, "it must be more than 0 seconds"),
        ({"url": "amqp://localhost", "queue": "q", "Prefetch": "3"}, "has no option 'prefetch'; there are"),
    ],
)
def test_invalid_options_are_rejected_when_the_frame_is_loaded(
    spark: SparkSession, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        spark.read.format("amqp").options(**options).load()


def test_another_schema_is_refused(spark: SparkSession, audit: Audit) -> None:
    with pytest.raises(PipelineError, match="the schema of format 'amqp' is fixed"), source_errors():
        spark.read.format("amqp").schema("a INT").options(url=audit.url, queue=audit.name).load().collect()


@pytest.mark.slow
def test_a_broker_that_is_killed_during_a_read_causes_one_error_and_no_loss(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker, audit_queue(broker.url) as audit:
        sent = [b"%d" % number + bytes(1000) for number in range(20_000)]
        audit.publish([Message(body) for body in sent])
        batches = browse(audit).batches()
        next(batches)
        broker.kill()
        with pytest.raises(PipelineError, match=r"the connection was lost after \d+ of 20000 messages"):
            list(batches)
        broker.start()
        read = [body for batch in browse(audit).batches() for body in batch.bodies]
        assert read == sent


@pytest.mark.slow
def test_a_broker_that_hangs_ends_the_read_after_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[BrokerConnection] = []
    opening = Address.open

    def record_connection(address: Address, product: str = "test") -> BrokerConnection:
        opened.append(opening(address, product))
        return opened[-1]

    monkeypatch.setattr(Address, "open", record_connection)
    with BrokerProcess(tmp_path / "broker") as broker, audit_queue(broker.url) as audit:
        audit.publish([Message(bytes(1000)) for _ in range(20_000)])
        batches = browse(audit, timeout=60).batches()
        next(batches)
        opened[
            0
        ].timeout = (
            2  # Set only now: with a short timeout from the start, a slow broker would fail this test.
        )
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(
                PipelineError, match=r"(nothing arrived for 2 s|stopped answering) after \d+ of 20000"
            ):
                list(batches)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert sum(len(batch.bodies) for batch in browse(audit).batches()) == 20_000


def test_a_deleted_queue_ends_the_read(audit: Audit) -> None:
    for _ in range(4):
        # RabbitMQ 4.3 takes at most 10,000 publishes in one transaction.
        audit.publish([Message(bytes(1000)) for _ in range(5_000)])
    batches = browse(audit).batches()
    next(batches)
    with channel(audit.url) as deleting:
        deleting.queue_delete(audit.name)
    with pytest.raises(PipelineError, match=r"the queue was deleted|messages"):
        list(batches)
