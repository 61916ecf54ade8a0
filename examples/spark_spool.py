"""Move a queue to Parquet with Spark, exactly once: `spark_spool.py QUEUE FOLDER` writes the messages since the last run."""

import os
import sys

from pyspark.sql import SparkSession

from warren.pipeline import register

# Otherwise Spark's workers run the first python3 on the PATH, which may not have Warren.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def main(queue: str, folder: str) -> None:
    local = SparkSession.builder.master("local[2]").config("spark.driver.bindAddress", "127.0.0.1")
    spark = local.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    messages = (
        spark.readStream.format("amqp")
        .option("url", os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/"))
        .option("queue", queue)
        .option("spoolDir", f"{folder}/spool")  # on a cluster: storage that all machines have mounted
        .load()
    )
    query = (
        messages.selectExpr("offset", "type", "CAST(body AS STRING) AS text")
        .writeStream.format("parquet")
        .option("path", f"{folder}/messages")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)  # without it the query goes on for ever
        .start()
    )
    query.awaitTermination()
    for row in spark.read.parquet(f"{folder}/messages").orderBy("text").collect():
        print(row.type, row.text)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
