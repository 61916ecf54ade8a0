"""Publish from Spark: `spark_write.py QUEUE` counts orders by customer and publishes a message for each customer."""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, create_map, lit, struct, to_json
from pyspark.sql.functions import sum as total

from warren.pipeline import register

# Otherwise Spark's workers run the first python3 on the PATH, which may not have Warren.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

ORDERS = [("ada", 12), ("bob", 5), ("ada", 30), ("eve", 7)]


def main(queue: str) -> None:
    local = SparkSession.builder.master("local[2]").config("spark.driver.bindAddress", "127.0.0.1")
    spark = local.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    orders = spark.createDataFrame(ORDERS, "customer string, price int")
    customers = orders.groupBy("customer").agg(count("*").alias("orders"), total("price").alias("spent"))
    messages = customers.select(
        to_json(struct("customer", "orders", "spent")).alias("body"),
        lit("application/json").alias("content_type"),
        lit("customer_summary").alias("type"),
        create_map(lit("customer"), col("customer")).alias("headers"),
    )
    (
        messages.write.format("amqp")
        .option("url", os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/"))
        .option("exchange", "")  # the default exchange: the routing key is a queue's name
        .option("routingKey", queue)
        .mode("append")
        .save()  # every message is confirmed when this returns
    )
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
