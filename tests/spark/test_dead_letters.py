"""The job dead-letters compared with pandas, on generated letters and on those of real brokers."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import Audit, Message, audit_queue, channel
from tests.spark.dead_letter_data import (
    COLUMNS,
    NOON,
    Death,
    assert_agrees,
    expected,
    generated_deaths,
    uuid7,
)
from tests.spark.job_runs import run_job
from tests.spark.order_data import Order, from_file, generated
from tests.spark.test_stream_source import declare_stream
from tests.support.polling import wait_until
from warren.cli.pipeline import parse
from warren.core.errors import UsageError
from warren.pipeline.jobs import dead_letters
from warren.pipeline.jobs.dead_letters.summary import BurstRule, Summary
from warren.pipeline.jobs.job import EVENTS, Run
from warren.pipeline.jobs.run_options import RunOptions
from warren.sdk import App, Command, Retry

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


def summarise(letters: DataFrame, *words: str) -> Summary:
    """Run the job as the command does, without files."""
    options = options_of(*words)
    return dead_letters.summarise({EVENTS: dead_letters.events(letters, options)}, options)


def options_of(*words: str) -> RunOptions[BurstRule]:
    return parse(
        ["dead-letters", "--source", "amqp://localhost", "--queue", "q", "--out", "o", *words]
    ).options


def test_the_numbers_are_those_of_pandas(spark: SparkSession, tmp_path: Path) -> None:
    truth = generated_deaths(600, seed=11)
    rows = [death.row(offset) for offset, death in enumerate(truth)]
    # A copy of a dead letter with a message id is recognised; one without an id cannot be.
    again = [death for death in truth if death.message_id is not None][:50]
    rows += [("copies", *death.row(offset)[1:]) for offset, death in enumerate(again)]
    forged = {"x-death": "forged", "x-first-death-queue": "q"}
    for offset, headers in enumerate((None, forged, {"x-death": '{"count":'})):
        rows.append(
            ("dead-letters", 90_000 + offset, "", "dead-letters", headers, None, None, None, None, b"")
        )
    options = options_of()
    dead_letters.events(spark.createDataFrame(rows, COLUMNS), options).write.parquet(str(tmp_path / EVENTS))
    letters = spark.read.parquet(str(tmp_path / EVENTS))
    summary = dead_letters.summarise({EVENTS: letters}, options)
    assert_agrees(summary, expected(truth, 10, 10, "queue"))
    assert (summary.letters, summary.repeated, summary.unexplained) == (653, 50, 3)
    assert summary.messages == 600
    assert {group.words: group.deaths for group in summary.origins} == {
        ("shop", f"to.{queue}"): sum(death.queue == queue for death in truth)
        for queue in {death.queue for death in truth}
    }
    assert {group.words[0]: group.deaths for group in summary.errors} == {
        name: sum((death.error or "").startswith(name) for death in truth)
        for name in ("OSError", "ValueError")
    }
    others = options_of("--burst-gap", "2s", "--burst-least", "4", "--burst-of", "reason")
    assert_agrees(dead_letters.summarise({EVENTS: letters}, others), expected(truth, 2, 4, "reason"))


def test_dead_letters_of_one_message_count_as_one_message(spark: SparkSession) -> None:
    """A stream that is bound to a dead letter exchange receives a letter for each death."""
    one = Death("bills", "rejected", NOON, "m", NOON - timedelta(seconds=9), "timestamp")
    letters = [replace(one, count=count) for count in range(1, 13)]
    summary = summarise(spark.createDataFrame([d.row(at) for at, d in enumerate(letters)], COLUMNS))
    assert (summary.deaths, summary.messages, summary.repeated) == (12, 1, 0)
    assert [(bucket.above, bucket.count) for bucket in summary.times if bucket.count] == [(10, 1)]
    assert summary.bursts == 0, "the times of eleven deaths are unknown"
    assert summary.deaths_left_out == 11


def test_deaths_before_and_after_a_message_was_published_again_are_added(spark: SparkSession) -> None:
    """A message that somebody publishes again has no x-death; its next death is recorded as its first one."""

    def death(message_id: str, hours: int, count: int = 1) -> Death:
        return Death("bills", "rejected", NOON + timedelta(hours=hours), message_id, count=count)

    letters = [
        *[death("replayed", hours) for hours in (0, 1, 2)],
        *[death("rejected twice, replayed", 0, count) for count in (1, 2)],
        death("rejected twice, replayed", 1),
        # Three deaths at least: the letter of the first death may be of the same history.
        death("letters missing", 0, 3),
        death("letters missing", 1),
        death("once", 0),
    ]
    summary = summarise(spark.createDataFrame([d.row(at) for at, d in enumerate(letters)], COLUMNS))
    assert (summary.deaths, summary.messages, summary.repeated) == (9, 4, 0)
    counted = [(bucket.up_to, bucket.count) for bucket in summary.times if bucket.count]
    assert counted == [(1, 1), (3, 3)]


def test_the_later_of_two_recorded_deaths_counts(spark: SparkSession) -> None:
    """The broker records that a letter of the SDK died again in its parking lot; the SDK's own copy has no x-death."""
    sdk = Death("bills", "failed", NOON, "m", by="sdk", error="OSError: x")
    later = Death("bills.dead", "expired", NOON + timedelta(hours=1), "m")
    rows = [list(sdk.row(0)), list(later.row(1))]
    rows[1][4] = {**sdk.sdk_headers(), **later.broker_headers()}
    letters = dead_letters.events(spark.createDataFrame([tuple(row) for row in rows], COLUMNS), options_of())
    first, second = letters.orderBy("offset").collect()
    assert (first["died_in"], first["reason"], first["deaths"], first["told_by"]) == (
        "bills",
        "failed",
        1,
        "sdk",
    )
    assert (second["died_in"], second["reason"], second["deaths"]) == ("bills.dead", "expired", 2)
    assert (second["exchange"], second["routing_key"]) == ("shop", "to.bills"), "where it was published first"
    assert second["published_from"] == "first_death"
    assert second["after_seconds"] == 3600


