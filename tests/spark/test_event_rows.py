"""Captured events as rows: each once, in batch and streaming reads, without other messages."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.captured_events import COLUMNS, Source, batches, frame_of_batches
from warren.core.capture_events import MESSAGE_TYPE, EventBatch
from warren.pipeline.jobs.event_rows import events_of

pytestmark = pytest.mark.timeout(900)

AT = 1_700_000_000_000_000
DAY = 86_400_000_000


def numbers(frame: DataFrame) -> list[tuple[str, int]]:
    return sorted((row["source"], row["sequence"]) for row in frame.select("source", "sequence").collect())


def test_every_key_is_a_typed_column(spark: SparkSession) -> None:
    source = Source("broker", "shop", "shop-1")
    source.record("started", AT)
    source.record(
        "delivered",
        AT + 1,
        "m",
        size=12,
        exchange="x",
        routing_key="k",
        queue="q",
        redelivered=True,
        attempt=2,
        reason="r",
        connection="c",
        consumer="t",
        prefetch=100,
        no_ack=False,
        stream=True,
    )
    first, second = events_of(frame_of_batches(spark, batches([source]))).orderBy("sequence").collect()
    assert second.asDict() == {
        "source": "shop-1",
        "by": "broker",
        "app": "shop",
        "sequence": 2,
        "captured_at": datetime.fromtimestamp(AT / 1e6),
        "event": "delivered",
        "at": datetime.fromtimestamp((AT + 1) / 1e6),
        "message_id": "m",
        "exchange": "x",
        "routing_key": "k",
        "queue": "q",
        "reason": "r",
        "redelivered": True,
        "attempt": 2,
        "bytes": 12,
        "connection": "c",
        "consumer": "t",
        "prefetch": 100,
        "no_ack": False,
        "stream": True,
        "cause": None,
    }
    assert (first["event"], first["message_id"], first["bytes"]) == ("started", None, None)


def test_repeated_batches_count_once_and_other_messages_not_at_all(spark: SparkSession) -> None:
    one, other = Source(), Source()
    for number in range(5):
        one.record("published", AT + number, f"a{number}")
        other.record("published", AT + number, f"b{number}")
        one.flush()
    assert one.batches[1:]
    sent = batches([one, other])
    strangers = [
        ("order_placed", "shop", {"source": one.name, "sequence": "9"}, b'[{"event": "published", "at": 1}]'),
        (MESSAGE_TYPE, "shop", {"source": one.name, "sequence": "20"}, b"not json"),
        (MESSAGE_TYPE, "shop", {"source": one.name, "sequence": "soon"}, sent[0].body),
        (MESSAGE_TYPE, "shop", {"sequence": "30"}, sent[0].body),
        (MESSAGE_TYPE, "shop", None, b"\xff"),
    ]
    found = events_of(frame_of_batches(spark, [*sent, *sent[:3], sent[-1]], *strangers))
    assert numbers(found) == sorted((source.name, n) for source in (one, other) for n in range(1, 6))


@pytest.mark.slow
def test_streaming_reads_count_each_event_once_however_late(spark: SparkSession, tmp_path: Path) -> None:
    """Four arrivals: two sources whose clocks differ by five minutes, repeated batches, and events from days ago."""
    source, behind, old = Source(name="shop-1"), Source(name="shop-2"), Source(name="shop-3")
    for at in (AT, AT + 30_000_000):
        for teller, clock in ((source, at), (behind, at - 300_000_000), (old, at - 3 * DAY)):
            teller.record("published", clock, "a")
            teller.record("delivered", clock, "a")
            teller.flush()
    arriving = tmp_path / "arriving"

    def arrive(*sent: EventBatch) -> int:
        """Return the number of rows that Spark dropped."""
        frame_of_batches(spark, sent).coalesce(1).write.mode("append").parquet(str(arriving))
        query = (
            events_of(spark.readStream.schema(COLUMNS).parquet(str(arriving)))
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "events"))
        )
        assert query.awaitTermination(200)
        return sum(
            state["numRowsDroppedByWatermark"]
            for batch in query.recentProgress
            for state in batch["stateOperators"]
        )

    dropped = arrive(source.batches[1], behind.batches[0])
    dropped += arrive(source.batches[1], source.batches[0], behind.batches[0])
    dropped += arrive(behind.batches[1], old.batches[1])
    dropped += arrive(old.batches[0], old.batches[1], source.batches[0])
    assert dropped == 0
    stored = numbers(spark.read.parquet(str(tmp_path / "events")))
    assert stored == [(f"shop-{name}", sequence) for name in (1, 2, 3) for sequence in (1, 2, 3, 4)]
