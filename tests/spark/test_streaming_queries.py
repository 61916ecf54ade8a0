"""Restarts of streaming queries after a worker timeout; test_continuous restarts a real query."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from warren.pipeline.jobs.streaming_queries import MAX_STARTS, StreamingQueries

WORKER_TIMEOUT = "Python worker failed to connect back."


class FailedQuery:
    """Query that has ended."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def exception(self) -> StreamingQueryException:
        return StreamingQueryException(self.reason)


class FailingStarts:
    """Counter of starts, each of which fails at once."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.count = 0

    def __call__(self) -> Any:
        self.count += 1
        return FailedQuery(self.reason)


def check_repeatedly(start_query: FailingStarts, stopped: threading.Event) -> None:
    queries = StreamingQueries(stopped, lambda _: None)
    queries.start("events", start_query)
    for _ in range(2 * MAX_STARTS):
        queries.check()


@pytest.mark.parametrize(
    ("reason", "count"), [(WORKER_TIMEOUT, MAX_STARTS), ("Python worker exited unexpectedly", 1)]
)
def test_a_query_is_restarted_a_few_times_only_after_a_worker_timeout(reason: str, count: int) -> None:
    start_query = FailingStarts(reason)
    with pytest.raises(StreamingQueryException, match=reason):
        check_repeatedly(start_query, threading.Event())
    assert start_query.count == count


def test_a_stopping_run_restarts_no_query() -> None:
    start_query, stopped = FailingStarts(WORKER_TIMEOUT), threading.Event()
    stopped.set()
    check_repeatedly(start_query, stopped)
    assert start_query.count == 1
