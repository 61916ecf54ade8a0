"""What writing costs: rows of Arrow in, confirmed messages out, by the code that runs in a Spark task.

    python -m benchmarks.pipeline.writing --out benchmarks/results/DATE-pipeline-writing.md

The writer is a process of its own, in plain Python, beside a broker with a data folder, both on this machine; its processor
time is what a core of an executor spends. Messages are persistent, mandatory and confirmed, at most 10,000 of them
unconfirmed; `ids derived` means that the rows bring none. The queue is limited to 1,000 messages, so that the broker's disk
stays small. Below the table stands what `df.write` takes from its call to its return, Spark's own work included.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pika
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.backlog import commit, compiled
from tests.support.broker import BrokerProcess
from warren.pipeline import register
from warren.pipeline.link import Address, telling
from warren.pipeline.session import spark_session
from warren.pipeline.sink.encoding import Encoder
from warren.pipeline.sink.identity import Identity
from warren.pipeline.sink.publisher import Publisher
from warren.pipeline.sink.target import Target

QUEUE = "written"
ROWS = 10_000
"""Rows of a batch: Spark's `spark.sql.execution.arrow.maxRecordsPerBatch`."""


def numbered(count: int, size: int) -> pa.Array:
    return pa.array([b"%d".ljust(size, b".")[:size] % number for number in range(count)])


def bare(count: int) -> dict[str, pa.Array]:
    return {"body": numbered(count, 16)}


def with_ids(count: int) -> dict[str, pa.Array]:
    return {**bare(count), "message_id": numbered(count, 12).cast(pa.string())}


def larger(count: int) -> dict[str, pa.Array]:
    return {"body": numbered(count, 1024)}


def full(count: int) -> dict[str, pa.Array]:
    headers = [[("tenant", "a"), ("attempt", "1")]] * count
    texts = {name: pa.array([name] * count) for name in ("type", "app_id", "correlation_id", "content_type")}
    stamps = pa.array([1_700_000_000_000_000] * count, pa.timestamp("us", "UTC"))
    table = pa.array(headers, pa.map_(pa.string(), pa.string()))
    return {**with_ids(count), **texts, "timestamp": stamps, "headers": table}


KINDS: dict[str, tuple[str, Callable[[int], dict[str, pa.Array]]]] = {
    "bare": ("16 B, ids derived", bare),
    "ids": ("16 B, ids given", with_ids),
    "full": ("16 B, nine properties, two headers", full),
    "larger": ("1 KiB, ids derived", larger),
}


def batches(kind: str, count: int) -> Iterator[pa.RecordBatch]:
    """Rows, made a batch at a time as Spark gives them, each with a body of its own."""
    columns = KINDS[kind][1](min(ROWS, count))
    bodies = columns["body"]
    for number in range(count // len(bodies)):
        columns["body"] = pc.binary_join_element_wise(b"%08d" % number, pc.binary_slice(bodies, 0, -8), b"")
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def work(url: str, kind: str, count: int) -> dict[str, float]:
    """Write so many messages: what a task does, and what it took."""
    target = Target(Address(url), "", QUEUE)
    with telling("cannot write"):
        publisher = Publisher(target)
        encoder = Encoder(target, publisher.frame_max, Identity("benchmark"))
        source = batches(kind, count)
        began, used = time.monotonic(), time.process_time()
        for batch in source:
            publisher.publish(encoder.frames(batch))
        publisher.finish()
        seconds, processor = time.monotonic() - began, time.process_time() - used
        publisher.close()
    confirmed = publisher.confirmed
    return {
        "a_second": confirmed / seconds,
        "a_core": confirmed / processor,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def measured(url: str, kind: str, count: int) -> dict[str, float]:
    """`work` in a process of its own."""
    words = [
        sys.executable,
        "-m",
        "benchmarks.pipeline.writing",
        "--work",
        kind,
        "--url",
        url,
        "--count",
        str(count),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def through_spark(url: str, folder: Path, count: int) -> float:
    """Messages a second, of one task and 16 B each; the first write, which starts Spark's workers, does not count."""
    with spark_session("writing", "local[1]", folder / "spark.log") as spark:
        register(spark)
        seconds = 0.0
        for rows in (1000, count):
            frame = spark.range(0, rows, 1, 1).selectExpr("LPAD(STRING(id), 16, '.') AS body")
            writer = frame.write.format("amqp").options(url=url, exchange="", routingKey=QUEUE)
            began = time.monotonic()
            writer.mode("append").save()
            seconds = time.monotonic() - began
    return count / seconds


def declare(url: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    arguments = {"x-max-length": 1000}
    connection.channel().queue_declare(QUEUE, durable=True, arguments=arguments)
    connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline.writing", description=__doc__)
    parser.add_argument("--count", type=int, default=300_000, help="messages a row (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write the table there, in Markdown")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--work", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(options.url, options.work, options.count)))
        return 0
    lines = [
        f"# Writing from Spark: {options.count:,} messages a row",
        "",
        f"`python -m benchmarks.pipeline.writing --count {options.count}`, {date.today()}, commit {commit()}, broker: "
        f"{'compiled' if compiled() else 'plain'} build, writer: plain Python {platform.python_version()}.",
        "",
        "| messages | confirmed a second of one core | confirmed a second | writer's memory at the end, MB | "
        "the same for a tenth of the messages |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory(prefix="warren-writing-") as name:
        broker = BrokerProcess(Path(name) / "data", "--log-level", "warning")
        broker.start()
        declare(broker.url)
        for kind, (said, _) in KINDS.items():
            short = measured(broker.url, kind, options.count // 10)
            found = measured(broker.url, kind, options.count)
            lines.append(
                f"| {said} | {found['a_core']:,.0f} | {found['a_second']:,.0f} | {found['megabytes']:.0f} | "
                f"{short['megabytes']:.0f} |"
            )
        spark = through_spark(broker.url, Path(name), options.count)
        broker.stop()
    lines += ["", f"`df.write` with `local[1]`, 16 B, ids derived: {spark:,.0f} confirmed a second."]
    text = "\n".join((*lines, ""))
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
