"""Streaming queries of a continuous run: start, supervision, restart after a slow start of a Python worker, stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from warren.pipeline.query_restart import MAX_STARTS, is_worker_timeout

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class StreamingQueries:
    """Streaming queries of a run, by name. Each has its checkpoint, so a restarted query continues where it was."""

    def __init__(self, stopped: threading.Event, progress: Callable[[str], None]) -> None:
        """Create the collection, without queries yet.

        :param stopped: set when the run is to end; errors of queries are ignored from then on
        :param progress: called with a few words when a query is restarted
        """
        self.running: dict[str, StreamingQuery] = {}
        """Running queries by name."""
        self._starters: dict[str, Callable[[], StreamingQuery]] = {}
        self._start_counts: dict[str, int] = {}
        self._stopped, self._progress = stopped, progress

    def start(self, name: str, start_query: Callable[[], StreamingQuery]) -> None:
        """Start a query under a name.

        :param start_query: starts the query; called again for a restart
        """
        self._starters[name] = start_query
        self._start_counts[name] = 1
        self.running[name] = start_query()

    def check(self) -> None:
        """Raise the error of a query that failed, but restart queries that failed only because their Python worker
        started slowly, as `query_restart.await_query` does.

        :raises StreamingQueryException: if a query failed for another reason, or too often for this one
        """
        for name, query in self.running.items():
            # Ctrl-C in a terminal also reaches Spark's workers, and fails their query.
            if (error := query.exception()) is None or self._stopped.is_set():
                continue
            if not is_worker_timeout(error) or self._start_counts[name] == MAX_STARTS:
                raise error
            self._start_counts[name] += 1
            self._progress(f"{name}: restarted, because its Python worker was slow to start")
            self.running[name] = self._starters[name]()

    def stop(self) -> None:
        """Stop all queries."""
        for query in self.running.values():
            query.stop()