def test_the_time_in_a_message_id_is_ignored_if_the_timestamp_is_later(spark: SparkSession) -> None:
    made = NOON - timedelta(days=2)
    sent = NOON - timedelta(seconds=30)
    death = Death("bills", "expired", NOON, uuid7(made), sent, "timestamp")
    row = dead_letters.events(spark.createDataFrame([death.row(0)], COLUMNS), options_of()).collect()[0]
    assert (row["published_from"], row["after_seconds"], row["within_seconds"]) == ("timestamp", 30, 1)


@pytest.fixture
def dead_letter_queue(amqp_url: str) -> Iterator[Audit]:
    """Declare a queue for the dead letters of a test."""
    with audit_queue(amqp_url) as queue:
        yield queue


@pytest.fixture
def declare_source_queue(amqp_url: str, dead_letter_queue: Audit) -> Iterator[Callable[..., str]]:
    """Return a function that declares a queue with arguments that dead-letter its messages."""
    declared: list[str] = []

    def declare(name: str, **arguments: object) -> str:
        declared.append(f"{name}.{uuid.uuid4().hex[:8]}")
        table = {name.replace("_", "-"): value for name, value in arguments.items()}
        table |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead_letter_queue.name}
        with channel(amqp_url) as declaring:
            declaring.queue_declare(declared[-1], durable=True, arguments=table)
        return declared[-1]

    yield declare
    with channel(amqp_url) as deleting:
        for name in declared:
            deleting.queue_delete(name)


