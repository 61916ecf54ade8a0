"""Faults while a stream is read: retention, a broker that stops, hangs or is too busy, a stream that is declared again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.conftest import Message, audit_queue, channel
from tests.spark.test_stream_source import Stream, declare_stream
from tests.support.broker_process import BrokerProcess
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.proxy import Proxy
from tests.support.proxy_queue_counts import LateDeliveries
from warren.pipeline.broker_connection import Address, BrokerConnection
from warren.pipeline.errors import PipelineError
from warren.pipeline.sink.publisher import Publisher
from warren.pipeline.sink.write_options import Target
from warren.pipeline.source.blocking_consumer import BlockingConsumer
from warren.pipeline.source.end_offset_tracker import EndOffsetTracker
from warren.pipeline.source.queue_browser import QueueBrowser
from warren.pipeline.source.spark_readers import StreamMicroBatchReader, StreamPartition
from warren.pipeline.source.stream_client import StreamClient
from warren.pipeline.source.stream_options import StreamOptions

pytestmark = pytest.mark.slow


@pytest.fixture
def stream(amqp_url: str) -> Iterator[Stream]:
    """Provide a stream with small segments, which retention removes one by one."""
    made = declare_stream(
        amqp_url, **{"x-max-length-bytes": 200_000, "x-stream-max-segment-size-bytes": 16_384}
    )
    yield made
    with channel(amqp_url) as deleting:
        deleting.queue_delete(made.name)


def large(stream: Stream, count: int) -> None:
    stream.publish([Message(bytes(1000)) for _ in range(count)])


def test_messages_that_retention_deletes_during_a_read_raise_an_error(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.pipeline.source.stream_client.PREFETCH", 8)
    monkeypatch.setattr("warren.pipeline.source.blocking_consumer.BATCH_MESSAGES", 8)
    for _ in range(15):
        large(stream, 10)
    client = StreamClient(Address(stream.url), stream.name)
    end = client.end_offset()
    strict, lossy = client.read_batches(0, end), client.read_batches(0, end, fail_on_data_loss=False)
    assert next(strict).offsets[0] <= 1
    assert next(lossy).offsets[0] <= 1
    for _ in range(40):
        large(stream, 10)
    wait_until(
        lambda: (client.find_offset("first") or 0) > end, "the messages that are being read are deleted", 60
    )
    with pytest.raises(PipelineError, match=r"messages from offset \d+ on are gone, it begins at \d+"):
        list(strict)
    assert sum(len(batch.bodies) for batch in lossy) < 150


def test_offsets_of_internal_records_are_not_reported_as_loss(stream: Stream) -> None:
    """RabbitMQ assigns some offsets to internal records, about one for each segment."""
    for _ in range(12):
        large(stream, 10)
    client = StreamClient(Address(stream.url), stream.name)
    assert sum(len(batch.bodies) for batch in client.read_batches(0, client.end_offset())) == 120


def test_the_end_of_a_busy_stream_is_found(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new message arrives between all requests."""
    stream.numbers(0, 9)
    asked, waiting = [0], BlockingConsumer.message_count

    def busy(consuming: BlockingConsumer) -> int:
        asked[0] += 1
        assert asked[0] < 200, "it is followed on and on"
        stream.publish([Message(b"x")])
        assert len(consuming.deliveries.bodies) <= 1, "bodies are kept"
        return waiting(consuming)

    monkeypatch.setattr(BlockingConsumer, "message_count", busy)
    assert StreamClient(Address(stream.url), stream.name).end_offset() > 10


async def test_a_stream_whose_messages_are_not_counted_yet_is_not_taken_as_empty(stream: Stream) -> None:
    stream.numbers(0, 9)
    async with Proxy(stream.url) as proxy:
        proxy.to_client.rewrite = lambda: LateDeliveries(3)()
        client = StreamClient(Address(proxy.url), stream.name)
        assert await asyncio.to_thread(client.end_offset) == 10
        assert await asyncio.to_thread(client.find_offset, "first") == 0


