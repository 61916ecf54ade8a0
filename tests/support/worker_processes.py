"""Worker processes that a test kills at a certain step."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.polling import PATIENCE
from tests.support.processes import Child
from tests.support.worker_host import Target


@contextmanager
def worker_host(*modules: str) -> Iterator[Path]:
    """Start a worker host with these modules imported; yield the path of its socket."""
    with tempfile.TemporaryDirectory(prefix="warren-workers-") as folder:
        path = Path(folder) / "socket"
        with Child([sys.executable, "-m", "tests.support.worker_host", path, *modules]) as host:
            host.wait_for_line("workers ready")
            yield path


class Worker:
    """A worker process."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self._reader = reader
        self._writer = writer

    def kill(self) -> None:
        """Kill the worker with SIGKILL, without any clean-up."""
        os.kill(self.pid, signal.SIGKILL)

    def resume(self) -> None:
        """Let the worker continue from where it waits."""
        self._writer.write(b"\n")

    def close(self) -> None:
        """Kill the worker if it still runs, and close the connection to it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._writer.close()


class Workers:
    """Workers of one test, and the reports that they have sent so far, in the order of arrival."""

    def __init__(self, host: Path) -> None:
        self.reports: list[str] = []
        self._host = host
        self._workers: list[Worker] = []
        self._listeners: list[asyncio.Task[None]] = []
        self._news = asyncio.Condition()

    async def start(self, target: Target, **arguments: Any) -> Worker:
        """Run `target(worker, **arguments)` in a process of its own.

        :param target: an async function of a module's top level
        :param arguments: what JSON carries
        """
        reader, writer = await asyncio.open_unix_connection(self._host)
        order = {"module": target.__module__, "function": target.__name__, "arguments": arguments}
        writer.write(json.dumps(order).encode() + b"\n")
        worker = Worker(json.loads(await reader.readline())["pid"], reader, writer)
        self._workers.append(worker)
        self._listeners.append(asyncio.create_task(self._listen(reader)))
        return worker

    async def wait_for(self, line: str, times: int = 1, seconds: float = PATIENCE) -> None:
        """Wait until workers have sent `line` this number of times.

        :raises AssertionError: they have not within `seconds`, or a worker failed; it lists all reports
        """
        async with self._news:
            try:
                await asyncio.wait_for(
                    self._news.wait_for(lambda: self.reports.count(line) >= times or self._failed()), seconds
                )
            except TimeoutError:
                raise AssertionError(
                    f"after {seconds} s not {times} times {line!r}, but {self.reports}"
                ) from None
        assert not self._failed(), self._failed()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                news = json.loads(line)
                async with self._news:
                    self.reports.append(news.get("report") or f"failed: {news['failed']}")
                    self._news.notify_all()

    def _failed(self) -> str:
        return "\n".join(line for line in self.reports if line.startswith("failed: "))

    async def __aenter__(self) -> Workers:
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()
        await asyncio.gather(*self._listeners)
