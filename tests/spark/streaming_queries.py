"""Streaming queries that tests start themselves."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from warren.pipeline.jobs.streaming_queries import MAX_STARTS, WORKER_TIMEOUT

PATIENCE = 250
"""Seconds: Spark may take its time for a batch, and to start what runs Python."""


def ended(begin: Callable[[], StreamingQuery], patience: int | None = PATIENCE) -> StreamingQuery:
    """Start a query and wait for its end; restart a query that Spark gave up on, as the jobs do.

    :param begin: starts the query, with a trigger that ends it
    :param patience: seconds until it must have ended
    :raises StreamingQueryException: if it failed
    """
    begun = 0
    while True:
        query = begin()
        begun += 1
        try:
            over = query.awaitTermination(patience)
            assert over is not False, f"it has not ended after {patience} s"
        except StreamingQueryException as error:
            if WORKER_TIMEOUT not in str(error) or begun == MAX_STARTS:
                raise
        else:
            return query
