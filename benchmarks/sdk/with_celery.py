"""Client for the comparison: Celery with confirms, late acknowledgement, a pydantic model as the argument, and results
over AMQP."""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
from decimal import Decimal
from typing import Any

from celery import Celery
from kombu import Queue
from pydantic import BaseModel

from benchmarks.sdk.load import CALLS, THREADS, Handled, Task, in_threads, main

REPLY_SECONDS = 60.0


class Placed(BaseModel):
    order_id: str
    total: Decimal


ORDER = Placed(order_id="42", total=Decimal("9.90")).model_dump(mode="json")


def app_of(task: Task) -> Celery:
    app = Celery("bench", broker=task.url, backend="rpc://")
    name = f"{task.queue}.celery"
    app.conf.update(
        task_queues=[Queue(name, routing_key=name)],
        task_default_queue=name,
        task_acks_late=True,
        broker_transport_options={"confirm_publish": True},
        broker_pool_limit=THREADS,
        worker_prefetch_multiplier=100,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
    )
    return app


async def publish(task: Task) -> int:
    app = app_of(task)

    @app.task(name="placed", ignore_result=True)  # type: ignore[untyped-decorator]
    def placed(order: object) -> None: ...

    return await in_threads(task.seconds, lambda: placed.delay(ORDER))


async def handle(task: Task) -> int:
    app, handled = app_of(task), Handled()

    @app.task(name="placed", pydantic=True, ignore_result=True)  # type: ignore[untyped-decorator]
    def placed(order: Placed) -> None:
        handled.one()

    # In a thread of this process, so that its time is counted too; it ends with the process.
    worker = app.WorkController(pool="threads", concurrency=THREADS, without_mingle=True, loglevel="ERROR")
    threading.Thread(target=worker.start, name="worker", daemon=True).start()
    sent = await in_threads(task.seconds, lambda: placed.delay(ORDER))
    await handled.reaches(sent)
    return sent


def length_of(app: Celery) -> Any:
    @app.task(name="length")  # type: ignore[untyped-decorator]
    def length(text: str) -> int:
        return len(text)

    return length


async def worker(task: Task) -> int:
    """Work for another process until it says stop."""
    app = app_of(task)
    length_of(app)
    app.worker_main(["worker", "-P", "threads", "-c", str(THREADS), "-l", "ERROR", "--without-mingle"])
    return 0


async def call(task: Task) -> int:
    # Celery hands no results back to the process of a worker.
    command = [sys.executable, "-m", "benchmarks.sdk.with_celery", "worker", task.url, task.queue, "0"]
    working = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220 - nothing waits
    atexit.register(working.kill)
    length = length_of(app_of(task))

    def many() -> int:
        """Send a hundred calls, then read the results, which belong to the calling thread."""
        results = [length.delay("four") for _ in range(CALLS)]
        return sum(result.get(timeout=REPLY_SECONDS) == 4 for result in results)

    many()
    task.process = working.pid
    task.begin()
    return task.repeat(many)


if __name__ == "__main__":
    main({"publish": publish, "handle": handle, "thread": handle, "call": call, "worker": worker})
