"""Continuous reads of a classic queue: acknowledged messages are in the spool, and redelivered ones are recognised."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.spark.conftest import Audit, Message, audit_queue, channel
from tests.spark.streaming_queries import run_to_end
from tests.support.broker_process import BrokerProcess
from tests.support.polling import wait_until
from tests.support.proxy import Proxy
from tests.support.proxy_queue_counts import EmptyCounts, UncountedDeliveries
from tests.support.rabbitmq import RabbitMQ
from warren.pipeline.datasource import source_errors
from warren.pipeline.errors import PipelineError
from warren.pipeline.spool.spark_reader import SpoolReader
from warren.pipeline.spool.spool_options import SpoolOptions
from warren.wire import field_tables

ALL = ReadAllAvailable()

pytestmark = pytest.mark.timeout(900)


def numbered(first: int, last: int, size: int = 0) -> list[Message]:
    """Return messages whose ids are their numbers."""
    return [
        Message(b"%d".ljust(size) % number, pika.BasicProperties(message_id=str(number), delivery_mode=2))
        for number in range(first, last + 1)
    ]


@contextmanager
def open_reader(audit: Audit, folder: Path, **options: object) -> Iterator[SpoolReader]:
    given = {"url": audit.url, "queue": audit.name, "spooldir": str(folder), "timeout": "60"}
    reader = SpoolReader(
        SpoolOptions.from_options(given | {name.lower(): str(value) for name, value in options.items()})
    )
    try:
        yield reader
    finally:
        reader.stop()


def wait_for_messages(reader: SpoolReader, start: Any, count: int) -> Any:
    """Return the offset after this number of new messages, as soon as they are in the spool."""
    wanted = start["position"] + count
    wait_until(lambda: reader.latestOffset(start, ALL)["position"] >= wanted, f"{count} have arrived")
    return reader.latestOffset(start, ReadMaxRows(count))


def rows(reader: SpoolReader, start: Any, end: Any) -> list[dict[str, Any]]:
    return [
        row
        for piece in reader.partitions(start, end)
        for batch in reader.read(piece)
        for row in batch.to_pylist()
    ]


def bodies(found: Sequence[dict[str, Any]]) -> list[int]:
    return [int(row["body"]) for row in found]


def test_only_messages_in_the_spool_are_acknowledged(audit: Audit, tmp_path: Path) -> None:
    audit.publish(numbered(0, 999))
    with open_reader(audit, tmp_path) as reader:
        start = reader.initialOffset()
        end = wait_for_messages(reader, start, 1000)
        found = rows(reader, start, end)
        assert bodies(found) == list(range(1000))
        assert [row["offset"] for row in found] == list(range(1000))
        assert {(row["queue"], row["routing_key"], row["possible_duplicate"]) for row in found} == {
            (audit.name, audit.name, False)
        }
        assert [row["message_id"] for row in found[:2]] == ["0", "1"]
    assert audit.ready() == 0
    with open_reader(audit, tmp_path) as reader:
        assert reader.initialOffset() == start
        assert bodies(rows(reader, start, end)) == list(range(1000)), (
            "as often as it takes, until it is committed"
        )
        part = {**start, "position": 300}, {**start, "position": 310}
        assert bodies(rows(reader, *part)) == list(range(300, 310))


def test_a_redelivered_message_is_stored_once(audit: Audit, tmp_path: Path) -> None:
    """Also after it was committed and removed; one without an id is kept and marked as a possible duplicate."""
    audit.publish([*numbered(0, 9), Message(b"10")])
    with open_reader(audit, tmp_path, spoolMaxBytes=100) as reader:
        start = reader.initialOffset()
        end: Any = start
        while end["position"] < 11:
            end = wait_for_messages(reader, end, 1)
            reader.commit(end)
    audit.publish([*numbered(5, 12), Message(b"13")])
    with channel(audit.url) as giving_back:
        for _ in range(9):
            method, _, _ = giving_back.basic_get(audit.name)
        giving_back.basic_nack(method.delivery_tag, multiple=True)
    with open_reader(audit, tmp_path) as reader:
        again = rows(reader, end, wait_for_messages(reader, end, 4))
        assert bodies(again) == [10, 11, 12, 13]
        assert [row["possible_duplicate"] for row in again] == [False, False, False, True]
        assert [row["redelivered"] for row in again] == [True] * 4
    assert audit.ready() == 0


def test_a_header_can_be_the_deduplication_key(audit: Audit, tmp_path: Path) -> None:
    def message(body: bytes, headers: dict[str, object] | None) -> Message:
        return Message(body, pika.BasicProperties(headers=headers))

    audit.publish(
        [message(b"1", {"id": 1}), message(b"2", {"id": 1}), message(b"3", {"id": "1"}), message(b"4", None)]
    )
    with open_reader(audit, tmp_path, dedupKey="header:id") as reader:
        start = reader.initialOffset()
        assert bodies(rows(reader, start, wait_for_messages(reader, start, 3))) == [1, 3, 4]


def test_a_message_that_was_copied_from_a_stream_keeps_its_headers(audit: Audit, tmp_path: Path) -> None:
    """The copied header is unchanged: only a stream's own offset is removed."""
    copied = pika.BasicProperties(message_id="1", headers={"x-stream-offset": 2**40, "a": "b"})
    audit.publish([Message(b"0", copied), *numbered(1, 1)])
    with open_reader(audit, tmp_path) as reader:
        start = reader.initialOffset()
        (row,) = rows(reader, start, wait_for_messages(reader, start, 1))
    # RabbitMQ 4.3 sorts headers.
    assert sorted(row["headers"]) == [("a", "b"), ("x-stream-offset", str(2**40))]
    assert field_tables.decode(row["headers_raw"]) == {"x-stream-offset": 2**40, "a": "b"}
    assert row["offset"] == 0


