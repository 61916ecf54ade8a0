"""Runs a job on and on: Structured Streaming from the source into Parquet, the summary and the page rewritten as it goes.

One query takes the source into `events/`; one for each of the job's tables takes the events from there. Each has its own
checkpoint under the output folder, and Spark's file sink commits the files of a batch together with it: a run that was
stopped or killed goes on exactly where it was. Whoever reads the folders with Spark sees committed batches only.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warren.core.errors import UsageError
from warren.pipeline import register
from warren.pipeline.jobs.batch_run import replace, source_options, spark_path
from warren.pipeline.jobs.job import EVENTS, Job, Summary
from warren.pipeline.jobs.streaming_queries import Queries
from warren.pipeline.spark_session import quiet_pandas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

CHECKPOINTS = "checkpoint"
SPOOL = "spool"
RUN = "run.json"
"""What the checkpoints in a folder belong to."""
LOOK = 0.5
"""Seconds between two looks at the queries."""
PATIENCE = 4
"""The numbers are counted anew after this many times what counting them took, so that it never takes most of the time."""

IDLE = 2
"""Batches that did nothing, one after another, after which there is nothing left to do."""

STATE_STORE = {
    # transformWithState needs it (Spark, "Structured Streaming Programming Guide", RocksDB state store).
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider"
}
SHUFFLE = "spark.sql.shuffle.partitions"
PARTITIONS = {"200": "16"}
"""Each partition of a stateful query is a store of its own, which is opened and committed in every batch: what Spark
takes by default, unless somebody has chosen otherwise, makes a batch of nothing last for a minute."""


def run_on(
    job: Job,
    spark: SparkSession,
    options: argparse.Namespace,
    progress: Callable[[str], None],
    report: Callable[[Summary], None],
) -> Summary:
    """Go on until SIGINT or SIGTERM comes, or with `options.available_now` until all that is there has been taken.

    :param progress: told what happens, in a few words
    :param report: given the numbers whenever they have been counted anew
    :return: the last of them
    :raises PySparkException: what the data source or Spark says; every query has been stopped then
    """
    folder = spark_path(options.out)
    shapes: dict[str, StructType] = {}

    def start(name: str, frame: DataFrame) -> None:
        shapes[name] = frame.schema
        # The file source of the next query asks for the folder.
        (options.out / name).mkdir(exist_ok=True)
        writer = frame.writeStream.format("parquet").queryName(f"{job.NAME} {name}").outputMode("append")
        writer = writer.option("checkpointLocation", f"{folder}/{CHECKPOINTS}/{name}")
        writer = (
            writer.trigger(availableNow=True)
            if options.available_now
            else writer.trigger(processingTime=f"{options.every // timedelta(milliseconds=1)} milliseconds")
        )
        queries.start(name, lambda: writer.start(f"{folder}/{name}"))

    def count() -> Summary:
        tables = {
            name: spark.read.schema(shape).parquet(f"{folder}/{name}") for name, shape in shapes.items()
        }
        summary = job.summarise(tables, options)
        report(summary)
        return summary

    with settings(spark), quiet_pandas(), stopping() as stopped:
        queries = Queries(stopped, progress)
        register(spark)
        told = Told(progress)
        try:
            start(EVENTS, job.events(source(spark, options), options))
            events = spark.readStream.schema(shapes[EVENTS]).parquet(f"{folder}/{EVENTS}")
            if options.available_now:
                finish(queries, stopped, told)
            for name, frame in job.streams(events, options).items():
                start(name, frame)
            if options.available_now:
                finish(queries, stopped, told)
            else:
                follow(queries, stopped, told, count, options.every.total_seconds())
        finally:
            queries.stop()
        progress("stopped" if stopped.is_set() else "everything that was there has been taken")
        return count()


def source(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    """The messages as they come."""
    given = source_options(options)
    if options.queue is not None:
        given["spoolDir"] = str(options.out.absolute() / SPOOL)
    if options.max_messages is not None:
        given["maxMessagesPerTrigger"] = str(options.max_messages)
    return spark.readStream.format("amqp").options(**given).load()


def finish(queries: Queries, stopped: threading.Event, told: Told) -> None:
    """Wait until each query has taken what there is."""
    while not stopped.wait(LOOK):
        queries.check()
        told.look(queries.running)
        if all(done(query) for query in queries.running.values()):
            break
    told.look(queries.running)


def done(query: StreamingQuery) -> bool:
    """Whether it has ended well, or would do nothing any more: Spark never ends one that has timers by itself."""
    if not query.isActive:
        return query.exception() is None
    last = query.recentProgress[-IDLE:]
    return len(last) == IDLE and not any(acted(each) for each in last)


def acted(batch: Any) -> bool:
    """Whether a batch took rows, or changed what is remembered: a timer does, when it writes rows of nothing that came."""
    return taken(batch) > 0 or any(
        store["numRowsUpdated"] or store["numRowsRemoved"] for store in batch["stateOperators"]
    )


def taken(batch: Any) -> int:
    """The rows that came in. Spark Connect leaves their sum out."""
    return sum(each["numInputRows"] or 0 for each in batch["sources"])


def follow(
    queries: Queries,
    stopped: threading.Event,
    told: Told,
    count: Callable[[], Summary],
    every: float,
) -> None:
    """Count anew whenever something has been written, until it is time to stop."""
    due, changed = 0.0, True
    while not stopped.wait(LOOK):
        queries.check()
        changed |= told.look(queries.running)
        if changed and time.monotonic() >= due:
            began = time.monotonic()
            count()
            changed = False
            due = time.monotonic() + max(every, PATIENCE * (time.monotonic() - began))


class Told:
    """Says what each batch did, once."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self._last: dict[str, tuple[int, str]] = {}

    def look(self, queries: Mapping[str, StreamingQuery]) -> bool:
        """Whether a batch has been written since the last look."""
        changed = False
        for name, query in queries.items():
            last, former = query.lastProgress, self._last.get(name, (-1, ""))
            if last is None or when(last) <= former:
                continue
            self._last[name] = when(last)
            for batch in query.recentProgress:
                if when(batch) > former:
                    changed |= self._tell(name, batch)
        return changed

    def _tell(self, name: str, batch: Any) -> bool:
        rows = taken(batch)
        if rows:
            rate = rows / max(batch["durationMs"]["triggerExecution"] / 1000, 0.001)
            what = "messages" if name == EVENTS else "events"
            behind = f", {left:,} to come" if name == EVENTS and (left := waiting(batch)) else ""
            self._progress(f"{name}: {rows:,} {what}, {rate:,.0f} a second{behind}")
        return acted(batch)


