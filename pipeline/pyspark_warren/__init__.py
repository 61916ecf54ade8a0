"""Entry point through which Spark finds the format `amqp` without registration.

The package has the prefix `pyspark_` because Spark imports the top-level packages of that prefix and registers the
class `DefaultSource` of each as a Python data source.
"""

from contextlib import suppress

# Without the extra `spark` the import fails; an error here would also hide the data sources of other packages from Spark.
with suppress(ImportError):
    from warren.pipeline.datasource import AmqpDataSource as DefaultSource

__all__ = ["DefaultSource"]
