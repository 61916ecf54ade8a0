"""Where Spark finds the format `amqp` by itself: it imports what is called `pyspark_...` and takes its `DefaultSource`."""

from contextlib import suppress

# Without the extra `spark` there is none, and an error here would hide the sources of others from Spark as well.
with suppress(ImportError):
    from warren.pipeline.datasource import AmqpDataSource as DefaultSource

__all__ = ["DefaultSource"]
