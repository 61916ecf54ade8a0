"""Spark pipelines over AMQP: the data source `amqp` and the jobs behind `warren pipeline`.

Importing this package needs neither pyspark nor Java; `register` imports the data source when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.pipeline.source.body_schema import body_as

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("amqp")` known to this session; once more does no harm.

    Every executor needs the `warren[spark]` wheel of the same version: the source runs there, in Python.
    """
    from pyspark.errors import AnalysisException

    from warren.pipeline.datasource import AmqpDataSource

    try:
        spark.dataSource.register(AmqpDataSource)
    except AnalysisException as error:
        # It was registered before, and Spark takes a second time for an error.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


__all__ = ["body_as", "register"]
