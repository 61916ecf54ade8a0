"""Restart of a streaming query whose Python worker was too slow to start."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

WORKER_TIMEOUT = "Python worker failed to connect back"
"""Text of Spark's error for a query whose Python worker did not start in time."""
MAX_STARTS = 5
"""Number of starts of a query after which an error with `WORKER_TIMEOUT` is final."""


def await_query(
    start_query: Callable[[], StreamingQuery],
    timeout: float | None = None,
    *,
    max_starts: int = MAX_STARTS,
    on_restart: Callable[[int], object] | None = None,
) -> StreamingQuery:
    """Start a streaming query, wait until it ends, and start it again if its Python worker was too slow to start.

    Spark gives the Python process of a streaming source ten seconds to start, which no setting changes (Spark 4,
    `PythonWorkerFactory.createSimpleWorker`); on a busy machine it may take longer. The query then fails with "Python
    worker failed to connect back". It has read nothing, so it can be started again. All other errors are raised.

        query = await_query(lambda: writer.trigger(availableNow=True).start("out/"))

    :param start_query: starts the query; each call must start the same query, with a checkpoint location, so that a
        started query continues where the one before ended
    :param timeout: seconds to wait for the end, over all starts, rounded up; None waits without a limit
    :param max_starts: number of starts after which the error of a slow worker is raised too
    :param on_restart: called before each further start with its number, 2 at first
    :return: the query that was started last: it has ended without an error (also if `stop` was called), or the timeout
        is over and it is still active
    :raises StreamingQueryException: if the query failed for another reason, or `max_starts` times for this one
    """
    from pyspark.errors import StreamingQueryException

    deadline = None if timeout is None else time.monotonic() + timeout
    starts = 0
    while True:
        starts += 1
        if starts > 1 and on_restart is not None:
            on_restart(starts)
        try:
            query = start_query()
            if deadline is None:
                query.awaitTermination()
            else:
                query.awaitTermination(max(math.ceil(deadline - time.monotonic()), 1))
            return query
        except StreamingQueryException as error:
            if not is_worker_timeout(error) or starts >= max_starts:
                raise


def is_worker_timeout(error: Exception) -> bool:
    """Return whether a query failed only because its Python worker was too slow to start.

    :param error: error of the query, a `StreamingQueryException`
    """
    return WORKER_TIMEOUT in str(error)
