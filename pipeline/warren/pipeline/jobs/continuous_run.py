"""Continuous run of a job: Structured Streaming from a queue or streams into Parquet, with a summary and page that are
updated.

One streaming query writes the messages' rows to `events/`; one more query for each of the job's tables reads from
there. Each has its own checkpoint in the output folder, and Spark's file sink commits the files of a micro-batch
atomically: a run that was stopped or killed continues exactly where it was. Readers that use Spark see only committed
batches.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from warren.core.errors import UsageError
from warren.pipeline import register
from warren.pipeline.jobs.batch_run import replace_file, source_options, spark_path
from warren.pipeline.jobs.job import EVENTS, Job, Summary
from warren.pipeline.jobs.run_options import RunOptions
from warren.pipeline.jobs.streaming_queries import StreamingQueries
from warren.pipeline.spark_session import quiet_pandas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

CHECKPOINTS = "checkpoint"
SPOOL = "spool"
RUN_FILE = "run.json"
"""File in the output folder that records the job and the queue or streams to which the checkpoints there belong."""
POLL_INTERVAL = 0.5
"""Seconds between two checks of the streaming queries."""
RECOUNT_FACTOR = 4
"""Minimum pause before the next summary, as a multiple of the time that computing the last one took."""

IDLE_BATCHES = 2
"""Number of consecutive micro-batches without input or changed state after which a query counts as idle."""

STATE_STORE = {
    # transformWithState needs it (Spark, "Structured Streaming Programming Guide", RocksDB state store).
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider"
}
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
PARTITION_DEFAULTS = {"200": "16"}
"""Values of `spark.sql.shuffle.partitions` that a continuous run replaces: Spark's default of 200 by 16. Every
micro-batch opens and commits one state store for each partition, so that with 200 of them an empty batch takes a
minute. Any other value was chosen by the user and is kept."""


def run_continuously(
    job: Job,
    spark: SparkSession,
    options: RunOptions[Any],
    progress: Callable[[str], None],
    report: Callable[[Summary], None],
) -> Summary:
    """Run a job until SIGINT or SIGTERM, or with `options.available_now` until all available messages are processed.

    :param options: options of the run
    :param progress: called with a few words about each step
    :param report: called with every new summary
    :return: the last summary
    :raises PySparkException: if the data source or Spark fails; all queries are stopped then
    """
    folder = spark_path(options.out)
    schemas: dict[str, StructType] = {}

    def start(name: str, frame: DataFrame) -> None:
        schemas[name] = frame.schema
        # The file source of the next query requires the folder.
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
            name: spark.read.schema(shape).parquet(f"{folder}/{name}") for name, shape in schemas.items()
        }
        summary = job.summarise(tables, options)
        report(summary)
        return summary

    with streaming_settings(spark), quiet_pandas(), stop_signals() as stopped:
        queries = StreamingQueries(stopped, progress)
        register(spark)
        reporter = ProgressReporter(progress)
        try:
            start(EVENTS, job.events(source(spark, options), options))
            events = spark.readStream.schema(schemas[EVENTS]).parquet(f"{folder}/{EVENTS}")
            if options.available_now:
                wait_until_drained(queries, stopped, reporter)
            for name, frame in job.streams(events, options).items():
                start(name, frame)
            if options.available_now:
                wait_until_drained(queries, stopped, reporter)
            else:
                summarise_until_stopped(queries, stopped, reporter, count, options.every.total_seconds())
        finally:
            queries.stop()
        progress("stopped" if stopped.is_set() else "all available messages were processed")
        return count()


def source(spark: SparkSession, options: RunOptions[Any]) -> DataFrame:
    """Return a streaming frame of the messages in the queue or streams that the options name.

    :param options: options of the run; a queue is read through a spool in their output folder
    """
    given = source_options(options)
    if options.queue is not None:
        given["spoolDir"] = str(options.out.absolute() / SPOOL)
    if options.max_messages is not None:
        given["maxMessagesPerTrigger"] = str(options.max_messages)
    return spark.readStream.format("amqp").options(**given).load()


def wait_until_drained(
    queries: StreamingQueries, stopped: threading.Event, reporter: ProgressReporter
) -> None:
    """Wait until each query has processed all available input, or until the run is stopped.

    :param queries: running queries of the job
    :param stopped: set when the run is to end
    :param reporter: reports each micro-batch to the user
    """
    while not stopped.wait(POLL_INTERVAL):
        queries.check()
        reporter.report_new_batches(queries.running)
        if all(is_idle(query) for query in queries.running.values()):
            break
    reporter.report_new_batches(queries.running)


def is_idle(query: StreamingQuery) -> bool:
    """Return whether a query has ended without an error, or has no more input and no changes of state.

    Spark never ends a query with timers by itself, so the reports of its last `IDLE_BATCHES` micro-batches are
    examined.
    """
    if not query.isActive:
        return query.exception() is None
    last = query.recentProgress[-IDLE_BATCHES:]
    return len(last) == IDLE_BATCHES and not any(changed_anything(each) for each in last)


def changed_anything(batch: Any) -> bool:
    """Return whether a micro-batch read rows or changed state, as an expired timer does.

    :param batch: progress of the micro-batch, as Spark reports it
    """
    return input_rows(batch) > 0 or any(
        store["numRowsUpdated"] or store["numRowsRemoved"] for store in batch["stateOperators"]
    )


def input_rows(batch: Any) -> int:
    """Return the number of rows that a micro-batch read: the sum over its sources, because Spark Connect reports no
    total.

    :param batch: progress of the micro-batch, as Spark reports it
    """
    return sum(each["numInputRows"] or 0 for each in batch["sources"])


def summarise_until_stopped(
    queries: StreamingQueries,
    stopped: threading.Event,
    reporter: ProgressReporter,
    count: Callable[[], Summary],
    every: float,
) -> None:
    """Compute and write a new summary after micro-batches that read rows or changed state, until the run is stopped.

    :param stopped: set when the run is to end
    :param reporter: reports each micro-batch, and whether one of them read rows or changed state
    :param count: computes and writes the summary
    :param every: minimum number of seconds between two summaries
    """
    next_count_at, changed = 0.0, True
    while not stopped.wait(POLL_INTERVAL):
        queries.check()
        changed |= reporter.report_new_batches(queries.running)
        if changed and time.monotonic() >= next_count_at:
            began = time.monotonic()
            count()
            changed = False
            next_count_at = time.monotonic() + max(every, RECOUNT_FACTOR * (time.monotonic() - began))


class ProgressReporter:
    """Reporter that describes each micro-batch of the streaming queries once, in a few words."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self._last: dict[str, tuple[int, str]] = {}

    def report_new_batches(self, queries: Mapping[str, StreamingQuery]) -> bool:
        """Report the micro-batches since the last call; return whether one of them read rows or changed state.

        :param queries: queries by the name that the report gives them
        """
        changed = False
        for name, query in queries.items():
            last, former = query.lastProgress, self._last.get(name, (-1, ""))
            if last is None or batch_order(last) <= former:
                continue
            self._last[name] = batch_order(last)
            for batch in query.recentProgress:
                if batch_order(batch) > former:
                    changed |= self._report(name, batch)
        return changed

    def _report(self, name: str, batch: Any) -> bool:
        rows = input_rows(batch)
        if rows:
            rate = rows / max(batch["durationMs"]["triggerExecution"] / 1000, 0.001)
            what = "messages" if name == EVENTS else "events"
            behind = f", {left:,} to come" if name == EVENTS and (left := source_backlog(batch)) else ""
            self._progress(f"{name}: {rows:,} {what}, {rate:,.0f} a second{behind}")
        return changed_anything(batch)


