"""Client for the comparison: Celery with its default pool of processes (prefork), otherwise as `with_celery`."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from celery import Celery

from benchmarks.sdk.load import THREADS, Task, in_threads, main
from benchmarks.sdk.with_celery import ORDER, Placed, app_of

WAIT_SECONDS = 60.0


def with_placed(task: Task, count: Path) -> Celery:
    """Return the application; its task appends a byte to the file `count`, which all processes share."""
    app = app_of(task)
    counter = os.open(count, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @app.task(name="placed", pydantic=True, ignore_result=True)  # type: ignore[untyped-decorator]
    def placed(order: Placed) -> None:
        os.write(counter, b".")

    return app


async def worker(task: Task) -> int:
    """Work for another process until it says stop."""
    app = with_placed(task, Path(os.environ["BENCH_COUNT"]))
    app.worker_main(["worker", "-P", "prefork", "-c", str(THREADS), "-l", "ERROR", "--without-mingle"])
    return 0


async def thread(task: Task) -> int:
    """Handle in processes, which stand beside the threads of the others."""
    count = Path(tempfile.mkdtemp(prefix="warren-bench-")) / "handled"
    placed = with_placed(task, count).tasks["placed"]
    command = [
        sys.executable,
        "-m",
        "benchmarks.sdk.with_celery_prefork",
        "worker",
        task.url,
        task.queue,
        "0",
    ]
    environment = {**os.environ, "BENCH_COUNT": str(count)}
    working = subprocess.Popen(  # noqa: ASYNC220 - nothing waits
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    atexit.register(working.terminate)
    placed.delay(ORDER)
    _wait_for(count, 1)
    task.process, task.with_children = working.pid, True
    task.begin()
    sent = await in_threads(task.seconds, lambda: placed.delay(ORDER))
    _wait_for(count, sent + 1)
    return sent


def _wait_for(count: Path, total: int) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while count.stat().st_size < total:
        if time.monotonic() > end:
            raise TimeoutError(f"{count.stat().st_size} of {total} tasks were handled")
        time.sleep(0.001)


if __name__ == "__main__":
    main({"thread": thread, "worker": worker})
