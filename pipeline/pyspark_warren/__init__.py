"""Where Spark finds the format `amqp` by itself: it imports what is called `pyspark_...` and takes its `DefaultSource`."""

from warren.pipeline.datasource import AmqpDataSource as DefaultSource

__all__ = ["DefaultSource"]
