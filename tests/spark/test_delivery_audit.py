"""The job delivery-audit compared with an independent computation, and each kind of finding on a small example."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.captured_events import COLUMNS, Source, batches, frame_of_batches, published
from tests.spark.captured_events import row as row_of
from tests.spark.conftest import Message
from tests.spark.delivery_simulation import SECOND, START, STREAM, Expected, SimulatedShop, quantile
from tests.spark.job_runs import run_job
from tests.spark.test_stream_source import declare_stream
from warren.core.capture_events import EventBatch
from warren.pipeline.jobs.batch_run import write_and_reload
from warren.pipeline.jobs.delivery_audit.capture_gaps import capture_of
from warren.pipeline.jobs.delivery_audit.facts import facts_of
from warren.pipeline.jobs.delivery_audit.losses import Rules
from warren.pipeline.jobs.delivery_audit.page import page
from warren.pipeline.jobs.delivery_audit.running_maximum import with_maximum_before
from warren.pipeline.jobs.delivery_audit.summary import Summary, summary_of
from warren.pipeline.jobs.event_rows import events_of
from warren.pipeline.jobs.job import Run

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

RULES = Rules(timedelta(seconds=1), timedelta(minutes=1))


def audited(
    spark: SparkSession, sources: Iterable[Source], folder: Path, rules: Rules = RULES
) -> tuple[Summary, DataFrame]:
    """Return the summary, and the findings."""
    events = write_and_reload(events_of(frame_of_batches(spark, batches(sources))), str(folder / "events"))
    facts, capture = facts_of(events), capture_of(events)
    summary = summary_of(
        events, facts, capture, rules, lambda frame, name: write_and_reload(frame, str(folder / name))
    )
    return summary, spark.read.parquet(str(folder / "findings"))


def messages_with_finding(findings: DataFrame, kind: str) -> set[tuple[str, str]]:
    rows = findings.where(findings["finding"] == kind).select("message_id", "queue").collect()
    return {(row["message_id"], row["queue"]) for row in rows}


def test_the_numbers_are_those_of_pandas(spark: SparkSession, tmp_path: Path) -> None:
    shop = SimulatedShop(5, 700, broker=True)
    summary, findings = audited(spark, shop.sources, tmp_path)
    expected = Expected(shop.sources, SECOND, 60 * SECOND)
    assert_agrees(summary, findings, expected)
    assert summary.capture.events == len(expected.events)
    assert min(summary.messages.expired, summary.messages.rejected) > 0
    assert STREAM not in {backlog.queue for backlog in summary.backlogs}
    report = page(summary, Run("delivery-audit", "amqp://localhost/", ("s",), None, False, 1.0))
    assert f"{summary.messages.expired} expired" in report
    assert (
        ", ".join(
            f"{summary.findings[kind]} {'messages were ' if kind == 'lost' else ''}{kind}"
            for kind in ("lost", "duplicated", "reordered", "late")
        )
        in report
    )


@pytest.mark.parametrize("event", ["published", "delivered", "acked"])
@pytest.mark.parametrize("at", ["null", str(2**62)])
def test_an_event_without_a_time_in_range_leaves_the_others(
    spark: SparkSession, tmp_path: Path, event: str, at: str
) -> None:
    source = Source("broker", "shop", "shop-1")
    address: dict[str, Any] = {"exchange": "", "routing_key": "q", "queue": "q", "connection": "c"}
    for number in range(4):
        for step, kind in enumerate(("published", "delivered", "acked")):
            consumer: dict[str, Any] = {} if kind == "published" else {"consumer": "t"}
            source.record(kind, START + number * SECOND + step, f"m{number}", **address, **consumer)
    source.flush()
    kind, app, headers, body = row_of(source.batches[0])
    events = json.loads(body)
    odd = next(each for each in events if (each["event"], each["message_id"]) == (event, "m2"))
    odd["at"] = json.loads(at)
    frame = spark.createDataFrame([(kind, app, headers, json.dumps(events).encode())], COLUMNS)
    rows = write_and_reload(events_of(frame), str(tmp_path / "events"))
    summary = summary_of(
        rows,
        facts_of(rows),
        capture_of(rows),
        RULES,
        lambda table, name: write_and_reload(table, str(tmp_path / name)),
    )
    assert summary.capture.events == 12
    assert summary.messages.published >= 3
    assert summary.messages.delivered >= 3
    assert page(summary, Run("delivery-audit", "amqp://localhost/", ("s",), None, False, 1.0))


def assert_agrees(summary: Summary, findings: DataFrame, expected: Expected) -> None:
    assert {message_id for message_id, _ in messages_with_finding(findings, "lost")} == expected.lost()
    assert messages_with_finding(findings, "duplicated") == expected.duplicated()
    assert messages_with_finding(findings, "reordered") == expected.reordered()
    assert messages_with_finding(findings, "late") == expected.late_messages()
    assert messages_with_finding(findings, "unknown") == set()
    assert min(summary.findings[kind] for kind in ("lost", "duplicated", "reordered", "late")) >= 10
    assert summary.messages.published == len(expected.published) == 700
    assert summary.messages.delivered == expected.count_messages_with("delivered")
    assert summary.messages.acknowledged == len({message_id for message_id, _ in expected.successes()})
    facts = (summary.messages.dead_lettered, summary.messages.expired, summary.messages.rejected)
    assert facts == tuple(map(expected.count_messages_with, ("dead_lettered", "expired", "rejected")))
    latencies = expected.latencies()
    assert {queue.queue for queue in summary.queues if queue.stream} == {STREAM}
    assert {queue.queue for queue in summary.queues} == {*latencies, STREAM}
    for queue in summary.queues:
        if queue.stream:
            assert not any(queue.findings.values())
            assert (queue.to_delivery.count, queue.to_acknowledgement.count) == (0, 0)
            continue
        of_queue = zip((queue.to_delivery, queue.to_acknowledgement), latencies[queue.queue], strict=True)
        for latency, seconds in of_queue:
            assert latency.count == len(seconds)
            assert latency.maximum == pytest.approx(seconds[-1])
            assert latency.quantiles == {
                level: pytest.approx(quantile(seconds, float(level))) for level in ("0.50", "0.90", "0.99")
            }


class QueueScenario:
    """Single messages of one publisher to one queue, one second apart, and their consumer."""

    def __init__(self, name: str) -> None:
        self.queue = name
        self.address: dict[str, Any] = {"exchange": "x", "routing_key": name, "connection": f"{name}-c"}
        self.publisher = Source(name=f"publisher-{name}")
        self.consumer = Source(name=f"consumer-{name}")
        self.broker = Source("broker", name=f"broker-{name}")
        self.subscription: dict[str, Any] = {
            "queue": name,
            "connection": f"{name}-d",
            "consumer": f"{name}-t",
        }
        self.at = 1_700_000_000 * SECOND

    @property
    def sources(self) -> list[Source]:
        return [self.publisher, self.consumer, self.broker]

    def published(self, *numbers: int) -> None:
        for number in numbers:
            self.publisher.record("published", self.at + number * SECOND, self.id(number), **self.address)

    def enqueued(self, *numbers: int) -> None:
        for number in numbers:
            at = self.at + number * SECOND + 10
            self.broker.record("published", at, self.id(number), **self.address, queue=self.queue)

    def delivered(self, *numbers: int, by: Source | None = None, **known: Any) -> None:
        for number in numbers:
            at = self.at + number * SECOND + 1000
            (by or self.consumer).record(
                "delivered", at, self.id(number), **{**self.address, **self.subscription, **known}
            )

    def acked(self, *numbers: int) -> None:
        for number in numbers:
            self.consumer.record(
                "acked", self.at + number * SECOND + 2000, self.id(number), **self.subscription
            )

    def rejected(self, number: int) -> None:
        """Deliver, reject, and dead-letter a message by the broker."""
        self.delivered(number)
        at = self.at + number * SECOND + 2000
        self.consumer.record("rejected", at, self.id(number), **self.subscription)
        self.broker.record("dead_lettered", at, self.id(number), queue=self.queue, reason="rejected")

    def completed(self, *numbers: int) -> None:
        """Publish, deliver and acknowledge a message."""
        for number in numbers:
            self.published(number)
            self.delivered(number)
            self.acked(number)

    def id(self, number: int) -> str:
        return f"{self.queue}-{number}"


ENDED = {"replayed": 2, "waits": 1, "parked": 1, "log": 0}
"""Acknowledged messages of each queue."""


def first_event_time(batch: EventBatch) -> int:
    """Return the time of the batch's first event."""
    return int(json.loads(batch.body)[0]["at"])