def read_by_hand(dead_letter_queue: Audit) -> list[Death]:
    """Return the letters and their headers, read by another client without Spark."""
    found: list[Death] = []
    total = dead_letter_queue.ready()
    with channel(dead_letter_queue.url) as reading:
        for _, properties, _ in reading.consume(dead_letter_queue.name):
            history = properties.headers["x-death"]
            latest, earlier = history[0], history[1:]
            stamp = properties.timestamp
            by_id = properties.message_id is not None and len(properties.message_id) == 36
            published, known_from = None, None
            if by_id:
                millis = int(properties.message_id.replace("-", "")[:12], 16)
                published, known_from = datetime.fromtimestamp(millis / 1000, UTC), "message_id"
            elif stamp is not None:
                published, known_from = datetime.fromtimestamp(stamp, UTC), "timestamp"
            elif earlier and min(each["time"] for each in earlier) < latest["time"]:
                published, known_from = min(each["time"] for each in earlier), "first_death"
            found.append(
                Death(
                    latest["queue"],
                    latest["reason"],
                    latest["time"],
                    properties.message_id,
                    published,
                    known_from,
                    int(latest["count"]),
                    tuple((e["queue"], e["reason"], int(e["count"]), e["time"]) for e in earlier),
                    type=properties.type,
                )
            )
            if len(found) == total:
                return found
    return found


def deadlines(orders: Sequence[Order]) -> list[Message]:
    """Return a deadline message for each order, as the SDK and others publish it: the id or the timestamp contains the
    time."""
    sent = []
    for number, order in enumerate(orders):
        placed = order.placed_at.replace(tzinfo=UTC)
        properties = pika.BasicProperties(type="cancel_order", delivery_mode=2)
        if number % 2:
            properties.message_id = uuid7(placed)
        else:
            properties.message_id, properties.timestamp = order.order_id, int(placed.timestamp())
        sent.append(Message(order.order_id.encode(), properties))
    return sent


def reject_one(consuming: Any, queue: str, *, requeue: bool) -> None:
    """Receive one message, as soon as there is one, and reject it."""
    tags: list[int] = []

    def received() -> bool:
        method, _, _ = consuming.basic_get(queue)
        if method is not None:
            tags.append(method.delivery_tag)
        return bool(tags)

    wait_until(received, f"a message is in {queue}")
    consuming.basic_reject(tags[0], requeue=requeue)


def read_or_generate_orders() -> list[Order]:
    named = os.environ.get("ORDERS")
    return from_file(Path(named)) if named else generated(600, seed=5)


def test_dead_letters_of_real_brokers(
    spark: SparkSession,
    amqp_url: str,
    dead_letter_queue: Audit,
    declare_source_queue: Callable[..., str],
    tmp_path: Path,
) -> None:
    """Unpaid orders expire, paid ones are rejected, and a small queue overflows."""
    orders = read_or_generate_orders()
    in_time = [
        o for o in orders if o.paid_at is not None and o.paid_at - o.placed_at <= timedelta(minutes=30)
    ]
    others = [order for order in orders if order not in in_time]
    due, paid, small = (
        declare_source_queue("due", x_message_ttl=1),
        declare_source_queue("paid"),
        declare_source_queue("small", x_max_length=5),
    )
    again = declare_source_queue("again", x_queue_type="quorum", x_delivery_limit=2)
    Audit(amqp_url, due).publish(deadlines(others))
    Audit(amqp_url, small).publish(deadlines(others[:105]))
    Audit(amqp_url, paid).publish(deadlines(in_time))
    Audit(amqp_url, again).publish(deadlines(in_time[:3]))
    with channel(amqp_url) as refusing:
        for method, _, _ in refusing.consume(paid):
            refusing.basic_reject(method.delivery_tag, requeue=False)
            if method.delivery_tag == len(in_time):
                break
    with channel(amqp_url) as returning:
        for _ in range(9):
            reject_one(returning, again, requeue=True)
    total = len(orders) + 103
    wait_until(lambda: dead_letter_queue.ready() == total, f"{total} letters are there")

    summary = run_job(
        "dead-letters",
        dead_letter_queue.url,
        tmp_path,
        "--queue",
        dead_letter_queue.name,
        "--burst-gap",
        "3s",
    )

    assert summary.by_reason == {
        "expired": len(others),
        "rejected": len(in_time),
        "maxlen": 100,
        "delivery_limit": 3,
    }
    assert (summary.letters, summary.repeated, summary.unexplained) == (total, 0, 0)
    truth = read_by_hand(dead_letter_queue)
    assert_agrees(summary, expected(truth, 3, 10, "queue"))
    assert {place.queue for place in summary.places} == {due, paid, small, again}
    assert summary.after.by_source["timestamp"] > 0
    assert summary.after.by_source["message_id"] > 0
    assert dead_letter_queue.ready() == total
    written = json.loads((tmp_path / "summary.json").read_text())
    assert (written["job"], written["deaths"]) == ("dead-letters", total)
    assert spark.read.parquet(str(tmp_path / "events")).count() == total
    assert f"{total:,} deaths: " in (tmp_path / "report.html").read_text()