def test_a_full_spool_receives_no_more_messages(audit: Audit, tmp_path: Path) -> None:
    audit.publish(numbered(0, 99, size=1000))
    with open_reader(audit, tmp_path, spoolMaxBytes=10_000, prefetch=5) as reader:
        position: Any = reader.initialOffset()
        found: list[dict[str, Any]] = []
        stored = []
        while len(found) < 100:
            end = wait_for_messages(reader, position, 1)
            end = reader.latestOffset(position, ALL)
            found += rows(reader, position, end)
            stored.append(sum(file.stat().st_size for file in tmp_path.glob("*.spool")))
            position = end
            reader.commit(position)
        assert bodies(found) == list(range(100))
        assert max(stored) < 40_000


def test_a_bounded_run_reads_the_messages_that_were_there_at_its_start(audit: Audit, tmp_path: Path) -> None:
    audit.publish(numbered(0, 49))
    with open_reader(audit, tmp_path, maxMessagesPerTrigger=20) as reader:
        reader.prepareForTriggerAvailableNow()
        limit = reader.getDefaultReadLimit()
        ends = [reader.initialOffset()]
        while (end := reader.latestOffset(ends[-1], limit)) != ends[-1]:
            ends.append(end)
        assert [end["position"] for end in ends] == [0, 20, 40, 50]
    with open_reader(audit, tmp_path) as reader:
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(ends[-1], ALL) == ends[-1], "nothing is there, and nothing is waited for"


def drain(audit: Audit, folder: Path, **options: object) -> list[int]:
    """Return the bodies that a query with the trigger `availableNow` reads."""
    with open_reader(audit, folder, **options) as reader:
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        return bodies(rows(reader, start, reader.latestOffset(start, ALL)))


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(lambda: EmptyCounts(1000), id="no-leader"),
        pytest.param(lambda: UncountedDeliveries((0, 1), 2), id="other-consumer-left"),
        pytest.param(lambda: UncountedDeliveries((50, 0), 4), id="leader-lost-later"),
    ],
)
async def test_a_queue_whose_messages_are_not_counted_is_not_taken_for_empty(
    audit: Audit, tmp_path: Path, plan: Callable[[], EmptyCounts]
) -> None:
    """RabbitMQ reports 0 messages and 0 consumers for a quorum queue that has no leader for a moment. The other consumer
    had all messages, and requeued them."""
    audit.publish(numbered(0, 49))
    async with Proxy(audit.url) as proxy:
        proxy.to_client.rewrite = plan()
        assert await asyncio.to_thread(drain, audit, tmp_path, url=proxy.url, prefetch=5) == list(range(50))
    assert audit.ready() == 0


async def test_expired_messages_are_not_waited_for(audit: Audit, tmp_path: Path) -> None:
    """The count is 60, but only 50 messages are left."""
    audit.publish(numbered(0, 49))
    async with Proxy(audit.url) as proxy:
        proxy.to_client.rewrite = UncountedDeliveries((60, 0), 2)
        assert await asyncio.to_thread(drain, audit, tmp_path, url=proxy.url) == list(range(50))


