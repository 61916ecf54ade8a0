"""The data source `amqp` on a stream: ranges of offsets and times, repeated reads, and reads from a checkpoint."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pika
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Audit, Message, channel
from tests.spark.streaming_queries import run_to_end
from tests.support.broker_process import BrokerProcess
from tests.support.polling import wait_until
from warren.pipeline.broker_connection import Address
from warren.pipeline.datasource import source_errors
from warren.pipeline.errors import PipelineError
from warren.pipeline.source.stream_client import StreamClient
from warren.pipeline.source.stream_options import StreamOptions

pytestmark = pytest.mark.timeout(600)


class Stream(Audit):
    """Stream of the tested broker."""

    def publish(self, messages: list[Message]) -> None:  # type: ignore[override]
        with channel(self.url) as publishing:
            # They are written in their order: once the last one is confirmed, all are there.
            for message in messages:
                if message is messages[-1]:
                    publishing.confirm_delivery()
                publishing.basic_publish("", self.name, message.body, message.properties)

    def numbers(self, first: int, last: int) -> None:
        self.publish([Message(b"%d" % number) for number in range(first, last + 1)])


def declare_stream(url: str, **arguments: object) -> Stream:
    name = f"pipeline.{uuid.uuid4().hex}"
    with channel(url) as declaring:
        declaring.queue_declare(name, durable=True, arguments={"x-queue-type": "stream", **arguments})
    return Stream(url, name)


@pytest.fixture
def stream(amqp_url: str) -> Iterator[Stream]:
    made = declare_stream(amqp_url)
    yield made
    with channel(amqp_url) as deleting:
        deleting.queue_delete(made.name)


def load(spark: SparkSession, stream: Stream, **options: object) -> DataFrame:
    given = {
        "url": stream.url,
        "stream": stream.name,
        **{name: str(value) for name, value in options.items()},
    }
    return spark.read.format("amqp").options(**given).load()


def offsets(frame: DataFrame) -> list[int]:
    """Return the offsets of a frame whose bodies are their offsets."""
    rows = frame.select("offset", "body").collect()
    assert all(int(row["body"]) == row["offset"] for row in rows)
    return [row["offset"] for row in rows]


def test_a_stream_can_be_read_completely_several_times(spark: SparkSession, stream: Stream) -> None:
    stream.numbers(0, 199)
    frame = load(spark, stream)
    assert offsets(frame) == list(range(200))
    stream.numbers(200, 209)
    assert offsets(frame) == list(range(200)), "a frame stays what it was"
    assert offsets(load(spark, stream)) == list(range(210))


def test_an_empty_stream_gives_an_empty_frame(spark: SparkSession, stream: Stream) -> None:
    assert load(spark, stream).count() == 0


def test_a_range_is_read(spark: SparkSession, stream: Stream) -> None:
    stream.numbers(0, 49)
    assert offsets(load(spark, stream, startingOffset=10, endingOffset=20)) == list(range(10, 20))
    assert offsets(load(spark, stream, startingOffset=45)) == list(range(45, 50))
    assert offsets(load(spark, stream, endingOffset=1000, startingOffset=48)) == [48, 49]
    assert StreamOptions.from_options({"url": stream.url, "stream": stream.name}).tasks(60, 50) == []


def test_a_long_range_is_read_by_several_tasks(spark: SparkSession, stream: Stream) -> None:
    stream.numbers(0, 99)
    frame = load(spark, stream, messagesPerTask=30)
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(offsets(frame)) == list(range(100))


def test_a_time_range_is_converted_to_offsets(
    spark: SparkSession, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timestamps of AMQP are whole seconds: the messages on both sides of one are a second apart."""
    stream.numbers(0, 9)
    border = int(time.time()) + 2
    wait_until(lambda: time.time() >= border, "the clock is there")
    stream.numbers(10, 19)
    at = datetime.fromtimestamp(border, UTC).isoformat()
    assert offsets(load(spark, stream, startingTimestamp=at)) == list(range(10, 20))
    assert offsets(load(spark, stream, endingTimestamp=at)) == list(range(10))
    monkeypatch.setattr("warren.pipeline.source.stream_client.QUIET_ROUND", 0.1)
    assert (
        StreamClient(Address(stream.url), stream.name).find_offset(datetime.fromtimestamp(border + 3600, UTC))
        is None
    )


def test_the_offset_of_a_stream_is_not_among_the_headers(spark: SparkSession, stream: Stream) -> None:
    stream.publish([Message(b"0"), Message(b"1", pika.BasicProperties(headers={"a": 1}, message_id="m"))])
    rows = load(spark, stream).select("headers", "message_id", "routing_key", "queue").collect()
    assert [row.asDict() for row in rows] == [
        {"headers": None, "message_id": None, "routing_key": stream.name, "queue": stream.name},
        {"headers": {"a": "1"}, "message_id": "m", "routing_key": stream.name, "queue": stream.name},
    ]


