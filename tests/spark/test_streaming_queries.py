"""Restarts of streaming queries after a worker timeout; test_continuous restarts a real query."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from warren.pipeline import await_query
from warren.pipeline.jobs.streaming_queries import StreamingQueries
from warren.pipeline.query_restart import MAX_STARTS

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


class EndingQuery:
    """Query that fails for the given reason, if any, when its end is awaited."""

    def __init__(self, reason: str | None) -> None:
        self.reason = reason
        self.waits: list[float | None] = []

    def awaitTermination(self, timeout: float | None = None) -> None:
        self.waits.append(timeout)
        if self.reason is not None:
            raise StreamingQueryException(self.reason)


def starter(*reasons: str | None) -> tuple[list[EndingQuery], Callable[[], Any]]:
    """Return queries that fail for these reasons, and a function that starts them one after the other."""
    queries = [EndingQuery(reason) for reason in reasons]
    left = iter(queries)
    return queries, lambda: next(left)


def test_await_query_starts_a_query_again_until_its_worker_starts() -> None:
    queries, start = starter(WORKER_TIMEOUT, WORKER_TIMEOUT, None, None)
    restarts: list[int] = []
    ended: object = await_query(start, on_restart=restarts.append)
    assert ended is queries[2]
    assert restarts == [2, 3]
    assert [query.waits for query in queries] == [[None], [None], [None], []]


def test_await_query_starts_a_query_again_that_fails_while_it_is_started() -> None:
    queries, start = starter(None)
    failures = [StreamingQueryException(WORKER_TIMEOUT)]

    def fail_once() -> Any:
        if failures:
            raise failures.pop()
        return start()

    ended: object = await_query(fail_once)
    assert ended is queries[0]


def test_await_query_raises_other_errors_and_the_last_of_several_starts() -> None:
    queries, start = starter("a disk is full", None)
    with pytest.raises(StreamingQueryException, match="a disk is full"):
        await_query(start)
    assert not queries[1].waits
    queries, start = starter(WORKER_TIMEOUT, WORKER_TIMEOUT, None)
    with pytest.raises(StreamingQueryException, match=WORKER_TIMEOUT):
        await_query(start, max_starts=2)
    assert not queries[2].waits


def test_await_query_waits_as_long_as_the_timeout_over_all_starts() -> None:
    queries, start = starter(WORKER_TIMEOUT, None)
    ended: object = await_query(start, timeout=3600)
    assert ended is queries[1]
    (first,), (second,) = (query.waits for query in queries)
    assert first is not None
    assert second is not None
    assert 0 < second <= first <= 3600
