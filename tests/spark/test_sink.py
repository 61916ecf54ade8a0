"""`df.write` and `df.writeStream` with the format `amqp`: each row one confirmed message, each column in its property."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Audit, Message, audit_queue, channel
from tests.spark.streaming_queries import run_to_end
from tests.support.broker_process import BrokerProcess
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from warren.broker.process_memory import MIN_MEMORY_LIMIT
from warren.pipeline.datasource import source_errors
from warren.pipeline.errors import PipelineError
from warren.wire import field_tables

pytestmark = pytest.mark.timeout(600)

FULL = """
    body binary, routing_key string, content_type string, content_encoding string, headers map<string,string>,
    delivery_mode short, priority int, correlation_id string, reply_to string, expiration int, message_id string,
    timestamp timestamp, type string, user_id string, app_id string
"""


def write(frame: DataFrame, audit: Audit, **options: object) -> None:
    """Publish through the default exchange to the queue."""
    given = {"url": audit.url, "exchange": "", "routingKey": audit.name}
    given |= {name: str(value) for name, value in options.items()}
    with source_errors():
        frame.write.format("amqp").options(**given).mode("append").save()


def consume_all(audit: Audit) -> list[tuple[Any, bytes]]:
    """Consume and return the queue's messages."""
    count = audit.ready()
    found: list[tuple[Any, bytes]] = []
    if not count:
        return []
    with channel(audit.url) as taking:
        for _, properties, body in taking.consume(audit.name, auto_ack=True, inactivity_timeout=60):
            assert body is not None, "no message arrived within 60 s"
            found.append((properties, body))
            if len(found) == count:
                break
    return found


def numbers(spark: SparkSession, count: int, partitions: int = 1) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("CAST(id AS STRING) AS body")


@pytest.fixture
def slow_numbers(spark: SparkSession, small_batches: None) -> Callable[[int], DataFrame]:
    """Return a function that makes a frame with one row a millisecond, so that a test can stop the broker in between.

    The rows are wide, because Spark sends rows to Python workers in pieces of 64 KiB.
    """
    return lambda count: (
        numbers(spark, count)
        .selectExpr("RPAD(body, 1000, ' ') AS body")
        .where("REFLECT('java.lang.Thread', 'sleep', 1L) IS NOT NULL")
    )


def test_each_row_is_a_message_in_its_partitions_order(spark: SparkSession, audit: Audit) -> None:
    write(numbers(spark, 5000, 2), audit)
    found = consume_all(audit)
    assert sorted(int(body) for _, body in found) == list(range(5000))
    assert [int(body) for _, body in found if int(body) < 2500] == list(range(2500))
    assert {properties.delivery_mode for properties, _ in found} == {2}, (
        "persistent, if nobody says otherwise"
    )
    assert len({properties.message_id for properties, _ in found}) == 5000


def test_every_column_is_written_to_its_property(spark: SparkSession, audit: Audit) -> None:
    at = datetime(2024, 2, 29, 12, 30, 45, tzinfo=UTC)
    headers = {"text": "grüße", "none": None, "": ""}
    explicit = (
        b"\x00\xff{}",
        audit.name,
        "application/json",
        "utf-8",
        headers,
        1,
        200,
        "c-1",
        "answers",
        3600000,
    )
    row = (*explicit, "m-1", at, "order_placed", "guest", "shop")
    empty = (None, audit.name, *[None] * 13)
    frame = spark.createDataFrame([row, empty], FULL).coalesce(1)
    with source_errors():
        frame.write.format("amqp").options(url=audit.url, exchange="").mode("append").save()
    (batch_is_full, body), (bare, nothing) = consume_all(audit)
    assert body == b"\x00\xff{}"
    limits = {name: value for name, value in vars(batch_is_full).items() if value is not None}
    assert limits == {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": headers,
        "delivery_mode": 1,
        "priority": 200,
        "correlation_id": "c-1",
        "reply_to": "answers",
        "expiration": "3600000",
        "message_id": "m-1",
        "timestamp": int(at.timestamp()),
        "type": "order_placed",
        "user_id": "guest",
        "app_id": "shop",
    }
    assert nothing == b""
    set_for_it = {name for name, value in vars(bare).items() if value is not None}
    assert set_for_it == {"delivery_mode", "message_id"}