def test_a_stream_that_is_declared_again_during_a_query_raises_an_error(stream: Stream) -> None:
    stream.numbers(0, 4)
    client = StreamClient(Address(stream.url), stream.name)
    strict, lossy = EndOffsetTracker(client), EndOffsetTracker(client, fail_on_data_loss=False)
    try:
        assert strict.end() == lossy.end() == 5
        with channel(stream.url) as making:
            making.queue_delete(stream.name)
            making.queue_declare(stream.name, durable=True, arguments={"x-queue-type": "stream"})
        stream.numbers(0, 9)
        with pytest.raises(PipelineError, match="was deleted while it was read"):
            wait_until(lambda: strict.end() == 10, "it is noticed")
        wait_until(lambda: lossy.end() == 10, "it is read on")
    finally:
        strict.close()
        lossy.close()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Stream]:
    """Provide a stream of five messages of a broker in the test's process, on a data folder."""
    with InProcessBroker(tmp_path / "data") as broker:
        made = declare_stream(broker.url)
        made.numbers(0, 4)
        yield made


@contextmanager
def reading(stream: Stream, **options: str) -> Iterator[StreamMicroBatchReader]:
    """Provide a reader as Spark makes it for each start of a query."""
    reader = StreamMicroBatchReader(
        StreamOptions.from_options({"url": stream.url, "stream": stream.name, **options})
    )
    try:
        yield reader
    finally:
        reader.stop()


def checkpoint(stream: Stream) -> Any:
    """Return the offsets that Spark stores for a query that has read the stream to its end."""
    with reading(stream) as reader:
        return stored(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))


def stored(offsets: Any) -> Any:
    return json.loads(json.dumps(offsets))


def declare_again(stream: Stream, count: int) -> None:
    """Delete the stream and declare it again; publish equal messages at equal offsets, and more."""
    with channel(stream.url) as making:
        making.queue_delete(stream.name)
        making.queue_declare(stream.name, durable=True, arguments={"x-queue-type": "stream"})
    if count:
        stream.numbers(0, count - 1)


def test_a_stream_that_was_declared_again_and_grew_while_no_query_ran_raises_an_error(kept: Stream) -> None:
    reached = checkpoint(kept)
    assert reached[kept.name] == 5
    declare_again(kept, 8)
    again = r"was deleted and declared again after offset 5 of it was reached: begin with another checkpoint"
    with reading(kept) as reader, pytest.raises(PipelineError, match=again):
        reader.latestOffset(reached, ReadAllAvailable())
    with reading(kept) as reader, pytest.raises(PipelineError, match=again):
        reader.partitions({kept.name: 2}, reached)


def test_a_stream_that_was_declared_again_is_read_from_its_beginning_if_loss_is_allowed(kept: Stream) -> None:
    reached = checkpoint(kept)
    for count in (8, 3):
        declare_again(kept, count)
        with reading(kept, failondataloss="false") as reader:
            assert reader.partitions({kept.name: 2}, reached) == [], "a repeated micro-batch reads nothing"
            end = stored(reader.latestOffset(reached, ReadAllAvailable()))
            assert end[kept.name] == count
            assert reader.partitions(reached, end) == [StreamPartition(kept.name, 0, count)]
            assert reader.latestOffset(end, ReadAllAvailable()) == end
        reached = end


def test_a_stream_that_was_declared_again_is_noticed_after_a_time_without_messages(kept: Stream) -> None:
    reached = checkpoint(kept)
    declare_again(kept, 0)
    with reading(kept) as reader:
        assert stored(reader.latestOffset(reached, ReadAllAvailable())) == reached
    kept.numbers(0, 7)
    with reading(kept) as reader, pytest.raises(PipelineError, match="was deleted and declared again"):
        reader.latestOffset(reached, ReadAllAvailable())


def test_a_checkpoint_without_identities_goes_on(kept: Stream) -> None:
    """Earlier versions have stored offsets only."""
    with reading(kept) as reader:
        assert reader.partitions({kept.name: 1}, {kept.name: 3}) == [StreamPartition(kept.name, 1, 3)]
        end = reader.latestOffset({kept.name: 3}, ReadAllAvailable())
        assert reader.partitions({kept.name: 3}, end) == [StreamPartition(kept.name, 3, 5)]