def batch_order(batch: Any) -> tuple[int, str]:
    """Return the sort key of a micro-batch's progress: batch number and time.

    The time is needed because Spark reports progress without data under the number of the next batch.

    :param batch: progress of the micro-batch, as Spark reports it
    """
    return batch["batchId"], batch["timestamp"]


def source_backlog(batch: Any) -> int:
    """Return the number of messages that were still unread in the queue or streams after a micro-batch.

    :param batch: progress of the micro-batch, as Spark reports it
    """
    latest, end = (parse_offsets(batch["sources"][0][name]) for name in ("latestOffset", "endOffset"))
    return sum(max(latest[name] - end.get(name, 0), 0) for name in latest)


def parse_offsets(value: Any) -> dict[str, int]:
    """Return how far a streaming query has read, or can read: for streams, the offset in each, by the stream's name;
    for a queue, `position`, the number of its messages since its spool was created.

    :param value: `endOffset` or `latestOffset` of a micro-batch's progress: a dict, its JSON text, or None
    :return: the integers of the dict by name; empty for None
    """
    found = json.loads(value) if isinstance(value, str) else value
    return {key: at for key, at in found.items() if isinstance(at, int)} if isinstance(found, dict) else {}


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Provide an event that SIGINT or SIGTERM sets. A second signal has its default effect.

    In another thread than the main one, signals cannot be handled and the event is never set.
    """
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
def streaming_settings(spark: SparkSession) -> Iterator[None]:
    """Use RocksDB as Spark's state store inside the block, and 16 shuffle partitions if Spark's default of 200 is set;
    restore the previous settings at the end.
    """
    before = {name: spark.conf.get(name) for name in (*STATE_STORE, SHUFFLE_PARTITIONS)}
    partitions = before[SHUFFLE_PARTITIONS] or ""
    try:
        for name, value in {
            **STATE_STORE,
            SHUFFLE_PARTITIONS: PARTITION_DEFAULTS.get(partitions, partitions),
        }.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, former in before.items():
            spark.conf.set(name, former or "")


def claim_output_folder(job: Job, options: RunOptions[Any]) -> None:
    """Check that this run may use the output folder, and record a continuous run in `RUN_FILE`.

    :param options: options of the run, of which `out`, `queue`, `stream` and `continuous` are used
    :raises UsageError: if the folder holds a continuous run of another job, queue or stream, or if one of this run and
        the run in the folder is continuous and the other a batch run
    """
    out = options.out
    streams = None if options.stream is None else sorted(options.stream.split(","))
    this_run = {"job": job.NAME, "streams": streams, "queue": options.queue}
    if any((out / CHECKPOINTS / EVENTS / "offsets").glob("[0-9]*")):
        if not options.continuous:
            raise UsageError(
                f"{out} belongs to a continuous run: choose another --out, or continue it with --continuous"
            )
        previous_run = json.loads((out / RUN_FILE).read_text(encoding="utf-8"))
        if previous_run != this_run:
            read = previous_run["queue"] or ",".join(previous_run["streams"])
            raise UsageError(
                f"{out} belongs to a continuous run of {previous_run['job']} on {read}: choose another --out"
            )
    elif options.continuous:
        if any((out / EVENTS).glob("*.parquet")):
            raise UsageError(f"{out} holds the tables of a batch run: choose another --out")
        replace_file(out / RUN_FILE, json.dumps(this_run) + "\n")
    else:
        # The record of a run that failed before its first batch, for example because of a mistyped name.
        (out / RUN_FILE).unlink(missing_ok=True)
