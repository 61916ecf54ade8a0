"""The job flow compared with pandas, on simulated events of each kind of queue."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.captured_events import COLUMNS, Source, batches, frame_of_batches, row
from tests.spark.conftest import Audit, channel
from tests.spark.flow_simulation import (
    Queue,
    at_seconds,
    consumer_load,
    event_table,
    simulate,
    sources,
    trend,
)
from tests.spark.job_runs import run_job
from tests.spark.order_data import Order, from_file, generated, messages_of_order
from tests.support.broker_process import BrokerProcess
from tests.support.capture_reader import CaptureReader, Event
from tests.support.polling import wait_until
from warren.cli.pipeline import parse
from warren.core.errors import UsageError
from warren.pipeline.jobs import flow
from warren.pipeline.jobs.flow.aggregates import captured_of
from warren.pipeline.jobs.flow.facts import COUNTS, KEYS, MAXIMA, event_shares, partial_sums
from warren.pipeline.jobs.flow.queue_levels import unrouted
from warren.pipeline.jobs.flow.summary import Options, Summary, TimelineStep
from warren.pipeline.jobs.flow.summary import Queue as Counted
from warren.pipeline.jobs.job import EVENTS, Run
from warren.pipeline.jobs.run_options import RunOptions
from warren.pipeline.report.formatting import clock

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
RUN = Run("flow", "amqp://localhost/", ("s",), None, False, 1.0)
SECONDS = 42
QUEUES = [
    Queue("calm", rate=20, consumers=2, handling=0.01, waiting=30, seed=1),
    Queue("slow", rate=60, consumers=2, prefetch=20, handling=0.05, rejected=0.05, exchange="shop", seed=2),
    Queue("starved", rate=40, consumers=1, prefetch=1, handling=0.01, latency=0.02, seed=3),
    Queue("failing", rate=15, consumers=1, prefetch=5, handling=0.08, requeued=0.5, seed=4),
    Queue("abandoned", rate=10, consumers=0, max_length=100, seed=5),
    Queue("quick", rate=25, consumers=1, no_ack=True, seed=6),
]


def events() -> list[dict[str, object]]:
    found = [each for queue in QUEUES for each in simulate(queue, SECONDS)]
    return sorted(found, key=lambda each: each["at"])


def options_of(*words: str) -> RunOptions[Options]:
    return parse(["flow", "--source", "amqp://localhost", "--stream", "s", "--out", "o", *words]).options


def summarise(captured: DataFrame, *words: str) -> Summary:
    options = options_of(*words)
    return flow.summarise({EVENTS: captured, **flow.tables(captured, options)}, options)


@pytest.fixture(scope="module")
def all_events(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Return the events of all queues, as the job stores them."""
    path = str(tmp_path_factory.mktemp("flow") / EVENTS)
    flow.events(frame_of_batches(spark, batches(sources(events()))), options_of()).write.parquet(path)
    return spark.read.parquet(path)


