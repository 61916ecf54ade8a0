"""The delivery audit finds exactly the planted losses, duplicates and reorderings of a real run, by message id."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.captured_events import Source, batches, published
from tests.spark.conftest import channel
from tests.spark.job_runs import run_job
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually, wait_until
from tests.support.processes import Child
from tests.support.proxy import Proxy
from tests.support.proxy_tampering import Tampering
from warren.sdk import App, Capture, Command, Queue

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
STEADY = 60
DROPPED, REPEATED, SWAPPED = (7, 23, 24, 50), (12, 31), (17, 40)
LOST_ACKS = 2
"""Number of last deliveries whose acknowledgements are lost (more, if one acknowledgement stands for several)."""
CRASHED, HANDLED, AFTER = 20, 8, 10
"""Messages delivered to the consumer with automatic acknowledgement, handled by it, and delivered to the next one."""


@dataclass
class Planted:
    """Errors of a run, as its clients recorded them."""

    lost: set[str] = field(default_factory=set)
    duplicated: set[str] = field(default_factory=set)
    reordered: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Names:
    """Names that a run declares."""

    steady: str
    automatic: str
    stream: str


@pytest.fixture
def names() -> Names:
    prefix = uuid.uuid4().hex
    return Names(*(f"planted.{prefix}.{word}" for word in ("steady", "automatic", "events")))


@pytest.fixture
def delete_queues(amqp_url: str, names: Names) -> Iterator[None]:
    yield
    with channel(amqp_url) as deleting:
        for name in (names.steady, names.automatic, names.stream):
            deleting.queue_delete(name)


def test_planted_errors_are_found_without_broker_events(
    spark: SparkSession, amqp_url: str, names: Names, delete_queues: None, tmp_path: Path
) -> None:
    planted = asyncio.run(run_with_planted_errors(amqp_url, names))
    run_audit(spark, amqp_url, names, planted, tmp_path)


def test_planted_errors_are_found_and_located_with_broker_events(
    spark: SparkSession, names: Names, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "broker", "--capture-events", names.stream) as broker:
        planted = asyncio.run(run_with_planted_errors(broker.url, names))
        places = run_audit(spark, broker.url, names, planted, tmp_path / "out")
    assert places == {
        "on the way": len(DROPPED),
        "in the queue": 0,
        "to the consumer": CRASHED - HANDLED - 1,
        "at the consumer": 1,
        "no queue": 0,
    }


def run_audit(spark: SparkSession, url: str, names: Names, planted: Planted, out: Path) -> dict[str, int]:
    # A later event advances the captured time, so that all earlier events are settled.
    later = Source(app="later")
    later.record("started", time.time_ns() // 1000 + 5_000_000)
    with channel(url) as publishing:
        publishing.confirm_delivery()
        for batch in batches([later]):
            publishing.basic_publish("", names.stream, *published(batch))
    summary = run_job("delivery-audit", url, out, "--stream", names.stream, "--settle", "2s")
    found: dict[str, set[str]] = {}
    for row in spark.read.parquet(str(out / "findings")).select("finding", "message_id").collect():
        found.setdefault(row["finding"], set()).add(row["message_id"])
    assert found == {
        "lost": planted.lost,
        "duplicated": planted.duplicated,
        "reordered": planted.reordered,
    }
    assert summary.capture.missing == 0
    assert summary.messages.published == STEADY + 1 + CRASHED + AFTER
    assert summary.findings["lost"] == len(planted.lost) == len(DROPPED) + CRASHED - HANDLED
    page = (out / "report.html").read_text()
    assert f"{len(planted.lost)} messages were lost" in page
    return dict(summary.places)


async def run_with_planted_errors(url: str, names: Names) -> Planted:
    """Publish everything through a proxy that tampers, and handle it behind another one that loses acknowledgements."""

    class Job(Command, queue=Queue(names.steady, type="classic")):
        number: int

    def body(number: int) -> bytes:
        return Job(number=number).model_dump_json().encode()

    with channel(url) as declaring:
        declaring.queue_declare(names.automatic, durable=True, arguments={"x-queue-type": "classic"})
    handled: Counter[int] = Counter()
    async with Proxy(url) as to_publisher, Proxy(url) as to_consumer:
        to_publisher.to_server.rewrite = Tampering(
            drop=map(body, DROPPED), repeat=map(body, REPEATED), swap=map(body, SWAPPED)
        )
        arriving = STEADY - len(DROPPED) + len(REPEATED)
        to_consumer.to_server.rewrite = Tampering(forget=arriving - LOST_ACKS + 1)
        capture = Capture(stream=names.stream)
        publisher = App(to_publisher.url, name="publisher", capture=capture)

        def new_consumer(url: str) -> App:
            consumer = App(url, name="consumer", capture=capture)

            @consumer.handle(Job, concurrency=1)
            async def work(job: Job) -> None:
                handled[job.number] += 1

            return consumer

        async def publish(number: int) -> None:
            await publisher.publish(
                Job(number=number), message_id=f"steady-{number}", reliability="at_most_once"
            )

        async with publisher:
            async with new_consumer(to_consumer.url):
                for number in range(STEADY):
                    await publish(number)
                await eventually(lambda: handled.total() == arriving, "all are handled")
            # Another process gets the unacknowledged messages again, before later ones: it cannot recognise them.
            await publish(STEADY)
            async with new_consumer(url):
                await eventually(lambda: handled[STEADY] == 1, "the redelivered messages are handled")
                lost = await crash(url, names.automatic, names.stream, publisher)
    assert handled.total() >= arriving + 1 + LOST_ACKS
    return Planted(
        {f"steady-{number}" for number in range(STEADY) if not handled[number]} | lost,
        {f"steady-{number}" for number, times in handled.items() if times > 1},
        {f"steady-{number}" for number in SWAPPED},
    )


async def crash(url: str, queue: str, stream: str, publisher: App) -> set[str]:
    """Kill a consumer with automatic acknowledgement when everything is delivered to it, and start another one for later
    messages. Return the ids of messages that neither handled."""

    async def publish(first: int, count: int) -> None:
        for number in range(first, first + count):
            await publisher.publish(
                b"a", key=queue, message_id=f"automatic-{number}", reliability="at_most_once"
            )
        await asyncio.to_thread(
            wait_until, lambda: ready(url, queue) == count, "the messages are in the queue", 60
        )

    def handled(child: Child) -> set[str]:
        return {line.split()[1] for line in child.lines if line.startswith("handled ")}

    words = [sys.executable, "-m", "tests.spark.auto_ack_consumer", url, queue, stream]
    await publish(0, CRASHED)
    with Child([*words, str(HANDLED), "hold"], cwd=ROOT) as first:
        await asyncio.to_thread(first.wait_for_line, "holding ")
        await asyncio.to_thread(wait_until, lambda: ready(url, queue) == 0, "all are delivered")
        first.kill()
        await asyncio.to_thread(wait_until, lambda: consumers(url, queue) == 0, "the broker has noticed")
        done = handled(first)
    await publish(CRASHED, AFTER)
    with Child([*words, str(AFTER), "end"], cwd=ROOT) as second:
        await asyncio.to_thread(second.wait_for_line, "finished")
        done |= handled(second)
    return {f"automatic-{number}" for number in range(CRASHED + AFTER)} - done


def ready(url: str, queue: str) -> int:
    with channel(url) as checking:
        return int(checking.queue_declare(queue, passive=True).method.message_count)


def consumers(url: str, queue: str) -> int:
    with channel(url) as checking:
        return int(checking.queue_declare(queue, passive=True).method.consumer_count)
