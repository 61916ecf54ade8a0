"""Browse a queue with Spark: `spark_read.py QUEUE` counts its messages and shows three without removing any."""

import os
import sys

from pyspark.sql import SparkSession

from warren.pipeline import register

# Otherwise Spark's workers run the first python3 on the PATH, which may not have Warren.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def main(queue: str) -> None:
    local = SparkSession.builder.master("local[2]").config("spark.driver.bindAddress", "127.0.0.1")
    spark = local.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    messages = (
        spark.read.format("amqp")
        .option("url", os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/"))
        .option("queue", queue)
        .load()
        .cache()  # each action would read the queue again
    )
    print("messages:", messages.count())
    for row in messages.orderBy("offset").limit(3).collect():
        print(row.offset, row.routing_key, row.body.decode())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
