"""The streaming queries of a run: begun, looked after, begun again where Spark gave up on a slow machine, stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

WORKER_TIMEOUT = "Python worker failed to connect back"
"""What Spark says of a query whose Python process it waited for in vain."""
MAX_STARTS = 5
"""So often a query is begun before that counts as its failure."""


class StreamingQueries:
    """Each of them has its checkpoint: one that is begun again goes on where it was."""

    def __init__(self, stopped: threading.Event, progress: Callable[[str], None]) -> None:
        """
        :param stopped: set when the run is to end: whatever fails then is no failure
        :param progress: told when one is begun again, in a few words
        """
        self.running: dict[str, StreamingQuery] = {}
        self._starters: dict[str, Callable[[], StreamingQuery]] = {}
        self._start_counts: dict[str, int] = {}
        self._stopped, self._progress = stopped, progress

    def start(self, name: str, start_query: Callable[[], StreamingQuery]) -> None:
        """
        :param begin: starts it; called again when it has to be begun again
        """
        self._starters[name] = start_query
        self._start_counts[name] = 1
        self.running[name] = start_query()

    def check(self) -> None:
        """Begin again what ended only because its Python process was slow to start.

        Spark waits ten seconds for the one of a streaming source, which no setting changes (Spark 4, PythonWorkerFactory,
        createSimpleWorker), and the process first has to load pyspark: a machine that is busy may take longer.

        :raises StreamingQueryException: if one of the queries has failed by itself otherwise, or in this way too often
        """
        for name, query in self.running.items():
            # Ctrl-C in a terminal reaches Spark's workers as well, and their query fails of it.
            if (error := query.exception()) is None or self._stopped.is_set():
                continue
            if WORKER_TIMEOUT not in str(error) or self._start_counts[name] == MAX_STARTS:
                raise error
            self._start_counts[name] += 1
            self._progress(f"{name}: Spark did not wait for its Python process, and begins again")
            self.running[name] = self._starters[name]()

    def stop(self) -> None:
        for query in self.running.values():
            query.stop()
