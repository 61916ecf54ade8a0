"""Options that are numbers: NaN, infinity, a bool, a text, and a fraction for a whole number are refused in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from warren.patterns import (
    ClaimCheck,
    Deadline,
    FolderBlobStore,
    LocalRateLimiter,
    MemoryStore,
    Partitions,
    Resequencer,
    RoutingSlips,
    Saga,
    WorkQueue,
    backoff,
)
from warren.patterns.celery import CeleryBridge
from warren.sdk import (
    App,
    Capture,
    CircuitBreaker,
    Command,
    ConfigError,
    Event,
    HealthProbe,
    Queue,
    Request,
    Retry,
)

URL = "amqp://localhost"


class Job(Command, queue="jobs"):
    pass


class Placed(Event, exchange="placed"):
    pass


class Ask(Request[int], queue="asks"):
    pass


async def handler(message: Any) -> None: ...


def registered(**options: Any) -> object:
    return App(URL).handle(Job, **options)(handler)


def batched(**options: Any) -> object:
    async def handle(messages: list[Any]) -> None: ...

    return App(URL).handle.batch(Job, **options)(handle)


def read(**options: Any) -> object:
    return App(URL).handle(Placed, stream="s", reader="r", **options)(handler)


WHOLE: dict[str, Callable[[Any], object]] = {
    "concurrency": lambda value: registered(concurrency=value),
    "prefetch": lambda value: registered(prefetch=value),
    "concurrency of a reader": lambda value: read(concurrency=value),
    "prefetch of a reader": lambda value: read(prefetch=value),
    "store_every": lambda value: read(resume=True, store_every=value),
    "size": lambda value: batched(size=value),
    "concurrency of batches": lambda value: batched(concurrency=value),
    "prefetch of batches": lambda value: batched(prefetch=value),
    "attempts": Retry,
    "failures": lambda value: CircuitBreaker(failures=value),
    "threads": lambda value: App(URL, threads=value),
    "window": lambda value: App(URL, window=value),
    "replies": lambda value: App(URL).gather(Ask(), replies=value),
    "batch of capture": lambda value: Capture(batch=value),
    "buffer of capture": lambda value: Capture(buffer=value),
    "max_length": lambda value: Queue("q", max_length=value),
    "port": lambda value: HealthProbe(port=value),
    "times": lambda value: backoff("1s", times=value),
    "count of a rate": lambda value: LocalRateLimiter(value, per="1s"),
    "burst of a rate": lambda value: LocalRateLimiter(1, per="1s", burst=value),
    "partitions": lambda value: Partitions("p", value, key=str),
    "priorities": lambda value: WorkQueue("w", priorities=value),
    "concurrency of a work queue": lambda value: WorkQueue("w", concurrency=value),
    "bypass": lambda value: WorkQueue("w", bypass=value),
    "window of a resequencer": lambda value: Resequencer("q", store=MemoryStore(), window=value),
    "concurrency of a resequencer": lambda value: Resequencer("q", store=MemoryStore(), concurrency=value),
    "first of a resequencer": lambda value: Resequencer("q", store=MemoryStore(), first=value),
    "early_attempts": lambda value: Saga("s", Job, store=MemoryStore(), key=str, early_attempts=value),
    "concurrency of a saga": lambda value: Saga("s", Job, store=MemoryStore(), key=str, concurrency=value),
    "concurrency of slips": lambda value: RoutingSlips(steps=[], ends=[], concurrency=value),
    "concurrency of a deadline": lambda value: Deadline(
        "d", after="1s", signal=lambda key: Job(), store=MemoryStore(), concurrency=value
    ),
    "threshold_bytes": lambda value: ClaimCheck(FolderBlobStore("/tmp"), threshold_bytes=value),
    "max_bytes": lambda value: ClaimCheck(FolderBlobStore("/tmp"), threshold_bytes=0, max_bytes=value),
    "concurrency of Celery": lambda value: CeleryBridge(concurrency=value),
    "prefetch of Celery": lambda value: CeleryBridge(prefetch=value),
}
"""Options that are whole numbers: what sets each of them."""
REAL: dict[str, Callable[[Any], object]] = {
    "jitter": lambda value: Retry().then("1s", jitter=value),
    "factor": lambda value: backoff("1s", factor=value),
}
"""Options that are real numbers."""


def str_of(value: Any) -> str:
    return "huge" if isinstance(value, int) and value < -(10**100) else repr(value)


WRONG = (float("nan"), float("inf"), float("-inf"), True, "3", [3], timedelta(seconds=3))


@pytest.mark.parametrize("value", [*WRONG, 1.5, 2.0, -1, -(10**30), -(10**6000)], ids=str_of)
@pytest.mark.parametrize("option", WHOLE)
def test_an_option_that_is_no_whole_number_in_its_range_is_refused_in_one_line(
    option: str, value: Any
) -> None:
    if option == "first of a resequencer" and value == -1:
        return
    with pytest.raises(ConfigError) as refused:
        WHOLE[option](value)
    text = str(refused.value)
    assert re.search(r"must be (a whole number|at least|from|of type int)|it may be", text), text
    assert "\n" not in text
    assert len(text) < 160


@pytest.mark.parametrize("value", [*WRONG, -0.5, -(10**6000)], ids=str_of)
@pytest.mark.parametrize("option", REAL)
def test_an_option_that_is_no_finite_number_in_its_range_is_refused_in_one_line(
    option: str, value: Any
) -> None:
    with pytest.raises(
        ConfigError, match=rf"^(backoff: )?{option} must be (a finite number|at least [01]), not "
    ):
        REAL[option](value)


async def test_numbers_of_publishes_are_checked_before_anything_is_sent() -> None:
    app = App(URL)
    for wrong in (1.5, True, float("nan"), 0, "3"):
        with pytest.raises(ConfigError, match="count must be"):
            await anext(aiter(app.publish_batches([Job()], count=wrong)))  # type: ignore[arg-type]
