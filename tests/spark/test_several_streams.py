"""Several streams in one read, admission control, and unusual messages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from tests.spark.conftest import channel
from tests.spark.streaming_queries import run_to_end
from tests.spark.test_stream_source import Stream, declare_stream
from tests.support.polling import wait_until
from warren.core.blocking_connection import BlockingConnection
from warren.pipeline.broker_connection import Address, BrokerConnection
from warren.pipeline.datasource import source_errors
from warren.pipeline.errors import PipelineError
from warren.pipeline.source.end_offset_tracker import EndOffsetTracker
from warren.pipeline.source.stream_client import StreamClient
from warren.pipeline.source.stream_options import split_limit
from warren.wire import field_tables, methods, properties
from warren.wire.amqp_url import parse_url
from warren.wire.content import content_frames, join_content

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def streams(amqp_url: str) -> Iterator[list[Stream]]:
    """Provide three empty streams; a test may delete one."""
    made = [declare_stream(amqp_url) for _ in range(3)]
    with ExitStack() as ending:
        for stream in made:
            ending.callback(delete, stream)
        yield made


def delete(stream: Stream) -> None:
    with channel(stream.url) as deleting:
        deleting.queue_delete(stream.name)


def read(spark: SparkSession, streams: list[Stream], **options: str) -> DataFrame:
    names = ", ".join(stream.name for stream in streams)
    return spark.read.format("amqp").options(url=streams[0].url, stream=names, **options).load()


def offsets_by_stream(frame: DataFrame) -> dict[str, list[int]]:
    """Return the offsets of each stream, in the order of the rows."""
    offsets: dict[str, list[int]] = {}
    for row in frame.select("queue", "offset", "body").collect():
        assert int(row["body"]) == row["offset"]
        offsets.setdefault(row["queue"], []).append(row["offset"])
    return offsets


def test_several_streams_are_read_into_one_frame(spark: SparkSession, streams: list[Stream]) -> None:
    one, two, three = streams
    one.numbers(0, 29)
    two.numbers(0, 9)
    frame = read(spark, streams)
    assert frame.rdd.getNumPartitions() == 2, "one a stream that has something"
    assert offsets_by_stream(frame) == {one.name: list(range(30)), two.name: list(range(10))}
    begin = f'{{"{one.name}": 25, "{three.name}": "next"}}'
    assert offsets_by_stream(read(spark, streams, startingOffset=begin)) == {
        one.name: list(range(25, 30)),
        two.name: list(range(10)),
    }
    assert offsets_by_stream(
        read(spark, streams, endingOffset=f'{{"{one.name}": 2}}', startingOffset="1")
    ) == {
        one.name: [1],
        two.name: list(range(1, 10)),
    }


@pytest.mark.slow
def test_a_trigger_reads_a_limited_share_of_each_stream(
    spark: SparkSession, streams: list[Stream], tmp_path: Path
) -> None:
    """The backlog of three streams is read in batches of at most 40, each message once; the third is new to the
    checkpoint."""
    one, two, three = streams

    def run(*read: Stream) -> list[StreamingQueryProgress]:
        writer = (
            spark.readStream.format("amqp")
            .options(url=one.url, stream=",".join(stream.name for stream in read), maxMessagesPerTrigger="40")
            .load()
            .writeStream.format("parquet")
            .options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        query = run_to_end(writer.start)
        for progress in query.recentProgress:
            assert int(progress["numInputRows"]) <= 40
        return query.recentProgress

    one.numbers(0, 59)
    two.numbers(0, 19)
    first = run(one, two)
    taken = [int(progress["numInputRows"]) for progress in first if progress["numInputRows"]]
    assert taken == [40, 40]
    reached = json.loads(first[0]["sources"][0]["endOffset"])
    assert {stream.name: reached[stream.name] for stream in (one, two)} == {one.name: 30, two.name: 10}
    two.numbers(20, 24)
    three.numbers(0, 9)
    run(one, two, three)
    offsets = offsets_by_stream(spark.read.parquet(str(tmp_path / "out")))
    assert {name: sorted(each) for name, each in offsets.items()} == {
        one.name: list(range(60)),
        two.name: list(range(25)),
        three.name: list(range(10)),
    }


@pytest.mark.slow
def test_a_stream_that_was_deleted_and_declared_again_raises_an_error(
    spark: SparkSession, streams: list[Stream], tmp_path: Path
) -> None:
    stream = streams[0]

    def run(**options: str) -> None:
        writer = (
            spark.readStream.format("amqp")
            .options(url=stream.url, stream=stream.name, **options)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        run_to_end(writer.start)

    stream.numbers(0, 9)
    run()
    delete(stream)
    with channel(stream.url) as declaring:
        declaring.queue_declare(stream.name, durable=True, arguments={"x-queue-type": "stream"})
    stream.numbers(0, 4)
    # RabbitMQ gives a stream no identity: there, its end shows it.
    reason = (
        "was deleted and declared again after offset 10 of it was reached"
        "|ends at offset 5, before the 10 that was read: it was declared again"
    )
    with pytest.raises(PipelineError, match=reason), source_errors():
        run()
    run(failOnDataLoss="false")


def test_the_read_limit_is_divided_in_proportion_to_the_streams() -> None:
    assert split_limit(100, {"a": 10, "b": 20}) == {"a": 10, "b": 20}
    assert split_limit(30, {"a": 90, "b": 10, "c": 0}) == {"a": 27, "b": 3, "c": 0}
    assert split_limit(1, {"a": 5, "b": 7}) == {"a": 0, "b": 1}
    assert sum(split_limit(10, {"a": 7, "b": 7, "c": 7}).values()) == 10


def publish(url: str, stream: str, messages: list[tuple[dict[str, properties.Property], bytes]]) -> None:
    """Publish properties as bytes that no client would send."""
    connection = BlockingConnection(parse_url(url), 30)
    connection.call("confirm.select", False)
    for each, body in messages:
        content = join_content(1, properties.encode(each, len(body)), body)
        connection.socket.sendall(
            methods.frame(1, "basic.publish", 0, b"", stream.encode(), False, False)
            + content_frames(content, 1, connection.frame_max)
        )
        connection.expect("basic.ack")
    connection.close()


def test_unusual_messages_are_read(spark: SparkSession, streams: list[Stream]) -> None:
    """A header that resembles the stream's own, empty bodies and bodies of many frames, bytes that are not text, an
    invalid time."""
    stream = streams[0]
    mimic = b"\x0fx-stream-offsetl" + bytes(8)
    one: dict[str, field_tables.Value] = {"a": mimic.decode(), "z": 1}
    publish(
        stream.url,
        stream.name,
        [
            ({"headers": field_tables.encode(one)}, b""),
            ({"headers": field_tables.encode(one)}, bytes(300_000)),
            (
                {
                    "correlation_id": b"\xff!",
                    "headers": field_tables.encode({"b": "\udcff", "t": field_tables.Timestamp(2**40)}),
                },
                b"2",
            ),
            ({"timestamp": 2**50, "headers": b""}, b"3"),
            ({"timestamp": 1_700_000_000, "type": b"t"}, b"4"),
            ({"timestamp": 1_700_000_000, "type": b"t"}, b"5"),
        ],
    )  # fmt: skip
    rows = read(spark, [stream]).orderBy("offset").collect()
    assert [row["offset"] for row in rows] == list(range(6))
    assert [len(row["body"]) for row in rows] == [0, 300_000, 1, 1, 1, 1]
    for row in rows[:2]:
        assert row["headers"]["a"] == mimic.decode()
        assert field_tables.decode(bytes(row["headers_raw"])) == {"a": mimic.decode(), "z": 1}
    assert rows[2]["correlation_id"] == "\ufffd!"
    assert rows[2]["headers"] == {"b": "/w==", "t": str(2**40)}
    assert (rows[3]["timestamp"], rows[3]["correlation_id"]) == (None, None)
    assert [row["type"] for row in rows] == [None] * 4 + ["t"] * 2
    assert rows[4]["timestamp"] == rows[5]["timestamp"] is not None
    assert rows[4]["headers"] is rows[4]["headers_raw"] is None


def test_a_read_to_the_end_succeeds_if_its_last_batch_is_acknowledged_already(
    streams: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk is exactly as long as the acknowledged batch; a second acknowledgement would be a channel error."""
    monkeypatch.setattr("warren.pipeline.source.stream_client.PREFETCH", 1)
    streams[0].numbers(0, 4)
    client = StreamClient(Address(streams[0].url), streams[0].name)
    assert client.end_offset() == 5
    assert sum(len(batch.bodies) for batch in client.read_batches(1, 5)) == 4


