"""`python -m tests.faults.soak.spark.driver MASTER FOLDER SOURCE SINK`: a streaming query that runs until it is killed.

SOURCE and SINK are JSON: options of the format `amqp`, or `{"path": ...}` for Parquet.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import functions as F

from tests.spark.streaming_queries import run_to_end
from warren.pipeline import register
from warren.pipeline.spark_session import spark_session


def main() -> None:
    master, folder, source, sink = sys.argv[1:]
    given, target = json.loads(source), json.loads(sink)
    with spark_session("killed", master, Path(folder, "spark.log")) as spark:
        register(spark)
        messages = spark.readStream.format("amqp").options(**given).load()
        if "path" in target:
            text = F.col("body").cast("string").alias("body")
            writing = messages.select("queue", "offset", "message_id", text).writeStream.format("parquet")
        else:
            # Without the ids that the messages bring: the sink has to make some.
            writing = messages.select("body").writeStream.format("amqp")
        writing = writing.option("checkpointLocation", str(Path(folder, "checkpoint"))).options(**target)
        run_to_end(writing.start, patience=None)


if __name__ == "__main__":
    main()