def assert_agrees(summary: Summary, rows: pd.DataFrame, consumers: pd.DataFrame, step: int) -> None:
    """Compare every number of every queue and consumer with the events."""
    first, last = int(rows.second.min()), int(rows.second.max()) + 1
    assert summary.seconds == last - first
    assert summary.step_seconds == step
    assert {queue.queue for queue in summary.queues} == set(rows.queue)
    for queue in summary.queues:
        mine = rows[rows.queue == queue.queue]
        counts = mine.event.value_counts()
        for name in ("published", "delivered", "acked", "rejected", "requeued"):
            assert getattr(queue, name) == counts.get(name, 0), (queue.queue, name)
        assert queue.dropped == (mine.reason == "maxlen").sum()
        assert queue.redelivered == (mine.redelivered & (mine.event == "delivered")).sum()
        assert queue.auto_acked == (mine.no_ack & (mine.event == "delivered")).sum()
        assert queue.published_a_second == pytest.approx(counts.get("published", 0) / (last - first))
        ready = at_seconds(mine, "ready", first, last)
        unacked = at_seconds(mine, "unacked", first, last)
        assert (queue.ready, queue.unacked, queue.peak) == (ready.iloc[-1], unacked.iloc[-1], ready.max())
        ends = [min(first + (at + 1) * step, last) - 1 for at in range(len(queue.timeline))]
        assert [each.ready for each in queue.timeline] == [ready[end] for end in ends]
        assert [each.unacked for each in queue.timeline] == [unacked[end] for end in ends]
        starts = [first + at * step for at in range(len(queue.timeline))]
        assert [each.seconds for each in queue.timeline] == [
            end + 1 - start for start, end in zip(starts, ends, strict=True)
        ]
        slots = (mine.second - first) // step
        for name in ("published", "delivered"):
            found = slots[mine.event == name].value_counts()
            assert [getattr(each, name) for each in queue.timeline] == [
                found.get(at, 0) for at in range(len(queue.timeline))
            ]
        slope, error = trend([ready[end] for end in ends[: (last - first) // step]], step)
        assert queue.growth is not None
        assert queue.growth.slope == pytest.approx(slope)
        # Between the quantiles of the normal distribution and of Student's t with few degrees of freedom.
        assert 1.95 * error <= queue.growth.high - slope <= 4.4 * error + 1e-9
        assert slope - queue.growth.low == pytest.approx(queue.growth.high - slope)
    for consumer in summary.consumers:
        mine = consumers[(consumers.consumer == consumer.consumer)]
        seconds, average, idle = consumer_load(mine, last)
        assert consumer.seconds == seconds
        assert consumer.held == pytest.approx(average)
        assert consumer.idle == pytest.approx(idle)
        assert consumer.prefetch is not None
        assert consumer.window_used == pytest.approx(average / consumer.prefetch)


@pytest.fixture(scope="module")
def summary(all_events: DataFrame) -> Summary:
    return summarise(all_events, "--limit", "1GB")


def test_the_numbers_are_those_of_pandas(summary: Summary) -> None:
    rows = event_table(events())
    sdk = rows[(rows.by == "sdk") & rows.consumer.notna()]
    assert_agrees(summary, rows[rows.by == "broker"], sdk, 4)
    assert (summary.events, summary.sources, summary.missing) == (len(rows), 2, 0)
    assert summary.unrouted == 0
    assert {queue.by for queue in summary.queues} == {"broker"}
    assert {consumer.by for consumer in summary.consumers} == {"sdk"}
    kinds = {queue.queue: [each.kind for each in queue.measures] for queue in summary.queues}
    assert kinds["calm"] == kinds["quick"] == ["nothing"]
    assert kinds["slow"] == ["add_consumers"]
    assert kinds["starved"] == ["raise_prefetch"]
    assert kinds["failing"][0] == "handle_what_fails"
    assert kinds["abandoned"] == ["consume"]
    assert {queue.queue: queue.began_with for queue in summary.queues if queue.began_with} == {"calm": 30}


def test_deliveries_reveal_the_queues_of_publishes(all_events: DataFrame) -> None:
    """Deliveries reveal the queue of publishes with the same exchange and routing key."""
    only = all_events.where("by = 'sdk'")
    rows = event_table(events())
    rows = rows[rows.by == "sdk"].copy()
    rows["queue"] = rows.queue.fillna(rows.routing_key)
    summary = summarise(only, "--step", "7s")
    assert_agrees(summary, rows, rows[rows.consumer.notna()], 4)
    assert {queue.by for queue in summary.queues} == {"sdk"}
    nobody = flow.tables(only.where("event != 'delivered'"), options_of())
    lost = unrouted(nobody["steps"], nobody["routes"]).agg({"published": "sum"}).collect()[0][0]
    assert lost == ((rows.event == "published") & (rows.exchange == "shop")).sum()


def test_partial_sums_add_up_to_the_whole(all_events: DataFrame) -> None:
    """The output of a continuous run, divided anywhere, adds up to that of a batch run."""
    arrow = event_shares(all_events).toArrow()
    parts = [part for at in range(0, arrow.num_rows, 997) for part in arrow.slice(at, 997).to_batches()]
    cut = len(parts) // 3

    def summed(batches: Iterator[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(list(partial_sums(batches, KEYS, COUNTS, MAXIMA)))

    twice = pa.concat_tables([summed(iter(parts[:cut])), summed(iter(parts[cut:]))])
    whole = flow.tables(all_events, options_of())["steps"].toArrow().to_pandas()
    folded = twice.to_pandas().groupby(list(KEYS), dropna=False).sum()
    for name in set(COUNTS) - {"acknowledgements"}:
        assert folded[name].sum() == whole[name].sum(), name
    key = [name for name in KEYS if name != "second"]
    by_key = whole.groupby(key, dropna=False)["delivered"].sum()
    assert folded.reset_index().groupby(key, dropna=False)["delivered"].sum().to_dict() == by_key.to_dict()


@pytest.mark.parametrize("at", ["null", str(2**62), str(-(2**63)), "9" * 30, '"soon"'])
def test_an_event_without_a_time_in_range_leaves_the_others(spark: SparkSession, at: str) -> None:
    source = Source("broker", "shop", "shop-1")
    for number in range(6):
        source.record(
            "published", 1_700_000_000_000_000 + number, f"m{number}", exchange="", routing_key="q", queue="q"
        )
    source.flush()
    kind, app, headers, body = row(source.batches[0])
    odd = body.replace(b'"at":%d' % 1_700_000_000_000_003, b'"at":' + at.encode())
    assert odd != body
    frame = spark.createDataFrame([(kind, app, headers, odd)], COLUMNS)
    found = summarise(flow.events(frame, options_of()))
    (queue,) = found.queues
    assert (queue.queue, queue.published) == ("q", 5)
    assert flow.page(found, RUN)


def test_lost_events_are_reported(spark: SparkSession, summary: Summary) -> None:
    captured = sources(simulate(QUEUES[0], 8), every=100)
    for source in captured:
        source.flush()
        del source.batches[1]
    kept = sum(batch.count for source in captured for batch in source.batches)
    everything = sum(source.batches[-1].sequence + source.batches[-1].count - 1 for source in captured)
    found = captured_of(flow.events(frame_of_batches(spark, batches(captured)), options_of()))
    assert found == {"sources": 2, "events": kept, "missing": everything - kept, "cut_off": 0}
    assert found["missing"] > 0
    assert f"Capture lost {found['missing']:,} events" in flow.page(
        replace(summary, missing=found["missing"]), RUN
    )


def test_a_short_last_step_does_not_look_like_an_outage(summary: Summary) -> None:
    """The page draws the rate in the seconds that the step has, and its end."""
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    steps = tuple(
        TimelineStep((noon + timedelta(minutes=at)).isoformat(), seconds, count, count, 0, count, 7, 0)
        for at, (seconds, count) in enumerate([(60, 600), (60, 600), (10, 100)])
    )
    queue = replace(summary.queues[0], stream=False, timeline=steps)
    page = flow.page(replace(summary, queues=(queue,), step_seconds=60), RUN)
    backlog, rates = page.split("<section>")[-3:-1]
    assert "messages per second</h2>" in rates
    for points in re.findall(r'<polyline[^>]* points="([^"]+)"', rates):
        assert len({point.partition(",")[2] for point in points.split()}) == 1
    assert f">{clock((noon + timedelta(seconds=130)).isoformat())}<" in backlog


def test_the_page_shows_forecasts(summary: Summary) -> None:
    by_name = {queue.queue: queue for queue in summary.queues}
    slow, calm = by_name["slow"], by_name["calm"]
    assert slow.forecast is not None
    assert slow.growth is not None
    assert slow.bytes_a_message is not None
    assert slow.bytes_a_message == pytest.approx(124.5, abs=0.5)
    assert slow.ready is not None
    left = 1_000_000_000 / slow.bytes_a_message - slow.ready
    assert slow.forecast.full_in == pytest.approx(left / slow.growth.slope)
    assert slow.forecast.earliest == pytest.approx(left / slow.growth.high)
    assert slow.forecast.latest == pytest.approx(left / slow.growth.low)
    assert calm.forecast is not None
    assert calm.forecast.full_in is None


def test_events_of_a_real_broker(spark: SparkSession, tmp_path: Path) -> None:
    """Events of a real broker for a client's actions, in a batch run and in a continuous run."""
    file = orders()
    with (
        BrokerProcess(tmp_path / "broker", "--capture-events", "told") as broker,
        channel(broker.url) as using,
    ):
        send(broker.url, file)
        dead_letter_queue = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead-letters"}
        using.queue_declare("dead-letters", durable=True)
        using.queue_declare("work", durable=True, arguments=dead_letter_queue)
        using.queue_declare("short", durable=True, arguments={"x-max-length": 10})
        using.queue_declare("purged", durable=True)
        for name, number in (("work", 100), ("short", 25), ("purged", 7), ("nowhere", 5)):
            for _ in range(number):
                using.basic_publish("", name, b"x" * 50)
        using.basic_qos(prefetch_count=20)
        for got, (method, _, _) in enumerate(using.consume("work"), 1):
            if got <= 60:
                using.basic_ack(method.delivery_tag)
            elif got <= 70:
                using.basic_reject(method.delivery_tag, requeue=False)
            elif got <= 75:
                using.basic_reject(method.delivery_tag, requeue=True)
            if got == 80:
                break
        using.queue_purge("purged")
        using.basic_publish("", "purged", b"after")
        for name, number in (("dead-letters", 10), ("purged", 1)):
            assert using.queue_declare(name, passive=True).method.message_count == number

        stream = Audit(broker.url, "told")
        kinds = ("rejected", "purged", "published")
        wait_until(lambda: has_all_events(stream, kinds), "the events are in the stream")
        summary = run_job("flow", broker.url, tmp_path / "once", "--stream", "told", "--limit", "1MB")
        with closing(CaptureReader(broker.url, "told")) as raw:
            raw.until(lambda found: any(map(is_last, found.events)))
        onwards = ("--stream", "told", "--limit", "1MB", "--continuous", "--available-now")
        on = run_job("flow", broker.url, tmp_path / "on", *onwards)
    assert replace(on, began=summary.began) == summary
    queues = {queue.queue: queue for queue in summary.queues}
    assert_orders_agree(queues, file, event_table([{**each, "by": "broker"} for each in raw.events]))
    assert set(queues) == {"work", "short", "purged", "dead-letters", "log", *ORDER_QUEUES}
    work = queues["work"]
    # Ten were rejected; of twenty deliveries after the sixtieth acknowledgement five were given back, and delivered again.
    assert (work.published, work.acked, work.rejected, work.requeued) == (100, 60, 10, 5)
    assert work.ready + work.unacked == 30
    assert work.unacked == 20
    assert (work.delivered, work.redelivered) == (60 + 10 + 5 + 20, 5)
    assert (queues["short"].dropped, queues["short"].ready) == (15, 10)
    assert queues["purged"].published == 8
    assert queues["purged"].ready <= 1, "what comes in the second of a purge cannot be told from what it took"
    assert (queues["dead-letters"].published, queues["dead-letters"].ready) == (10, 10)
    assert work.bytes_a_message == 50
    assert work.acknowledged_together is not None
    assert (summary.missing, summary.unrouted) == (0, 0)
    consumers = {each.queue: (each.prefetch, each.delivered) for each in summary.consumers}
    assert consumers["work"] == (20, 95)
    written = json.loads((tmp_path / "once" / "summary.json").read_text())
    assert {queue["queue"]: queue["ready"] for queue in written["queues"]}["short"] == 10
    html = (tmp_path / "once" / "report.html").read_text()
    assert "work: backlog" in html
    assert "log: backlog" not in html
    assert "A stream keeps all messages, so it has only rates." in html


ORDER_QUEUES = ("order_placed", "order_paid", "order_cancelled", "order_refunded", "cancel_order")
"""Queues of the order messages; each is named after the message type it gets."""
HANDLED = 600


def orders() -> list[Order]:
    """Return the first orders of the file that ORDERS names, if it is set."""
    named = os.environ.get("ORDERS")
    return from_file(Path(named))[:1000] if named else generated(1000, seed=3)


def send(url: str, file: list[Order]) -> None:
    """Publish the orders' messages and handle all but some placed ones; publish to a stream too, which is read twice."""
    with channel(url) as using:
        for name in ORDER_QUEUES:
            using.queue_declare(name, durable=True)
        using.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
        captured = [message for order in file for message in messages_of_order(order)]
        for message in captured:
            assert message.properties is not None
            using.basic_publish("", message.properties.type, message.body, message.properties)
        for _ in range(8):
            using.basic_publish("", "log", b"x" * 10)
        sent = {
            name: sum(m.properties.type == name for m in captured if m.properties) for name in ORDER_QUEUES
        }
        using.basic_qos(prefetch_count=50)
        counts = {**sent, "order_placed": HANDLED, "log": 8}
        for name, count in [*counts.items(), ("log", 8)]:
            first = {"x-stream-offset": "first"} if name == "log" else None
            for got, (method, _, _) in enumerate(using.consume(name, arguments=first), 1):
                using.basic_ack(method.delivery_tag)
                if got == count:
                    break
            # Prefetched messages beyond the count are requeued.
            using.cancel()


def assert_orders_agree(queues: Mapping[str, Counted], file: list[Order], raw: pd.DataFrame) -> None:
    """Compare the job's counts with pandas over the file, and over the events in the stream."""
    rows = pd.DataFrame([vars(order) for order in file])
    paid = rows.paid_at.notna()
    late = (rows.paid_at - rows.placed_at) > pd.Timedelta(minutes=30)
    expected = [len(rows), paid.sum(), late.sum(), late.sum(), (~paid).sum()]
    assert {name: queues[name].published for name in ORDER_QUEUES} == dict(
        zip(ORDER_QUEUES, expected, strict=True)
    )
    handled = {name: queues[name].acked for name in ORDER_QUEUES}
    assert handled == {**dict(zip(ORDER_QUEUES, expected, strict=True)), "order_placed": HANDLED}
    waiting = {name: (queues[name].ready, queues[name].unacked) for name in ORDER_QUEUES}
    assert waiting == {**dict.fromkeys(ORDER_QUEUES, (0, 0)), "order_placed": (len(rows) - HANDLED, 0)}
    counted = raw.groupby(["queue", "event"]).size()
    for name in (*ORDER_QUEUES, "log"):
        for kind in ("published", "delivered", "acked", "requeued"):
            assert getattr(queues[name], kind) == counted.get((name, kind), 0), (name, kind)
        mean = raw[(raw.queue == name) & (raw.event == "published")].bytes.mean()
        assert queues[name].bytes_a_message == pytest.approx(mean)
    levels = raw.groupby("queue")[["ready", "unacked"]].sum()
    for name in ORDER_QUEUES:
        assert waiting[name] == tuple(levels.loc[name])
    log = queues["log"]
    assert (log.stream, log.published, log.delivered, log.acked) == (True, 8, 16, 16)
    assert (log.ready, log.unacked, log.peak, log.began_with) == (None, None, None, None)
    assert (log.growth, log.forecast, log.measures) == (None, None, ())
    assert {each.stream for name, each in queues.items() if name != "log"} == {False}


def has_all_events(stream: Audit, kinds: Sequence[str]) -> bool:
    """Return whether the stream has the test's last events: `after` was published to the purged queue."""
    with closing(CaptureReader(stream.url, stream.name)) as reading:
        reading.until(lambda found: any(map(is_last, found.events)))
        return {each["event"] for each in reading.events} >= set(kinds)


def is_last(event: Event) -> bool:
    return event["event"] == "published" and event.get("queue") == "purged" and event.get("bytes") == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--limit", "much"], "'much' is not a limit: write messages"),
        (["--limit", "0"], "'0' is not a limit"),
        (["--limit", "5XB"], "'5XB' is not a limit"),
        (["--step", "0s"], "the duration must be longer than zero"),
        (["--trend", "soon"], "'soon' is no duration"),
    ],
)
def test_invalid_options_raise_one_line_errors(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options_of(*words)
