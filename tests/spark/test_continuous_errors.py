"""Errors of continuous reads: one line each, and no lost message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import channel
from tests.spark.streaming_queries import PATIENCE, run_to_end
from tests.spark.test_stream_source import Stream, declare_stream
from tests.support.broker_process import BrokerProcess
from tests.support.polling import wait_until
from warren.pipeline.datasource import source_errors
from warren.pipeline.errors import PipelineError

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

MESSAGES = 20_000
"""With a kilobyte each: far more than what sockets hold."""


def reading(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.readStream.format("amqp").options(url=url, **options).load()


def write(frame: DataFrame, folder: Path) -> None:
    writing = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    writing = writing.option("path", str(folder / "rows")).trigger(availableNow=True)
    run_to_end(writing.start)


@pytest.fixture
def source(amqp_url: str) -> Stream:
    return declare_stream(amqp_url)


@pytest.mark.parametrize(
    ("login", "stream", "reason"),
    [
        (
            "guest:guest",
            "pipeline.nowhere",
            "cannot read stream 'pipeline.nowhere' at .*: there is no such queue",
        ),
        ("guest:s3cret", None, "refused the user name or the password"),
    ],
)
def test_an_unreadable_source_ends_the_query_with_one_line(
    spark: SparkSession, source: Stream, tmp_path: Path, login: str, stream: str | None, reason: str
) -> None:
    host = source.url.removeprefix("amqp://").rpartition("@")[2]
    frame = reading(spark, f"amqp://{login}@{host}", stream=stream or source.name)
    with pytest.raises(PipelineError, match=reason) as failed, source_errors():
        write(frame, tmp_path)
    assert "\n" not in str(failed.value)
    assert "s3cret" not in str(failed.value)


def test_another_schema_is_refused_before_a_query_starts(
    spark: SparkSession, source: Stream, tmp_path: Path
) -> None:
    named = spark.readStream.format("amqp").options(url=source.url, stream=source.name)
    with (
        pytest.raises((AnalysisException, PipelineError), match="the schema of format 'amqp' is fixed"),
        source_errors(),
    ):
        write(named.schema("order_id string").load(), tmp_path)


def test_a_broker_that_stops_in_mid_batch_is_one_line_and_costs_no_message(
    spark: SparkSession, small_batches: None, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        stream = declare_stream(broker.url)
        with channel(broker.url) as publishing:
            for number in range(MESSAGES):
                publishing.basic_publish("", stream.name, b"%06d" % number + bytes(1000))
            publishing.queue_declare(stream.name, passive=True)
        rows = reading(spark, broker.url, stream=stream.name)
        # With their bodies: offsets alone would all be on their way to who holds them, and the reading at its end.
        held = rows.select("offset", "body").mapInArrow(holding(tmp_path), "offset long")
        with ThreadPoolExecutor(1) as beside:
            stopped = beside.submit(stop_while_held, broker, tmp_path)
            with (
                pytest.raises(
                    PipelineError, match=r"the connection was lost|closed the connection"
                ) as failed,
                source_errors(),
            ):
                write(held, tmp_path)
            stopped.result(PATIENCE)
        assert "\n" not in str(failed.value)
        broker.start()
        write(held, tmp_path)
        written = spark.read.parquet(str(tmp_path / "rows"))
        assert sorted(row.offset for row in written.collect()) == list(range(MESSAGES))


def holding(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Pass the first rows, then wait until the broker has stopped."""
    held, stopped, patience = str(folder / "held"), str(folder / "stopped"), PATIENCE

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        for batch in batches:
            yield batch.select(["offset"])
            open(held, "w").close()
            deadline = time.monotonic() + patience
            while not os.path.exists(stopped) and time.monotonic() < deadline:
                time.sleep(0.01)

    return hold


def stop_while_held(broker: BrokerProcess, folder: Path) -> None:
    wait_until((folder / "held").exists, "the first rows have been read", PATIENCE)
    broker.kill()
    (folder / "stopped").touch()
