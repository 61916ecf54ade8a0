"""Batch run of a job: read the queue or streams once, then write the tables, the summary and the report page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warren.core.errors import UsageError
from warren.pipeline import register
from warren.pipeline.jobs.job import EVENTS, Job, Run, Summary
from warren.pipeline.jobs.run_options import RunOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run_once(
    job: Job, spark: SparkSession, options: RunOptions[Any], progress: Callable[[str], None]
) -> Summary:
    """Run a job once: write `events/` and the job's tables, replacing those of an earlier run, and return the summary.

    :param options: options of the run
    :param progress: called with a few words when a step begins
    :raises PySparkException: if the data source or Spark fails
    """
    folder = spark_path(options.out)
    progress(f"reading {options.stream or options.queue}")
    register(spark)
    messages = spark.read.format("amqp").options(**source_options(options)).load()
    events = write_and_reload(job.events(messages, options), f"{folder}/{EVENTS}")
    tables = {EVENTS: events}
    for name, frame in job.tables(events, options).items():
        progress(f"writing {name}")
        tables[name] = write_and_reload(frame, f"{folder}/{name}")
    progress("counting")
    return job.summarise(tables, options)


def source_options(options: RunOptions[Any]) -> dict[str, str]:
    """Return the options with which the data source `amqp` reads: `url`, `queue` or `stream`, and `timeout`.

    :param options: options of the run, of which `source`, `queue`, `stream` and `read_timeout` are used
    """
    named = {"stream": options.stream} if options.stream is not None else {"queue": options.queue or ""}
    return {"url": options.source, **named, "timeout": str(options.read_timeout)}


def write_and_reload(frame: DataFrame, path: str) -> DataFrame:
    """Write a frame to Parquet files in the folder `path`, replacing its content, and return a frame that reads these
    files, so that the broker is read only once.
    """
    frame.write.mode("overwrite").parquet(path)
    return frame.sparkSession.read.schema(frame.schema).parquet(path)


def spark_path(out: Path) -> str:
    """Return a folder's path as a `file:` URL, the form in which Spark reads and writes it.

    :raises UsageError: if the path has characters that Spark interprets as a pattern or a scheme
    """
    path = str(out.absolute())
    if found := re.search(r"[*?\[\]{}:\\]", path):
        raise UsageError(f"the output folder {path} has a {found[0]!r} in it, which Spark cannot write to")
    return f"file://{path}"


def write_report(job: Job, summary: Summary, run: Run, out: Path) -> None:
    """Write the summary as `summary.json` and the job's page as `report.html`, each atomically.

    :param run: description of the run, which both files contain
    :param out: folder of the files
    """
    replace_file(out / "summary.json", json.dumps(summary_as_json(summary, run), indent=2) + "\n")
    replace_file(out / "report.html", job.page(summary, run))


def summary_as_json(summary: Summary, run: Run) -> Mapping[str, object]:
    """Return the object that the command prints as JSON and `summary.json` holds: the fields of the run (job, source,
    streams or queue, `continuous`, elapsed seconds) and those of the summary.
    """
    return {
        "job": run.job,
        "source": run.source,
        "streams": list(run.streams),
        "queue": run.queue,
        "continuous": run.continuous,
        "seconds": run.seconds,
        **summary.as_dict(),
    }


def replace_file(path: Path, text: str) -> None:
    """Write a file under another name and rename it, so that readers see the old or the new content."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