def test_messages_that_retention_deleted_raise_an_error_unless_loss_is_allowed(
    spark: SparkSession, amqp_url: str
) -> None:
    arguments = {"x-max-length-bytes": 20_000, "x-stream-max-segment-size-bytes": 4096}
    stream = declare_stream(amqp_url, **arguments)
    # Each segment holds a few messages. RabbitMQ writes a longer burst as one chunk, and may then delete all messages.
    for first in range(0, 100, 5):
        stream.publish([Message(b"%d".ljust(1000) % number) for number in range(first, first + 5)])
    client = StreamClient(Address(stream.url), stream.name)
    # RabbitMQ takes its time.
    wait_until(lambda: (client.find_offset("first") or 0) > 10, "the oldest are gone")
    lossy = load(spark, stream, startingOffset=1)
    with (
        pytest.raises(PipelineError, match=r"messages from offset 1 on are gone, it begins at \d+"),
        source_errors(),
    ):
        lossy.count()
    # Not their offsets: RabbitMQ gives some to records of its own, one a segment.
    found = [
        int(row["body"]) for row in load(spark, stream, startingOffset=1, failOnDataLoss="false").collect()
    ]
    assert found == list(range(found[0], 100))
    assert found[0] > 10
    with channel(amqp_url) as deleting:
        deleting.queue_delete(stream.name)


def test_a_query_continues_from_its_checkpoint(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """Two runs of one query, each up to the end: every message once, in order, in small batches."""

    def run() -> list[int]:
        options = {"url": stream.url, "stream": stream.name, "maxMessagesPerTrigger": "30"}
        writer = (
            spark.readStream.format("amqp")
            .options(**options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        query = run_to_end(writer.start)
        sizes = [int(progress["numInputRows"]) for progress in query.recentProgress]
        assert max(sizes) == 30
        return offsets(spark.read.parquet(str(tmp_path / "out")))

    stream.numbers(0, 39)
    assert sorted(run()) == list(range(40))
    stream.numbers(40, 69)
    assert sorted(run()) == list(range(70))


def test_errors_name_the_cause(spark: SparkSession, stream: Stream, audit: Audit) -> None:
    missing = spark.read.format("amqp").options(url=stream.url, stream="pipeline.nowhere").load()
    reason = r"cannot read stream 'pipeline\.nowhere' at .*: there is no such queue"
    with pytest.raises(PipelineError, match=reason) as failed, source_errors():
        missing.count()
    assert ":guest@" not in str(failed.value)
    classic = spark.read.format("amqp").options(url=audit.url, stream=audit.name).load()
    with pytest.raises(PipelineError, match="x-stream-offset"), source_errors():
        classic.count()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "soon"}, "startingOffset is 'soon': it must be an offset or first or next"),
        ({"endingOffset": "-1"}, "endingOffset is '-1': it must be an offset or last"),
        ({"startingTimestamp": "noon"}, "startingTimestamp is 'noon': it must be a time in ISO 8601"),
        ({"startingOffset": "1", "startingTimestamp": "2026-01-01"}, "are both given"),
        ({"messagesPerTask": "0"}, "it must be a number of messages, at least 1"),
        ({"failOnDataLoss": "maybe"}, "it must be true or false"),
        ({"queue": "q"}, "has no option 'queue' for streams; there are"),
    ],
)
def test_invalid_options_are_rejected_when_the_frame_is_loaded(
    spark: SparkSession, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        spark.read.format("amqp").options(url="amqp://localhost", stream="s", **options).load()


def test_a_continuous_read_of_a_queue_without_a_spool_is_rejected(spark: SparkSession, audit: Audit) -> None:
    frame = spark.readStream.format("amqp").options(url=audit.url, queue=audit.name).load()
    with pytest.raises(Exception, match="a queue is not read continuously"):
        run_to_end(frame.writeStream.format("noop").start)


@pytest.mark.slow
def test_a_read_goes_on_after_the_broker_was_killed_and_fails_if_it_stays_away(
    tmp_path: Path, hurried_retries: Callable[[], None]
) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        stream = declare_stream(broker.url)
        with channel(broker.url) as publishing:
            for number in range(20_000):
                publishing.basic_publish("", stream.name, b"%d" % number + bytes(1000))
        client = StreamClient(Address(broker.url), stream.name)
        wait_until(lambda: client.end_offset() == 20_000, "all is written")
        patient = StreamClient(Address(broker.url, 120), stream.name)
        batches, others = patient.read_batches(0, 20_000), client.read_batches(0, 20_000)
        found = next(batches).offsets
        next(others)
        broker.kill()
        broker.start()
        found += [offset for batch in batches for offset in batch.offsets]
        assert found == list(range(20_000)), "each message once"
        next(others)
        broker.kill()
        hurried_retries()
        lost = r"the connection was lost at offset \d+.* \(tried again for 30 s: the broker cannot be reached"
        with pytest.raises(PipelineError, match=lost):
            list(others)