@pytest.mark.slow
async def test_a_queue_without_a_leader_ends_a_bounded_run_with_an_error(
    audit: Audit, tmp_path: Path
) -> None:
    audit.publish(numbered(0, 9))
    async with Proxy(audit.url) as proxy:
        proxy.to_client.rewrite = UncountedDeliveries((10, 0), 1000)
        with pytest.raises(PipelineError, match=r"seems to have no leader \(waited 10 s\)"):
            await asyncio.to_thread(drain, audit, tmp_path, url=proxy.url, timeout=10)
    wait_until(lambda: audit.ready() == 10, "the messages are back in the queue")


def drain_twice(url: str, folder: Path, **arguments: object) -> None:
    """Drain a quorum queue while it is empty, and with messages."""
    with audit_queue(url, {"x-queue-type": "quorum", **arguments}) as audit:
        assert drain(audit, folder) == []
        audit.publish(numbered(0, 49))
        assert drain(audit, folder) == list(range(50))
        assert audit.ready() == 0


def test_a_quorum_queue_is_drained(amqp_url: str, tmp_path: Path) -> None:
    drain_twice(amqp_url, tmp_path)


def test_a_quorum_queue_that_refuses_basic_get_is_drained(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """RabbitMQ accepts an exclusive consumer for a queue with a single active consumer; Warren does not."""
    drain_twice(rabbitmq.url, tmp_path, **{"x-single-active-consumer": True})


async def test_a_large_message_of_an_uncounted_queue_is_read(audit: Audit, tmp_path: Path) -> None:
    """basic.get fetches it in several frames, with its key; it is acknowledged with those after it."""
    audit.publish(numbered(0, 2, size=300_000))
    async with Proxy(audit.url) as proxy:
        proxy.to_client.rewrite = EmptyCounts(1000)
        assert await asyncio.to_thread(drain, audit, tmp_path, url=proxy.url, prefetch=1) == [0, 1, 2]
    assert audit.ready() == 0


@pytest.mark.slow
def test_a_reader_reconnects_after_a_lost_connection(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker, audit_queue(broker.url) as audit:
        audit.publish(numbered(0, 4999))
        with open_reader(audit, tmp_path / "spool", prefetch=100) as reader:
            start = reader.initialOffset()
            wait_for_messages(reader, start, 1)
            broker.kill()
            broker.start()
            audit.publish(numbered(5000, 5099))
            end = wait_for_messages(reader, start, 5100)
            assert bodies(rows(reader, start, end)) == list(range(5100))
        with open_reader(audit, tmp_path / "spool", timeout=10) as reader:
            assert reader.latestOffset(end, ALL) == end
            broker.kill()
            with pytest.raises(PipelineError, match=r"cannot read queue .*: the broker cannot be reached"):
                wait_until(lambda: bool(reader.latestOffset(end, ALL)) and False, "it is an error", 60)
            broker.start()
        assert audit.ready() == 0


@pytest.mark.slow
def test_a_broker_that_stops_responding_is_detected(tmp_path: Path) -> None:
    """The broker closes nothing; only its heartbeats are missing."""
    with BrokerProcess(tmp_path / "broker") as broker, audit_queue(broker.url) as audit:
        with open_reader(audit, tmp_path / "spool", url=f"{broker.url}?heartbeat=5", timeout=10) as reader:
            start = reader.initialOffset()
            assert reader.latestOffset(start, ALL) == start
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                with pytest.raises(PipelineError, match=r"does not answer|stopped answering"):
                    wait_until(lambda: reader.latestOffset(start, ALL) != start, "it is noticed", 240)
            finally:
                os.kill(broker.pid, signal.SIGCONT)
        with open_reader(audit, tmp_path / "spool") as reader:
            audit.publish(numbered(0, 0))
            assert bodies(rows(reader, start, wait_for_messages(reader, start, 1))) == [0]


def test_spooled_messages_are_read_without_a_broker(audit: Audit, tmp_path: Path) -> None:
    audit.publish(numbered(0, 4))
    with open_reader(audit, tmp_path) as reader:
        start = reader.initialOffset()
        wait_for_messages(reader, start, 5)
    for drain in (False, True):
        with open_reader(audit, tmp_path, url="amqp://127.0.0.1:1", timeout=0.5) as reader:
            if drain:
                reader.prepareForTriggerAvailableNow()
            end = reader.latestOffset(start, ALL)
            assert bodies(rows(reader, start, end)) == list(range(5))
            with pytest.raises(PipelineError, match=r"cannot be reached: Connection refused"):
                wait_for_messages(reader, end, 1)


@pytest.mark.slow
def test_a_bounded_run_ends_when_its_broker_stops_responding(tmp_path: Path) -> None:
    """Also without heartbeats: it requests the message count, and the reply has a timeout."""
    with BrokerProcess(tmp_path / "broker") as broker, audit_queue(broker.url) as audit:
        audit.publish(numbered(0, 1999))
        options = {"url": f"{broker.url}?heartbeat=0", "timeout": 10, "prefetch": 1}
        with open_reader(audit, tmp_path / "spool", **options) as reader:
            reader.prepareForTriggerAvailableNow()
            wait_until(lambda: reader.reportLatestOffset()["position"] != 0, "some have arrived")
            os.kill(broker.pid, signal.SIGSTOP)
            ended: list[PipelineError] = []

            def run() -> None:
                end = reader.initialOffset()
                try:
                    while True:
                        end = reader.latestOffset(end, ALL)
                except PipelineError as error:
                    ended.append(error)

            running = threading.Thread(target=run, daemon=True)
            running.start()
            running.join(120)
            os.kill(broker.pid, signal.SIGCONT)
            assert "answer" in str(*ended)


WORKER = """
import json, sys
from pathlib import Path
from pyspark.sql.streaming.datasource import ReadAllAvailable
from warren.pipeline.spool.spark_reader import SpoolReader
from warren.pipeline.spool.spool_options import SpoolOptions

reader = SpoolReader(SpoolOptions.from_options(json.loads(sys.argv[1])))
out = Path(sys.argv[2])
saved = sorted(out.glob("*.json"))
end = json.loads(saved[-1].read_bytes())["end"] if saved else reader.initialOffset()
while True:
    start, end = end, reader.latestOffset(end, ReadAllAvailable())
    if end == start:
        continue
    batches = [batch for piece in reader.partitions(start, end) for batch in reader.read(piece)]
    found = [int(body) for batch in batches for body in batch["body"].to_pylist()]
    beside = out / "new"
    beside.write_text(json.dumps({"start": start, "end": end, "found": found}))
    beside.rename(out / f"{end['position']:012}.json")
    reader.commit(end)
"""


@pytest.mark.slow
def test_killing_the_reader_at_any_moment_loses_and_repeats_no_message(audit: Audit, tmp_path: Path) -> None:
    """A process acts like a driver and is killed again and again while messages arrive: its output has each message once,
    in order."""
    out = tmp_path / "out"
    out.mkdir()
    options = {
        "url": audit.url,
        "queue": audit.name,
        "spooldir": str(tmp_path / "spool"),
        "spoolmaxbytes": "200000",
    }
    publishing = threading.Thread(target=audit.publish, args=(numbered(0, 4999),))
    publishing.start()

    def written() -> int:
        return max((int(file.stem) for file in out.glob("*.json")), default=0)

    for target in (500, 1500, 3000, 5000):
        worker = subprocess.Popen([sys.executable, "-c", WORKER, json.dumps(options), str(out)])
        try:
            deadline = time.monotonic() + 200
            while written() < target and time.monotonic() < deadline and worker.poll() is None:
                time.sleep(0.01)
            assert written() >= target
            assert worker.poll() is None
        finally:
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()
    publishing.join()
    batches = [json.loads(file.read_bytes()) for file in sorted(out.glob("*.json"))]
    assert [number for batch in batches for number in batch["found"]] == list(range(5000))
    with open_reader(audit, tmp_path / "spool") as reader:
        reader.prepareForTriggerAvailableNow()
        end = batches[-1]["end"]
        assert reader.latestOffset(end, ALL) == end, "what was not acknowledged comes again, and is known"
    assert audit.ready() == 0


def test_a_query_continues_from_its_checkpoint(spark: SparkSession, audit: Audit, tmp_path: Path) -> None:
    def run() -> None:
        frame = spark.readStream.format("amqp").options(
            url=audit.url, queue=audit.name, spoolDir=str(tmp_path / "spool"), maxMessagesPerTrigger="600"
        )
        writer = (
            frame.load()
            .selectExpr("offset", "CAST(body AS STRING) AS body", "message_id", "possible_duplicate")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        with source_errors():
            run_to_end(writer.start)

    audit.publish(numbered(0, 999))
    run()
    audit.publish(numbered(990, 1499))
    run()
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert [int(row["body"]) for row in found] == list(range(1500))
    assert [row["offset"] for row in found] == list(range(1500))
    assert not any(row["possible_duplicate"] for row in found)
    assert audit.ready() == 0
    (tmp_path / "spool" / "spool.json").write_text(
        json.dumps({"format": 1, "queue": audit.name, "spool": "x"})
    )
    with pytest.raises(
        PipelineError, match=r"the checkpoint belongs to another spool than .*: begin with a new"
    ):
        run()


def test_a_task_that_cannot_read_the_spool_folder_raises_an_error(audit: Audit, tmp_path: Path) -> None:
    """The spool is not mounted on an executor, and then damaged."""
    audit.publish(numbered(0, 0))
    with open_reader(audit, tmp_path) as reader:
        start = reader.initialOffset()
        end = wait_for_messages(reader, start, 1)
        (file,) = tmp_path.glob("*.spool")
        intact = file.read_bytes()
        file.write_bytes(intact[:-1])
        with pytest.raises(PipelineError, match="spool cannot be read: it ends early"):
            rows(reader, start, end)
        file.unlink()
        with pytest.raises(
            PipelineError, match="is not there on this machine: spoolDir must be on a file system"
        ):
            rows(reader, start, end)


@pytest.mark.slow
def test_errors_name_the_cause(audit: Audit, tmp_path: Path) -> None:
    def failure(**options: object) -> str:
        with (
            open_reader(audit, tmp_path / "spool", **options) as reader,
            pytest.raises(PipelineError) as failed,
        ):
            wait_for_messages(reader, reader.initialOffset(), 1)
        assert "\n" not in str(failed.value)
        return str(failed.value)

    with channel(audit.url) as consuming:
        consuming.basic_consume(audit.name, lambda *_: None)
        assert "it has another consumer (waited 10 s)" in failure(timeout=10)
    host = audit.url.rpartition("@")[2].removeprefix("amqp://")
    wrong = failure(url=f"amqp://guest:s3cret@{host}")
    assert "refused the user name or the password" in wrong
    assert "s3cret" not in wrong
    assert "Connection refused" in failure(url="amqp://127.0.0.1:1", timeout=0.5)
    with channel(audit.url) as declaring:
        declaring.queue_delete(audit.name)
    assert "there is no such queue; declare it" in failure()
    with channel(audit.url) as declaring:
        declaring.queue_declare(audit.name, durable=True, arguments={"x-queue-type": "stream"})
        with open_reader(audit, tmp_path / "spool") as reader:
            position: Any = reader.initialOffset()

            def one_more_is_taken() -> bool:
                # Again and again: a stream's consumer gets what is published once it is there.
                audit.publish(numbered(0, 0))
                end: Any = reader.latestOffset(position, ALL)
                return bool(end["position"] > position["position"])

            with pytest.raises(PipelineError, match="it is a stream, which needs no spool"):
                wait_until(one_more_is_taken, "one is taken")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spoolDir": "spool"}, "spoolDir is 'spool': it must be the absolute path of a folder"),
        ({"spoolDir": "hdfs://x/spool"}, "spoolDir is 'hdfs://x/spool': it must be the absolute path"),
        ({"dedupKey": "body"}, "dedupKey is 'body': it must be message_id, correlation_id or header:NAME"),
        ({"prefetch": "70000"}, "prefetch is 70000: AMQP allows 65535 at most"),
        ({"spoolMaxBytes": "1 GB"}, "spoolMaxBytes is '1 GB': it must be a number of bytes"),
        ({"stream": "s"}, "has no option 'stream' for a spool"),
        ({"queue": ""}, "needs the option 'queue'"),
    ],
)
def test_invalid_options_are_rejected(spark: SparkSession, options: dict[str, str], message: str) -> None:
    given = {"url": "amqp://127.0.0.1:1", "queue": "q", "spoolDir": "/spool", **options}
    with pytest.raises(AnalysisException, match=message):
        spark.readStream.format("amqp").options(**given).load()
