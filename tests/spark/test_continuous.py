"""Continuous runs of jobs: output, stop, restart, and refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Audit
from tests.spark.job_runs import run_job
from tests.spark.order_data import Order, from_file, generated, messages_of_order, workflow_message
from tests.spark.test_order_timeouts import assert_agrees
from tests.spark.test_stream_source import Stream, declare_stream
from tests.support.broker_process import BrokerProcess, warren
from tests.support.polling import wait_until
from warren.cli.pipeline import parse, run
from warren.core.errors import UsageError
from warren.pipeline.errors import PipelineError

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

NOON = datetime(2024, 5, 1, 12, 0)
DEADLINE = 500
"""Seconds: Java starts slowly where everybody works."""
DONE = ("--available-now", "--settle", "0s")


@pytest.fixture
def stream(amqp_url: str) -> Stream:
    return declare_stream(amqp_url)


def read_or_generate_orders() -> list[Order]:
    """Return a thousand orders; those of the file that ORDERS names, if it is set."""
    named = os.environ.get("ORDERS")
    return from_file(Path(named))[:1000] if named else generated(1000, seed=5)


def test_several_consecutive_runs_give_the_numbers_of_one_run(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """Two runs with half of the messages each, some orders in the middle of their life, some messages repeated."""
    orders = read_or_generate_orders()
    messages = [message for order in orders for message in messages_of_order(order)]
    middle = len(messages) // 2
    words = ("--stream", stream.name, *DONE, "--max-messages", "1000")
    stream.publish(messages[:middle])
    run_job("order-timeouts", stream.url, tmp_path, *words)
    stream.publish(messages[middle - 20 :])

    summary = run_job("order-timeouts", stream.url, tmp_path, *words)

    assert_agrees(summary, orders)
    assert (summary.undecided, summary.messages.duplicates) == (0, 20)
    events = spark.read.parquet(str(tmp_path / "events"))
    assert events.count() == events.select("offset").distinct().count() == len(messages) + 20


def test_a_query_is_restarted_after_a_worker_timeout(
    spark: SparkSession, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python worker once does not start within the ten seconds that Spark waits."""
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in *python_streaming_source_runner*) mkdir "$0.first" 2>/dev/null && exec sleep 1;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    stream.publish([workflow_message("order_placed", "one", placed_at=NOON)])
    told: list[str] = []
    words = ["--source", stream.url, "--out", str(tmp_path / "out"), "--stream", stream.name, *DONE]
    summary: Any = run(parse(["order-timeouts", *words]), told.append)[0]
    assert "events: restarted, because its Python worker was slow to start" in told
    assert summary.undecided == 1


def test_late_messages_correct_earlier_rows(spark: SparkSession, audit: Audit, tmp_path: Path) -> None:
    """The source is a queue, which is empty afterwards: its messages went through the spool."""

    def outcomes() -> dict[str, list[tuple[int, str]]]:
        told: dict[str, list[tuple[int, str]]] = {}
        for row in spark.read.parquet(str(tmp_path / "orders")).orderBy("order_id", "revision").collect():
            told.setdefault(row.order_id, []).append((row.revision, row.outcome))
        return told

    words = ("--queue", audit.name, *DONE)
    audit.publish(
        [
            workflow_message("order_placed", "fine", placed_at=NOON),
            workflow_message("order_paid", "fine", paid_at=NOON + timedelta(minutes=10)),
            workflow_message("order_placed", "late", placed_at=NOON),
            workflow_message("order_cancelled", "late"),
            workflow_message("order_placed", "waits", placed_at=NOON),
            workflow_message("order_paid", "early", paid_at=NOON + timedelta(minutes=3)),
        ]
    )
    summary = run_job("order-timeouts", audit.url, tmp_path, *words)
    assert outcomes() == {
        "fine": [(1, "paid_in_time")],
        "late": [(1, "cancelled")],
        "early": [(1, "not_placed")],
    }
    assert (summary.orders, summary.undecided) == (3, 1)
    audit.publish(
        [
            workflow_message("order_paid", "fine", paid_at=NOON + timedelta(minutes=10)),
            workflow_message("order_paid", "late", paid_at=NOON + timedelta(hours=1)),
            workflow_message("order_refunded", "late"),
            workflow_message("order_placed", "early", placed_at=NOON),
        ]
    )
    summary = run_job("order-timeouts", audit.url, tmp_path, *words)
    assert outcomes() == {
        "fine": [(1, "paid_in_time")],
        "late": [(1, "cancelled"), (2, "paid_late")],
        "early": [(1, "not_placed"), (2, "paid_in_time")],
    }
    assert (summary.paid_in_time, summary.paid_late, summary.cancelled, summary.undecided) == (2, 1, 0, 1)
    assert (set(summary.contradictions.values()), summary.delay.maximum) == ({0}, 3600)
    again = run_job("order-timeouts", audit.url, tmp_path, *words)
    assert again == summary, "nothing was there: nothing has changed"
    assert audit.ready() == 0


