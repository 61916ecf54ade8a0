"""Streaming queries that tests start without a job."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from warren.pipeline.jobs.streaming_queries import MAX_STARTS, WORKER_TIMEOUT

PATIENCE = 250
"""Timeout of a query, in seconds: on a busy machine, batches and the start of Python workers are slow."""


def run_to_end(start_query: Callable[[], StreamingQuery], patience: int | None = PATIENCE) -> StreamingQuery:
    """Start a query and wait for its end; restart a query that Spark gave up on, as the jobs do.

    :param start_query: starts the query, with a trigger that ends it
    :param patience: seconds until it must have ended
    :raises StreamingQueryException: if it failed
    """
    starts = 0
    while True:
        query = start_query()
        starts += 1
        try:
            has_ended = query.awaitTermination(patience)
            assert has_ended is not False, f"it has not ended after {patience} s"
        except StreamingQueryException as error:
            if WORKER_TIMEOUT not in str(error) or starts == MAX_STARTS:
                raise
        else:
            return query
