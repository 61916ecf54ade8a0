"""`python -m tests.spark.cluster_steps SPARK STEP...`: run steps on any Spark, and print a JSON line with each result."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.streaming_queries import run_to_end
from warren.cli.pipeline import parse, run
from warren.pipeline import register
from warren.pipeline.datasource import source_errors
from warren.pipeline.errors import PipelineError
from warren.pipeline.jobs.registry import JOBS
from warren.pipeline.spark_session import spark_session

URL = os.environ.get("AMQP_URL", "")
STREAM = os.environ.get("STREAM", "")
QUEUE = os.environ.get("QUEUE", "")
STREAM_OF_JOBS = os.environ.get("STREAM_OF_JOBS", "")
FOLDER = Path(os.environ.get("FOLDER", "."))


def main() -> None:
    master, *names = sys.argv[1:]
    remote = master if master.startswith("sc://") else None
    if "jobs" in names:
        names.remove("jobs")
        print(json.dumps({"step": "jobs", "result": jobs(master)}), flush=True)
    with spark_session("anywhere", master, FOLDER / "spark.log", remote) as spark:
        for name in names:
            step: Callable[[SparkSession], Any] = globals()[name]
            try:
                with source_errors():
                    result = {"result": step(spark)}
            except (PipelineError, PySparkException) as error:
                result = {"error": str(error)}
            print(json.dumps({"step": name, **result}), flush=True)


def jobs(master: str) -> dict[str, Any]:
    """Return the numbers of every job, each run in a session of its own."""
    return {name: job(name, "--remote", master) for name in JOBS}


def order_timeouts(spark: SparkSession) -> dict[str, Any]:
    """Return the job's numbers in the existing session, continuously: with state in the executors."""
    return job("order-timeouts", "--available-now", "--settle", "0s")


def job(name: str, *words: str) -> dict[str, Any]:
    arguments = [name, "--source", URL, "--stream", STREAM_OF_JOBS, "--out", str(FOLDER / name), *words]
    summary, _ = run(parse(arguments))
    assert (FOLDER / name / "report.html").stat().st_size > 1000
    return dict(summary.as_dict())


def stream(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("amqp").options(url=URL, stream=STREAM, **options).load()


def batch(spark: SparkSession) -> list[int]:
    """Return the number of messages, of tasks, and the sum of the offsets. The format is not registered."""
    found = (
        stream(spark, messagesPerTask="50")
        .groupBy(F.spark_partition_id().alias("task"))
        .agg(F.count("*").alias("rows"), F.sum("offset").alias("offsets"))
        .collect()
    )
    return [sum(row.rows for row in found), len(found), sum(row.offsets for row in found)]


def continuous(spark: SparkSession) -> list[int]:
    """Write to Parquet in micro-batches up to the end; a second run from the same checkpoint adds nothing."""
    register(spark)
    for _ in range(2):
        writer = (
            spark.readStream.format("amqp")
            .options(url=URL, stream=STREAM, maxMessagesPerTrigger="120")
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(FOLDER / "checkpoint"))
            .option("path", str(FOLDER / "messages"))
            .trigger(availableNow=True)
        )
        run_to_end(writer.start)
    read = spark.read.parquet(str(FOLDER / "messages"))
    return list(read.agg(F.count("*"), F.countDistinct("offset"), F.sum("offset")).first() or ())


def publish_and_read(spark: SparkSession) -> list[int]:
    """Publish rows from several tasks to another queue, and read them."""
    register(spark)
    rows = spark.range(0, 100, 1, 4).selectExpr("cast(id AS STRING) AS body")
    rows.write.format("amqp").options(url=URL, exchange="", routingKey=QUEUE).mode("append").save()
    read = spark.read.format("amqp").options(url=URL, queue=QUEUE).load()
    body = F.col("body").cast("string").cast("int")
    return list(read.agg(F.count("*"), F.sum(body), F.countDistinct("message_id")).first() or ())


def count_with_other_python(spark: SparkSession, machine: str) -> int:
    """Read in executors that use another machine's Python, chosen by the variable MACHINE."""
    spark.sparkContext.environment["MACHINE"] = machine
    session = spark.newSession()
    register(session)
    return stream(session).count()


def without_warren(spark: SparkSession) -> int:
    return count_with_other_python(spark, "without_warren")


def without_pyarrow(spark: SparkSession) -> int:
    return count_with_other_python(spark, "without_pyarrow")


if __name__ == "__main__":
    main()