def when(batch: Any) -> tuple[int, str]:
    """In this order batches are told of. A look that finds nothing has the number of the batch that will be next."""
    return batch["batchId"], batch["timestamp"]


def waiting(batch: Any) -> int:
    """How many messages the source holds beyond the batch."""
    latest, end = (offsets(batch["sources"][0][name]) for name in ("latestOffset", "endOffset"))
    return sum(max(latest[name] - end.get(name, 0), 0) for name in latest)


def offsets(told: Any) -> dict[str, int]:
    found = json.loads(told) if isinstance(told, str) else told
    return {key: at for key, at in found.items() if isinstance(at, int)} if isinstance(found, dict) else {}


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that is set by SIGINT or SIGTERM; a second one does what it always does."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, _: object) -> None:
        stopped.set()
        signal.signal(number, signal.SIG_DFL)

    for number in former:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def settings(spark: SparkSession) -> Iterator[None]:
    """What continuous queries need of the session."""
    before = {name: spark.conf.get(name) for name in (*STATE_STORE, SHUFFLE)}
    partitions = before[SHUFFLE] or ""
    try:
        for name, value in {**STATE_STORE, SHUFFLE: PARTITIONS.get(partitions, partitions)}.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, former in before.items():
            spark.conf.set(name, former or "")


def claim(job: Job, options: argparse.Namespace) -> None:
    """Make sure that what stands in the output folder goes together with this run.

    :raises UsageError: if it belongs to another job or source, or to runs of the other kind
    """
    out: Path = options.out
    streams = None if options.stream is None else sorted(options.stream.split(","))
    mine = {"job": job.NAME, "streams": streams, "queue": options.queue}
    if any((out / CHECKPOINTS / EVENTS / "offsets").glob("[0-9]*")):
        if not options.continuous:
            raise UsageError(
                f"{out} belongs to a continuous run: choose another --out, or go on with --continuous"
            )
        theirs = json.loads((out / RUN).read_text(encoding="utf-8"))
        if theirs != mine:
            read = theirs["queue"] or ",".join(theirs["streams"])
            raise UsageError(
                f"{out} belongs to a continuous run of {theirs['job']} on {read}: choose another --out"
            )
    elif options.continuous:
        if any((out / EVENTS).glob("*.parquet")):
            raise UsageError(f"{out} holds the tables of a run that is over: choose another --out")
        replace(out / RUN, json.dumps(mine) + "\n")
    else:
        # One that never began, of a mistyped name for example.
        (out / RUN).unlink(missing_ok=True)
