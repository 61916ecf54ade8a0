"""Spark pipelines over AMQP: the data source `amqp` and the jobs behind `warren pipeline`.

Importing this package needs neither pyspark nor Java; `register` imports the data source when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("amqp")` known to this session.

    Every executor needs the `warren[spark]` wheel of the same version: the source runs there, in Python.
    """
    from warren.pipeline.datasource import AmqpDataSource

    spark.dataSource.register(AmqpDataSource)


__all__ = ["register"]