def test_columns_select_exchange_and_routing_key_of_each_row(spark: SparkSession, audit: Audit) -> None:
    exchange = f"pipeline.{uuid.uuid4().hex}"
    with channel(audit.url) as declaring:
        declaring.exchange_declare(exchange, "direct", auto_delete=True)
        declaring.queue_bind(audit.name, exchange, "a")
    rows = [("1", exchange, "a"), ("2", "", audit.name)]
    frame = spark.createDataFrame(rows, "body string, exchange string, routing_key string").coalesce(1)
    with source_errors():
        frame.write.format("amqp").option("url", audit.url).mode("append").save()
    assert [body for _, body in consume_all(audit)] == [b"1", b"2"]
    write(frame, audit)
    assert [body for _, body in consume_all(audit)] == [b"1", b"2"], "the options go before the columns"


def test_a_large_body_is_divided_into_frames(spark: SparkSession, audit: Audit) -> None:
    size = 300_000
    write(spark.range(2).selectExpr(f"REPEAT(CAST(id AS STRING), {size}) AS body"), audit)
    assert sorted(body for _, body in consume_all(audit)) == [b"0" * size, b"1" * size]


def test_headers_with_unchanged_text_keep_their_type(spark: SparkSession, audit: Audit) -> None:
    raw = field_tables.encode({"count": 7, "at": b"\xff", "gone": 1, "changed": 5})
    texts = {"count": "7", "at": "/w==", "changed": "6", "new": "8"}
    rows = [("1", texts, bytearray(raw)), ("2", None, bytearray(raw)), ("3", texts, None)]
    frame = spark.createDataFrame(rows, "body string, headers map<string,string>, headers_raw binary")
    write(frame.coalesce(1), audit)
    found = [properties.headers for properties, _ in consume_all(audit)]
    assert found[0] == {"count": 7, "at": b"\xff", "changed": "6", "new": "8"}
    assert found[1] == {"count": 7, "at": b"\xff", "gone": 1, "changed": 5}
    assert found[2] == texts


def test_rows_that_were_read_can_be_written_unchanged(spark: SparkSession, audit: Audit) -> None:
    sent = pika.BasicProperties(headers={"n": 1}, message_id="m", type="t", delivery_mode=2)
    audit.publish([Message(b"x", sent)])
    read = spark.read.format("amqp").options(url=audit.url, queue=audit.name).load().localCheckpoint()
    consume_all(audit)
    write(read, audit)
    (properties, body) = consume_all(audit)[0]
    assert (properties.message_id, properties.type, body) == ("m", "t", b"x")


def test_a_row_that_is_published_again_has_the_same_message_id(spark: SparkSession, audit: Audit) -> None:
    """A second write with the same writeId stands for a retried task: the rows are in another order, as after a shuffle."""
    bodies = [str(number % 300) for number in range(1000)]

    def ids(order: list[str]) -> list[tuple[str, bytes]]:
        frame = spark.createDataFrame([(body,) for body in order], "body string").coalesce(1)
        write(frame, audit, writeId="w")
        return sorted((properties.message_id, body) for properties, body in consume_all(audit))

    first = ids(bodies)
    assert ids(bodies[::-1]) == first
    assert len(dict(first)) == 1000, "equal rows are different messages"
    other = spark.createDataFrame([(body,) for body in bodies], "body string").coalesce(1)
    write(other, audit)
    assert not {properties.message_id for properties, _ in consume_all(audit)} & dict(first).keys()


@pytest.mark.slow
def test_every_row_is_published_if_the_broker_restarts_during_a_write(
    slow_numbers: Callable[[int], DataFrame], tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "broker") as broker, audit_queue(broker.url) as audit:

        def restart() -> None:
            wait_until(lambda: audit.ready() > 0, "the write is under way")
            broker.kill()
            broker.start()

        with ThreadPoolExecutor(1) as beside:
            restarted = beside.submit(restart)
            write(slow_numbers(3000), audit, timeout=120)
            restarted.result(120)
        found = consume_all(audit)
        assert {int(body) for _, body in found} == set(range(3000))
        assert len({properties.message_id for properties, _ in found}) == 3000


