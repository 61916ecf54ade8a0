"""Spark pipelines over AMQP: the data source `amqp` and the jobs behind `warren pipeline`.

Importing this package needs neither pyspark nor Java; `register` imports the data source when it is called. The
distribution also contains the top-level package `pyspark_warren`: Spark finds Python data sources by the prefix
`pyspark_`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.pipeline.query_restart import await_query
from warren.pipeline.source.body_schema import body_as

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format `amqp` with a Spark session. Calling it again has no effect.

    Every executor needs the `warrenmq[spark]` wheel of the same version, because the source runs there, in Python.
    """
    from pyspark.errors import AnalysisException

    from warren.pipeline.datasource import AmqpDataSource

    try:
        spark.dataSource.register(AmqpDataSource)
    except AnalysisException as error:
        # Spark rejects the second registration of a name.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


__all__ = ["await_query", "body_as", "register"]