@contextmanager
def running_job(stream: Stream, out: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    source = ("--source", stream.url, "--stream", stream.name, "--out", str(out))
    command = warren("pipeline", "order-timeouts", *source, "--continuous", "--every", "1s", *words)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_run_continues_after_a_signal(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """Timers survive too: an unpaid order is reported as open, and another one when it is settled."""
    out = tmp_path / "out"

    def numbers() -> dict[str, Any]:
        path = out / "summary.json"
        return json.loads(path.read_text()) if path.exists() else {}

    stream.publish(
        [
            workflow_message("order_placed", "open", placed_at=NOON),
            workflow_message("order_placed", "paid", placed_at=NOON),
            workflow_message("order_paid", "paid", paid_at=NOON),
        ]
    )
    with running_job(stream, out, "--timeout", "1s", "--settle", "2s", "--json") as process:
        wait_until(lambda: numbers().get("orders") == 2, "both are told of", timeout=DEADLINE)
        process.send_signal(signal.SIGTERM)
        printed, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, errors
    assert json.loads(printed)["contradictions"]["open"] == numbers()["contradictions"]["open"] == 1
    assert numbers()["continuous"] is True
    # A query that Spark gave up on because a Python worker was slow to start is restarted.
    lines = [line.split(" s  ")[1] for line in errors.splitlines() if "restarted, because" not in line]
    assert lines[0] == "starting Spark"
    assert lines[1].startswith("events: 3 messages, ")
    assert lines[-1] == "stopped"
    assert "Updated by" in (out / "report.html").read_text()

    stream.publish(
        [
            workflow_message("order_paid", "open", paid_at=NOON + timedelta(hours=1)),
            *messages_of_order(generated(1, 1)[0]),
        ]
    )
    summary = run_job("order-timeouts", stream.url, out, "--stream", stream.name, *DONE)
    assert (summary.orders, summary.paid_in_time, summary.undecided) == (3, 3, 0)
    events = spark.read.parquet(str(out / "events"))
    assert sorted(row.offset for row in events.collect()) == list(range(6))


def test_a_folder_belongs_to_one_run(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"cannot read stream 'nowhere' at [^\n]+$"):
        run_job("order-timeouts", stream.url, tmp_path, "--stream", "nowhere", *DONE)
    words = ("--stream", stream.name)
    stream.publish([workflow_message("order_placed", "one", placed_at=NOON)])
    run_job("order-timeouts", stream.url, tmp_path, *words, *DONE)  # what failed has not claimed the folder
    with pytest.raises(
        UsageError, match="belongs to a continuous run: choose another --out, or continue it with"
    ):
        run_job("order-timeouts", stream.url, tmp_path, *words)
    with pytest.raises(
        UsageError, match=f"continuous run of order-timeouts on {stream.name}: choose another"
    ):
        run_job("order-timeouts", stream.url, tmp_path, "--stream", "other", *DONE)
    (tmp_path / "once" / "events").mkdir(parents=True)
    (tmp_path / "once" / "events" / "part-0.parquet").touch()
    with pytest.raises(UsageError, match="holds the tables of a batch run: choose another --out"):
        run_job("order-timeouts", stream.url, tmp_path / "once", *words, *DONE)


def test_a_lost_broker_ends_the_run_with_one_line(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """The same command continues when the broker is back, with each message once."""
    stream = declare_stream(broker.url)
    orders = generated(20, seed=9)
    stream.publish([message for order in orders for message in messages_of_order(order)])

    def progress(step: str) -> None:
        # Both queries have taken it all by now. What is told of the second one must not be missed because it had looked
        # into the folder, and found nothing, before the first one wrote.
        if step.startswith("orders: "):
            broker.kill()

    words = ["--source", broker.url, "--stream", stream.name, "--out", str(tmp_path)]
    with pytest.raises(PipelineError, match=rf"^cannot read stream '{stream.name}' at [^\n]+$"):
        run(parse(["order-timeouts", *words, "--continuous", "--every", "1s", "--settle", "0s"]), progress)
    broker.start()
    summary = run_job("order-timeouts", broker.url, tmp_path, "--stream", stream.name, *DONE)
    assert (summary.orders, summary.messages.duplicates) == (20, 0)
    assert summary.messages.read == sum(len(messages_of_order(order)) for order in orders)
