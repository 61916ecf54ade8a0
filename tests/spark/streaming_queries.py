"""Streaming queries that tests start without a job."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.streaming.query import StreamingQuery

from warren.pipeline import await_query

PATIENCE = 250
"""Timeout of a query, in seconds: on a busy machine, batches and the start of Python workers are slow."""


def run_to_end(start_query: Callable[[], StreamingQuery], patience: int | None = PATIENCE) -> StreamingQuery:
    """Start a query and wait for its end; restart a query that Spark gave up on, as the jobs do.

    :param start_query: starts the query, with a trigger that ends it
    :param patience: seconds until it must have ended
    :raises StreamingQueryException: if it failed
    """
    query = await_query(start_query, patience)
    assert not query.isActive, f"it has not ended after {patience} s"
    return query