def test_dead_letters_of_the_sdk(spark: SparkSession, amqp_url: str, tmp_path: Path) -> None:
    """An App parks messages that it could not handle; they are browsed, with exceptions and times in milliseconds."""
    name = f"bills.{uuid.uuid4().hex[:8]}"
    app = App(amqp_url)

    class Bill(Command, queue=name):
        number: int

    @app.handle(Bill, retry=Retry(1))
    async def pay(bill: Bill) -> None:
        raise OSError("no line") if bill.number % 2 else ValueError("no bill")

    async def fail() -> None:
        async with app:
            for number in range(6):
                await app.publish(Bill(number=number))
            parked = Audit(amqp_url, f"{name}.dead")
            await asyncio.to_thread(wait_until, lambda: parked.ready() == 6, "all are parked")

    asyncio.run(fail())
    summary = run_job("dead-letters", amqp_url, tmp_path, "--queue", f"{name}.dead")
    assert [(place.queue, place.reason, place.deaths) for place in summary.places] == [(name, "failed", 6)]
    assert {group.words[0]: group.deaths for group in summary.errors} == {"OSError": 3, "ValueError": 3}
    assert summary.after.by_source["message_id"] == summary.after.known == 6
    assert summary.after.within_a_second == 0
    assert summary.after.minimum is not None
    assert 0 <= summary.after.minimum < 60
    assert Audit(amqp_url, f"{name}.dead").ready() == 6
    with channel(amqp_url) as deleting:
        for queue in (name, f"{name}.dead"):
            deleting.queue_delete(queue)


