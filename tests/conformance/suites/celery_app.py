"""The Celery application of the conformance suites: an `amqp://` broker and `rpc://` results.

Chords need results that several can read, which `rpc://` refuses by itself: they use files, and the broker all the more.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

FILES = os.environ.get("CELERY_FILES", "")

app = Celery(
    "conformance", broker=os.environ["CELERY_BROKER"], backend=f"file://{FILES}" if FILES else "rpc://"
)
app.conf.update(
    task_default_queue="chords" if FILES else "conformance",
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
    result_expires=600,
)


def _add(left: int, right: int) -> int:
    return left + right


def _flaky(self: Any, path: str) -> int:
    """Succeeds at the third attempt."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.2, max_retries=5)
    return int(self.request.retries)


def _now() -> float:
    return time.time()


def _total(numbers: list[int]) -> int:
    return sum(numbers)


def _fail() -> None:
    raise ValueError("on purpose")


add = app.task(name="add")(_add)
flaky = app.task(name="flaky", bind=True)(_flaky)
now = app.task(name="now")(_now)
total = app.task(name="total")(_total)
fail = app.task(name="fail")(_fail)