def test_the_end_is_tracked_without_new_connections(
    streams: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated requests of the end need no connection while no message arrives."""
    opened: list[Address] = []
    opening = Address.open

    def counted(address: Address, product: str = "test") -> BrokerConnection:
        opened.append(address)
        return opening(address, product)

    monkeypatch.setattr(Address, "open", counted)
    stream = streams[0]
    watch = EndOffsetTracker(StreamClient(Address(stream.url), stream.name))
    try:
        assert watch.end() == 0
        stream.numbers(0, 9)
        wait_until(lambda: watch.end() == 10, "what came is seen")
        before = len(opened)
        assert {watch.end() for _ in range(100)} == {10}
        assert len(opened) == before
        delete(stream)
        with pytest.raises(PipelineError, match="was deleted while it was read"):
            wait_until(lambda: watch.end() != 10, "the stream is gone")
    finally:
        watch.close()


@pytest.mark.slow  # half a minute of heartbeats
def test_heartbeats_are_not_returned_as_messages(streams: list[Stream]) -> None:
    """A broker that sends only heartbeats for a range beyond the end is waited for until the timeout."""
    # It counts as dead after 24 s without a heartbeat, which is longer than the machine stands still.
    seconds, timeout = 12, 15
    stream = streams[0]
    stream.numbers(0, 4)
    batches = StreamClient(Address(f"{stream.url}?heartbeat={seconds}", timeout), stream.name).read_batches(
        0, 10
    )
    assert next(batches).offsets == list(range(5))
    with pytest.raises(PipelineError, match=r"nothing arrived for 15 s, at offset 5"):
        next(batches)


def test_a_batch_is_limited_in_bytes(streams: list[Stream]) -> None:
    stream = streams[0]
    publish(stream.url, stream.name, [({}, bytes(512 * 1024)) for _ in range(40)])
    client = StreamClient(Address(stream.url), stream.name)
    assert client.end_offset() == 40
    sizes = [sum(map(len, batch.bodies)) for batch in client.read_batches(3, 37)]
    assert sum(sizes) == 34 * 512 * 1024
    assert max(sizes) <= 5 * 1024 * 1024


@pytest.fixture
def filter_pushdown(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)


@pytest.mark.usefixtures("filter_pushdown")
def test_filters_narrow_the_read(spark: SparkSession, streams: list[Stream]) -> None:
    one, two, _ = streams
    one.numbers(0, 49)
    two.numbers(0, 49)

    def tasks(where: str) -> tuple[int, dict[str, list[int]]]:
        """Return the number of tasks of ten offsets that a query uses, and its result; each with a frame of its own."""
        frame = read(spark, [one, two], messagesPerTask="10", pushFilters="true").where(where)
        return frame.rdd.getNumPartitions(), offsets_by_stream(frame)

    few = f"queue = '{one.name}' and offset >= 15 and offset < 30 and body is not null"
    assert tasks(few) == (2, {one.name: list(range(15, 30))})
    assert tasks("offset > 49") == (1, {})
    assert tasks(f"queue in ('{two.name}', 'elsewhere') and offset <= 3") == (1, {two.name: list(range(4))})
    ends = [0, 1, 48, 49]
    assert tasks("offset < 2 or offset > 47") == (10, {one.name: ends, two.name: ends})


@pytest.mark.usefixtures("filter_pushdown")
def test_no_filter_is_pushed_down_for_a_frame_of_several_queries(
    spark: SparkSession, streams: list[Stream]
) -> None:
    """Spark would read for each of them what the last one's filters left."""
    streams[0].numbers(0, 99)
    frame = read(spark, [streams[0]])
    low, high = frame.where("offset < 3"), frame.where("offset > 97")
    assert offsets_by_stream(low.unionAll(high)) == {streams[0].name: [0, 1, 2, 98, 99]}
    assert frame.count() == 100


@pytest.mark.usefixtures("filter_pushdown")
def test_timestamp_filters_limit_the_offsets_if_a_tolerance_is_given(
    spark: SparkSession, streams: list[Stream]
) -> None:
    """A message with an old timestamp was written now: it is found, unless the options exclude this."""
    stream = streams[0]
    publish(
        stream.url,
        stream.name,
        [({"timestamp": 1_500_000_000}, b"0"), ({"timestamp": int(time.time())}, b"1")],
    )
    old, new = "timestamp < '2020-01-01'", "timestamp >= '2020-01-01'"
    assert offsets_by_stream(read(spark, [stream]).where(old)) == {stream.name: [0]}

    def near(where: str) -> dict[str, list[int]]:
        return offsets_by_stream(
            read(spark, [stream], pushFilters="true", timestampTolerance="60").where(where)
        )

    assert near(old) == {}
    assert near(new) == {stream.name: [1]}
