"""Read a stream with Spark: `spark_stream.py STREAM` counts messages by routing key and shows the last three orders."""

import os
import sys

from pydantic import BaseModel
from pyspark.sql import SparkSession

from warren.pipeline import body_as, register

# Otherwise Spark's workers run the first python3 on the PATH, which may not have Warren.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


class Order(BaseModel):
    number: int
    paid: bool = False


def main(stream: str) -> None:
    local = SparkSession.builder.master("local[2]").config("spark.driver.bindAddress", "127.0.0.1")
    spark = local.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    messages = (
        spark.read.format("amqp")
        .option("url", os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/"))
        .option("stream", stream)
        .option("startingOffset", "first")  # or an offset; or startingTimestamp
        .load()
        .cache()  # each action would read the stream again
    )
    for row in messages.groupBy("routing_key").count().orderBy("routing_key").collect():
        print(row.routing_key, row["count"])
    orders = messages.select("offset", body_as(Order).alias("order"))
    for row in orders.orderBy("offset", ascending=False).limit(3).collect():
        print(row.offset, row.order.number, row.order.paid)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
