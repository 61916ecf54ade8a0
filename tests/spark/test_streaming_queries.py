"""Restarts of streaming queries that Spark gave up on; test_continuous does it with a real one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from warren.pipeline.jobs.streaming_queries import MAX_STARTS, StreamingQueries

WORKER_TIMEOUT = "Python worker failed to connect back."


class Failed:
    """Query that has ended."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def exception(self) -> StreamingQueryException:
        return StreamingQueryException(self.reason)


class Beginnings:
    """Counter of starts, each of which fails at once."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.count = 0

    def __call__(self) -> Any:
        self.count += 1
        return Failed(self.reason)


def looked_after(begin: Beginnings, stopped: threading.Event) -> None:
    queries = StreamingQueries(stopped, lambda _: None)
    queries.start("events", begin)
    for _ in range(2 * MAX_STARTS):
        queries.check()


@pytest.mark.parametrize(
    ("reason", "count"), [(WORKER_TIMEOUT, MAX_STARTS), ("Python worker exited unexpectedly", 1)]
)
def test_a_query_is_restarted_a_few_times_only_after_a_worker_timeout(reason: str, count: int) -> None:
    begin = Beginnings(reason)
    with pytest.raises(StreamingQueryException, match=reason):
        looked_after(begin, threading.Event())
    assert begin.count == count


def test_a_stopping_run_restarts_no_query() -> None:
    begin, stopped = Beginnings(WORKER_TIMEOUT), threading.Event()
    stopped.set()
    looked_after(begin, stopped)
    assert begin.count == 1