def test_a_continuous_run_gives_the_same_numbers(
    spark: SparkSession, amqp_url: str, declare_source_queue: Callable[..., str], tmp_path: Path
) -> None:
    """Dead letters routed to a stream, as they come; the same letters as rows of one read.

    RabbitMQ 3.10 brings a dead letter to a stream only with the strategy at-least-once.
    """
    stream = declare_stream(amqp_url)
    table = {
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    table |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": stream.name}
    queue = f"due.{uuid.uuid4().hex[:8]}"
    with channel(amqp_url) as declaring:
        declaring.queue_declare(queue, durable=True, arguments={**table, "x-message-ttl": 1})
    Audit(amqp_url, queue).publish(deadlines(generated(60, seed=9)))
    with channel(amqp_url) as reading:
        reading.basic_qos(prefetch_count=100)
        beginning = {"x-stream-offset": "first"}
        for seen, (method, _, _) in enumerate(
            reading.consume(stream.name, arguments=beginning, inactivity_timeout=60), 1
        ):
            assert method is not None, f"{seen - 1} of 60 letters came"
            reading.basic_ack(method.delivery_tag)
            if seen == 60:
                break
        reading.queue_delete(queue)
    words = ("--stream", stream.name, "--burst-gap", "2s")
    on = run_job("dead-letters", amqp_url, tmp_path, *words, "--continuous", "--available-now")
    assert (on.deaths, on.by_reason) == (60, {"expired": 60})
    once = spark.read.format("amqp").options(url=amqp_url, stream=stream.name).load()
    written = spark.read.parquet(str(tmp_path / EVENTS))
    assert (
        written.orderBy("offset").collect()
        == dead_letters.events(once, options_of()).orderBy("offset").collect()
    )


@pytest.mark.parametrize(
    "odd",
    [
        {"warren-dead-time": str(2**62)},
        {"warren-dead-time": str(-(2**63))},
        {"warren-dead-time": "9" * 30},
        {"warren-dead-time": str(10**15)},
        {"warren-dead-time": "soon"},
    ],
)
def test_a_time_out_of_range_is_unknown_and_the_others_are_counted(
    spark: SparkSession, odd: dict[str, str]
) -> None:
    death = Death("bills", "failed", NOON, "a", by="sdk", published=NOON, published_from="header")
    rows = [list(replace(death, message_id=name).row(at)) for at, name in enumerate("abc")]
    rows[1][4] = {**rows[1][4], **odd}
    rows[2][4] = {**rows[2][4], "warren-first-published": str(2**62), "warren-dead-first-time": str(2**62)}
    summary = summarise(spark.createDataFrame([tuple(row) for row in rows], COLUMNS))
    assert (summary.deaths, summary.undated, summary.after.known) == (3, 1, 1)
    assert summary.first == summary.last == NOON.isoformat()


def test_times_of_brokers_and_in_properties_may_be_out_of_range(spark: SparkSession) -> None:
    death = Death("bills", "rejected", NOON, "a", NOON, "timestamp")
    rows = [list(replace(death, message_id=name).row(at)) for at, name in enumerate("abcd")]
    rows[1][4]["x-death"] = rows[1][4]["x-death"].replace(NOON.isoformat(), "+200000-01-01T00:00:00Z")
    rows[2][5] = uuid7(NOON).replace(uuid7(NOON)[:13], "ffffffff-ffff")
    frame = spark.createDataFrame([tuple(row) for row in rows], COLUMNS).withColumn(
        # Python has no such time: Spark makes it.
        "timestamp", F.expr("if(offset = 3, timestamp_seconds(300000000000), timestamp)")
    )  # fmt: skip
    letters = {row["offset"]: row for row in dead_letters.events(frame, options_of()).collect()}
    assert [letters[at]["died_at"] is None for at in range(4)] == [False, True, False, False]
    assert [letters[at]["published_from"] for at in range(4)] == ["timestamp", "timestamp", "timestamp", None]
    assert (summarise(frame).deaths, summarise(frame).undated) == (4, 1)


def test_a_report_spans_all_years_that_are_accepted(spark: SparkSession) -> None:
    days = [datetime(1000, 1, 1, tzinfo=UTC), NOON, datetime(9000, 1, 1, tzinfo=UTC)]
    rows = [
        list(Death("bills", "failed", NOON, day.isoformat(), by="sdk").row(at)) for at, day in enumerate(days)
    ]
    for row, day in zip(rows, days, strict=True):
        row[4]["warren-dead-time"] = str(
            (day - NOON) // timedelta(milliseconds=1) + round(NOON.timestamp() * 1000)
        )
    summary = summarise(spark.createDataFrame([tuple(row) for row in rows], COLUMNS))
    assert (summary.first, summary.last) == (days[0].isoformat(), days[2].isoformat())
    assert sum(sum(step.deaths.values()) for step in summary.timeline) == 3
    page = dead_letters.page(summary, Run("dead-letters", "amqp://h/", ("s",), None, False, 1.0))
    assert "9000" in page


def test_without_dead_letters_the_report_is_empty(spark: SparkSession) -> None:
    summary = summarise(spark.createDataFrame([], COLUMNS))
    assert (summary.letters, summary.deaths, summary.messages, summary.bursts) == (0, 0, 0, 0)
    assert summary.after.known == 0
    assert "No message died" in dead_letters.page(
        summary, Run("dead-letters", "amqp://h/", ("s",), None, False, 1.0)
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--burst-least", "1"], "a burst has at least 2 deaths"),
        (["--burst-least", "many"], "'many' is not a number"),
        (["--burst-gap", "0s"], "the duration must be longer than zero"),
        (["--burst-of", "type"], "invalid choice: 'type'"),
    ],
)
def test_invalid_options_raise_one_line_errors(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options_of(*words)