def numbers_of(pairs: set[tuple[str, str]], scenario: QueueScenario) -> set[int]:
    return {int(each.rpartition("-")[2]) for each, _ in pairs if each.rpartition("-")[0] == scenario.queue}


def test_each_kind_of_finding(spark: SparkSession, tmp_path: Path) -> None:
    """Each example has its own queue, so that one run checks them all."""
    plain = QueueScenario("plain")
    plain.completed(0, 1)
    plain.published(2)
    plain.completed(3)
    plain.published(4, 5)  # Nothing has come after them: they may wait.

    first = QueueScenario("first")
    first.published(0)  # Nothing was ever seen before it: nobody knows where it would have come out.
    first.completed(1, 2)

    silent = QueueScenario("silent")
    silent.completed(0)
    silent.published(1, 2)
    silent.completed(3)
    silent.consumer.flush()
    silent.delivered(4)
    assert silent.consumer.lose() == 1
    silent.published(4)
    silent.completed(
        6
    )  # Its consumer lost an event between 3 and 6: 4 may be the one that it did not record; 1 and 2 were passed before.

    headless = QueueScenario("headless")
    earlier = Source(name="earlier")
    headless.published(0, 1)
    headless.delivered(0, by=earlier)
    headless.delivered(1)
    assert headless.consumer.lose() == 1
    headless.completed(2)  # The first that this consumer records; 1 may be one that it did not record before.
    headless.published(3)
    headless.completed(4)

    delayed = QueueScenario("delayed")
    delayed.completed(0)
    delayed.published(1)
    delayed.completed(2)

    held = QueueScenario("held")
    held.published(0, 1, 2, 3)
    held.enqueued(0, 1, 2, 3)
    held.delivered(0, 2)
    held.acked(0, 2)  # The queue had 1, gave 2, and still has 3.

    unbound = QueueScenario("unbound")
    unbound.published(0)
    unbound.broker.record("published", unbound.at, unbound.id(0), **unbound.address)

    automatic = QueueScenario("automatic")
    automatic.published(*range(8))
    automatic.enqueued(*range(8))
    automatic.delivered(*range(6), by=automatic.broker, no_ack=True)
    automatic.delivered(0, 1, 2, no_ack=True)
    automatic.acked(0, 1)  # Killed with 2 in its hands, and 3, 4, 5 on the way to it.

    careless = QueueScenario("careless")
    careless.published(0, 1)
    careless.enqueued(0, 1)
    careless.delivered(0, 1, by=careless.broker, no_ack=True)  # Nobody tells what became of them there.

    again = QueueScenario("again")
    again.completed(0, 1, 2)
    again.delivered(0, redelivered=True)
    again.acked(0)
    again.delivered(1, attempt=2)
    again.acked(1)
    again.consumer.record("requeued", again.at, again.id(2), **again.subscription)
    again.delivered(2, redelivered=True)

    swapped = QueueScenario("swapped")
    swapped.published(0, 1, 2, 3, 4)
    swapped.delivered(0, 2, 1, 4)
    swapped.delivered(3, redelivered=True)
    swapped.acked(0, 1, 2, 3, 4)

    gone = QueueScenario("gone")
    gone.published(0, 1, 2, 3, 4)
    gone.enqueued(0, 1, 2, 3)
    gone.broker.record("dropped", gone.at, gone.id(0), queue="gone", reason="maxlen")
    gone.broker.record("purged", gone.at + 5 * SECOND // 2, queue="gone", reason="purged")
    gone.broker.record("published", gone.at + 4 * SECOND, gone.id(4), **gone.address, reason="duplicate")
    gone.delivered(3)
    gone.acked(3)

    replayed = QueueScenario("replayed")
    for number in range(3):
        replayed.published(number)
        replayed.rejected(number)
    replayed.delivered(1)
    replayed.acked(1)  # It came again, and went well.
    for _ in range(2):
        replayed.delivered(2)
        replayed.acked(2)  # And this one twice.

    waits = QueueScenario("waits")  # A queue whose messages wait for their next attempt, and die to it.
    waits.published(0)
    waits.rejected(0)
    waits.broker.record("published", waits.at + SECOND, waits.id(0), exchange="", queue="waits.later")
    for event in ("expired", "dead_lettered"):
        waits.broker.record(event, waits.at + 2 * SECOND, waits.id(0), queue="waits.later", reason="expired")
    waits.delivered(0)
    waits.acked(0)

    parked = QueueScenario("parked")  # The SDK's own dead letters, of which one was played again.
    parked.published(0, 1)
    for number in (0, 1):
        parked.delivered(number)
        parked.consumer.record("dead_lettered", parked.at, parked.id(number), queue="parked", reason="failed")
        parked.acked(number)
    parked.delivered(1)
    parked.acked(1)

    log = QueueScenario("log")
    log.subscription = {**log.subscription, "stream": True}
    log.published(*range(6))
    for number in range(6):
        at = log.at + number * SECOND + 10
        log.broker.record("published", at, log.id(number), **log.address, queue="log", stream=True)
    log.delivered(0, 3, 5)  # It began anew in between, with what came next.
    log.acked(0, 3, 5)
    other = Source(name="other-reader")
    log.delivered(5, 0, 1, by=other, connection="other")  # Then it went back to the beginning.
    for number in (5, 0, 1):
        other.record("acked", log.at + 200 * SECOND, log.id(number), **log.subscription)

    ahead = QueueScenario("ahead")  # The clock of its publisher is two minutes ahead.
    for number in range(5):
        at = ahead.at + (number + 120) * SECOND
        ahead.publisher.record("published", at, ahead.id(number), **ahead.address)
    ahead.delivered(0, 1)
    ahead.consumer.flush()
    ahead.delivered(2)
    assert ahead.consumer.lose() == 1
    ahead.delivered(3, 4)

    stepped = QueueScenario("stepped")  # The clock of its consumer is set back while it captures nothing.
    stepped.published(0, 1, 2, 3)
    stepped.delivered(0)
    stepped.consumer.record(
        "delivered", stepped.at + 200 * SECOND, stepped.id(1), **stepped.address | stepped.subscription
    )
    stepped.consumer.flush()
    stepped.delivered(2)
    assert stepped.consumer.lose() == 1
    stepped.delivered(3)

    end = QueueScenario("end")
    end.published(600)

    scenarios = [
        plain, first, silent, headless, delayed, held, unbound, automatic, careless, again, swapped, gone,
        replayed, waits, parked, log, ahead, stepped, end,
    ]  # fmt: skip
    rules = Rules(RULES.settle, RULES.late, ("delayed",))
    summary, findings = audited(
        spark,
        [earlier, other, *(source for scenario in scenarios for source in scenario.sources)],
        tmp_path,
        rules,
    )
    lost, unknown = messages_with_finding(findings, "lost"), messages_with_finding(findings, "unknown")
    assert {
        scenario.queue: numbers_of(lost, scenario) for scenario in scenarios if numbers_of(lost, scenario)
    } == {
        "plain": {2},
        "silent": {1, 2},
        "headless": {3},
        "held": {1},
        "unbound": {0},
        "automatic": {2, 3, 4, 5},
    }
    assert unknown == {
        ("silent-4", "silent"),
        ("headless-1", "headless"),
        ("ahead-2", "ahead"),
        ("stepped-2", "stepped"),
    }
    assert messages_with_finding(findings, "duplicated") == {("again-0", "again"), ("replayed-2", "replayed")}
    assert messages_with_finding(findings, "reordered") == {("swapped-1", "swapped")}
    assert summary.places == {
        "on the way": 4,
        "in the queue": 1,
        "to the consumer": 3,
        "at the consumer": 1,
        "no queue": 1,
    }
    assert messages_with_finding(findings, "late") == set()
    assert {queue.queue: queue.acknowledged for queue in summary.queues if queue.queue in ENDED} == ENDED
    rows = spark.read.parquet(str(tmp_path / "messages")).where("queue LIKE 'waits%'").collect()
    assert {row["queue"]: row["fate"] for row in rows} == {
        "waits": "acknowledged",
        "waits.later": "dead_lettered",
    }
    assert (summary.messages.dead_lettered, summary.messages.expired, summary.messages.rejected) == (6, 1, 4)
    assert summary.capture.missing == 4
    assert {(gap.source, gap.missing, gap.since is None) for gap in summary.capture.gaps} == {
        ("consumer-silent", 1, False),
        ("consumer-headless", 1, True),
        ("consumer-ahead", 1, False),
        ("consumer-stepped", 1, False),
    }
    assert summary.messages.under_way == 1
    helps = {backlog.queue: backlog.measures[0].kind for backlog in summary.backlogs}
    assert (helps["plain"], helps["held"]) == ("add_consumers", "add_consumers")
    report = page(summary, Run("delivery-audit", "amqp://localhost/", ("s",), None, False, 1.0))
    for words in (
        "10 messages were lost, 2 duplicated, 1 reordered; events are missing",
        "silent-4",
        "consumer-silent: 1 missing",
        "consumers like these",
    ):
        assert words in report
    assert summary.messages.redelivered == 3
    assert (summary.stays["handed_over"], summary.stays["dropped"], summary.stays["purged"]) == (6, 2, 2)


def test_continuous_runs_give_the_numbers_of_pandas(
    spark: SparkSession, amqp_url: str, tmp_path: Path
) -> None:
    """Two runs; some batches are repeated, and the second run reads events from ten minutes before."""
    shop = SimulatedShop(5, 700, broker=False)
    expected = Expected(shop.sources, SECOND, 60 * SECOND)
    sent = sorted(batches(shop.sources), key=first_event_time)
    # A source whose clock is ahead of all others.
    later = Source(app="later")
    later.record("started", START + 600 * SECOND)
    stream = declare_stream(amqp_url)
    words = ("--stream", stream.name, "--available-now", "--settle", "1s")
    part = len(sent) * 3 // 4
    stream.publish([Message(*published(batch)) for batch in (*batches([later]), *sent[:part])])
    first = run_job("delivery-audit", amqp_url, tmp_path, *words)
    stream.publish([Message(*published(batch)) for batch in sent[part - 3 :]])

    summary = run_job("delivery-audit", amqp_url, tmp_path, *words)

    assert_agrees(summary, spark.read.parquet(str(tmp_path / "findings")), expected)
    assert summary.capture.missing == 0
    assert 0 < first.messages.acknowledged < summary.messages.acknowledged


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_the_running_maximum_does_not_depend_on_the_chunk_size(spark: SparkSession, piece: int) -> None:
    draw = random.Random(piece)
    rows = [
        (way, place, draw.choice([None, draw.randrange(50)]))
        for way in ("one", "other")
        for place in draw.sample(range(-100, 100), 60)
    ]
    frame = spark.createDataFrame(rows, "way STRING, place BIGINT, value BIGINT")
    judged = with_maximum_before(frame, ["way"], "place", "value", "best", piece).collect()
    assert len(judged) == len(rows)
    for row in judged:
        before = [value for way, place, value in rows if way == row.way and place < row.place]
        assert row.best == max((value for value in before if value is not None), default=None)