@pytest.mark.slow
def test_a_broker_that_does_not_return_causes_one_error(
    slow_numbers: Callable[[int], DataFrame], tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "broker") as broker, audit_queue(broker.url) as audit:

        def kill() -> None:
            wait_until(lambda: audit.ready() > 0, "the write is under way")
            broker.kill()

        with ThreadPoolExecutor(1) as beside:
            killed = beside.submit(kill)
            with pytest.raises(PipelineError, match=r"cannot be reached.* \d+ messages were confirmed"):
                # More than it gets to, however late it is killed, and a time in which something is confirmed before.
                write(slow_numbers(60_000), audit, timeout=10)
            killed.result(120)
        broker.start()


def test_streaming_batches_are_published(spark: SparkSession, audit: Audit, tmp_path: Path) -> None:
    """Two runs from one checkpoint; before the second, the last commit is removed, as by a kill."""
    (tmp_path / "in").mkdir()

    def run() -> None:
        rows = (
            spark.readStream.schema("body string").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        )
        writer = (
            rows.writeStream.format("amqp")
            .options(url=audit.url, exchange="", routingKey=audit.name)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        with source_errors():
            run_to_end(writer.start)

    for file in ("a", "b"):
        lines = [f'{{"body": "{file}{number}"}}\n' for number in range(10)]
        (tmp_path / "in" / f"{file}.json").write_text("".join(lines))
        run()
    first = consume_all(audit)
    assert sorted(body for _, body in first) == sorted(f"{f}{n}".encode() for f in "ab" for n in range(10))
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    run()
    again = consume_all(audit)
    ids = {body: properties.message_id for properties, body in first}
    assert {body: properties.message_id for properties, body in again} == {
        body: ids[body] for body in (f"b{number}".encode() for number in range(10))
    }


@pytest.mark.slow
def test_a_write_waits_while_the_queue_is_full(spark: SparkSession, audit: Audit) -> None:
    """The queue rejects messages; as soon as there is room, the rest is accepted."""
    name = f"{audit.name}.full"
    with channel(audit.url) as declaring:
        declaring.queue_declare(name, arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    batch_is_full = Audit(audit.url, name)
    try:
        with pytest.raises(PipelineError, match="confirmed nothing for 10 s because it refuses messages"):
            write(numbers(spark, 25), batch_is_full, timeout=10)
        assert len(consume_all(batch_is_full)) == 10
        bodies: list[bytes] = []

        def drain() -> None:
            deadline = time.monotonic() + 120
            with channel(batch_is_full.url) as taking:
                while len(bodies) < 25 and time.monotonic() < deadline:
                    _, _, body = taking.basic_get(name, auto_ack=True)
                    if body is not None:
                        bodies.append(body)

        with ThreadPoolExecutor(1) as beside:
            drained = beside.submit(drain)
            write(numbers(spark, 25), batch_is_full, timeout=120)
            drained.result(120)
        assert sorted(map(int, bodies)) == list(range(25))
    finally:
        with channel(audit.url) as deleting:
            deleting.queue_delete(name)


@pytest.mark.slow
def test_the_error_of_a_blocked_write_has_the_reason_of_the_broker(
    spark: SparkSession, tmp_path: Path
) -> None:
    with InProcessBroker(tmp_path / "broker") as broker, audit_queue(broker.url) as audit:

        def limit(memory: int) -> None:
            assert broker.broker is not None
            resources = broker.broker.resources
            broker.call(lambda: setattr(resources, "memory_limit", memory))

        limit(MIN_MEMORY_LIMIT)
        with pytest.raises(
            PipelineError, match=r"confirmed nothing for 10 s because it blocks publishers \(low on memory\)"
        ):
            write(numbers(spark, 25), audit, timeout=10)
        limit(2**62)
        write(numbers(spark, 25), audit)
        assert len({properties.message_id for properties, _ in consume_all(audit)}) >= 25


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("'x' AS text", {}, "column 'text' is not part of a message"),
        ("'x' AS type", {}, "there is no column 'body'"),
        ("1 AS body", {}, "column 'body' is int: it must be binary or string; cast it"),
        (
            "'x' AS body, MAP('a', 1) AS headers",
            {},
            "column 'headers' is map<string,int>: it must be map<string",
        ),
        ("'x' AS body, 'a' AS type, 'b' AS type", {}, "column 'type' is there 2 times"),
        ("'x' AS body, 'today' AS timestamp", {}, "column 'timestamp' is string: it must be timestamp"),
        ("'x' AS body", {"confirmwindow": "0"}, "confirmWindow is '0': it must be a number of messages"),
        (
            "'x' AS body",
            {"stream": "q"},
            "has no option 'stream' for writing; there are: url, queue, exchange",
        ),
        ("'x' AS body", {"url": "http://x"}, "not an AMQP URL"),
        ("'x' AS body", {"mandatory": "perhaps"}, "mandatory is 'perhaps': it must be true or false"),
    ],
)
def test_invalid_columns_fail_before_anything_is_published(
    spark: SparkSession, columns: str, options: dict[str, str], message: str
) -> None:
    given = {"url": "amqp://127.0.0.1:1", "exchange": "", **options}
    frame = spark.range(1).selectExpr(*columns.split(", ")) if "MAP" not in columns else None
    frame = frame or spark.sql(f"SELECT {columns}")
    with pytest.raises(PipelineError, match=message), source_errors():
        frame.write.format("amqp").options(**given).mode("append").save()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("REPEAT('k', 300) AS type", "a value of column 'type' is longer than 255 bytes"),
        ("3 AS delivery_mode", "a value of column 'delivery_mode' is 3: it must be 1 to 2"),
        ("TIMESTAMP '1960-01-01' AS timestamp", "a value of column 'timestamp' is before 1970"),
        ("CAST('x' AS BINARY) AS headers_raw", "a value of column 'headers_raw' is not a field table"),
        ("'somebody' AS user_id", "user_id"),
    ],
)
def test_the_error_for_an_invalid_value_names_its_column(
    spark: SparkSession, audit: Audit, columns: str, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        write(spark.sql(f"SELECT 'x' AS body, {columns}"), audit)
    assert consume_all(audit) == []


@pytest.mark.slow
def test_errors_of_the_broker_are_reported_in_one_line(spark: SparkSession, audit: Audit) -> None:
    one = numbers(spark, 1)
    with pytest.raises(
        PipelineError, match="no queue accepted a message with routing key 'nowhere'"
    ) as failed:
        write(one, audit, routingKey="nowhere")
    write(one, audit, routingKey="nowhere", mandatory=False)
    with pytest.raises(
        PipelineError, match=r"exchange 'pipeline.none' .*: there is no such exchange"
    ) as missing:
        write(one, audit, exchange="pipeline.none")
    host = audit.url.rpartition("@")[2].removeprefix("amqp://")
    with pytest.raises(PipelineError, match="refused the user name or the password") as wrong:
        write(one, audit, url=f"amqp://guest:s3cret@{host}")
    with pytest.raises(PipelineError, match="cannot be reached: Connection refused"):
        write(one, audit, url="amqp://127.0.0.1:1", timeout=1)
    for error in (failed, missing, wrong):
        assert "\n" not in str(error.value)
        assert "s3cret" not in str(error.value)
    with pytest.raises(PipelineError, match="messages cannot be overwritten"), source_errors():
        one.write.format("amqp").options(url=audit.url, exchange="").mode("overwrite").save()


def test_an_empty_frame_is_written_without_a_connection(spark: SparkSession) -> None:
    empty = numbers(spark, 0)
    with source_errors():
        empty.write.format("amqp").options(url="amqp://127.0.0.1:1", exchange="").mode("append").save()