def test_a_read_that_begins_ahead_of_the_end_waits_for_it(stream: Stream) -> None:
    stream.numbers(0, 9)
    ranges = StreamOptions.from_options({"url": stream.url, "stream": stream.name, "startingoffset": "12"})
    reader = StreamMicroBatchReader(ranges)
    try:
        start = reader.initialOffset()
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        assert start[stream.name] == 12
        stream.numbers(10, 14)
        wait_until(lambda: reader.latestOffset(start, ReadAllAvailable())[stream.name] == 15, "it came")
    finally:
        reader.stop()


def test_a_read_waits_for_a_restarting_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        stream = declare_stream(broker.url)
        stream.numbers(0, 4)
        watch = EndOffsetTracker(StreamClient(Address(broker.url, 120), stream.name))
        short = EndOffsetTracker(StreamClient(Address(broker.url, 15), stream.name))
        try:
            assert watch.end() == short.end() == 5
            broker.stop()
            with pytest.raises(PipelineError, match=r"cannot be reached.*\(tried again for 15 s"):
                wait_until(lambda: short.end() != 5, "it is given up")
            starting = threading.Thread(target=broker.start)
            starting.start()
            try:
                assert watch.end() == 5
            finally:
                starting.join()
            stream.numbers(5, 6)
            wait_until(lambda: watch.end() == 7, "it goes on")
        finally:
            watch.close()
            short.close()


def test_what_begins_while_the_broker_is_away_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan (the end of a stream, the offset at a time), and the tasks of source and sink."""
    failed: set[int] = set()
    opening = Address.open

    def open_and_note(address: Address, product: str = "test") -> BrokerConnection:
        try:
            return opening(address, product)
        except PipelineError:
            failed.add(threading.get_ident())
            raise

    def publish(address: Address, queue: str) -> int:
        publisher = Publisher(Target(address, "", queue))
        publisher.close()
        return publisher.confirmed

    with BrokerProcess(tmp_path / "broker") as broker, audit_queue(broker.url) as audit:
        stream = declare_stream(broker.url)
        stream.numbers(0, 4)
        audit.publish([Message(b"x")])
        address = Address(broker.url, 120)
        client, browser = StreamClient(address, stream.name), QueueBrowser(address, audit.name)
        plans: list[tuple[Callable[[], object], object]] = [
            (client.end_offset, 5),
            (lambda: client.find_offset("first"), 0),
            (lambda: [offset for batch in client.read_batches(1, 4) for offset in batch.offsets], [1, 2, 3]),
            (lambda: [body for batch in browser.batches() for body in batch.bodies], [b"x"]),
            (lambda: publish(address, audit.name), 0),
        ]
        broker.kill()
        monkeypatch.setattr(Address, "open", open_and_note)
        with ThreadPoolExecutor(len(plans)) as beside:
            running = [beside.submit(begin) for begin, _ in plans]
            try:
                wait_until(lambda: len(failed) == len(plans), "each has found the broker away")
            finally:
                broker.start()
            assert [each.result(120) for each in running] == [expected for _, expected in plans]


def test_a_broker_that_stops_responding_is_detected_while_waiting(tmp_path: Path) -> None:
    """The broker closes nothing; only its heartbeats are missing."""
    with BrokerProcess(tmp_path / "broker") as broker:
        stream = declare_stream(broker.url)
        stream.numbers(0, 4)
        watch = EndOffsetTracker(StreamClient(Address(f"{broker.url}?heartbeat=5", 30), stream.name))
        try:
            assert watch.end() == 5
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                with pytest.raises(PipelineError, match=r"does not answer|stopped answering"):
                    wait_until(lambda: watch.end() != 5, "it is noticed", 240)
            finally:
                os.kill(broker.pid, signal.SIGCONT)
        finally:
            watch.close()
