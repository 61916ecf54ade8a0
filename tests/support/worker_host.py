"""Worker host: a process with all imports done, from which workers are forked in milliseconds.

`python -m tests.support.worker_host SOCKET MODULE...`. A connection to the socket is one worker: the first line names the
function and its arguments, every further line of the worker is a report, every line to the worker lets it continue.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any


class WorkerChannel:
    """A worker's connection to its test."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def report(self, line: str) -> None:
        """Send a line to the test. It has left this process on return, so that a kill afterwards does not undo it."""
        self._link.sendall(json.dumps({"report": line}).encode() + b"\n")

    async def report_and_wait(self, line: str) -> None:
        """Send a line, and wait until the test lets this worker continue: the point at which it can be killed."""
        self.report(line)
        loop = asyncio.get_running_loop()
        self._link.setblocking(False)
        try:
            if not await loop.sock_recv(self._link, 1):
                raise SystemExit(0)  # The test is over.
        finally:
            self._link.setblocking(True)


Target = Callable[..., Awaitable[None]]


def main() -> None:
    path, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for them: no zombies.
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(64)
        print("workers ready", flush=True)
        while True:
            link, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _work(link)
            link.close()


def _work(link: socket.socket) -> None:
    """Run one worker, and end its process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 0
    try:
        with link.makefile("rb") as lines:
            order: dict[str, Any] = json.loads(lines.readline())
        link.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
        target: Target = getattr(importlib.import_module(order["module"]), order["function"])
        asyncio.run(_run(target(WorkerChannel(link), **order["arguments"])))
    except SystemExit:
        pass
    except BaseException:
        status = 1
        link.sendall(json.dumps({"failed": traceback.format_exc()}).encode() + b"\n")
    finally:
        link.close()
        os._exit(status)


async def _run(work: Awaitable[None]) -> None:
    await work


if __name__ == "__main__":
    main()
